"""Cross-entropy over the vocabulary, without holding the logits of all positions in memory at once.

The head's logits are the largest tensor of a small model: B * T * V numbers, and autograd keeps several copies. Here
one chunk of positions at a time goes through head, softmax and gradient, and only the gradients stay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from configs import IGNORED

CHUNK = {"cpu": 512}  # positions; on a CPU a chunk's logits then stay in its cache
CHUNK_ELSEWHERE = 8192
WORTH_IT = 0.75  # share of trained positions below which the others are left out first


def cross_entropy_sum(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Sum of -ln softmax(hidden @ weightᵀ)[label] over the labels that are not -100.

    hidden (N, D), weight (V, D), labels (N,) -> scalar float32. Matrix products run in autocast's dtype, the
    softmax in float32. Gradients are computed in the forward pass, so a backward pass costs one multiplication.
    """
    if not torch.compiler.is_compiling() and hidden.device.type == "cpu":  # elsewhere, counting would be a sync point
        trained = labels != IGNORED
        if trained.sum() < len(labels) * WORTH_IT:  # fine-tuning: most positions are asked for nothing
            hidden, labels = hidden[trained], labels[trained]
    grad = torch.is_grad_enabled()
    return _CrossEntropySum.apply(hidden, weight, labels, grad, grad and weight.requires_grad)


class _CrossEntropySum(torch.autograd.Function):
    """d loss / d logits = softmax - one_hot(label), known as soon as the logits are: backward only scales it."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, gradients: bool, of_weight: bool) -> Tensor:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        hidden_grads, weight_grad = [], torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
        with torch.autocast(device, enabled=False):
            head = weight.to(dtype)
            size = CHUNK.get(device, CHUNK_ELSEWHERE)
            for chunk, label in zip(hidden.to(dtype).split(size), labels.split(size), strict=True):
                logits = (chunk @ head.T).float()  # (chunk, V)
                wanted = (label != IGNORED)[:, None].float()
                target = label.clamp(min=0)[:, None]
                largest, of_target = logits.amax(dim=-1, keepdim=True), logits.gather(1, target)
                exponentials = logits.sub_(largest).exp_()
                total = exponentials.sum(dim=-1, keepdim=True)
                loss += ((total.log() + largest - of_target) * wanted).sum()
                if gradients:  # softmax - one_hot(label), nothing where the label is ignored
                    gradient = exponentials.mul_(wanted / total).scatter_add_(1, target, -wanted).to(dtype)
                    hidden_grads.append((gradient @ head).to(hidden.dtype))
                    if of_weight:
                        weight_grad += gradient.T @ chunk
        if gradients:
            ctx.save_for_backward(torch.cat(hidden_grads) if hidden_grads else hidden, weight_grad.to(weight.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden_grad, weight_grad = ctx.saved_tensors
        (scale,) = grad_outputs
        return hidden_grad * scale, weight_grad * scale, None, None, None
