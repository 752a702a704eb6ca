"""Batches: the text in rows, each token once an epoch. 20 minutes.

The text is one long stream of ids, with BOS and EOS around each document. A model reads rows of T
ids, B rows at a time. An epoch reads each id once, in an order that depends on the seed and the
epoch alone: then every run can be repeated, and resumed anywhere.

    generator   np.random.default_rng([seed, epoch])
    offset      generator.integers(len(stream)). The stream is a circle, cut here: so the rows
                begin at other places in each epoch.
    order       generator.permutation(number of rows). The last row may be short: round up.
    row r       the ids offset + r · T … offset + min(r · T + T, length) - 1, around the circle
                (`stream.take(places, mode="wrap")`). A short row is filled with PAD at its end.

    stream 5 6 7 8 9, T = 2, offset 3      rows  8 9 | 5 6 | 7 PAD        in a random order

Collect rows until there are B, and yield them as one tensor (B, T). Rows that are left over at the
end of an epoch begin the next batch. It never ends.

The target of a token is the next one: a row shifted by one place to the left. Three places have no
target, and get IGNORED: the end of the row, a place before PAD, and a place before BOS, because a
new document cannot be foreseen.

    row       5   6   EOS  BOS  7   PAD
    targets   6  EOS -100   7 -100 -100

The same in Headlight: data/batches.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from notebooks.solutions.loss import IGNORED
from notebooks.solutions.tokenizer import BOS, PAD


def batches(stream: np.ndarray, length: int, rows: int, seed: int) -> Iterator[Tensor]:
    """Yield ids (rows, length) without end. stream: ids (N,)."""
    # <solution>
    batch = []
    for epoch in count():
        generator = np.random.default_rng([seed, epoch])
        offset = generator.integers(len(stream))
        for row in generator.permutation(-(-len(stream) // length)):
            places = np.arange(row * length, min(row * length + length, len(stream)))
            ids = stream.take(offset + places, mode="wrap")
            batch.append(np.pad(ids, (0, length - len(ids)), constant_values=PAD))
            if len(batch) == rows:
                yield torch.from_numpy(np.stack(batch))
                batch = []
    # </solution>


def targets_of(ids: Tensor) -> Tensor:
    """Return the next token of each place, or IGNORED: (B, T) -> (B, T)."""
    # <solution>
    targets = F.pad(ids[:, 1:], (0, 1), value=IGNORED)
    return targets.masked_fill((targets == BOS) | (targets == PAD), IGNORED)
    # </solution>
