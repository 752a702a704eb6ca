"""Documents -> fixed-length rows that know their document boundaries.

The shards of a split are one long stream:   bos doc eos  bos doc eos  bos doc …
A row is T tokens of it, wherever they fall. Since every document begins with the bos token, and plain text can
never produce one, a row needs no index beside it: boundaries are where the bos tokens are.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

IGNORED = -100


class TokenStream:
    """The shards of one split, memory-mapped, read as if they were one array of `len(stream)` token ids."""

    def __init__(self, shards: list[Path], dtype: str):
        self._shards = [np.memmap(path, dtype=dtype, mode="r") for path in shards]
        self._ends = np.cumsum([len(shard) for shard in self._shards])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, start: int, length: int) -> np.ndarray:
        """int64 ids of positions start … start + length - 1; the end of the stream joins its beginning."""
        pieces, total = [], len(self)
        while length > 0:
            start %= total
            shard = int(np.searchsorted(self._ends, start, side="right"))
            offset = start - (int(self._ends[shard - 1]) if shard else 0)
            piece = self._shards[shard][offset : offset + length].astype(np.int64)
            pieces.append(piece)
            start, length = start + len(piece), length - len(piece)
        return np.concatenate(pieces)


def fill_row(tokens: np.ndarray, length: int, pad_id: int) -> np.ndarray:
    """Pad a row that is too short (only the last row of an epoch can be) to `length` tokens."""
    return np.pad(tokens, (0, length - len(tokens)), constant_values=pad_id)


def document_ids(row: np.ndarray, bos_id: int) -> np.ndarray:
    """(T,) ids -> (T,) document numbers within the row: 0 for the tail of an earlier document, then 1, 2, …"""
    return np.cumsum(row == bos_id, dtype=np.int64)


def restarted_positions(documents: np.ndarray) -> np.ndarray:
    """(T,) document numbers -> (T,) positions that count from 0 in every document: 0 0 0 1 1 2 -> 0 1 2 0 1 0."""
    begins = np.flatnonzero(np.diff(documents, prepend=documents[:1] - 1))
    return np.arange(len(documents)) - np.repeat(begins, np.diff(begins, append=len(documents)))


def labels(row: np.ndarray, bos_id: int, pad_id: int) -> np.ndarray:
    """(T,) ids -> (T,) labels, aligned with the row. Nothing can be known about where the next document starts
    or what padding holds, so the bos and pad tokens are not trained on (-100)."""
    return np.where((row == bos_id) | (row == pad_id), IGNORED, row)
