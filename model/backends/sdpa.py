"""Attention computed: written out (`eager`), and by PyTorch's fused kernels (`sdpa`, `flash`, …).

Every function has one signature: q (B, H, T, D), k and v (B, H_kv, S, D), a boolean mask (B or 1, 1, T, S) or None
for plain causal attention, the dropout probability -> (B, H, T, D). Scores are scaled by 1/sqrt(D).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import (
    SDPBackend,
    activate_flash_attention_impl,
    current_flash_attention_impl,
    restore_flash_attention_impl,
    sdpa_kernel,
)


def repeat_kv(x: Tensor, groups: int) -> Tensor:
    """Give every query head its key/value head: (B, H_kv, S, D) -> (B, H_kv * groups, S, D).

    Head h of the result is head h // groups of x: 0 0 1 1 …, not 0 1 0 1 …
    """
    if groups == 1:
        return x
    batch, kv_heads, length, head_dim = x.shape
    x = x[:, :, None].expand(batch, kv_heads, groups, length, head_dim)
    return x.reshape(batch, kv_heads * groups, length, head_dim)


def attention_scores(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """q kᵀ / sqrt(D), with the lowest number there is where the mask forbids: (B, H, T, S)."""
    k = repeat_kv(k, q.shape[1] // k.shape[1])
    scores = (q @ k.transpose(2, 3)) * q.shape[-1] ** -0.5
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)


def normalise(scores: Tensor, mask: Tensor) -> Tensor:
    """softmax over the keys, in float32 or better; zeros in a row that may attend to nothing, never NaN."""
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    return weights.masked_fill(~mask.any(dim=-1, keepdim=True), 0.0)


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """The softmax of the scores in float32, with zeros where the mask (None: causal) forbids: (B, H, T, S)."""
    if mask is None:
        queries, keys = q.shape[2], k.shape[2]
        mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    return normalise(attention_scores(q, k, mask), mask)


def eager(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """The formula, line by line."""
    weights = attention_weights(q, k, mask).to(q.dtype)
    weights = F.dropout(weights, dropout, training=dropout > 0)
    return weights @ repeat_kv(v, q.shape[1] // v.shape[1])


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """PyTorch's scaled_dot_product_attention; it picks a kernel that can serve.

    Grouped heads go to the kernel as they are, except on a GPU with a mask or in float32: no quick kernel takes them.
    """
    (batch, heads, queries, head_dim), (kv_heads, keys) = q.shape, k.shape[1:3]
    shape, out_dtype, groups, causal = q.shape, v.dtype, heads // kv_heads, mask is None and queries > 1
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = in_kernel_dtype(q, k, v)
        if queries == 1 < keys and groups > 1:  # decoding: the queries of a group become rows of one head
            q, groups = q.reshape(batch, kv_heads, groups, head_dim), 1
        elif q.is_cuda and (mask is not None or q.dtype == torch.float32):
            k, v, groups = repeat_kv(k, groups), repeat_kv(v, groups), 1
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, enable_gqa=groups > 1
        )
    return out.reshape(shape).to(out_dtype)


def in_kernel_dtype(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One dtype for all three; under autocast, RoPE leaves q and k in float32 and v in bfloat16.

    On a GPU that is autocast's dtype. On a CPU it is float32, in which PyTorch's kernel is two to three times as
    quick as in bfloat16 (EXPERIMENTS.md).
    """
    kind = q.device.type
    if kind == "cpu":
        dtype = torch.promote_types(q.dtype, torch.float32)
    else:
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else v.dtype
    return q.to(dtype), k.to(dtype), v.to(dtype)


def any_kernel(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """sdpa with PyTorch's own flash kernel among the others, whatever was used before."""
    use_flash(None, q)
    return sdpa(q, k, v, mask, dropout)


def only(kernel: SDPBackend, implementation: str | None = None):
    """sdpa with one kernel and no other; PyTorch says "No available kernel" where that one cannot serve.

    implementation: FA3 or FA4 in place of PyTorch's own flash kernel.
    """

    def forced(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
        use_flash(implementation, q)
        if kernel == SDPBackend.EFFICIENT_ATTENTION:  # the one that never takes grouped heads
            k, v = (repeat_kv(x, q.shape[1] // x.shape[1]) for x in (k, v))
        with sdpa_kernel(kernel):
            return sdpa(q, k, v, mask, dropout)

    return forced


def use_flash(implementation: str | None, q: Tensor) -> None:
    """Set which flash kernel PyTorch calls, None = its own: the switch is the process's, so every call sets it."""
    if q.is_cuda and current_flash_attention_impl() != implementation:
        if implementation is None:
            restore_flash_attention_impl()
        else:
            activate_flash_attention_impl(implementation)
