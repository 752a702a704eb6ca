"""Cross-entropy over the vocabulary, without holding the logits of all positions in memory at once.

The head's logits are the largest tensor of a small model: B * T * V numbers, and autograd keeps several copies. Here
one chunk of positions at a time goes through head, softmax and gradient, and only the gradients stay.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from configs import IGNORED

CHUNK = {"cpu": 512}  # positions; on a CPU a chunk's logits then stay in its cache
CHUNK_ELSEWHERE = 8192
WORTH_IT = 0.75  # share of trained positions below which the others are left out first
OfChunk = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool], tuple[Tensor, Tensor]]


def cross_entropy_sum(hidden: Tensor, weight: Tensor, labels: Tensor, of_chunk: OfChunk | None = None) -> Tensor:
    """Sum of -ln softmax(hidden @ weightᵀ)[label] over the labels that are not -100.
    hidden (N, D), weight (V, D), labels (N,) -> scalar float32. Matrix products run in autocast's dtype, the
    softmax in float32. Gradients are computed in the forward pass, so a backward pass costs one multiplication.
    of_chunk: `loss_of_chunk`, compiled (train/machine/compilation.py)."""
    plain = of_chunk is None and not torch.compiler.is_compiling()
    if plain and hidden.device.type == "cpu":  # on a GPU, counting would be a sync point; compiled, another shape
        trained = labels != IGNORED
        if trained.sum() < len(labels) * WORTH_IT:  # fine-tuning: most positions are asked for nothing
            hidden, labels = hidden[trained], labels[trained]
    return _CrossEntropySum.apply(hidden, weight, labels, of_chunk or loss_of_chunk, torch.is_grad_enabled())


class _CrossEntropySum(torch.autograd.Function):
    """Goes through the chunks; their gradients are known as soon as their losses are, and backward only scales them."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, of_chunk: OfChunk, gradients: bool) -> Tensor:
        device, dtype = hidden.device.type, compute_dtype(hidden)
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        hidden_grads, weight_grad = [], None
        if gradients and ctx.needs_input_grad[1]:  # that of the head (V, D) a frozen head does not have
            weight_grad = torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
        with torch.autocast(device, enabled=False):
            head, size = weight.to(dtype), CHUNK.get(device, CHUNK_ELSEWHERE)
            for chunk, label in zip(hidden.to(dtype).split(size), labels.split(size), strict=True):
                loss_here, hidden_grad = of_chunk(chunk, head, label, weight_grad, gradients)
                loss = loss + loss_here  # not in place: PyTorch 2.11 compiles a sum in place to gradients of zero
                hidden_grads.append(hidden_grad)
        if gradients:
            weight_grad = None if weight_grad is None else weight_grad.to(weight.dtype)
            ctx.save_for_backward(torch.cat(hidden_grads).to(hidden.dtype), weight_grad)
        return loss

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        (scale,), (hidden_grad, weight_grad) = grad_outputs, ctx.saved_tensors
        return hidden_grad * scale, None if weight_grad is None else weight_grad * scale, None, None, None


def loss_of_chunk(
    chunk: Tensor, head: Tensor, labels: Tensor, weight_grad: Tensor | None, gradients: bool
) -> tuple[Tensor, Tensor]:
    """chunk (N, D), head (V, D), labels (N,) -> the sum of their losses and its gradient (N, D), or else the chunk.
    That for the head is added to weight_grad (V, D). d loss / d logits = softmax - one_hot(label)."""
    logits = (chunk @ head.T).float()  # (N, V)
    wanted = (labels != IGNORED)[:, None].float()
    target = labels.clamp(min=0)[:, None]
    largest, of_target = logits.amax(dim=-1, keepdim=True), logits.gather(1, target)
    exponentials = logits.sub_(largest).exp_()
    total = exponentials.sum(dim=-1, keepdim=True)
    loss = ((total.log() + largest - of_target) * wanted).sum()
    if not gradients:
        return loss, chunk
    # zero where the label is ignored
    gradient = exponentials.mul_(wanted / total).scatter_add_(1, target, -wanted).to(head.dtype)
    if weight_grad is not None:
        weight_grad += gradient.T @ chunk
    return loss, gradient @ head


def log_probs(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """ln p of each label, one by one: hidden (B, T, D), weight (V, D), labels (B, T) -> (B, T) float32.

    Aligned with the labels: at t stands ln p(labels[:, t]), which the hidden state of t - 1 predicts; 0 where the label
    is -100, and at t = 0. What each position weighs is known only later (preferences, rewards), so the backward pass
    computes the logits of each chunk again.
    """
    targets = labels[:, 1:]
    is_label = targets != IGNORED  # most positions of a prompt with an answer are not
    dtype, size = compute_dtype(hidden), CHUNK.get(hidden.device.type, CHUNK_ELSEWHERE)
    chunks = zip(hidden[:, :-1][is_label].split(size), targets[is_label].split(size), strict=True)
    # the backward pass goes from the last chunk to the first: made in this order, it adds them up as the text stands
    again = partial(checkpoint, _chunk_log_probs, use_reentrant=False, preserve_rng_state=False)
    parts = [again(*chunk, weight, dtype) for chunk in reversed(list(chunks))]
    of_labels = torch.zeros_like(targets, dtype=torch.float32).masked_scatter(is_label, torch.cat(parts[::-1]))
    return F.pad(of_labels, (1, 0))


def _chunk_log_probs(hidden: Tensor, labels: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """ln p of each label; none of them is -100."""
    with torch.autocast(hidden.device.type, enabled=False):
        logits = (hidden.to(dtype) @ weight.to(dtype).T).float()  # (N, V)
        return logits.gather(1, labels[:, None])[:, 0] - logits.logsumexp(-1)


def compute_dtype(x: Tensor) -> torch.dtype:
    """That of x in matrix products: autocast's, where it is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
