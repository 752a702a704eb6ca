"""Batch k as a pure function of (seed, k): nothing to save, nothing to restore, the same on every machine.

An epoch reads every token of the stream exactly once: the stream is rotated by an offset drawn for this epoch,
cut into rows of T tokens, and the rows are shuffled. Row p of training (p = 0, 1, 2, …, over all epochs) is
row p % n of epoch p // n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter

import numpy as np
import torch
from torch import Tensor

from data import packing
from data.packing import TokenStream
from data.tokenizer import Tokenizer


@dataclass(frozen=True)
class Batch:
    """input_ids and labels (B, T) int64; document_ids (B, T) or None (then documents see each other);
    position_ids (B, T) or None (then they count on through the row); row_ids (B,): the rows' numbers p, for messages.
    """

    input_ids: Tensor
    labels: Tensor
    document_ids: Tensor | None
    position_ids: Tensor | None
    row_ids: list[int]

    def for_model(self) -> dict[str, Tensor | None]:
        """What LanguageModel.forward takes: lm(**batch.for_model())."""
        return {
            "input_ids": self.input_ids,
            "labels": self.labels,
            "document_ids": self.document_ids,
            "position_ids": self.position_ids,
        }

    def to(self, device: torch.device) -> Batch:
        return self._map(lambda t: t.to(device, non_blocking=True), self.row_ids)

    def split(self, rows: int) -> list[Batch]:
        """Micro-batches of at most `rows` rows."""
        parts = [slice(i, i + rows) for i in range(0, len(self.row_ids), rows)]
        return [self._map(itemgetter(part), self.row_ids[part]) for part in parts]

    def _map(self, change: Callable[[Tensor], Tensor], row_ids: list[int]) -> Batch:
        changed = {name: t if t is None else change(t) for name, t in self.for_model().items()}
        return Batch(**changed, row_ids=row_ids)  # type: ignore[arg-type]


class TrainBatches:
    """The training batches of a run. `batch(k)` can be asked for in any order."""

    def __init__(
        self,
        stream: TokenStream,
        tokenizer: Tokenizer,
        sequence_length: int,
        rows_per_batch: int,
        seed: int,
        isolate_documents: bool = False,
        restart_positions: bool = False,
    ):
        self.stream, self.tokenizer = stream, tokenizer
        self.sequence_length, self.rows_per_batch, self.seed = sequence_length, rows_per_batch, seed
        self.packed_as = (isolate_documents, restart_positions)
        self.rows_per_epoch = -(-len(stream) // sequence_length)
        self._order = lru_cache(maxsize=2)(self._draw_order)

    def batch(self, k: int) -> Batch:
        first = k * self.rows_per_batch
        row_ids = list(range(first, first + self.rows_per_batch))
        return make_batch([self._row(p) for p in row_ids], row_ids, self.tokenizer, *self.packed_as)

    def _row(self, p: int) -> np.ndarray:
        offset, order = self._order(p // self.rows_per_epoch)
        start = int(order[p % self.rows_per_epoch]) * self.sequence_length
        length = min(self.sequence_length, len(self.stream) - start)
        return packing.fill_row(self.stream.read(offset + start, length), self.sequence_length, self.tokenizer.pad_id)

    def _draw_order(self, epoch: int) -> tuple[int, np.ndarray]:
        generator = np.random.default_rng([self.seed, epoch])
        return int(generator.integers(len(self.stream))), generator.permutation(self.rows_per_epoch)


def validation_batches(
    stream: TokenStream,
    tokenizer: Tokenizer,
    sequence_length: int,
    rows_per_batch: int,
    isolate_documents: bool = False,
    restart_positions: bool = False,
    max_tokens: int | None = None,
) -> Iterator[Batch]:
    """The held-out stream in order. Rows overlap by one token, so that each token is asked for exactly once:
    a row's first token cannot be predicted in it, but it was the last label of the row before.
    max_tokens: stop after about as many (always whole rows)."""
    stride = sequence_length - 1
    length = len(stream) if max_tokens is None else min(len(stream), max_tokens)
    starts = list(range(0, max(length - 1, 1), stride))
    for i in range(0, len(starts), rows_per_batch):
        row_ids = [start // stride for start in starts[i : i + rows_per_batch]]
        rows = [
            packing.fill_row(
                stream.read(r * stride, min(sequence_length, len(stream) - r * stride)),
                sequence_length,
                tokenizer.pad_id,
            )
            for r in row_ids
        ]
        yield make_batch(rows, row_ids, tokenizer, isolate_documents, restart_positions)


def make_batch(rows: list[np.ndarray], row_ids: list[int], tokenizer: Tokenizer, isolate: bool, restart: bool) -> Batch:
    """Rows of ids, each (T,) -> tensors (B, T). isolate: with document_ids; restart: with position_ids of their own."""
    stack = lambda arrays: torch.from_numpy(np.stack(list(arrays)))  # noqa: E731
    documents = [packing.document_ids(row, tokenizer.bos_id) for row in rows]
    return Batch(
        stack(rows),
        stack(packing.labels(row, tokenizer.bos_id, tokenizer.pad_id) for row in rows),
        stack(documents) if isolate else None,
        stack(packing.restarted_positions(row) for row in documents) if restart else None,
        row_ids,
    )
