"""Embedding: every id has a row of numbers. 5 minutes.

The model starts with a table of V rows, one for each id, and C numbers a row. They are random at
first, and learned like all other weights.

    ids (B, T)  ->  x (B, T, C)         x[b, t] is row ids[b, t] of the table

This is also a matrix product. A one-hot row is 0 except for a 1 at the place of its id. It picks
one row of the table:

    ids 2, 0 with V = 3        0 0 1   times the table (3, C)   =   row 2
                               1 0 0                                row 0

Write both. The product shows why an embedding is a linear layer, and why only the rows of ids that
occur get a gradient: all other rows are multiplied by 0. But it costs V times more work, so
nobody computes it.

The last layer of a language model reads the table the other way round: C numbers -> V logits. Some
models use the same table for both (`tie_word_embeddings`).

The same in Headlight: `nn.Embedding` in model/transformer.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Embedding(nn.Module):
    """A table of `vocab_size` rows of `size` numbers."""

    def __init__(self, vocab_size: int, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocab_size, size))  # (V, C)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the row of every id: (B, T) -> (B, T, C)."""
        # <solution>
        return self.weight[ids]
        # </solution>


def by_product(ids: Tensor, table: Tensor) -> Tensor:
    """Return the same as one-hot rows times the table: ids (B, T), table (V, C) -> (B, T, C)."""
    # <solution>
    one_hot = torch.nn.functional.one_hot(ids, len(table))  # (B, T, V)
    return one_hot.to(table.dtype) @ table
    # </solution>
