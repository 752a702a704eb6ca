"""The functions that compute attention, and the choice between them.

Every backend has one signature: q (B, H, T, D), k and v (B, H_kv, S, D), a boolean mask (B or 1, 1, T, S)
or None for plain causal attention, the dropout probability -> (B, H, T, D). Scores are scaled by 1/sqrt(D).

    eager   written out: every score is there to be looked at; memory grows with T * S
    flash   PyTorch's flash kernel, and only that (FlashAttention-2, Dao 2023, arXiv 2307.08691)
    sdpa    torch.nn.functional.scaled_dot_product_attention; PyTorch picks the kernel
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

AttentionFunction = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]


def repeat_kv(x: Tensor, groups: int) -> Tensor:
    """Give every query head its key/value head: (B, H_kv, S, D) -> (B, H_kv * groups, S, D).

    Head h of the result is head h // groups of x: 0 0 1 1 …, not 0 1 0 1 …
    """
    if groups == 1:
        return x
    batch, kv_heads, length, head_dim = x.shape
    x = x[:, :, None].expand(batch, kv_heads, groups, length, head_dim)
    return x.reshape(batch, kv_heads * groups, length, head_dim)


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(q kᵀ / sqrt(D)) in float32, with zeros where the mask forbids: (B, H, T, S).

    A row that may attend to nothing is all zeros, never NaN.
    """
    k = repeat_kv(k, q.shape[1] // k.shape[1])
    scores = (q @ k.transpose(2, 3)) * q.shape[-1] ** -0.5
    if mask is None:
        queries, keys = scores.shape[-2:]
        mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1, dtype=torch.float32)
    return weights.masked_fill(~mask.any(dim=-1, keepdim=True), 0.0)


def eager(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    weights = attention_weights(q, k, mask).to(q.dtype)
    weights = F.dropout(weights, dropout, training=dropout > 0)
    return weights @ repeat_kv(v, q.shape[1] // v.shape[1])


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    groups = q.shape[1] // k.shape[1]
    if mask is not None:  # with a mask, kernels want as many key heads as query heads
        k, v, groups = repeat_kv(k, groups), repeat_kv(v, groups), 1
    causal = mask is None and q.shape[2] > 1
    with _quick_precision(q) as cast:
        out = F.scaled_dot_product_attention(
            cast(q), cast(k), cast(v), attn_mask=mask, dropout_p=dropout, is_causal=causal, enable_gqa=groups > 1
        )
    return out.to(v.dtype)


@contextmanager
def _quick_precision(q: Tensor) -> Iterator[Callable[[Tensor], Tensor]]:
    """On a CPU, PyTorch's kernel is about twice as quick in float32 as in bfloat16 (EXPERIMENTS.md), so there
    attention leaves autocast. Gives the function that casts its inputs."""
    if q.device.type == "cpu" and q.dtype != torch.float64:
        with torch.autocast("cpu", enabled=False):
            yield Tensor.float
    else:
        yield lambda x: x


def flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    if q.is_cuda and torch.is_autocast_enabled("cuda"):  # after RoPE, q and k are float32 even under autocast
        q, k, v = (x.to(torch.get_autocast_dtype("cuda")) for x in (q, k, v))
    if q.is_cuda and (mask is not None or q.dtype not in (torch.float16, torch.bfloat16)):
        what = "a mask (documents or padding)" if mask is not None else f"{q.dtype}"
        raise ValueError(
            f"attn_implementation: flash cannot serve {what} on CUDA: use sdpa, "
            f"or {'data.isolate_documents: false' if mask is not None else 'precision bf16'}"
        )
    if not q.is_cuda and dropout > 0:
        raise ValueError("attn_implementation: flash has no dropout on CPU: use sdpa or attention_dropout: 0")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return sdpa(q, k, v, mask, dropout)


BACKENDS: dict[str, AttentionFunction] = {"eager": eager, "flash": flash, "sdpa": sdpa}


def resolve_attention(name: str) -> tuple[str, str]:
    """What `auto` stands for, and why. Returns (backend, reason); an explicit name is kept.

    Raises ValueError for an unknown name.
    """
    if name == "auto":
        return "sdpa", "PyTorch picks the fastest kernel that serves this device, dtype and mask"
    if name not in BACKENDS:
        raise ValueError(f"attn_implementation ({name!r}) is unknown: use auto, {', '.join(BACKENDS)}")
    return name, "asked for"
