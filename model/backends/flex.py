"""FlexAttention: the mask is a function of (row, head, query, key) that is compiled into the kernel.

Blocks of 128 x 128 scores in which nothing is visible are never computed, so packed documents and windows save time.
Dong et al. 2024 (arXiv 2412.05496). On a CPU it has no gradients and is not compiled (by itself it would compile, but
inside a compiled model PyTorch 2.13 fails). On CUDA it is compiled; use it in 16 bits (model/backends/choice.py).
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.nn.attention.flex_attention import flex_attention as flex_kernel

from model.backends.sdpa import fused, in_kernel_dtype
from model.masks import MaskSpec, boolean_mask, causal, not_padding, same_document, within_window


def block_mask(spec: MaskSpec) -> BlockMask | Tensor | None:
    """The same predicates as in `boolean_mask`, asked for one (row, query, key) at a time.

    For a single query there are no blocks to skip: it returns the boolean mask, and `flex` leaves the work to sdpa.
    """
    if len(spec.query_positions) == 1:
        return boolean_mask(spec)

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        asks, answers = spec.query_positions[query], spec.key_positions[key]
        allowed = causal(asks, answers)
        if spec.sliding_window is not None:
            allowed = allowed & within_window(asks, answers, spec.sliding_window)
        if spec.attention_mask is not None:
            allowed = allowed & not_padding(spec.attention_mask[row, key])
        if spec.document_ids is not None:
            allowed = allowed & same_document(spec.document_ids[row, query], spec.document_ids[row, key])
        return allowed

    rows_differ = spec.attention_mask is not None or spec.document_ids is not None
    rows, queries, keys = spec.batch_size if rows_differ else None, len(spec.query_positions), len(spec.key_positions)
    return create_block_mask(visible, rows, None, queries, keys, device=spec.query_positions.device)


def flex(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask | Tensor | None, dropout: float) -> Tensor:
    """FlexAttention over a block mask; grouped heads go to the kernel as they are. Dropout is refused earlier."""
    if not isinstance(mask, BlockMask):
        return fused(q, k, v, mask, dropout)
    kernel = flex_kernel_compiled() if q.is_cuda and not torch.compiler.is_compiling() else flex_kernel
    with torch.autocast(q.device.type, enabled=False):
        q, k, values = in_kernel_dtype(q, k, v)
        out = kernel(q, k, values, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    assert isinstance(out, Tensor)
    return out.to(v.dtype)


@cache
def flex_kernel_compiled():
    """FlexAttention as one fused kernel; uncompiled, it writes out every score.

    It is compiled once for each kind of mask, and for each length until PyTorch takes the length as a variable. After
    eight times PyTorch would stop, and write out every score.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    return torch.compile(flex_kernel)
