"""Cross-entropy over the vocabulary, without holding the logits of all positions in memory at once.

The head's logits are the largest tensor of a small model: B * T * V numbers, and autograd keeps several copies. Here
one chunk of positions at a time goes through head, softmax and gradient, and only the gradients stay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from configs import IGNORED

CHUNK = {"cpu": 512}  # positions; on a CPU a chunk's logits then stay in its cache
CHUNK_ELSEWHERE = 8192
WORTH_IT = 0.75  # share of trained positions below which the others are left out first


def cross_entropy_sum(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Sum of -ln softmax(hidden @ weightᵀ)[label] over the labels that are not -100.

    hidden (N, D), weight (V, D), labels (N,) -> scalar float32. Matrix products run in autocast's dtype, the
    softmax in float32. Gradients are computed in the forward pass, so a backward pass costs one multiplication.
    """
    # on a GPU counting would be a sync point, and the estimates of memory compute without numbers
    if not torch.compiler.is_compiling() and hidden.device.type == "cpu" and not is_fake(hidden):
        trained = labels != IGNORED
        if trained.sum() < len(labels) * WORTH_IT:  # fine-tuning: most positions are asked for nothing
            hidden, labels = hidden[trained], labels[trained]
    grad = torch.is_grad_enabled()
    return _CrossEntropySum.apply(hidden, weight, labels, grad, grad and weight.requires_grad)


def log_probs(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """ln p of each label, one by one: hidden (B, T, D), weight (V, D), labels (B, T) -> (B, T) float32.

    Aligned with the labels: at t stands ln p(labels[:, t]), which the hidden state of t - 1 predicts; 0 where the label
    is -100, and at t = 0. The backward pass computes the logits of each chunk again.
    """
    targets = labels[:, 1:]
    asked = targets != IGNORED
    found = torch.zeros_like(targets, dtype=torch.float32)  # most positions of a prompt with an answer are not asked
    found = found.masked_scatter(asked, _LogProbs.apply(hidden[:, :-1][asked], weight, targets[asked]))
    return torch.nn.functional.pad(found, (1, 0))


class _LogProbs(torch.autograd.Function):
    """ln p of labels, none of them -100: hidden (N, D), weight (V, D), labels (N,) -> (N,) float32.

    d ln p(label) / d logits = one_hot(label) - softmax, times the gradient that comes back for this position.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        device = hidden.device.type
        ctx.dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        ctx.size = CHUNK.get(device, CHUNK_ELSEWHERE)
        found, totals = [], []
        with torch.autocast(device, enabled=False):
            head = weight.to(ctx.dtype)
            for chunk, label in zip(hidden.to(ctx.dtype).split(ctx.size), labels.split(ctx.size), strict=True):
                logits = (chunk @ head.T).float()  # (chunk, V)
                total = logits.logsumexp(-1)
                found.append(logits.gather(1, label[:, None])[:, 0] - total)
                totals.append(total)
        ctx.save_for_backward(hidden, weight, labels, torch.cat(totals))
        return torch.cat(found)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor | None, None]:
        hidden, weight, labels, totals = ctx.saved_tensors
        hidden_grads = []
        weight_grad = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        with torch.autocast(hidden.device.type, enabled=False):
            head = weight.to(ctx.dtype)
            chunks = (x.split(ctx.size) for x in (hidden.to(ctx.dtype), labels, totals, grad_outputs[0]))
            for chunk, label, total, grad in zip(*chunks, strict=True):
                gradient = -((chunk @ head.T).float() - total[:, None]).exp() * grad[:, None]
                gradient = gradient.scatter_add_(1, label[:, None], grad[:, None]).to(ctx.dtype)
                hidden_grads.append((gradient @ head).to(hidden.dtype))
                if weight_grad is not None:
                    weight_grad += gradient.T @ chunk
        return torch.cat(hidden_grads), weight_grad.to(weight.dtype) if weight_grad is not None else None, None


class _CrossEntropySum(torch.autograd.Function):
    """d loss / d logits = softmax - one_hot(label), known as soon as the logits are: backward only scales it."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, gradients: bool, of_weight: bool) -> Tensor:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        hidden_grads, weight_grad = [], None  # (V, D), which neither an evaluation nor a frozen head has
        if of_weight:
            weight_grad = torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
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
                # not in place: PyTorch 2.11 compiles a sum in place, if it is the output, to gradients of zero
                loss = loss + ((total.log() + largest - of_target) * wanted).sum()
                if gradients:  # softmax - one_hot(label), nothing where the label is ignored
                    gradient = exponentials.mul_(wanted / total).scatter_add_(1, target, -wanted).to(dtype)
                    hidden_grads.append((gradient @ head).to(hidden.dtype))
                    if weight_grad is not None:
                        weight_grad += gradient.T @ chunk
        if gradients:
            of_head = weight_grad.to(weight.dtype) if weight_grad is not None else None
            ctx.save_for_backward(torch.cat(hidden_grads) if hidden_grads else hidden, of_head)
        return loss

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        hidden_grad, weight_grad = ctx.saved_tensors
        (scale,) = grad_outputs
        return hidden_grad * scale, weight_grad * scale if weight_grad is not None else None, None, None, None
