"""Which documents does one source hold, and which of them are held out?

A document's split depends on the document alone: its seed, its file or its hash. Where there are too few plain texts
for a hash to come near the wanted share (two books), the end of each one is held out.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from configs.command import InputError
from data.config import DataConfig, FilesSource, HubSource, StoryworldSource
from data.fingerprints import Seen, fingerprint, number_of
from data.reading import files, hub
from data.reading.files import Record
from data.reading.ledger import Document, Ledger, Split
from data.reading.pairs import Pair, pair_of
from data.reading.records import BadRecord, Conversation, conversation_of, text_of
from data.reading.tellers import Counts, told

FEW_HELD_OUT = 5  # documents; where a hash would hold out fewer on average, the share depends on chance
SEARCH_SECONDS = 2.0  # of searching for document_start, beside what its text may take
SLOWEST = 200_000  # characters a second that document_start must search


def files_of(source: FilesSource, held_out: bool = False) -> list[Path]:
    """The files that are trained on, or the held-out ones; no file is both. Raises InputError if there are none."""
    validation = files.find(source.validation_path, "data.source.validation_path") if source.validation_path else []
    return validation if held_out else _to_train_on(source, validation)[0]


def _to_train_on(source: FilesSource, validation: list[Path]) -> tuple[list[Path], str]:
    """The files that are trained on, and a few words about those that nobody reads."""
    found, left_out = files.search(source.path, "data.source.path", train_only=True)
    taken = {file.resolve() for file in validation}
    found = [file for file in found if file.resolve() not in taken]
    if not found:
        raise InputError("data.source.path: names only files that validation_path names too: give others to train on")
    taken |= {file.resolve() for file in found}
    left_out = {why: [file for file in some if file.resolve() not in taken] for why, some in left_out.items()}
    return found, files.listed(left_out)


def split_of(number: int, validation_fraction: float) -> Split:
    """Train or validation, by the document's own fingerprint: adding documents moves none of the others."""
    return "validation" if number < validation_fraction * 2**64 else "train"


def documents_of(source: Any, config: DataConfig, ledger: Ledger) -> Iterator[Document]:
    """Every document of one source. Held-out files and splits come first, so that a mix that ends early keeps them."""
    if isinstance(source, StoryworldSource):
        yield from _storyworld(source, config, ledger)
        return
    if isinstance(source, FilesSource):
        validation = files_of(source, held_out=True)
        ledger.left_out += [left_out] if (left_out := _to_train_on(source, validation)[1]) else []
    seen, fraction = Seen(), config.validation_fraction
    if (source.validation_path if isinstance(source, FilesSource) else source.validation_split) is not None:
        for document in _unique(_contents(source, True, config, ledger), seen, config, ledger):
            yield document._replace(split="validation")
        fraction = 0.0
    elif _is_plain(source, config) and (few := _few(source, config)) is not None:
        yield from _cut_at_their_ends(few, source, config, ledger)
        return
    for document in _unique(_contents(source, False, config, ledger), seen, config, ledger):
        yield document._replace(split=split_of(document.number, fraction))


def _storyworld(source: StoryworldSource, config: DataConfig, ledger: Ledger) -> Iterator[Document]:
    counts: Counts = {"validation": source.validation_documents, "train": source.documents}
    for split, index, content in told(source, config.records, counts):
        ledger.records += 1
        ledger.advance(1, "records")
        yield Document(content, split, f"storyworld, {split} {index}", _number_of(content))


def _number_of(content: str | Conversation | Pair) -> int:
    return fingerprint(content if isinstance(content, str) else repr(content))


def _contents(
    source: Any, held_out: bool, config: DataConfig, ledger: Ledger, in_pieces: bool = False
) -> Iterator[Document]:
    """Records -> texts or conversations, not split yet. Bad and empty ones are noted in the ledger."""
    found = _taken(_records(source, held_out, config, ledger), source.max_records)
    if not in_pieces or config.on_bad_record == "skip":
        found = _whole(found)
    pieces = _parsed(found, source.text_field, config, ledger)
    if source.document_start is not None and config.records == "text":
        pieces = _joined(pieces, source.document_start)
    for where, content, first, last in pieces:
        if isinstance(content, str) and first and last and not content.strip():
            ledger.empty += 1
            continue
        yield Document(content, "train", where, _number_of(content), first, last)


def _records(source: Any, held_out: bool, config: DataConfig, ledger: Ledger) -> Iterator[Record]:
    if isinstance(source, HubSource):
        yield from hub.records(source, str(source.validation_split if held_out else source.split))
        return
    column = source.text_field.partition(".")[0] if config.records == "text" else None
    for file in files_of(source, held_out):
        count, has_blank_lines = 0, False
        for record in files.records(file, source.separator, partial(ledger.advance, unit="B"), column):
            count += record.first
            if count == 1 and isinstance(record.value, str):
                has_blank_lines |= "\n\n" in record.value or "\n\r\n" in record.value
            yield record
        ledger.unseparated += count == 1 and has_blank_lines


def _taken(found: Iterator[Record], limit: int | None) -> Iterator[Record]:
    count = 0
    for record in found:
        count += record.first
        if limit is not None and count > limit:
            return
        yield record


def _whole(found: Iterable[Record]) -> Iterator[Record]:
    """Join the pieces of texts that come in pieces."""
    pieces: list[Record] = []
    for record in found:
        if record.problem:
            pieces.clear()  # of the same document, whose rest is left out
        if record.problem or (record.first and record.last):
            yield record
            continue
        pieces.append(record)
        if record.last:
            yield Record(pieces[0].where, "".join(piece.value for piece in pieces))
            pieces.clear()


Piece = tuple[str, Any, bool, bool]  # where, content, first, last


def _parsed(found: Iterable[Record], text_field: str, config: DataConfig, ledger: Ledger) -> Iterator[Piece]:
    for record in found:
        ledger.records += record.first
        ledger.advance(record.first, "records")
        problem, content = record.problem, record.value
        if not problem:
            try:
                if config.records == "conversations":
                    content = conversation_of(record.value)
                elif config.records == "pairs":
                    content = pair_of(record.value)
                else:
                    content = text_of(record.value, text_field)
            except BadRecord as error:
                problem = str(error)
        if problem:
            ledger.note_bad(record.where, problem, config.on_bad_record == "skip")
        else:
            yield record.where, content, record.first, record.last


def _joined(pieces: Iterable[Piece], document_start: str) -> Iterator[Piece]:
    """Records -> documents that begin where a record matches the pattern. Raises InputError if that takes too long."""
    is_start = _search(document_start)
    begun, texts = "", list[str]()
    for where, text, _, _ in pieces:
        if is_start(text, where) and "".join(texts).strip():
            yield begun, "".join(texts), True, True
            texts = []
        if not texts:
            begun = where
            if not text.strip():
                continue
        texts.append(text if text.endswith("\n") else text + "\n")
    if "".join(texts).strip():
        yield begun, "".join(texts), True, True


def _search(pattern: str) -> Callable[[str, str], bool]:
    """Whether a text matches the pattern; it needs the text's place too, for the InputError if this takes too long."""
    import regex  # unlike `re`, it can be told to stop

    try:
        search = regex.compile(pattern, regex.VERSION0).search
    except (regex.error, RecursionError) as error:
        raise InputError(f"data.source.document_start: is not a regular expression: {error}") from None
    left = SEARCH_SECONDS

    def is_start(text: str, where: str) -> bool:
        nonlocal left
        left += len(text) / SLOWEST
        before = time.thread_time()
        try:
            found = search(text, timeout=max(left, 1e-3)) is not None
        except (TimeoutError, MemoryError):
            raise InputError(
                f"data.source.document_start: {where}: searching for this pattern takes too long: repeats inside "
                "repeats, as in (a+)+, try every way to divide a text: write it without them, and begin it with ^"
            ) from None
        left -= time.thread_time() - before
        return found

    return is_start


def _unique(found: Iterable[Document], seen: Seen, config: DataConfig, ledger: Ledger) -> Iterator[Document]:
    """Count documents that equal an earlier one exactly, and leave them out if the config says so."""
    for document in found:
        if document.first and document.last and seen.add(document.number):
            ledger.duplicates += 1
            if config.drop_duplicates:
                continue
        yield document


# ---------------------------------------------------------------------------------------------------------
# few texts: the end of each one is held out


def _is_plain(source: Any, config: DataConfig) -> bool:
    """Whether it is files of plain text only, whose documents may be books. Records of other files stay whole."""
    if config.records != "text" or not isinstance(source, FilesSource) or source.document_start is not None:
        return False
    return all(files.kind_of(file) in files.PLAIN for file in files_of(source))


def _few(source: FilesSource, config: DataConfig) -> list[tuple[int, int]] | None:
    """(characters, fingerprint) of every document, where a hash of each would hold out fewer than FEW_HELD_OUT of them
    on average; None where there are more documents. Raises InputError if there is no text at all."""
    found: list[tuple[int, int]] = []
    length, digest, ledger = 0, hashlib.sha256(), Ledger()
    for piece in _contents(source, False, config, ledger, in_pieces=True):
        assert isinstance(piece.content, str)
        length += len(piece.content)
        digest.update(piece.content.encode("utf-8", "surrogatepass"))
        if piece.last:
            found.append((length, number_of(digest)))
            length, digest = 0, hashlib.sha256()
            if len(found) * config.validation_fraction >= FEW_HELD_OUT:
                return None
    ledger.check_share()
    if not found:
        raise InputError(f"{files_of(source)[0]}: is empty: give a file with text in it")
    return found


def _cut_at_their_ends(
    few: list[tuple[int, int]], source: Any, config: DataConfig, ledger: Ledger
) -> Iterator[Document]:
    """Each document as two: its beginning is trained on, its end is held out."""
    seen, pieces = Seen(), _contents(source, False, config, ledger, in_pieces=True)
    for length, number in few:
        document = _next_document(pieces)
        if seen.add(number):
            ledger.duplicates += 1
            if config.drop_duplicates:
                deque(document, maxlen=0)
                continue
        yield from _cut_at(document, int(length * (1 - config.validation_fraction)))
    deque(pieces, maxlen=0)  # empty records behind the last document are counted as well


def _next_document(pieces: Iterator[Document]) -> Iterator[Document]:
    for piece in pieces:
        yield piece
        if piece.last:
            return


def _cut_at(pieces: Iterable[Document], boundary: int) -> Iterator[Document]:
    """The pieces of one text -> two documents, the second one held out."""
    position = 0
    for piece in pieces:
        assert isinstance(piece.content, str)
        text, end = piece.content, position + len(piece.content)
        before, after = text[: max(0, boundary - position)], text[max(0, boundary - position) :]
        if before:
            yield piece._replace(content=before, last=end >= boundary)
        if after:
            yield piece._replace(content=after, split="validation", first=position <= boundary)
        position = end
