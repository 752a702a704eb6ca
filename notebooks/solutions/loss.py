"""The loss: how surprised was the model? And its gradient. 20 minutes.

The model gives each of V tokens a logit, at every place. The loss of a place is -ln p of the right
token: 0 if the model was certain, ln V if it guesses.

    p      = softmax(logits)                              (N, V)
    loss   = sum over places of  ln(sum(exp(logits))) - logit of the right token

    logits (2, 0, 1), right token 0        p = (0.665, 0.090, 0.245)      loss = 0.408

exp(1000) is infinity. So subtract the largest logit of the row first, and add it again after the
logarithm. A label of -100 means: this place is not trained. It adds nothing.

The gradient is the most beautiful one of all:

    gradient of the logits = p - 1 at the right token, p elsewhere;  0 at a place not trained

    (-0.335, 0.090, 0.245)                 it sums to 0: what one token gains, others lose

`HeadLoss` below calls your function for 512 places at a time, because the logits of all places
would be the largest tensor of the training. To get the last bits of one_file.py: subtract with
`amax`, keep the powers, and multiply them by 1 / their sum for p. Sum the losses of all places,
where those of places that are not trained are multiplied by 0.

The same in Headlight: model/loss.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

IGNORED = -100


def cross_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the summed loss () and the gradient (N, V): logits (N, V), targets (N,)."""
    # <solution>
    trained = (targets != IGNORED)[:, None].float()  # (N, 1)
    right = targets.clamp(min=0)[:, None]  # (N, 1); any token will do where nothing is trained
    largest = logits.amax(-1, keepdim=True)
    powers = (logits - largest).exp()
    total = powers.sum(-1, keepdim=True)
    losses = (total.log() + largest - logits.gather(1, right)) * trained
    gradient = powers * (trained / total)
    return losses.sum(), gradient.scatter_add(1, right, -trained)
    # </solution>


class HeadLoss(torch.autograd.Function):
    """Logits and loss of the last layer, 512 places at a time: the gradient is ready at once."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
        loss = torch.zeros(())
        hidden_gradients = []
        head_gradient = torch.zeros_like(head)
        for x, target in zip(hidden.split(512), targets.split(512), strict=True):
            part, gradient = cross_entropy(x @ head.T, target)
            loss = loss + part
            hidden_gradients.append(gradient @ head)
            head_gradient += gradient.T @ x
        ctx.save_for_backward(torch.cat(hidden_gradients), head_gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, Tensor, None]:
        hidden_gradient, head_gradient = ctx.saved_tensors
        return hidden_gradient * scale, head_gradient * scale, None
