"""Sliding windows on a CPU: only the keys in reach are multiplied.

chunks of keys      0   1   2   3      A chunk of queries sees its own keys and those of the chunk before, no others.
chunk of queries    x   .   .   .      So attention costs two chunks a token, however long the row is. A boolean mask
                    x   x   .   .      over the whole row gives the same numbers, and every product is computed for it.
                    .   x   x   .
                    .   .   x   x      Measured against that in EXPERIMENTS.md.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from model.backends.sdpa import any_kernel, sdpa
from model.masks import Band, MaskSpec, boolean_mask, causal, same_document, within_window

SMALLEST = 32  # tokens of a chunk; products of smaller ones are not faster
FEWEST = 4  # chunks of a row, for which it pays


def band_or_mask(spec: MaskSpec) -> Tensor | Band | None:
    """A Band for rows on a CPU whose window is short, without padding or cached tokens; else as `boolean_mask`."""
    length, window = len(spec.query_positions), spec.sliding_window
    if window is None or spec.query_positions.device.type != "cpu" or spec.attention_mask is not None:
        return boolean_mask(spec)
    size = max(SMALLEST, 1 << (window - 1).bit_length())
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


def any_kernel_or_banded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | Band | None, dropout: float) -> Tensor:
    """The signature of `eager`; a Band is computed chunk by chunk, anything else by PyTorch's choice of kernel."""
    if not isinstance(mask, Band):
        return any_kernel(q, k, v, mask, dropout)
    (batch, _, length, _), size = q.shape, mask.size
    chunks = q.transpose(1, 2).reshape(-1, size, *q.shape[1::2])  # (B N, C, H, D)
    out = sdpa(chunks.transpose(1, 2), _two_chunks(k, size), _two_chunks(v, size), mask.visible, dropout)
    return out.transpose(1, 2).reshape(batch, length, *out.shape[1::2]).transpose(1, 2)


def _two_chunks(x: Tensor, size: int) -> Tensor:
    """(B, H, T, D) -> (B N, H, 2 C, D): every chunk, with the one before it in front."""
    chunks = F.pad(x.transpose(1, 2), (0, 0, 0, 0, size, 0)).unflatten(1, (-1, size))
    return torch.cat([chunks[:, :-1], chunks[:, 1:]], dim=2).flatten(0, 1).transpose(1, 2)
