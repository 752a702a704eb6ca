"""Batch k is a pure function of (seed, k): no state to save, and the same on every machine.

An epoch reads every row once, in an order drawn from (seed, epoch). Row p of training is row p % n
of epoch p // n, so any process can compute its share of any batch alone.
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
# data.rows_joined=auto joins the fewest of these rows with which this share is not padding.
JOINED = (1, 2, 4, 8)
ENOUGH = 0.95


@dataclass(frozen=True)
class Batch:
    """Rows that are trained on together: tensors by name, with rows as the first dimension."""

    # input_ids, labels (B, T) int64; perhaps document_ids (B, T) with document_starts (B, N), and
    # position_ids (B, T); or the tensors of another objective (chosen_input_ids, rewards, …)
    tensors: dict[str, Tensor]
    # the rows' numbers, for messages
    row_ids: list[int]
    # logged with the step
    figures: dict[str, float] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def to(self, device: torch.device) -> Batch:
        """Copy to a device."""
        # from pinned memory, nothing waits for the copy
        # non_blocking matters only for pinned memory; from other memory the copy waits anyway
        copies = {name: array.to(device, non_blocking=True) for name, array in self.tensors.items()}
        return replace(self, tensors=copies)

    def pinned(self) -> Batch:
        """Pin the tensors in memory for fast copies to a GPU."""
        pinned = {name: tensor.pin_memory() for name, tensor in self.tensors.items()}
        return replace(self, tensors=pinned)

    def split(self, rows: int) -> list[Batch]:
        """Split into micro-batches of at most `rows` rows."""
        batches = []
        for start in range(0, len(self.row_ids), rows):
            part = slice(start, start + rows)
            tensors = {name: tensor[part] for name, tensor in self.tensors.items()}
            batches.append(Batch(tensors, self.row_ids[part], self.figures))
        return batches

    def token_count(self, pad_id: int) -> tuple[int, int]:
        """Count (tokens that are not padding, positions) of all tensors named …input_ids."""
        ids = [tensor for name, tensor in self.tensors.items() if name.endswith("input_ids")]
        tokens = sum(int((tensor != pad_id).sum()) for tensor in ids)
        return tokens, sum(tensor.numel() for tensor in ids)


def make_rows(config: DataConfig, data: PreparedData, split: Split, rows_per_step: int = 8) -> Rows:
    """Cut a split into rows. Raises InputError if no conversation has an answer within a row."""
    stream = data.stream(split)
    bos_id = data.tokenizer.bos_id
    measures = (stream, config.sequence_length, bos_id, data.tokenizer.pad_id)
    if config.records == "text":
        # If all documents have the length of a row, a row is a document: another cut would part a
        # question from its facts.
        begins = np.arange(0, len(stream), config.sequence_length)
        is_aligned = len(stream) % config.sequence_length == 0
        is_aligned = is_aligned and np.array_equal(stream.documents(bos_id)[0], begins)
        held_out = split == "validation" and not is_aligned
        return DocumentRows(*measures, in_order=is_aligned, held_out=held_out)
    # of pairs, the loss is measured on the better answers
    every = 2 if config.records == "pairs" and split == "validation" else 1
    noun = "conversations" if split == "train" else "held-out conversations"
    rows = ConversationRows(*measures, config.too_long, not config.shuffle, every, noun)
    if split == "train" and config.isolate_documents:
        if config.rows_joined != "auto":
            rows.join(config.rows_joined)
            return rows
        # number of rows that divides a step -> share that is not padding
        shares = {n: rows.join(n) for n in JOINED if rows_per_step % n == 0}
        enough = [n for n in shares if shares[n] >= ENOUGH]
        rows.join(enough[0] if enough else max(shares, key=shares.__getitem__))
    return rows


def too_long(rows: Rows, config: DataConfig, split: Split) -> str:
    """Return a line about conversations that were too long for a row; "" if none was."""
    if not isinstance(rows, ConversationRows) or not rows.cut + rows.dropped:
        return ""
    return (
        f"{split}: of {len(rows.sizes):,} conversations, {rows.cut:,} were cut at a turn and "
        f"{rows.dropped:,} left out, because they are longer than data.sequence_length "
        f"({config.sequence_length}): raise it, and with it model.max_position_embeddings, to "
        "keep them"
    )


@dataclass(eq=False)
class TrainBatches:
    """The training batches of a run, in any order."""

    rows: Rows
    tokenizer: Tokenizer
    rows_per_batch: int
    seed: int
    isolate_documents: bool = False
    restart_positions: bool = False
    # False: rows keep their own order
    shuffle: bool = True

    def __post_init__(self) -> None:
        # of two epochs, because a batch may cross the end of one
        self._order = lru_cache(maxsize=2)(self._draw_order)

    def batch(self, k: int, rank: int = 0, world_size: int = 1) -> Batch:
        """Return the share of batch k that process `rank` of `world_size` trains on."""
        first = k * self.rows_per_batch
        # equal shares; if the division leaves a rest, some have one row more
        begin = first + self.rows_per_batch * rank // world_size
        end = first + self.rows_per_batch * (rank + 1) // world_size
        rows = []
        for row_id in range(begin, end):
            epoch, p = divmod(row_id, self.rows.per_epoch)
            offset, order = self._order(epoch)
            rows.append(self.rows.row(int(order[p]), offset))
        return self.collate(rows, list(range(begin, end)))

    def collate(self, rows: Sequence[Any], row_ids: list[int]) -> Batch:
        """Make a batch of the results of `self.rows.row`. Other objectives override this."""
        layout = (self.isolate_documents, self.restart_positions)
        return make_batch(rows, row_ids, self.tokenizer, *layout)

    def _draw_order(self, epoch: int) -> tuple[int, np.ndarray]:
        if not self.shuffle:
            # no offset either: the first row begins where the text does
            return 0, np.arange(self.rows.per_epoch)
        # not seed + epoch: epoch 1 of seed 0 would be epoch 0 of seed 1
        generator = np.random.default_rng([self.seed, epoch])
        # drawn before the permutation, which takes more draws the more rows there are
        offset = int(generator.integers(self.rows.offsets))
        return offset, generator.permutation(self.rows.per_epoch)


def validation_batches(
    rows: Rows,
    tokenizer: Tokenizer,
    rows_per_batch: int,
    isolate_documents: bool = False,
    restart_positions: bool = False,
    max_tokens: int | None = None,
    share: tuple[int, int] = (0, 1),
) -> Iterator[Batch]:
    """Yield held-out rows in order, about max_tokens of them. share: (rank, processes)."""
    rank, world_size = share
    count = rows.per_epoch
    if max_tokens is not None:
        count = min(count, packing.rows_within(max_tokens, rows.length))
    for first in range(0, count, rows_per_batch * world_size):
        begin = first + rank * rows_per_batch
        # Collective operations need equally many batches on all processes: a process without rows
        # gets one without targets.
        row_ids = list(range(begin, min(begin + rows_per_batch, count))) or [0]
        arrays = [rows.row(row_id) for row_id in row_ids]
        batch = make_batch(arrays, row_ids, tokenizer, isolate_documents, restart_positions)
        if begin >= count:
            batch["labels"].fill_(IGNORED)
        yield batch


def make_batch(
    rows: Sequence[Sequence[np.ndarray]],
    row_ids: list[int],
    tokenizer: Tokenizer,
    isolate: bool,
    restart: bool,
) -> Batch:
    """Stack (ids, labels) of rows. isolate: with document_ids; restart: with position_ids."""
    ids, labels = (np.stack(arrays) for arrays in zip(*rows, strict=True))  # (B, T) each
    tensors = {"input_ids": ids, "labels": labels}
    if isolate or restart:
        # document 0 is the tail of one that began in an earlier row
        documents = np.cumsum(ids == tokenizer.bos_id, axis=1, dtype=np.int64)  # (B, T)
        if isolate:
            tensors["document_ids"] = documents
            tensors["document_starts"] = packing.document_starts(documents)  # (B, N)
        if restart:
            # documents 0 0 0 1 1 2 -> positions 0 1 2 0 1 0
            columns = np.arange(ids.shape[1])  # (T,)
            begins = np.diff(documents, axis=1, prepend=-1) != 0
            starts = np.maximum.accumulate(np.where(begins, columns, 0), axis=1)  # (B, T)
            # padding may be longer than any document, and a table of learned positions is not
            positions = np.where(ids == tokenizer.pad_id, 0, columns - starts)
            tensors["position_ids"] = positions
    return Batch({name: torch.from_numpy(array) for name, array in tensors.items()}, row_ids)


def prefetched(items: Iterable[Item], ahead: int = 2) -> Generator[Item]:
    """Yield the same items, up to `ahead` of them made in advance by a thread."""
    source = iter(items)
    end = object()
    # torch and the tokenizer release Python's lock, so the thread can work
    thread = ThreadPoolExecutor(1, "prefetch")
    # one thread, so items come in their order; two ahead hide the time of making one
    ready: deque[Any] = deque(thread.submit(next, source, end) for _ in range(ahead))
    try:
        while True:
            # an exception of the iterator is raised here, in its turn
            item = ready.popleft().result()
            if item is end:
                return
            ready.append(thread.submit(next, source, end))
            yield item
    finally:
        # the thread stops with the caller
        thread.shutdown(cancel_futures=True)
        if isinstance(source, Generator):
            source.close()
