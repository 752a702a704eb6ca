"""Batch k as a pure function of (seed, k): nothing to save, nothing to restore, the same on every machine.

An epoch reads every token of the stream exactly once: the stream is rotated by an offset drawn for this epoch,
cut into rows of T tokens, and the rows are shuffled. Row p of training (p = 0, 1, 2, …, over all epochs) is
row p % n of epoch p // n.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from data import packing
from data.packing import TokenStream
from data.tokenizer import Tokenizer


@dataclass(frozen=True)
class Batch:
    """input_ids and labels (B, T) int64; document_ids (B, T) or None (then documents see each other);
    row_ids (B,): the rows' numbers p, for messages."""

    input_ids: Tensor
    labels: Tensor
    document_ids: Tensor | None
    row_ids: list[int]

    def to(self, device: torch.device) -> Batch:
        move = lambda t: t.to(device, non_blocking=True)  # noqa: E731
        documents = move(self.document_ids) if self.document_ids is not None else None
        return Batch(move(self.input_ids), move(self.labels), documents, self.row_ids)

    def split(self, rows: int) -> list[Batch]:
        """Micro-batches of at most `rows` rows."""
        return [
            Batch(
                self.input_ids[i : i + rows],
                self.labels[i : i + rows],
                self.document_ids[i : i + rows] if self.document_ids is not None else None,
                self.row_ids[i : i + rows],
            )
            for i in range(0, len(self.row_ids), rows)
        ]


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
    ):
        self.stream, self.tokenizer = stream, tokenizer
        self.sequence_length, self.rows_per_batch, self.seed = sequence_length, rows_per_batch, seed
        self.isolate_documents = isolate_documents
        self.rows_per_epoch = -(-len(stream) // sequence_length)
        self._order = lru_cache(maxsize=2)(self._draw_order)

    def batch(self, k: int) -> Batch:
        first = k * self.rows_per_batch
        row_ids = list(range(first, first + self.rows_per_batch))
        return make_batch([self._row(p) for p in row_ids], row_ids, self.tokenizer, self.isolate_documents)

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
        yield make_batch(rows, row_ids, tokenizer, isolate_documents)


def make_batch(rows: list[np.ndarray], row_ids: list[int], tokenizer: Tokenizer, isolate: bool) -> Batch:
    """Rows of ids, each (T,) -> tensors (B, T)."""
    labels = [packing.labels(row, tokenizer.bos_id, tokenizer.pad_id) for row in rows]
    documents = [packing.document_ids(row, tokenizer.bos_id) for row in rows] if isolate else None
    return Batch(
        torch.from_numpy(np.stack(rows)),
        torch.from_numpy(np.stack(labels)),
        torch.from_numpy(np.stack(documents)) if documents is not None else None,
        row_ids,
    )
