"""FlashAttention and no other kernel, in the form that fits who may see whom.

who sees whom                     on a GPU                                         elsewhere
all, up to itself                 the kernel's own causal flag                     the same
documents, windows, padding,      documents laid end to end, with the place        a boolean mask
room in a static cache            where each begins (`cu_seqlens`)

On a GPU the kernel reads no mask, but it takes lengths, and they say all that our masks say. No score is computed that
a mask would forbid. Dao 2023 (arXiv 2307.08691); FlashAttention-3 (Shah et al. 2024, 2407.08608) and 4 are packages of
their own. The kernel with lengths is PyTorch's varlen_attn: CUDA, 16 bits, heads of at most 256.

documents   0 0 1 1 1 | 3 3 3 3 3      two rows of five tokens, three documents
starts      0 2 5 5   | 0 5 5 5        per row, filled up with the row's length (data.packing.document_starts)
cu_seqlens  0 2 5 5 5 10 10 10 10      all rows end to end; two equal numbers are an empty document, which costs nothing

padding         . . a b c | d e f g h      real tokens come first in their row, padding is a document of its own
cu_seqlens      0 3 5 10 10
static cache    a b c . . | d e f . .      three tokens written, room for five; one query a row
of the keys     0 3 5 8 10
of the queries  0 1 1 2 2                  so nobody asks the room that is left
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn

from model.attention import AttentionFunction, repeat_kv
from model.backends.sdpa import fused, in_kernel_dtype, use_flash
from model.masks import MaskSpec, Sequences, boolean_mask

TAKES_GROUPS = "enable_gqa" in inspect.signature(varlen_attn).parameters  # PyTorch 2.12 and newer: grouped heads


def flash(implementation: str | None = None) -> AttentionFunction:
    """A function with the signature of `eager`. implementation: FA3 or FA4 instead of PyTorch's own kernel."""

    def compute(q: Tensor, k: Tensor, v: Tensor, mask: Sequences | Tensor | None, dropout: float) -> Tensor:
        if q.is_cuda:
            use_flash(implementation)
        if isinstance(mask, Sequences):
            return varlen(q, k, v, mask, dropout)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return fused(q, k, v, mask, dropout)

    return compute


def lengths_or_mask(spec: MaskSpec) -> Sequences | Tensor | None:
    """What the flash kernel of this device reads; None where its causal flag says it all."""
    if spec.all_visible:
        return None
    return boolean_mask(spec) if spec.query_positions.device.type == "cpu" else sequences(spec)


def varlen(q: Tensor, k: Tensor, v: Tensor, mask: Sequences, dropout: float) -> Tensor:
    """Attention within documents; padding as a query gets zeros. Dropout is refused earlier, by its limits."""
    B, H, T, D = q.shape
    out_dtype = v.dtype
    q, k, v = in_kernel_dtype(q, k, v)
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (B * T, H, D), (B * S, H_kv, D)
    if mask.query_order is not None:
        q, k, v = q[mask.query_order], k[mask.key_order], v[mask.key_order]
    if not TAKES_GROUPS:
        k, v = (repeat_kv(x.transpose(0, 1)[None], H // x.shape[1])[0].transpose(0, 1) for x in (k, v))
    extra: dict[str, Any] = {"enable_gqa": k.shape[1] != H} if TAKES_GROUPS else {}
    lengths = (mask.cu_queries, mask.cu_keys, mask.max_queries, mask.max_keys)
    out = varlen_attn(q, k, v, *lengths, window_size=mask.window, **extra)
    assert isinstance(out, Tensor)
    if mask.query_order is not None:
        out = torch.empty_like(out).index_copy(0, mask.query_order, out)
    out = out.view(B, T, H, D).transpose(1, 2)
    if mask.real_queries is not None:
        out = out.masked_fill(~mask.real_queries[:, None, :, None], 0.0)
    return out.to(out_dtype)


def sequences(spec: MaskSpec) -> Sequences:
    """The predicates of a MaskSpec as lengths. The tokens of a document must stand together: an id that returns later
    in a row begins a new document here. A window counts real tokens, so padding must stand at an end of the row.

    Each row begins with its documents. Behind them is what nobody may see, as one document more: padding, and the room
    of a static cache. So shapes are fixed, and nothing is read back from the GPU: an upper bound of a length is enough
    for the kernel, which aligns the queries and keys of a document at their ends.
    """
    B, T, S = spec.batch_size, len(spec.query_positions), len(spec.key_positions)
    window = (-1 if spec.sliding_window is None else spec.sliding_window - 1, 0)
    if spec.document_ids is None:
        starts = torch.zeros(B, 1, dtype=torch.int32, device=spec.query_positions.device)
    else:
        starts = spec.document_starts if spec.document_starts is not None else find_starts(spec.document_ids)
    written = spec.key_positions <= spec.query_positions[-1]  # not the room of a static cache
    if spec.attention_mask is None:
        if S == T:
            return Sequences(_cumulative(starts, T), _cumulative(starts, S), T, S, window)
        queries, keys = starts.new_full((B, 1), T), written.sum().expand(B, 1)
        return Sequences(_cumulative(starts, T, queries), _cumulative(starts, S, keys), T, S, window)
    real_keys = spec.attention_mask.bool() & written
    real_queries = real_keys[:, spec.query_positions - spec.key_positions[0]]
    if spec.document_ids is not None:  # a document begins behind the real tokens before it
        starts = F.pad(real_keys.cumsum(1), (1, 0)).gather(1, starts.long())
    queries, keys = (real.sum(1, keepdim=True) for real in (real_queries, real_keys))
    order = (_real_first(real_queries), _real_first(real_keys))
    return Sequences(_cumulative(starts, T, queries), _cumulative(starts, S, keys), T, S, window, *order, real_queries)


def _cumulative(starts: Tensor, length: int, end: Tensor | None = None) -> Tensor:
    """Of rows of `length` tokens end to end: where each document begins, and the end of the last, as the kernel reads
    it. end (B, 1): where a row has one document more, of what nobody may see.
    """
    if end is not None:
        starts = torch.cat((starts, end), dim=1)
    rows = torch.arange(len(starts), device=starts.device)[:, None] * length
    return F.pad((starts + rows).flatten(), (0, 1), value=len(starts) * length).int()


def _real_first(real: Tensor) -> Tensor:
    """The tokens of each row in a new order, padding last: (B, n) -> (B * n,), places in the rows end to end."""
    rows = torch.arange(len(real), device=real.device)[:, None] * real.shape[1]
    return ((~real).int().argsort(dim=1, stable=True) + rows).flatten()


def find_starts(document_ids: Tensor) -> Tensor:
    """Where documents begin in each row, filled up with T, for batches that do not say it: (B, T) -> (B, N).

    Waits for the GPU once, to learn N, the most of a row. A compiled model must know shapes in advance: there N is T,
    as if every token could begin a document.
    """
    T = document_ids.shape[1]
    begins = F.pad(document_ids[:, 1:] != document_ids[:, :-1], (1, 0), value=True)
    starts = torch.where(begins, torch.arange(T, device=begins.device), T).sort(dim=1).values
    return starts if torch.compiler.is_compiling() else starts[:, : int(begins.sum(1).max())]
