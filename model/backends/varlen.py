"""Padding-free attention: documents laid end to end, with the place where each begins (`cu_seqlens`).

documents   0 0 1 1 1 | 3 3 3 3 3      two rows of five tokens, three documents
starts      0 2 5 5   | 0 5 5 5        per row, filled up with the row's length (data.packing.document_starts)
cu_seqlens  0 2 5 5 5 10 10 10 10      all rows end to end; two equal numbers are an empty document, which costs nothing

No mask is read, and no score is computed that a mask would forbid. PyTorch's varlen_attn calls its flash kernel, so
this needs CUDA, 16-bit numbers and a head of at most 256. It is not tested on a GPU yet. The code around the kernel is
tested on a CPU against a loop over the documents.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from model.attention import repeat_kv
from model.backends.sdpa import in_kernel_dtype
from model.masks import MaskSpec, Sequences

TAKES_GROUPS = "enable_gqa" in inspect.signature(varlen_attn).parameters  # PyTorch 2.12 and newer: grouped heads


def sequences(spec: MaskSpec) -> Sequences:
    """The predicates of a MaskSpec as lengths. The tokens of a document must stand together: an id that returns later
    in a row begins a new document here.

    Queries are the last T of the S keys. With a cache, the kernel aligns both at their ends. An upper bound of a length
    is enough for the kernel, so nothing is read back from the GPU but where padding has to be found.
    """
    T, S = len(spec.query_positions), len(spec.key_positions)
    window = (-1 if spec.sliding_window is None else spec.sliding_window - 1, 0)
    rows = torch.arange(spec.batch_size + 1, device=spec.query_positions.device, dtype=torch.int32)
    if spec.document_ids is not None:
        starts = spec.document_starts if spec.document_starts is not None else find_starts(spec.document_ids)
        cu = F.pad((starts + rows[:-1, None] * T).flatten(), (0, 1), value=spec.batch_size * T).int()
        return Sequences(cu, cu, T, S, window)
    if spec.attention_mask is None:
        return Sequences(rows * T, rows * S, T, S, window)
    real = spec.attention_mask.bool()
    queries = real[:, S - T :]
    return Sequences(
        F.pad(queries.sum(1).cumsum(0), (1, 0)).int(),
        F.pad(real.sum(1).cumsum(0), (1, 0)).int(),
        T,
        S,
        window,
        queries.flatten().nonzero().flatten(),
        real.flatten().nonzero().flatten(),
    )


def find_starts(document_ids: Tensor) -> Tensor:
    """Where documents begin in each row, filled up with T, for batches that do not say it: (B, T) -> (B, N).

    Waits for the GPU once, to learn N, the most of a row. A compiled model must know shapes in advance: there N is T,
    as if every token could begin a document.
    """
    T = document_ids.shape[1]
    begins = F.pad(document_ids[:, 1:] != document_ids[:, :-1], (1, 0), value=True)
    starts = torch.where(begins, torch.arange(T, device=begins.device), T).sort(dim=1).values
    return starts if torch.compiler.is_compiling() else starts[:, : int(begins.sum(1).max())]


def varlen(q: Tensor, k: Tensor, v: Tensor, mask: Sequences, dropout: float) -> Tensor:
    """Attention within documents; padding as a query gets zeros. Dropout is refused earlier, by its limits."""
    B, H, T, D = q.shape
    out_dtype = v.dtype
    q, k, v = in_kernel_dtype(q, k, v)
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (B * T, H, D), (B * S, H_kv, D)
    if mask.query_index is not None:
        q, k, v = q[mask.query_index], k[mask.key_index], v[mask.key_index]
    if not TAKES_GROUPS:
        k, v = (repeat_kv(x.transpose(0, 1)[None], H // x.shape[1])[0].transpose(0, 1) for x in (k, v))
    extra: dict[str, Any] = {"enable_gqa": k.shape[1] != H} if TAKES_GROUPS else {}
    lengths = (mask.cu_queries, mask.cu_keys, mask.max_queries, mask.max_keys)
    out = varlen_attn(q, k, v, *lengths, window_size=mask.window, **extra)
    assert isinstance(out, Tensor)
    if mask.query_index is not None:
        out = out.new_zeros(B * T, H, D).index_copy(0, mask.query_index, out)
    return out.view(B, T, H, D).transpose(1, 2).to(out_dtype)
