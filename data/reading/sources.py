"""Documents and conversations from the built-in world, local files, the Hugging Face Hub, or a mix of these.

A source is read once, from beginning to end, in a fixed order. Which split a document belongs to depends on the
document alone (its seed, its hash, its place in a single text, or its file), never on what else is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from configs.loader import InputError
from data.config import DataConfig, FilesSource, HubSource, MixSource, StoryworldSource
from data.fingerprints import Seen, fingerprint
from data.reading import files, hub
from data.reading.files import Record
from data.reading.hashes import hashes, stamp
from data.reading.records import BadRecord, Conversation, conversation_of, text_of
from data.storyworld.version import STORYWORLD_VERSION

Split = Literal["train", "validation"]
LISTED = 1000  # bad records that are listed one by one
FEW = 1000  # records after which a share of bad ones means something
REPEATED_WORDS = range(4, 41)  # in a block of a document that repeats itself: near and far copies


class Document(NamedTuple):
    """A text or a conversation of one split. A very long text comes in pieces: `first` and `last` are its ends."""

    content: str | Conversation
    split: Split
    where: str
    number: int  # the fingerprint of the content
    first: bool = True
    last: bool = True

    @property
    def size(self) -> int:
        """Characters, about."""
        return len(self.content) if isinstance(self.content, str) else len(repr(self.content))


@dataclass
class Ledger:
    """What was met on the way: records, empty texts, exact duplicates, what could not be read and where; and how
    far it is (done / total, in bytes of the files or in records; total None = unknown)."""

    records: int = 0
    empty: int = 0
    duplicates: int = 0
    bad: int = 0
    bad_records: list[str] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)  # of a mix: what came of each
    unit: str = "records"
    done: int = 0
    total: int | None = None

    def advance(self, count: int, unit: str) -> None:
        """Count what has been read, if this is the unit in which it is counted here."""
        self.done += count * (unit == self.unit)

    def note_bad(self, where: str, reason: str, skip: bool) -> None:
        """Raises InputError unless bad records are to be skipped and are fewer than 1 %."""
        if not skip:
            raise InputError(f"{where}: {reason} (or leave such records out: data.on_bad_record=skip)")
        self.bad += 1
        if len(self.bad_records) < LISTED:
            self.bad_records.append(f"{where}: {reason}")
        self.check_share(at_least=FEW)

    def check_share(self, at_least: int = 0) -> None:
        """Raises InputError if more than 1 % are bad, once there are so many records that a share means something."""
        if self.bad > 0.01 * self.records and self.records >= at_least:
            shown = "; ".join(self.bad_records[:3])
            raise InputError(
                f"data.source: {self.bad:,} of {self.records:,} records cannot be used, more than 1 %: {shown}"
                f"{'; …' if self.bad > 3 else ''}: mend them, or name only the files that are meant (data.source.path)"
            )


def read(config: DataConfig, ledger: Ledger | None = None) -> Iterator[Document]:
    """Every document of both splits. Raises InputError that names the file, the line and the remedy."""
    ledger = ledger or Ledger()
    _set_total(config.source, ledger)
    if isinstance(config.source, MixSource):
        yield from _mix(config.source, config, ledger)
    else:
        yield from _one_source(config.source, config, ledger)
    ledger.check_share()


def documents(config: DataConfig, split: Split) -> Iterator[Any]:
    """The contents of one split."""
    return (document.content for document in read(config) if document.split == split)


def split_of(number: int, validation_fraction: float) -> Split:
    """Train or validation, by the document's own fingerprint: adding documents moves none of the others."""
    return "validation" if number < validation_fraction * 2**64 else "train"


def identity(source: Any, memory: Path) -> dict[str, Any]:
    """What makes a source itself, contents included: two sources with equal identity give equal text.

    memory: the file that remembers the hashes of text files (data.reading.hashes).
    """
    described = source.model_dump()
    if isinstance(source, MixSource):
        described["parts"] = [{"weight": part.weight, "source": identity(part.source, memory)} for part in source.parts]
    elif isinstance(source, FilesSource):
        parts = {"path": files_of(source), "validation_path": files_of(source, held_out=True)}
        digests = iter(hashes([file for found in parts.values() for file in found], memory))
        for key, found in parts.items():  # where they lie does not matter
            described[key] = [f"{''.join(file.suffixes[-2:])} {next(digests)}" for file in found]
    elif isinstance(source, StoryworldSource):
        described["version"] = STORYWORLD_VERSION
    else:
        described["dataset"] = hub.identity(source)
    return described


def files_of(source: FilesSource, held_out: bool = False) -> list[Path]:
    """The files that are trained on, or the held-out ones; no file is both. Raises InputError if there are none."""
    validation = files.find(source.validation_path, "data.source.validation_path") if source.validation_path else []
    if held_out:
        return validation
    taken = {file.resolve() for file in validation}
    found = [file for file in files.find(source.path, "data.source.path") if file.resolve() not in taken]
    if not found:
        raise InputError("data.source.path: names only files that validation_path names too: give others to train on")
    return found


def stamps(source: Any) -> list[list[int]]:
    """Size and time of change of every file: whether a text was changed since preparing was interrupted."""
    if isinstance(source, MixSource):
        return [each for part in source.parts for each in stamps(part.source)]
    found = files_of(source) + files_of(source, held_out=True) if isinstance(source, FilesSource) else []
    return [stamp(file) for file in found]


def _set_total(source: Any, ledger: Ledger) -> None:
    if isinstance(source, FilesSource):
        ledger.total = source.max_records
        if source.max_records is None:
            found = files_of(source) + files_of(source, held_out=True)
            ledger.unit, ledger.total = "B", sum(file.stat().st_size for file in found)
    elif isinstance(source, StoryworldSource):
        ledger.total = source.documents + source.validation_documents
    elif isinstance(source, MixSource):
        parts = [Ledger() for _ in source.parts]
        for part, of_part in zip(source.parts, parts, strict=True):
            _set_total(part.source, of_part)
        if len({of_part.unit for of_part in parts}) == 1 and all(of_part.total for of_part in parts):
            ledger.unit, ledger.total = parts[0].unit, sum(of_part.total or 0 for of_part in parts)
    elif source.max_records is not None:
        ledger.total = source.max_records
    elif isinstance(source, HubSource):
        counts = [hub.count_rows(source, split) for split in (source.split, source.validation_split) if split]
        ledger.total = sum(count or 0 for count in counts) or None


# ---------------------------------------------------------------------------------------------------------
# one source: records -> documents


def _one_source(source: Any, config: DataConfig, ledger: Ledger) -> Iterator[Document]:
    """The held-out documents of their own come first, so that a mix that ends early keeps them."""
    if isinstance(source, StoryworldSource):
        yield from _storyworld(source, config, ledger)
        return
    seen, fraction = Seen(), config.validation_fraction
    if (source.validation_path if isinstance(source, FilesSource) else source.validation_split) is not None:
        for document in _unique(_contents(source, True, config, ledger), seen, config, ledger):
            yield document._replace(split="validation")
        fraction = 0.0
    if fraction and isinstance(source, FilesSource) and config.records == "text":
        length = _length_of_single_text(source)
        if length is not None:
            pieces = _contents(source, False, config, ledger, in_pieces=True)
            yield from _cut_at(pieces, int(length * (1 - fraction)))
            return
    for document in _unique(_contents(source, False, config, ledger), seen, config, ledger):
        yield document._replace(split=split_of(document.number, fraction))


def _storyworld(source: StoryworldSource, config: DataConfig, ledger: Ledger) -> Iterator[Document]:
    counts: dict[Split, int] = {"validation": source.validation_documents, "train": source.documents}
    for split, count in counts.items():
        for index in range(count):
            ledger.records += 1
            ledger.advance(1, "records")
            content = _invented(source, index, split, config.records)
            yield Document(content, split, f"storyworld, {split} {index}", _number_of(content))


def _invented(source: StoryworldSource, index: int, split: Split, records: str) -> str | Conversation:
    """A story, a conversation about one, or (at even distances, as often as `repeats` says) words told repeatedly."""
    from data.storyworld import converse, repeated, tell

    if records == "conversations":
        kind = "questions" if source.chats == "questions" else None
        return conversation_of(converse(source.seed, index, split, source.level, kind))
    if int((index + 1) * source.repeats) > int(index * source.repeats):
        return repeated(source.seed, index, words=REPEATED_WORDS, held_out=split == "validation").text
    return tell(source.seed, index, split, source.level).text


def _number_of(content: str | Conversation) -> int:
    return fingerprint(content if isinstance(content, str) else repr(content))


def _contents(
    source: Any, held_out: bool, config: DataConfig, ledger: Ledger, in_pieces: bool = False
) -> Iterator[Document]:
    """Records -> texts or conversations, split not yet known; bad and empty ones are noted in the ledger."""
    found = _taken(_records(source, held_out, config, ledger), source.max_records)
    pieces = _parsed(found if in_pieces else _whole(found), source.text_field, config, ledger)
    if source.document_start is not None and config.records == "text":
        pieces = _joined(pieces, re.compile(source.document_start))
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
        yield from files.records(file, source.separator, partial(ledger.advance, unit="B"), column)


def _taken(found: Iterator[Record], limit: int | None) -> Iterator[Record]:
    count = 0
    for record in found:
        count += record.first
        if limit is not None and count > limit:
            return
        yield record


def _whole(found: Iterable[Record]) -> Iterator[Record]:
    """Texts that come in pieces, put together."""
    pieces: list[Record] = []
    for record in found:
        if record.problem:
            pieces.clear()  # of the same document: the rest of it does not come
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
                else:
                    content = text_of(record.value, text_field)
            except BadRecord as error:
                problem = str(error)
        if problem:
            ledger.note_bad(record.where, problem, config.on_bad_record == "skip")
        else:
            yield record.where, content, record.first, record.last


def _joined(pieces: Iterable[Piece], start: re.Pattern) -> Iterator[Piece]:
    """Records -> documents that begin where a record matches the pattern."""
    begun, texts = "", list[str]()
    for where, text, _, _ in pieces:
        if start.search(text) and "".join(texts).strip():
            yield begun, "".join(texts), True, True
            texts = []
        if not texts:
            begun = where
            if not text.strip():
                continue
        texts.append(text if text.endswith("\n") else text + "\n")
    if "".join(texts).strip():
        yield begun, "".join(texts), True, True


def _unique(found: Iterable[Document], seen: Seen, config: DataConfig, ledger: Ledger) -> Iterator[Document]:
    """Count what is exactly equal to an earlier document, and leave it out if that is wanted."""
    for document in found:
        if document.first and document.last and seen.add(document.number):
            ledger.duplicates += 1
            if config.drop_duplicates:
                continue
        yield document


# ---------------------------------------------------------------------------------------------------------
# a single long text, and a mix


def _length_of_single_text(source: FilesSource) -> int | None:
    """Characters of a source that is a single plain text, which is split by position; None for any other."""
    found = files_of(source)
    if len(found) > 1 or files.kind_of(found[0]) not in files.PLAIN or source.document_start:
        return None
    length = 0
    for number, record in enumerate(files.records(found[0], source.separator, lambda count: None)):
        if record.first and number:
            return None
        length += len(record.value or record.problem)  # reading it again will tell the problem
    if not length:
        raise InputError(f"{found[0]}: is empty: give a file with text in it")
    return length


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


def _mix(mix: MixSource, config: DataConfig, ledger: Ledger) -> Iterator[Document]:
    """Always the next document of the part that lags behind most, in characters read divided by its weight.

    Held-out documents pass as they come. A document that comes in pieces is passed on whole.
    """
    weights = [part.weight for part in mix.parts]
    taken, ended = [0.0] * len(weights), [False] * len(weights)
    streams = [_one_source(part.source, config, ledger) for part in mix.parts]
    ledger.parts += [{"weight": w, "documents": 0, "characters": 0, "validation": 0, "read": 1} for w in weights]
    while True:
        i = min(range(len(weights)), key=lambda n: taken[n] / weights[n])
        document = next(streams[i], None)
        if document is None:
            if not taken[i]:
                raise InputError(f"data.source.parts: part {i + 1} holds no training document")
            ended[i] = True
            if mix.stopping_strategy == "first_exhausted" or all(ended):
                return
            streams[i] = _one_source(mix.parts[i].source, config, Ledger())
            ledger.parts[i]["read"] += 1
            continue
        if document.split == "validation" and ended[i]:
            continue  # it was there the first time
        ledger.parts[i]["documents" if document.split == "train" else "validation"] += 1
        yield document
        taken[i] += document.size * (document.split == "train")
        while not document.last:
            document = next(streams[i])
            yield document
            taken[i] += document.size * (document.split == "train")
        ledger.parts[i]["characters"] = int(taken[i])
