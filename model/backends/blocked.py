"""Causal attention as bfloat16 matrix products over blocks of queries: the fastest way to train on a CPU.

key    0 1 2 3 | 4 5 6 7      A block of queries multiplies the keys up to its own end and no others, so almost half
query  x . . .                of the square is never computed. The query heads that share a key/value head are rows
       x x . .                of one matrix: nothing is repeated, and a few large products replace many small ones.
       x x x .                The weights are kept for the backward pass, T * T / 2 per head, so this is for rows of
       x x x x                at most LONGEST tokens. PyTorch's kernel keeps no weights. It takes over beyond that, in
       ---------------        float32, and where the numbers of queries and keys differ.
       x x x x | x . . .
       …                      Measured against that kernel in EXPERIMENTS.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from model.attention import fused
from model.loss import compute_dtype

BLOCK = 64  # queries
LONGEST = 1024
HIDDEN = -1e30  # a score whose weight is zero


def blocked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """The signature of `eager`. Products in bfloat16, the softmax in float32."""
    length, dtype = q.shape[2], compute_dtype(v)
    if dtype != torch.bfloat16 or dropout or not 1 < length <= LONGEST or k.shape[2] != length:
        return fused(q, k, v, mask, dropout)
    with torch.autocast(q.device.type, enabled=False):
        bias = None if mask is None else torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, HIDDEN)
        out = _Blocked.apply(q, k, v, bias)
        if mask is not None:  # a row that may attend to nothing gets zeros
            out = out * mask.any(dim=-1, keepdim=True)
    return out.to(v.dtype)


class _Blocked(torch.autograd.Function):
    """q (B, H, T, D), k and v (B, H_kv, T, D), bias (B or 1, 1, T, T) or None -> (B, H, T, D) in bfloat16."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        ctx.dtypes = [x.dtype for x in (q, k, v)]
        rows, keys, values = _as_rows(q * q.shape[-1] ** -0.5, k.shape[1]), _as_rows(k), _as_rows(v)
        groups, kv_heads = q.shape[1] // k.shape[1], k.shape[1]
        weights, outs = [], []
        for first, end in _blocks(q.shape[2]):
            scores = rows[:, first * groups : end * groups] @ keys[:, :end].mT
            weights.append(_hide(scores, first, groups, kv_heads, bias).softmax(dim=-1))
            outs.append(weights[-1] @ values[:, :end])
        ctx.save_for_backward(rows, keys, values, *weights)
        return _as_heads(torch.cat(outs, dim=1), (*q.shape[:3], v.shape[3]))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        rows, keys, values, *weights = ctx.saved_tensors
        (grad,) = grad_outputs
        (batch, heads, length, _), kv_heads, head_dim = grad.shape, keys.shape[0] // grad.shape[0], keys.shape[2]
        groups, grad = heads // kv_heads, _as_rows(grad, kv_heads)
        row_grads, key_grad, value_grad = [], torch.zeros_like(keys), torch.zeros_like(values)
        for (first, end), weight in zip(_blocks(length), weights, strict=True):
            block = slice(first * groups, end * groups)
            weight_grad = grad[:, block] @ values[:, :end].mT
            score_grad = torch._softmax_backward_data(weight_grad, weight, -1, weight.dtype)
            value_grad[:, :end] += weight.mT @ grad[:, block]
            key_grad[:, :end] += score_grad.mT @ rows[:, block]
            row_grads.append(score_grad @ keys[:, :end])
        q_grad = _as_heads(torch.cat(row_grads, dim=1), (batch, heads, length, head_dim)) * head_dim**-0.5
        k_grad, v_grad = (x.view(batch, kv_heads, length, -1) for x in (key_grad, value_grad))
        of_q, of_k, of_v = ctx.dtypes
        return q_grad.to(of_q), k_grad.to(of_k), v_grad.to(of_v), None


def _blocks(length: int) -> list[tuple[int, int]]:
    return [(first, min(first + BLOCK, length)) for first in range(0, length, BLOCK)]


def _as_rows(x: Tensor, kv_heads: int | None = None) -> Tensor:
    """(B, H, T, D) -> (B * H_kv, T * groups, D) in bfloat16: the heads of a group follow one another at each token."""
    batch, heads, length, head_dim = x.shape
    kv_heads = kv_heads or heads
    x = x.to(torch.bfloat16).view(batch, kv_heads, heads // kv_heads, length, head_dim)
    return x.transpose(2, 3).reshape(batch * kv_heads, -1, head_dim)


def _as_heads(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The way back, in memory as (B, T, H, D), which is how the projections want it."""
    batch, heads, length, head_dim = shape
    x = rows.view(batch, -1, length, heads * batch // rows.shape[0], head_dim)  # (B, H_kv, T, groups, D)
    return x.transpose(1, 2).reshape(batch, length, heads, head_dim).transpose(1, 2)


def _hide(scores: Tensor, first: int, groups: int, kv_heads: int, bias: Tensor | None) -> Tensor:
    """Give the lowest score to what the block's queries, from number `first` on, may not see. In place."""
    end = scores.shape[-1]
    if bias is None:
        triangle = torch.full((end - first, end - first), HIDDEN, dtype=scores.dtype, device=scores.device)
        scores.view(-1, end - first, groups, end)[..., first:] += triangle.triu(1)[:, None]
    else:
        scores.view(-1, kv_heads, end - first, groups, end).add_(bias[:, :, first:end, None, :end])
    return scores
