"""Cut documents into fixed-length rows that keep their document boundaries.

The shards of a split are one long stream:   bos doc eos  bos doc eos  bos doc …
Pretraining cuts it into rows of T tokens, anywhere in a document. No text has a bos token, so a
row needs no index: a bos token is a boundary. Conversations stay whole: several share a row if they
fit, and padding fills the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from configs import IGNORED
from configs.command import InputError
from data.chat import MAY_END, TRAINED
from data.config import Split
from data.tokenizer import Tokenizer

SIDES = ("chosen", "rejected")
# This many neighbours are packed together if conversations keep their order.
NEIGHBORS = 64


class TokenStream:
    """The shards of one split, read as if they were one array of `len(stream)` token ids."""

    def __init__(self, shards: list[Path], dtype: str, flags: list[Path] | None = None):
        # memory-mapped: the system reads parts on demand and caches them
        self._shards = [np.memmap(path, dtype, "r") for path in shards]
        self._flags = [np.memmap(path, "uint8", "r") for path in flags or []]
        # shard i has the tokens from ends[i - 1] up to ends[i]
        self._ends = np.cumsum([len(shard) for shard in self._shards])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, start: int, length: int) -> np.ndarray:
        """Read ids (length,) int64. The stream is a circle."""
        # shards have uint16 or uint32, and an embedding takes int64
        return self._read(self._shards, start, length).astype(np.int64)

    def read_flags(self, start: int, length: int) -> np.ndarray:
        """Read uint8 flags (data.chat) of conversations."""
        return self._read(self._flags, start, length)

    def read_labels(self, start: int, length: int) -> np.ndarray:
        """Read the ids that are trained on; the others are IGNORED."""
        is_trained = self.read_flags(start, length) & TRAINED
        return np.where(is_trained, self.read(start, length), IGNORED)

    def documents(self, bos_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Find the starts of documents (their bos tokens) and their sizes, each (N,)."""
        begins = [0, *self._ends[:-1]]
        parts = []
        for shard, begin in zip(self._shards, begins, strict=True):
            parts.append(np.flatnonzero(shard == bos_id) + begin)
        starts = np.concatenate(parts)
        # a document ends where the next one starts
        return starts, np.diff(starts, append=len(self))

    def _read(self, arrays: Sequence[np.ndarray], start: int, length: int) -> np.ndarray:
        pieces = []
        while length > 0:
            start %= len(self)
            # "right": an end is the first token of the next shard
            shard = int(np.searchsorted(self._ends, start, side="right"))
            # a negative start: counted from the end of this shard
            piece = arrays[shard][start - int(self._ends[shard]) :][:length]
            pieces.append(piece)
            start += len(piece)
            length -= len(piece)
        return np.concatenate(pieces)


@dataclass(frozen=True)
class PreparedData:
    """A prepared corpus: its tokenizer, the manifest, and two streams of tokens."""

    directory: Path
    # manifest[split] has the numbers of documents, tokens, trained_tokens (those that can be
    # targets) and their bytes; bytes_per_token; and shards, file name -> sha256
    manifest: dict[str, Any]
    tokenizer: Tokenizer

    def stream(self, split: Split) -> TokenStream:
        """Open the tokens of a split."""
        shards = [self.directory / name for name in self.manifest[split]["shards"]]
        ids = [shard for shard in shards if shard.suffix == ".bin"]
        flags = [shard for shard in shards if shard.suffix == ".flags"]
        return TokenStream(ids, self.manifest["dtype"], flags)


@dataclass(eq=False)
class DocumentRows:
    """The stream cut into rows of T tokens: each token once an epoch, padding in the last row only.

    An epoch has `per_epoch` rows, in_order and held_out from the beginning of the stream.
    """

    stream: TokenStream
    length: int
    bos_id: int
    pad_id: int
    in_order: bool = False
    held_out: bool = False

    def __post_init__(self) -> None:
        tokens = len(self.stream)
        # held-out rows overlap by one token: the first of a row has no context, so the row before
        # predicts it
        self.stride = self.length - 1 if self.held_out else self.length
        # other epochs start at any token, so their rows differ
        self.offsets = 1 if self.in_order or self.held_out else tokens
        # rounded up
        self.per_epoch = -(-tokens // self.length)
        if self.held_out:
            self.per_epoch = rows_within(tokens, self.length)

    def row(self, index: int, offset: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids, labels) of a row, each (T,) int64."""
        start = index * self.stride
        length = min(self.length, len(self.stream) - start)
        ids = self.stream.read(offset + start, length)
        ids = np.pad(ids, (0, self.length - length), constant_values=self.pad_id)  # (T,)
        # nothing predicts where the next document starts
        is_ignored = (ids == self.bos_id) | (ids == self.pad_id)
        return ids, np.where(is_ignored, IGNORED, ids)


def rows_within(tokens: int, length: int) -> int:
    """Return the number of held-out rows for this many tokens; at least one."""
    return max(1, -(-(tokens - 1) // (length - 1)))


class ConversationRows:
    """Conversations, packed whole; row `index` is (ids, labels), each (T,) int64.

    - in_order: a row holds conversations that (nearly) follow each other.
    - every: 2 reads only the first of two conversations, the better answer of a pair.

    Raises InputError, which calls them `noun`, if no conversation has an answer to train on.
    """

    # every epoch has the same rows, in another order
    offsets = 1

    def __init__(
        self,
        stream: TokenStream,
        length: int,
        bos_id: int,
        pad_id: int,
        too_long: Literal["truncate", "drop"],
        in_order: bool = False,
        every: int = 1,
        noun: str = "conversations",
    ):
        self.stream = stream
        self.pad_id = pad_id
        self.every = every
        self._longest = length
        self._in_order = in_order
        starts, sizes = (array[::every] for array in stream.documents(bos_id))
        # a conversation longer than a row is cut after the last assistant turn that fits
        long = np.flatnonzero(sizes > length)
        for i in long:
            ends = np.flatnonzero(stream.read_flags(int(starts[i]), length) & MAY_END)
            sizes[i] = ends[-1] + 1 if len(ends) and too_long == "truncate" else 0
        trained = trained_tokens(stream, starts, sizes)  # (N,)
        # a row of these alone would have a loss of 0 / 0
        sizes[trained == 0] = 0
        if not sizes.any():
            raise InputError(
                f"data.sequence_length: none of {len(sizes):,} {noun} has an answer to train on "
                f"within a row of {length} tokens: raise it"
            )
        # numbers of conversations
        self.dropped = int((sizes == 0).sum())
        self.cut = int((sizes[long] > 0).sum())
        # the trained tokens of all, and the tokens of each conversation that are in a row
        self.trained = int(trained.sum())
        self.sizes = sizes  # (N,)
        self._starts = starts
        self.join(1)

    def join(self, rows: int) -> float:
        """Join this many rows into one. Returns the share of tokens that are not padding."""
        # the limit of a conversation stays, so less of a row is left over
        self.length = self._longest * rows
        together = NEIGHBORS if self._in_order else len(self.sizes)
        # the conversations of each row
        self.members = []
        for first in range(0, len(self.sizes), together):
            for row in best_fit(self.sizes[first : first + together], self.length):
                self.members.append([first + item for item in row])
        self.per_epoch = len(self.members)
        return float(self.sizes.sum()) / (self.per_epoch * self.length)

    def row(self, index: int, offset: int = 0) -> tuple[np.ndarray, np.ndarray]:
        spans = [(int(self._starts[i]), int(self.sizes[i])) for i in self.members[index]]
        ids = np.concatenate([self.stream.read(*span) for span in spans])
        labels = np.concatenate([self.stream.read_labels(*span) for span in spans])
        padding = (0, self.length - len(ids))
        ids = np.pad(ids, padding, constant_values=self.pad_id)
        return ids, np.pad(labels, padding, constant_values=IGNORED)


Rows = DocumentRows | ConversationRows


class Pairs:
    """The pairs of a stream with two answers to train on, each within `longest` tokens.

    Raises InputError if there is none.
    """

    offsets = 1

    def __init__(self, stream: TokenStream, longest: int, bos_id: int):
        starts, sizes = stream.documents(bos_id)
        # chosen and rejected conversations take turns
        spans = np.stack([starts, sizes], axis=1).reshape(-1, 2, 2)  # (pairs, 2, start and size)
        has_answer = trained_tokens(stream, starts, sizes) > 0
        fits = ((sizes <= longest) & has_answer).reshape(-1, 2).all(axis=1)  # (pairs,)
        if not fits.any():
            problem = f"none of {len(spans):,} pairs fits into {longest} tokens"
            raise InputError(f"data.sequence_length: {problem}: raise it")
        self._stream = stream
        self._spans = spans[fits]
        self.length = 2 * longest
        self.per_epoch = len(self._spans)
        # the number of other pairs
        self.left_out = int((~fits).sum())

    def row(self, index: int, offset: int = 0) -> dict[str, np.ndarray]:
        """Return input_ids and labels of both sides, "chosen_input_ids" …, each (t,)."""
        row: dict[str, np.ndarray] = {}
        for side, (start, size) in zip(SIDES, self._spans[index].tolist(), strict=True):
            row[f"{side}_input_ids"] = self._stream.read(start, size)
            row[f"{side}_labels"] = self._stream.read_labels(start, size)
        return row


def trained_tokens(stream: TokenStream, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Count the trained tokens in the first `sizes` tokens of each conversation: (N,)."""
    # one more at the end: `reduceat` takes no bound behind the last number
    flags = np.append(stream.read_flags(0, len(stream)) & TRAINED, np.uint8(0))
    bounds = np.stack([starts, starts + sizes], axis=1).ravel()
    # reduceat also sums between conversations: every second sum is one of ours
    return np.where(sizes > 0, np.add.reduceat(flags, bounds, dtype=np.int64)[::2], 0)


def best_fit(sizes: np.ndarray, capacity: int) -> list[list[int]]:
    """Pack items into rows; return the items of each row, without those of size 0."""
    # Best-fit decreasing: the longest first, each into the fullest row that still has room. It
    # takes at most 22 % more rows than needed (Johnson 1973).
    rows: list[list[int]] = []
    # rows_with[room]: the rows with exactly this much room; has_row[room]: there is one
    rows_with: list[list[int]] = [[] for _ in range(capacity + 1)]
    has_row = np.zeros(capacity + 1, dtype=bool)
    has_row[capacity] = True  # a new row
    # stable: equal sizes stay in order on every machine, and so do the rows
    for item in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[item])
        if size == 0:
            break
        # argmax finds the first True: the least room that is enough
        room = size + int(has_row[size:].argmax())
        if room == capacity:
            rows.append([])
            row = len(rows) - 1
        else:
            row = rows_with[room].pop()
            has_row[room] = bool(rows_with[room])
        rows[row].append(item)
        rows_with[room - size].append(row)
        has_row[room - size] = True
    return sorted(sorted(row) for row in rows)


def document_starts(documents: np.ndarray) -> np.ndarray:
    """Return the starts of documents, (B, N) int32, for document numbers (B, T).

    0 0 1 1 1 -> 0 2 5 5 5 5 5 5, filled up with T.
    """
    length = documents.shape[1]
    begins = np.diff(documents, axis=1, prepend=documents[:, :1] - 1) != 0  # (B, T)
    # T wherever no document begins; sorting moves those to the end
    columns = np.where(begins, np.arange(length, dtype=np.int32), np.int32(length))
    starts = np.sort(columns, axis=1)
    # N is a power of two, 8 or more, so that a compiled model meets few shapes
    most = int(begins.sum(axis=1).max())
    width = max(8, 1 << (most - 1).bit_length())
    missing = max(0, width - length)
    return np.pad(starts[:, :width], ((0, 0), (0, missing)), constant_values=length)
