"""Cross-entropy over the vocabulary, without the logits of all positions in memory at once.

The logits are the largest tensor of a small model: B * T * V numbers, and autograd keeps several
copies. Here one chunk of positions at a time goes through head, softmax and gradient.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from configs import IGNORED

# This many positions at a time; on a CPU their logits stay in its cache.
CHUNK = {"cpu": 512}
CHUNK_ELSEWHERE = 8192
# If a smaller share of the positions is trained, the others are left out first.
WORTH_IT = 0.75
ChunkLoss = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool], tuple[Tensor, Tensor]]


def cross_entropy_sum(
    hidden: Tensor, weight: Tensor, labels: Tensor, chunk_loss: ChunkLoss | None = None
) -> Tensor:
    """Sum -ln softmax(hidden @ weightᵀ)[label] over the labels that are not -100.

    hidden (N, D), weight (V, D), labels (N,) -> scalar float32. chunk_loss: `loss_of_chunk`,
    compiled. Matrix products run in autocast's dtype, the softmax in float32.
    """
    is_plain = chunk_loss is None and not torch.compiler.is_compiling()
    # on a GPU, counting would be a sync point; compiled, every count would be another shape
    if is_plain and hidden.device.type == "cpu":
        trained = labels != IGNORED
        if trained.sum() < len(labels) * WORTH_IT:  # as in fine-tuning
            hidden = hidden[trained]
            labels = labels[trained]
    chunk_loss = chunk_loss or loss_of_chunk
    return _CrossEntropySum.apply(hidden, weight, labels, chunk_loss, torch.is_grad_enabled())


class _CrossEntropySum(torch.autograd.Function):
    """Compute loss and gradients chunk by chunk, in the forward pass; backward scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        chunk_loss: ChunkLoss,
        gradients: bool,
    ) -> Tensor:
        device = hidden.device.type
        dtype = compute_dtype(hidden)
        size = CHUNK.get(device, CHUNK_ELSEWHERE)
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        hidden_grads = []  # of each chunk, (up to size, D)
        weight_grad = None  # (V, D); a frozen head has none
        if gradients and ctx.needs_input_grad[1]:
            grad_dtype = torch.promote_types(weight.dtype, torch.float32)
            weight_grad = torch.zeros_like(weight, dtype=grad_dtype)
        with torch.autocast(device, enabled=False):
            head = weight.to(dtype)  # (V, D)
            for chunk, label in zip(hidden.to(dtype).split(size), labels.split(size), strict=True):
                part, hidden_grad = chunk_loss(chunk, head, label, weight_grad, gradients)
                # not in place: PyTorch 2.11 compiles a sum in place to gradients of zero
                loss = loss + part
                hidden_grads.append(hidden_grad)
        if gradients:
            if weight_grad is not None:
                weight_grad = weight_grad.to(weight.dtype)
            ctx.save_for_backward(torch.cat(hidden_grads).to(hidden.dtype), weight_grad)
        return loss

    @staticmethod
    def backward(
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        # dL / d loss, a scalar: one over the tokens of the step, times fp16's loss scale
        (scale,) = grad_outputs
        hidden_grad, weight_grad = ctx.saved_tensors
        if weight_grad is not None:
            weight_grad = weight_grad * scale
        return hidden_grad * scale, weight_grad, None, None, None


def loss_of_chunk(
    chunk: Tensor, head: Tensor, labels: Tensor, weight_grad: Tensor | None, gradients: bool
) -> tuple[Tensor, Tensor]:
    """Return the sum of the losses and its gradient (N, D); without gradients, the chunk instead.

    chunk (N, D), head (V, D), labels (N,). The head's gradient is accumulated into weight_grad
    (V, D).
    """
    logits = (chunk @ head.T).float()  # (N, V)
    is_trained = (labels != IGNORED)[:, None].float()  # (N, 1)
    target = labels.clamp(min=0)[:, None]  # (N, 1); -100 becomes 0, and counts nothing
    largest = logits.amax(dim=-1, keepdim=True)  # (N, 1)
    target_logit = logits.gather(1, target)  # (N, 1)
    exponentials = logits.sub_(largest).exp_()  # (N, V); the largest is 1, so nothing overflows
    total = exponentials.sum(dim=-1, keepdim=True)  # (N, 1)
    loss = ((total.log() + largest - target_logit) * is_trained).sum()
    if not gradients:
        return loss, chunk
    # d loss / d logits = softmax - one_hot(label), and zero where the label is ignored
    gradient = exponentials.mul_(is_trained / total).scatter_add_(1, target, -is_trained)
    gradient = gradient.to(head.dtype)  # (N, V)
    if weight_grad is not None:
        weight_grad += gradient.T @ chunk
    return loss, gradient @ head


def log_probs(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Return ln p of each label: hidden (B, T, D), weight (V, D), labels (B, T) -> (B, T) float32.

    Entry t is ln p(labels[:, t]), which the hidden state of t - 1 predicts; 0 if the label is -100,
    and at t = 0.
    """
    targets = labels[:, 1:]  # (B, T - 1)
    is_label = targets != IGNORED  # few positions of a prompt with an answer
    dtype = compute_dtype(hidden)
    size = CHUNK.get(hidden.device.type, CHUNK_ELSEWHERE)
    chunks = zip(hidden[:, :-1][is_label].split(size), targets[is_label].split(size), strict=True)
    # The weight of a position (preferences, rewards) is known only later, so there is no gradient
    # to keep yet: the backward pass computes the logits of each chunk again. It goes from the last
    # chunk to the first; in reverse order, gradients are added up in the order of the text.
    again = partial(checkpoint, _chunk_log_probs, use_reentrant=False, preserve_rng_state=False)
    parts = [again(*chunk, weight, dtype) for chunk in reversed(list(chunks))]
    result = torch.zeros_like(targets, dtype=torch.float32)  # (B, T - 1)
    result = result.masked_scatter(is_label, torch.cat(parts[::-1]))
    return F.pad(result, (1, 0))  # (B, T): nothing predicts the first token


def _chunk_log_probs(hidden: Tensor, labels: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    with torch.autocast(hidden.device.type, enabled=False):
        logits = (hidden.to(dtype) @ weight.to(dtype).T).float()  # (N, V)
        return logits.gather(1, labels[:, None])[:, 0] - logits.logsumexp(-1)


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of matrix products with x: autocast's if it is on, else x's own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
