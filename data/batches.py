"""Batch k as a pure function of (seed, k): nothing to save, nothing to restore, the same on every machine.

An epoch reads every row exactly once, in an order drawn from (seed, epoch). Row p of training (p = 0, 1, 2, …, over
all epochs) is row p % n of epoch p // n, so any process can compute its share of any batch by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from configs import IGNORED
from data import packing
from data.config import DataConfig, Split
from data.packing import ConversationRows, DocumentRows, PreparedData, Rows
from data.tokenizer import Tokenizer

Item = TypeVar("Item")
JOINED = (1, 2, 4, 8)  # how many rows data.rows_joined=auto may join: as few as make ENOUGH of their positions real
ENOUGH = 0.95


@dataclass(frozen=True)
class Batch:
    """Rows that are trained on together: tensors by name, each with the rows as its first dimension.

    input_ids, labels (B, T) int64; document_ids (B, T) and document_starts (B, N) where documents must not see each
    other; position_ids (B, T) where positions do not count on through the row. Another objective names what it needs
    (chosen_input_ids, rewards, …). row_ids: the rows' numbers, for messages. figures: what its source logs of the step.
    """

    tensors: dict[str, Tensor]
    row_ids: list[int]
    figures: dict[str, float] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def to(self, device: torch.device) -> Batch:
        """On another device. From page-locked memory, what follows does not wait for the copy."""
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in self.tensors.items()}
        return replace(self, tensors=moved)

    def pinned(self) -> Batch:
        """In page-locked memory."""
        return replace(self, tensors={name: tensor.pin_memory() for name, tensor in self.tensors.items()})

    def split(self, rows: int) -> list[Batch]:
        """Micro-batches of at most `rows` rows."""
        parts = [slice(i, i + rows) for i in range(0, len(self.row_ids), rows)]
        tensors = [{name: tensor[part] for name, tensor in self.tensors.items()} for part in parts]
        return [Batch(some, self.row_ids[part], self.figures) for some, part in zip(tensors, parts, strict=True)]

    def token_count(self, pad_id: int) -> tuple[int, int]:
        """(tokens that are not padding, positions) of every tensor whose name ends in input_ids."""
        ids = [tensor for name, tensor in self.tensors.items() if name.endswith("input_ids")]
        return sum(int((each != pad_id).sum()) for each in ids), sum(each.numel() for each in ids)


def make_rows(config: DataConfig, data: PreparedData, split: Split, rows_per_step: int = 8) -> Rows:
    """The rows of a split; of conversations to train on, data.rows_joined of them are joined into one.

    Raises InputError where no conversation has an answer to train on within a row.
    """
    stream, tokenizer, length = data.stream(split), data.tokenizer, config.sequence_length
    measures = (stream, length, tokenizer.bos_id, tokenizer.pad_id)
    if config.records == "text":
        # a document a row, where all are exactly as long: another cut would part a question from its facts
        begins = np.arange(0, len(stream), length)
        aligned = len(stream) % length == 0 and np.array_equal(stream.documents(tokenizer.bos_id)[0], begins)
        return DocumentRows(*measures, in_order=aligned, held_out=split == "validation" and not aligned)
    every = 2 if config.records == "pairs" and split == "validation" else 1
    what = "conversations" if split == "train" else "held-out conversations"
    rows = ConversationRows(*measures, config.too_long, not config.shuffle, every, what)
    if split == "train" and config.isolate_documents:
        few = [n for n in JOINED if rows_per_step % n == 0] if config.rows_joined == "auto" else [config.rows_joined]
        shares = {n: rows.join(n) for n in few}
        rows.join(next((n for n in few if shares[n] >= ENOUGH), max(few, key=lambda n: shares[n])))
    return rows


def too_long(rows: Rows, config: DataConfig, split: Split) -> str:
    """What did not fit into a row, in a line; empty if everything did."""
    if not isinstance(rows, ConversationRows) or not rows.cut + rows.dropped:
        return ""
    numbers = f"{rows.cut:,} were cut at a turn and {rows.dropped:,} left out, because they are longer than"
    remedy = f"data.sequence_length ({config.sequence_length}): raise it, and with it model.max_position_embeddings"
    return f"{split}: of {len(rows.sizes):,} conversations, {numbers} {remedy}, to keep them"


class TrainBatches:
    """The training batches of a run. `batch(k)` can be asked for in any order.

    isolate_documents: batches have document_ids. restart_positions: batches have position_ids of their own.
    shuffle: False reads every epoch's rows in their own order.
    """

    def __init__(
        self,
        rows: Rows,
        tokenizer: Tokenizer,
        rows_per_batch: int,
        seed: int,
        isolate_documents: bool = False,
        restart_positions: bool = False,
        shuffle: bool = True,
    ):
        self.rows, self.tokenizer, self.rows_per_batch, self.seed = rows, tokenizer, rows_per_batch, seed
        self.packed_as, self.shuffle = (isolate_documents, restart_positions), shuffle
        self._order = lru_cache(maxsize=2)(self._draw_order)

    def batch(self, k: int, rank: int = 0, world_size: int = 1) -> Batch:
        """Batch k, or the share of it that process `rank` of `world_size` trains on: a run of its rows."""
        first = k * self.rows_per_batch
        begin, end = (first + self.rows_per_batch * share // world_size for share in (rank, rank + 1))
        row_ids, rows = list(range(begin, end)), []
        for epoch, p in (divmod(row_id, self.rows.per_epoch) for row_id in row_ids):
            offset, order = self._order(epoch)
            rows.append(self.rows.row(int(order[p]), offset))
        return self.collate(rows, row_ids)

    def collate(self, rows: Sequence[Any], row_ids: list[int]) -> Batch:
        """What `self.rows` gives for each row -> a batch."""
        return make_batch(rows, row_ids, self.tokenizer, *self.packed_as)

    def _draw_order(self, epoch: int) -> tuple[int, np.ndarray]:
        if not self.shuffle:
            return 0, np.arange(self.rows.per_epoch)
        generator = np.random.default_rng([self.seed, epoch])
        return int(generator.integers(self.rows.offsets)), generator.permutation(self.rows.per_epoch)


def validation_batches(
    rows: Rows,
    tokenizer: Tokenizer,
    rows_per_batch: int,
    isolate_documents: bool = False,
    restart_positions: bool = False,
    max_tokens: int | None = None,
    share: tuple[int, int] = (0, 1),
) -> Iterator[Batch]:
    """Held-out rows in order. max_tokens: stop after about as many (always whole rows). share: (rank, processes); all
    processes get equally many batches: where one has none left, it gets one that asks for no token."""
    (rank, world_size), count = share, rows.per_epoch
    if max_tokens is not None:
        count = min(count, packing.rows_within(max_tokens, rows.length))
    for first in range(0, count, rows_per_batch * world_size):
        begin = first + rank * rows_per_batch
        row_ids = list(range(begin, min(begin + rows_per_batch, count))) or [0]
        batch = make_batch([rows.row(r) for r in row_ids], row_ids, tokenizer, isolate_documents, restart_positions)
        if begin >= count:
            batch["labels"].fill_(IGNORED)
        yield batch


def make_batch(
    rows: Sequence[Sequence[np.ndarray]], row_ids: list[int], tokenizer: Tokenizer, isolate: bool, restart: bool
) -> Batch:
    """(ids, labels) of rows, each (T,) -> tensors (B, T). isolate: with document_ids; restart: with position_ids."""
    ids, targets = (np.stack(arrays) for arrays in zip(*rows, strict=True))
    tensors = {"input_ids": ids, "labels": targets}
    if isolate or restart:
        documents = np.cumsum(ids == tokenizer.bos_id, axis=1, dtype=np.int64)  # 0: the tail of one in an earlier row
        if isolate:
            tensors |= {"document_ids": documents, "document_starts": packing.document_starts(documents)}
        if restart:  # 0 0 0 1 1 2 -> 0 1 2 0 1 0
            places, begins = np.arange(ids.shape[1]), np.diff(documents, axis=1, prepend=-1) != 0
            positions = places - np.maximum.accumulate(np.where(begins, places, 0), axis=1)
            # padding may be longer than any document, and learned positions are a table: it gets one that exists
            tensors["position_ids"] = np.where(ids == tokenizer.pad_id, 0, positions)
    return Batch({name: torch.from_numpy(array) for name, array in tensors.items()}, row_ids)


def prefetched(items: Iterable[Item], ahead: int = 2) -> Generator[Item]:
    """The same items in the same order, up to `ahead` of them made in advance by a thread of this process.

    What the iterator raises is raised here, in its turn. When the caller stops early, so does the thread.
    """
    source, end, thread = iter(items), object(), ThreadPoolExecutor(1, "prefetch")
    ready: deque[Any] = deque(thread.submit(next, source, end) for _ in range(ahead))
    try:
        while (item := ready.popleft().result()) is not end:
            ready.append(thread.submit(next, source, end))
            yield item
    finally:
        thread.shutdown(cancel_futures=True)
        if isinstance(source, Generator):
            source.close()
