"""The preference loss (DPO): learn from pairs of answers. 15 minutes.

There are two answers to a question. A person chose one and rejected the other. For such a pair you
have four numbers, each the log-probability of a whole answer (the sum over its tokens):

                             from the model in training    from the reference: the model at the
                                                           start, frozen
    of the chosen answer     chosen                        reference_chosen
    of the rejected answer   rejected                      reference_rejected

The loss compares how much likelier each answer has become. It rewards a gain of the chosen one:

    margin = beta · ((chosen - reference_chosen) - (rejected - reference_rejected))
    loss   = -ln sigmoid(margin)                          sigmoid(m) = 1 / (1 + exp(-m))

A step goes against the gradient. It pushes chosen up and rejected down. The push is weaker if the
margin is already large:

    d loss / d chosen = -beta · sigmoid(-margin)     d loss / d rejected = +beta · sigmoid(-margin)

Both pushes change the same weights. So only the difference is sure to grow: both can fall.

An example: beta 0.1, chosen -20, reference_chosen -24, rejected -30, reference_rejected -24.

    margin      0.1 · ((-20 + 24) - (-30 + 24)) = 0.1 · (4 + 6) = 1
    loss        -ln sigmoid(1) = 0.3133           (at the first step: margin 0, loss ln 2 = 0.6931)
    gradient    -0.1 · sigmoid(-1) = -0.0269 for chosen, and +0.0269 for rejected

There is a trap. In float32, sigmoid(-200) is 0, and its logarithm is -inf. But the loss there is
200. PyTorch has a function that computes ln sigmoid in one step.

The same in Headlight: `preference_loss` in train/dpo.py (autograd takes the gradient there).
DPO: Rafailov et al. 2023, arXiv 2305.18290.
"""

from __future__ import annotations

import torch
from torch import Tensor


def preference_loss(
    chosen: Tensor,
    rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    beta: float,
) -> Tensor:
    """Return the loss of each pair: four tensors (B,) of log-probabilities -> (B,)."""
    # <solution>
    margin = beta * ((chosen - reference_chosen) - (rejected - reference_rejected))
    return -torch.nn.functional.logsigmoid(margin)
    # </solution>


def gradient(
    chosen: Tensor,
    rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    beta: float,
) -> tuple[Tensor, Tensor]:
    """Return d loss / d chosen and d loss / d rejected, by the formula, without autograd: (B,)."""
    # <solution>
    margin = beta * ((chosen - reference_chosen) - (rejected - reference_rejected))
    push = beta * torch.sigmoid(-margin)
    return -push, push
    # </solution>
