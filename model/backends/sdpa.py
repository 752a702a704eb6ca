"""PyTorch's fused attention kernels; and, for sliding windows on a CPU, the same kernel chunk by chunk.

Every backend has the signature of `eager` in model/attention.py: q (B, H, T, D), k and v (B, H_kv, S, D), a mask in the
form that it reads (None: plain causal attention), the dropout probability -> (B, H, T, D). Values may have another size
than keys (model/latent_attention.py); then the output has theirs.

chunks of keys      0   1   2   3      A chunk of queries sees its own keys and those of the chunk before, no others.
chunk of queries    x   .   .   .      So attention costs two chunks a token, however long the row is. A boolean mask
                    x   x   .   .      over the whole row gives the same numbers, and every product is computed for it:
                    .   x   x   .      five times the time for a window of 16 in 512 tokens (EXPERIMENTS.md).
                    .   .   x   x
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import activate_flash_attention_impl, current_flash_attention_impl, restore_flash_attention_impl

from model.attention import repeat_kv
from model.masks import Band, MaskSpec, boolean_mask, causal, same_document, within_window

SMALLEST = 32  # tokens of a chunk; products of smaller ones are not faster
FEWEST = 4  # chunks of a row, for which it pays


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | Band | None, dropout: float) -> Tensor:
    """PyTorch picks a kernel that can serve. A Band is computed chunk by chunk."""
    if q.is_cuda:
        use_flash(None)
    if not isinstance(mask, Band):
        return fused(q, k, v, mask, dropout)
    (batch, _, length, _), size = q.shape, mask.size
    chunks = q.transpose(1, 2).reshape(-1, size, *q.shape[1::2])  # (B N, C, H, D)
    out = fused(chunks.transpose(1, 2), _two_chunks(k, size), _two_chunks(v, size), mask.visible, dropout)
    return out.transpose(1, 2).reshape(batch, length, *out.shape[1::2]).transpose(1, 2)


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """PyTorch's scaled_dot_product_attention, for grouped heads and under autocast."""
    (batch, heads, queries, head_dim), (kv_heads, keys) = q.shape, k.shape[1:3]
    shape, out_dtype = (*q.shape[:3], v.shape[3]), v.dtype
    groups = heads // kv_heads
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = in_kernel_dtype(q, k, v)
        if queries == 1 < keys and groups > 1:  # decoding: the queries of a group become rows of one head
            q, groups = q.reshape(batch, kv_heads, groups, head_dim), 1
        elif q.is_cuda and (mask is not None or q.dtype == torch.float32):
            # no fast kernel of a GPU takes grouped heads here; PyTorch would fall back to the formula
            k, v, groups = repeat_kv(k, groups), repeat_kv(v, groups), 1
        is_causal = mask is None and queries > 1
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, enable_gqa=groups > 1
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


def use_flash(implementation: str | None) -> None:
    """Set which flash kernel PyTorch calls, None = its own. The switch is global, so every call on a GPU sets it."""
    if current_flash_attention_impl() != implementation:
        if implementation is None:
            restore_flash_attention_impl()
        else:
            activate_flash_attention_impl(implementation)


def band_or_mask(spec: MaskSpec) -> Tensor | Band | None:
    """A Band for rows on a CPU whose window is short, without padding or cached tokens; else as `boolean_mask`."""
    length, window = len(spec.query_positions), spec.sliding_window
    if window is None or spec.query_positions.device.type != "cpu" or spec.attention_mask is not None:
        return boolean_mask(spec)
    size = max(SMALLEST, 1 << (window - 1).bit_length())  # so a window never reaches behind the chunk before
    if length % size or length < FEWEST * size or len(spec.key_positions) != length:
        return boolean_mask(spec)
    # the positions and documents of both chunks of keys; in front of the first chunk there is none
    queries = spec.query_positions.view(-1, size, 1)
    keys = F.pad(spec.key_positions, (size, 0), value=-1).unfold(0, 2 * size, size)[:, None]
    mask = (causal(queries, keys) & within_window(queries, keys, window) & (keys >= 0))[None]  # (1, N, C, 2 C)
    if (documents := spec.document_ids) is not None:
        of_keys = F.pad(documents, (size, 0), value=-1).unfold(1, 2 * size, size)
        mask = mask & same_document(documents.view(len(documents), -1, size, 1), of_keys[:, :, None])
    return Band(mask.expand(spec.batch_size, -1, -1, -1).flatten(0, 1)[:, None], size)


def _two_chunks(x: Tensor, size: int) -> Tensor:
    """(B, H, T, D) -> (B N, H, 2 C, D): every chunk, with the one before it in front."""
    chunks = F.pad(x.transpose(1, 2), (0, 0, 0, 0, size, 0)).unflatten(1, (-1, size))
    return torch.cat([chunks[:, :-1], chunks[:, 1:]], dim=2).flatten(0, 1).transpose(1, 2)
