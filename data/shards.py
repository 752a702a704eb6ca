"""Documents -> token shards on disk: read | encode | write, each stage a batch ahead of the next.

A shard is a plain array of token ids. For conversations, a second array holds flags, one byte a token. The shards of
both splits end at the same document. Then `progress.json` says how many documents are on disk, and a stopped
preparation continues behind them. It ends with the same bytes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from configs.command import still_busy
from configs.files import DamagedFile, read_json
from data.chat import TRAINED, encode_conversations, encode_pairs, plain_texts
from data.config import DataConfig, Split
from data.prefetch import prefetched
from data.reading.documents import Document, Ledger, read
from data.reading.files import sha256
from data.reading.pairs import Pair
from data.reading.records import Conversation
from data.reading.world import Content
from data.tokenizer import Tokenizer

SPLITS: tuple[Split, ...] = ("train", "validation")
SHARD_TOKENS = 100_000_000
BATCH = 1 << 20  # characters encoded at a time, on all cores
PROGRESS = "progress.json"


class Piece(NamedTuple):
    """A document, or a part of a text that is longer than a batch. first, last: it is the text's beginning, its end."""

    content: Content
    split: Split
    first: bool = True
    last: bool = True


@dataclass
class SplitWriter:
    """The shards of one split, written document by document."""

    directory: Path
    split: Split
    dtype: str
    has_flags: bool
    documents: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    bytes: int = 0
    shards: list[dict[str, Any]] = field(default_factory=list)
    _open: list[BinaryIO] = field(default_factory=list)  # ids, then flags
    size: int = 0  # tokens in the open shard

    def append(self, piece: Piece, ids: np.ndarray, flags: np.ndarray | None) -> None:
        """Write the tokens of a document, or of a piece of one, and count them."""
        if not self._open:
            names = [f"{self.split}_{len(self.shards):05d}.{kind}" for kind in ("bin", "flags")[: 1 + self.has_flags]]
            self._open = [(self.directory / name).open("wb") for name in names]
        for file, values in zip(self._open, (ids.astype(self.dtype), flags), strict=False):
            file.write(values.tobytes())  # type: ignore[union-attr]
        self.size += len(ids)
        self.tokens += len(ids)
        self.documents += piece.last
        if flags is None:
            self.trained_tokens += len(ids) - piece.first  # a document's first token is given, not predicted
        else:
            self.trained_tokens += int(np.count_nonzero(flags & TRAINED))
        texts = plain_texts(piece.content, 0 if flags is None else TRAINED)
        self.bytes += sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)

    def end_shard(self) -> None:
        """Finish the open shard, if any: it is on disk when this returns."""
        if not self._open:
            return
        described: dict[str, Any] = {"tokens": self.size}
        for key, file in zip(("", "flags_"), self._open, strict=False):
            path = Path(file.name)
            file.flush()
            os.fsync(file.fileno())
            file.close()
            described |= {f"{key}file": path.name, f"{key}bytes": path.stat().st_size, f"{key}sha256": sha256(path)}
        self.shards.append(described)
        self._open, self.size = [], 0

    def counts(self) -> dict[str, Any]:
        """What the manifest says about a split."""
        return {key: getattr(self, key) for key in ("documents", "tokens", "trained_tokens", "bytes", "shards")}

    def abandon(self) -> None:
        """Close the open shard as it is, after an error."""
        for file in self._open:
            file.close()


def write_shards(
    config: DataConfig, tokenizer: Tokenizer, directory: Path, show_progress: bool
) -> tuple[dict[Split, SplitWriter], Ledger]:
    """Write the tokens of every document that is not on disk yet. Returns what was written, by split, and what was
    read. Raises InputError for text that cannot be read."""
    dtype = "uint16" if tokenizer.vocab_size <= 2**16 else "uint32"
    writers = {split: SplitWriter(directory, split, dtype, config.records != "text") for split in SPLITS}
    done = 0  # pieces in finished shards
    if (directory / PROGRESS).is_file():
        saved = read_signed(directory / PROGRESS)
        done = saved["read"]
        for split, writer in writers.items():
            for key, value in saved[split].items():
                setattr(writer, key, value)
    ledger = Ledger()
    pieces = itertools.islice(_pieces(read(config, ledger), tokenizer), done, None)
    encoded = prefetched((batch, _encoded(batch, tokenizer)) for batch in prefetched(_batches(pieces)))
    try:
        with closing(encoded), _progress(ledger, show_progress) as advance:
            for batch, arrays in encoded:
                for piece, (ids, flags) in zip(batch, arrays, strict=True):
                    writers[piece.split].append(piece, ids, flags)
                    done += 1
                    if piece.last and max(writer.size for writer in writers.values()) >= SHARD_TOKENS:
                        for writer in writers.values():
                            writer.end_shard()
                        noted: dict[str, Any] = {split: writer.counts() for split, writer in writers.items()}
                        write_signed(directory / PROGRESS, noted | {"read": done})
                advance(sum(len(piece.content) for piece in batch if isinstance(piece.content, str)))
        for writer in writers.values():
            writer.end_shard()
    finally:
        for writer in writers.values():
            writer.abandon()
    return writers, ledger


def _pieces(documents: Iterator[Document], tokenizer: Tokenizer) -> Iterator[Piece]:
    """Documents, where long texts come in pieces that can be encoded alone."""
    for content, split, _ in documents:
        if not isinstance(content, str) or len(content) <= BATCH:
            yield Piece(content, split)
            continue
        texts = tokenizer.pieces(content, BATCH)
        for number, text in enumerate(texts, 1):
            yield Piece(text, split, first=number == 1, last=number == len(texts))


def _batches(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    """Batches of about BATCH characters."""
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.content if isinstance(piece.content, str) else repr(piece.content))
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _encoded(batch: list[Piece], tokenizer: Tokenizer) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """(ids, flags) of each piece; a text has no flags."""
    contents: list[Any] = [piece.content for piece in batch]
    if isinstance(contents[0], Conversation | Pair):
        encode = encode_conversations if isinstance(contents[0], Conversation) else encode_pairs
        return [(np.array(ids, dtype=np.uint32), flags) for ids, flags in encode(tokenizer, contents)]
    result: list[tuple[np.ndarray, np.ndarray | None]] = []
    for piece, ids in zip(batch, tokenizer.encode_many(contents), strict=True):
        begin, end = [tokenizer.bos_id] * piece.first, [tokenizer.eos_id] * piece.last
        result.append((np.array([*begin, *ids, *end], dtype=np.uint32), None))
    return result


@contextmanager
def _progress(ledger: Ledger, show: bool) -> Iterator[Callable[[int], None]]:
    """How much of the source was read: as a bar, or where nobody sees one as a line now and then. Gives a function
    that is told how many more characters were encoded."""
    from tqdm import tqdm

    characters, started = 0, time.monotonic()
    is_seen = show and sys.stderr.isatty()

    def line() -> str:
        of_all = f" of {ledger.total:,}" if ledger.total else ""
        return f"preparing: {ledger.done:,}{of_all} {ledger.unit} read, {characters:,} characters encoded"

    def advance(count: int) -> None:
        nonlocal characters
        characters += count
        bar.total, bar.unit, bar.unit_scale = ledger.total, f" {ledger.unit}", ledger.unit == "B"
        bar.set_postfix_str(f"{characters / (time.monotonic() - started) / 1e6:.1f} MB/s of text", refresh=False)
        bar.update(ledger.done - bar.n)

    with (
        tqdm(desc="prepare", mininterval=0.5, delay=0.5, disable=not is_seen, leave=False) as bar,
        nullcontext() if is_seen else still_busy(line),
    ):
        yield advance


# ---------------------------------------------------------------------------------------------------------
# notes that carry their own checksum, so that what is read back is what was written


def write_signed(path: Path, values: dict[str, Any]) -> None:
    """Write all of it or nothing; it is on disk when this returns."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(values | {"sha256": _digest(values)}, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_signed(path: Path) -> dict[str, Any]:
    """What `write_signed` wrote. Raises InputError if it is anything else."""
    values: dict[str, Any] = read_json(path)
    if values.pop("sha256", None) != _digest(values):
        raise DamagedFile(f"{path}: has changed since it was written")
    return values


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
