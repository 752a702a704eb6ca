"""PyTorch's fused attention kernels: `sdpa`, `flash` and the others.

Every function has the signature of `eager` in model/attention.py: q (B, H, T, D), k and v (B, H_kv, S, D), a boolean
mask (B or 1, 1, T, S) or None for plain causal attention, the dropout probability -> (B, H, T, D). Values may have
another size than keys (model/latent_attention.py); then the output has theirs.
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

from model.attention import repeat_kv


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """PyTorch's scaled_dot_product_attention; it picks a kernel that can serve.

    Grouped heads go to the kernel as they are. On a GPU with a mask or in float32 they are repeated, because no fast
    kernel takes them there.
    """
    (batch, heads, queries, head_dim), (kv_heads, keys) = q.shape, k.shape[1:3]
    shape, out_dtype = (*q.shape[:3], v.shape[3]), v.dtype
    groups, causal = heads // kv_heads, mask is None and queries > 1
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

    On a GPU that is autocast's dtype. On a CPU it is float32: PyTorch's kernel is two to three times faster there than
    in bfloat16 (EXPERIMENTS.md).
    """
    kind = q.device.type
    if kind == "cpu":
        dtype = torch.promote_types(q.dtype, torch.float32)
    else:
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else v.dtype
    return q.to(dtype), k.to(dtype), v.to(dtype)


def any_kernel(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """sdpa with PyTorch's own flash kernel among its choices, whichever was set before."""
    if q.is_cuda:
        use_flash(None)
    return sdpa(q, k, v, mask, dropout)


def only(kernel: SDPBackend, implementation: str | None = None):
    """sdpa with one kernel and no other; PyTorch raises "No available kernel" where it cannot run.

    implementation: FA3 or FA4 instead of PyTorch's own flash kernel.
    """

    def forced(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
        if q.is_cuda:
            use_flash(implementation)
        if kernel == SDPBackend.EFFICIENT_ATTENTION:  # it never takes grouped heads
            k, v = (repeat_kv(x, q.shape[1] // x.shape[1]) for x in (k, v))
        with sdpa_kernel(kernel):
            return sdpa(q, k, v, mask, dropout)

    return forced


def use_flash(implementation: str | None) -> None:
    """Set which flash kernel PyTorch calls, None = its own. The switch is global, so every call sets it."""
    if current_flash_attention_impl() != implementation:
        if implementation is None:
            restore_flash_attention_impl()
        else:
            activate_flash_attention_impl(implementation)
