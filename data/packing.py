"""Documents -> fixed-length rows that know their document boundaries.

The shards of a split are one long stream:   bos doc eos  bos doc eos  bos doc …
Pretraining cuts it into rows of T tokens, wherever the cuts fall; if all documents have T tokens, between them. Every
document begins with the bos token, and plain text never produces one. So a row needs no index: a boundary is where a
bos token is.
Conversations stay whole: several share a row where they fit, and padding fills the rest.
"""

from __future__ import annotations

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
NEIGHBORS = 64  # conversations that are packed together where their order is kept


class TokenStream:
    """The shards of one split, read as if they were one array of `len(stream)` token ids.

    The files are memory-mapped: the system reads what is needed, and keeps what is read again. They stay readable when
    they are deleted. (Cut off while it is mapped, a file would kill the process; nothing here does that.)
    """

    def __init__(self, shards: list[Path], dtype: str, flags: list[Path] | None = None):
        self._shards = [np.memmap(path, dtype, "r") for path in shards]
        self._flags = [np.memmap(path, "uint8", "r") for path in flags or []]
        self._ends = np.cumsum([len(shard) for shard in self._shards])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, start: int, length: int) -> np.ndarray:
        """int64 ids of positions start … start + length - 1; the end of the stream joins its beginning."""
        return self._read(self._shards, start, length).astype(np.int64)

    def read_flags(self, start: int, length: int) -> np.ndarray:
        """uint8 flags (data.chat) of the same positions, where the stream holds conversations."""
        return self._read(self._flags, start, length)

    def read_labels(self, start: int, length: int) -> np.ndarray:
        """The ids of the same positions, those that are trained on; else IGNORED."""
        return np.where(self.read_flags(start, length) & TRAINED, self.read(start, length), IGNORED)

    def documents(self, bos_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Where documents begin, which is where a bos token is, and their sizes, each (N,)."""
        begins = [0, *self._ends[:-1]]
        parts = [np.flatnonzero(shard == bos_id) + begin for shard, begin in zip(self._shards, begins, strict=True)]
        starts = np.concatenate(parts)
        return starts, np.diff(starts, append=len(self))

    def _read(self, arrays: Sequence[np.ndarray], start: int, length: int) -> np.ndarray:
        pieces, total = [], len(self)
        while length > 0:
            start %= total
            shard = int(np.searchsorted(self._ends, start, side="right"))
            piece = arrays[shard][start - int(self._ends[shard]) :][:length]
            pieces.append(piece)
            start, length = start + len(piece), length - len(piece)
        return np.concatenate(pieces)


@dataclass(frozen=True)
class PreparedData:
    """A prepared corpus: its tokenizer, the manifest, and two streams of tokens.

    manifest[split] holds: documents; tokens; trained_tokens, those that can be targets; bytes, of the text that these
    stand for; bytes_per_token; shards, file name -> sha256.
    """

    directory: Path
    manifest: dict[str, Any]
    tokenizer: Tokenizer

    def stream(self, split: Split) -> TokenStream:
        """The tokens of a split."""
        shards = [self.directory / name for name in self.manifest[split]["shards"]]
        ids, flags = ([shard for shard in shards if shard.suffix == kind] for kind in (".bin", ".flags"))
        return TokenStream(ids, self.manifest["dtype"], flags)


class DocumentRows:
    """The stream cut into rows of T tokens: every token exactly once an epoch, padding in the last row only.

    An epoch has `per_epoch` rows of `length` tokens. Row `index` is (ids, labels), each (T,) int64. The stream is a
    circle, and each epoch starts at another of its `offsets` places. So each epoch has other rows. in_order: each
    starts at its beginning. held_out: as well, and rows overlap by one token, so that each token is predicted exactly
    once: a row's first token has nothing before it, and is predicted as the last label of the row before.
    """

    def __init__(
        self, stream: TokenStream, length: int, bos_id: int, pad_id: int, in_order: bool = False, held_out: bool = False
    ):
        self.stream, self.length, self.bos_id, self.pad_id, self.stride = stream, length, bos_id, pad_id, length
        self.per_epoch, self.offsets = -(-len(stream) // length), 1 if in_order or held_out else len(stream)
        if held_out:
            self.per_epoch, self.stride = rows_within(len(stream), length), length - 1

    def row(self, index: int, offset: int = 0) -> tuple[np.ndarray, np.ndarray]:
        start = index * self.stride
        length = min(self.length, len(self.stream) - start)
        ids = np.pad(self.stream.read(offset + start, length), (0, self.length - length), constant_values=self.pad_id)
        # nothing predicts where the next document starts
        return ids, np.where((ids == self.bos_id) | (ids == self.pad_id), IGNORED, ids)


def rows_within(tokens: int, length: int) -> int:
    """How many held-out rows this many tokens make; at least one."""
    return max(1, -(-(tokens - 1) // (length - 1)))


class ConversationRows:
    """Conversations, packed whole. One that is longer than a row is cut after the last assistant turn that fits.
    It is left out where no token that is trained on is left, or with too_long="drop". in_order: a row holds
    conversations that (nearly) follow each other. every: 2 reads only the first of two conversations, the better
    answer of a pair. Raises InputError when no conversation is left.

    `cut`, `dropped`: how many. `sizes`: the tokens of each that are in a row. `trained`: how many of all are trained
    on. `members`: the conversations of each row.
    """

    def __init__(
        self,
        stream: TokenStream,
        length: int,
        bos_id: int,
        pad_id: int,
        too_long: Literal["truncate", "drop"],
        in_order: bool = False,
        every: int = 1,
        what: str = "conversations",
    ):
        self.stream, self.pad_id, self.offsets, self.every = stream, pad_id, 1, every
        self._longest, self._in_order = length, in_order
        starts, sizes = (array[::every] for array in stream.documents(bos_id))
        long = np.flatnonzero(sizes > length)
        for i in long:
            ends = np.flatnonzero(stream.read_flags(int(starts[i]), length) & MAY_END)
            sizes[i] = ends[-1] + 1 if len(ends) and too_long == "truncate" else 0
        trained = trained_tokens(stream, starts, sizes)
        sizes[trained == 0] = 0  # a row of these alone would have a loss of 0 / 0
        self.dropped = int((sizes == 0).sum())
        self.cut = int((sizes[long] > 0).sum())
        if not sizes.any():
            problem = f"none of {len(sizes):,} {what} has an answer to train on within a row of {length} tokens"
            raise InputError(f"data.sequence_length: {problem}: raise it")
        self._starts, self.sizes, self.trained = starts, sizes, int(trained.sum())
        self.join(1)

    def join(self, rows: int) -> float:
        """Join this many rows into one from now on. Returns the share of real tokens in an epoch."""
        self.length = self._longest * rows
        together = NEIGHBORS if self._in_order else len(self.sizes)
        self.members = [
            [first + item for item in row]
            for first in range(0, len(self.sizes), together)
            for row in best_fit(self.sizes[first : first + together], self.length)
        ]
        self.per_epoch = len(self.members)
        return float(self.sizes.sum()) / (self.per_epoch * self.length)

    def row(self, index: int, offset: int = 0) -> tuple[np.ndarray, np.ndarray]:
        spans = [(int(self._starts[i]), int(self.sizes[i])) for i in self.members[index]]
        ids = np.concatenate([self.stream.read(*span) for span in spans])
        labels = np.concatenate([self.stream.read_labels(*span) for span in spans])
        padding = (0, self.length - len(ids))
        return np.pad(ids, padding, constant_values=self.pad_id), np.pad(labels, padding, constant_values=IGNORED)


Rows = DocumentRows | ConversationRows


class Pairs:
    """The pairs of a stream of which both conversations fit into `longest` tokens and have an answer to train on.
    left_out: how many do not. Raises InputError if none does.
    """

    offsets = 1

    def __init__(self, stream: TokenStream, longest: int, bos_id: int):
        starts, sizes = stream.documents(bos_id)
        spans = np.stack([starts, sizes], axis=1).reshape(-1, 2, 2)
        fits = ((sizes <= longest) & (trained_tokens(stream, starts, sizes) > 0)).reshape(-1, 2).all(axis=1)
        if not fits.any():
            raise InputError(f"data.sequence_length: none of {len(spans):,} pairs fits into {longest} tokens: raise it")
        self._stream, self._spans = stream, spans[fits]  # pair, answer, (start, size)
        self.length, self.per_epoch, self.left_out = 2 * longest, len(self._spans), int((~fits).sum())

    def row(self, index: int, offset: int = 0) -> dict[str, np.ndarray]:
        """chosen_input_ids, chosen_labels, rejected_input_ids and rejected_labels of a pair, each (t,) int64."""
        row: dict[str, np.ndarray] = {}
        for side, (start, size) in zip(SIDES, self._spans[index].tolist(), strict=True):
            row[f"{side}_input_ids"] = self._stream.read(start, size)
            row[f"{side}_labels"] = self._stream.read_labels(start, size)
        return row


def trained_tokens(stream: TokenStream, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """(N,) how many tokens of each conversation are trained on, of its first `sizes` tokens."""
    flags = np.append(stream.read_flags(0, len(stream)) & TRAINED, np.uint8(0))
    bounds = np.stack([starts, starts + sizes], axis=1).ravel()
    return np.where(sizes > 0, np.add.reduceat(flags, bounds, dtype=np.int64)[::2], 0)


def best_fit(sizes: np.ndarray, capacity: int) -> list[list[int]]:
    """The items in each row; those of size 0 are left out. Best-fit decreasing: the longest first, each into the
    fullest row that still has room. Within a row, and among rows, the order is that of the items."""
    rows: list[list[int]] = []
    with_room: list[list[int]] = [[] for _ in range(capacity + 1)]  # room -> rows with exactly that much
    has_room = np.zeros(capacity + 1, dtype=bool)  # whether there is such a row
    has_room[capacity] = True  # a new one
    for item in np.argsort(-sizes, kind="stable").tolist():
        if (size := int(sizes[item])) == 0:
            break
        room = size + int(has_room[size:].argmax())
        if room == capacity:
            rows.append([])
            row = len(rows) - 1
        else:
            row = with_room[room].pop()
            has_room[room] = bool(with_room[room])
        rows[row].append(item)
        with_room[room - size].append(row)
        has_room[room - size] = True
    return sorted(sorted(row) for row in rows)


def document_starts(documents: np.ndarray) -> np.ndarray:
    """(B, T) document numbers -> (B, N) int32 places at which documents begin in each row, filled up with T.

    0 0 1 1 1 -> 0 2 5 5 5 5 5 5. N is a power of two, 8 or more, so that a compiled model meets few shapes.
    """
    begins = np.diff(documents, axis=1, prepend=documents[:, :1] - 1) != 0
    most, length = int(begins.sum(axis=1).max()), documents.shape[1]
    starts = np.sort(np.where(begins, np.arange(length, dtype=np.int32), np.int32(length)), axis=1)
    wanted = max(8, 1 << (most - 1).bit_length())
    return np.pad(starts[:, :wanted], ((0, 0), (0, max(0, wanted - length))), constant_values=length)
