"""Documents -> shards: read | encode | write, each stage a batch ahead of the next, with a progress bar."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext

import numpy as np

from configs.command import still_busy
from data import shards
from data.chat import TRAINED, encode_conversations
from data.config import DataConfig
from data.learning_text import plain_texts
from data.preferences import encode_pairs
from data.prefetch import prefetched
from data.reading import sources
from data.reading.ledger import Document, Ledger, Split
from data.reading.pairs import Pair
from data.reading.records import Conversation
from data.tokenizer import Tokenizer

BATCH = 1 << 20  # characters encoded at a time, on all cores
SAVE_SECONDS = 2.0  # between two notes of progress

Writers = dict[Split, shards.SplitWriter]


def encode_corpus(
    config: DataConfig,
    tokenizer: Tokenizer,
    writers: Writers,
    ledger: Ledger,
    already: int,
    show_progress: bool,
) -> None:
    """Write the tokens of everything but the first `already` pieces. The ledger counts everything that is read.

    Progress is noted every SAVE_SECONDS. The writers stay open. Raises InputError for text that cannot be read.
    """
    read, saved_at, stamps = 0, time.monotonic(), sources.stamps(config.source)
    documents = _in_pieces(sources.read(config, ledger), tokenizer)
    batches = prefetched(_batches(documents, already))
    encoded = prefetched((batch, _encoded(batch, tokenizer)) for batch in batches)
    with closing(encoded), _Progress(ledger, show_progress) as progress:
        for batch, arrays in encoded:
            for document, (ids, flags) in zip(batch, arrays, strict=True):
                writer = writers[document.split]
                writer.append(ids.astype(writer.dtype), flags)
                _count(document, ids, flags, writer)
                if document.last:
                    writer.end_document()
            read += len(batch)
            progress.show(sum(len(d.content) for d in batch if isinstance(d.content, str)))
            if time.monotonic() - saved_at > SAVE_SECONDS:
                directory = writers["train"].directory
                shards.save_progress(directory, already + read, list(writers.values()), stamps)
                saved_at = time.monotonic()


def _in_pieces(documents: Iterator[Document], tokenizer: Tokenizer) -> Iterator[Document]:
    """Texts of at most about BATCH characters, so that progress is shown and noted inside a very long one."""
    for document in documents:
        text = document.content
        if not isinstance(text, str) or len(text) <= BATCH:
            yield document
            continue
        pieces = tokenizer.pieces(text, BATCH)
        for number, piece in enumerate(pieces, 1):
            first, last = document.first and number == 1, document.last and number == len(pieces)
            yield document._replace(content=piece, first=first, last=last)


def _batches(documents: Iterator[Document], already: int) -> Iterator[list[Document]]:
    """Documents in batches of about BATCH characters, without those that are on disk already."""
    batch: list[Document] = []
    size = 0
    for document in itertools.islice(documents, already, None):
        batch.append(document)
        size += document.size
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _encoded(batch: list[Document], tokenizer: Tokenizer) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """(ids, flags) of each document; a text has no flags."""
    if isinstance(batch[0].content, Conversation):
        pairs = encode_conversations(tokenizer, [d.content for d in batch])  # type: ignore[misc]
        return [(np.array(ids, dtype=np.uint32), flags) for ids, flags in pairs]
    if isinstance(batch[0].content, Pair):
        pairs = encode_pairs(tokenizer, [d.content for d in batch])  # type: ignore[misc]
        return [(np.array(ids, dtype=np.uint32), flags) for ids, flags in pairs]
    texts: list[str] = [d.content for d in batch]  # type: ignore[misc]
    result: list[tuple[np.ndarray, np.ndarray | None]] = []
    for document, ids in zip(batch, tokenizer.encode_many(texts), strict=True):
        begin, end = [tokenizer.bos_id] * document.first, [tokenizer.eos_id] * document.last
        result.append((np.array([*begin, *ids, *end], dtype=np.uint32), None))
    return result


def _count(document: Document, ids: np.ndarray, flags: np.ndarray | None, writer: shards.SplitWriter) -> None:
    """Count the tokens that can be targets, and the bytes of text that they stand for."""
    if isinstance(document.content, str):
        writer.trained_tokens += len(ids) - document.first  # a document's first token is given, not predicted
        writer.bytes += len(document.content.encode("utf-8", "surrogatepass"))
    elif flags is not None:
        writer.trained_tokens += int(np.count_nonzero(flags & TRAINED))
        writer.bytes += sum(len(text.encode()) for text in plain_texts(document.content, TRAINED))


class _Progress:
    """How much of the source was read, text per second, time left: as a bar, or without one as a line now and then."""

    def __init__(self, ledger: Ledger, show: bool):
        from tqdm import tqdm

        self._ledger, self._text, self._started = ledger, 0, time.monotonic()
        self._bar = tqdm(desc="prepare", mininterval=0.5, delay=0.5, disable=None if show else True, leave=False)
        self._lines = nullcontext() if show and sys.stderr.isatty() else still_busy(self._line)

    def __enter__(self) -> _Progress:
        self._lines.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.__exit__(None, None, None)
        self._bar.close()

    def _line(self) -> str:
        ledger = self._ledger
        of_all = f" of {ledger.total:,}" if ledger.total else ""
        return f"preparing: {ledger.done:,}{of_all} {ledger.unit} read, {self._text:,} characters encoded"

    def show(self, characters: int) -> None:
        """Draw the bar after this many more characters of text."""
        self._text += characters
        bar, ledger = self._bar, self._ledger
        bar.total, bar.unit, bar.unit_scale = ledger.total, f" {ledger.unit}", ledger.unit == "B"
        if ledger.total:
            bar.bar_format = (
                "{desc}: {percentage:.0f} % |{bar}| {n_fmt} of {total_fmt}{unit}, {remaining} left{postfix}"
            )
        seconds = max(time.monotonic() - self._started, 1e-9)
        bar.set_postfix_str(f"{self._text / seconds / 1e6:.1f} MB/s of text", refresh=False)
        bar.update(ledger.done - bar.n)
