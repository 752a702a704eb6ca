"""Padding-free attention: documents laid end to end, with the place where each begins (`cu_seqlens`).

No mask is read, and no score is computed that a mask would forbid. PyTorch's varlen_attn calls its flash kernel, so
this needs CUDA, 16-bit numbers and a head of at most 256. It is not tested on a GPU yet. The code around the kernel is
tested on a CPU against a loop over the documents.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from model.attention import repeat_kv
from model.backends.sdpa import in_kernel_dtype
from model.masks import MaskSpec, Sequences


def sequences(spec: MaskSpec) -> Sequences:
    """The predicates of a MaskSpec as lengths. The tokens of a document must stand together: an id that returns later
    in a row begins a new document here.

    Queries are the last T of the S keys. With a cache, the kernel aligns both at their ends.
    """
    T, S = len(spec.query_positions), len(spec.key_positions)
    window = (-1 if spec.sliding_window is None else spec.sliding_window - 1, 0)
    device = spec.query_positions.device
    if spec.document_ids is not None:
        ids = spec.document_ids
        begins = F.pad(ids[:, 1:] != ids[:, :-1], (1, 0), value=True).flatten()
        cu = _starts(begins)
        return Sequences(cu, cu, T, S, window)
    if spec.attention_mask is None:
        rows = torch.arange(spec.batch_size + 1, device=device, dtype=torch.int32)
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


def _starts(begins: Tensor) -> Tensor:
    """Indices at which a document begins, then the total: (N,) bool -> (documents + 1,) int32.

    The number of documents differs from batch to batch, so a compiled model, whose shapes are fixed, cannot use this.
    """
    return F.pad(begins.nonzero().flatten(), (0, 1), value=len(begins)).int()


def varlen(q: Tensor, k: Tensor, v: Tensor, mask: Sequences, dropout: float) -> Tensor:
    """Attention within documents; padding as a query gets zeros. Dropout is refused earlier, by its limits."""
    B, H, T, D = q.shape
    out_dtype = v.dtype
    q, k, v = in_kernel_dtype(q, k, v)
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (B * T, H, D), (B * S, H_kv, D)
    if mask.query_index is not None:
        q, k, v = q[mask.query_index], k[mask.key_index], v[mask.key_index]
    kernel, takes_groups = varlen_kernel()
    if not takes_groups:
        k, v = (repeat_kv(x.transpose(0, 1)[None], H // x.shape[1])[0].transpose(0, 1) for x in (k, v))
    extra = {"enable_gqa": k.shape[1] != H} if takes_groups else {}
    lengths = (mask.cu_queries, mask.cu_keys, mask.max_queries, mask.max_keys)
    out = kernel(q, k, v, *lengths, window_size=mask.window, **extra)
    if mask.query_index is not None:
        out = out.new_zeros(B * T, H, D).index_copy(0, mask.query_index, out)
    return out.view(B, T, H, D).transpose(1, 2).to(out_dtype)


@cache
def varlen_kernel() -> tuple[Callable[..., Any], bool]:
    """PyTorch's function, and whether it takes grouped heads (2.12 and newer). Raises ValueError if it is too old."""
    from torch.nn.attention.varlen import varlen_attn

    parameters = inspect.signature(varlen_attn).parameters
    if "window_size" not in parameters:
        raise ValueError(f"attn_implementation: varlen needs PyTorch 2.11 or newer, this is {torch.__version__}")
    return varlen_attn, "enable_gqa" in parameters
