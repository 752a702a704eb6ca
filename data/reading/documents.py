"""Which documents does a source hold, and which of them are held out?

A source is the built-in world, local files, the Hugging Face Hub, or a mix of these. It is read once, from beginning to
end, in a fixed order. A document's split depends on the document alone: its seed, its file or its hash. Where there are
too few plain texts for a hash to come near the wanted share (two books), the end of each one is held out.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from configs.command import InputError
from data.config import DataConfig, FilesSource, HubSource, MixSource, Split, StoryworldSource
from data.reading import files, hub
from data.reading.files import Record
from data.reading.pairs import pair_of
from data.reading.records import BadRecord, conversation_of, text_of
from data.reading.world import Content, told

LISTED = 1000  # bad records that are listed one by one
MANY = 1000  # records after which a share of bad ones means something
FEW_HELD_OUT = 5  # documents; where a hash would hold out fewer on average, the share depends on chance


class Document(NamedTuple):
    """A text, a conversation or a pair of one split, and where it was read."""

    content: Content
    split: Split
    where: str


@dataclass
class Ledger:
    """What was read: records, empty texts, exact duplicates, and what could not be read and where. Progress is
    done / total, in bytes of the files or in records; total None = unknown."""

    records: int = 0
    empty: int = 0
    duplicates: int = 0
    bad: int = 0
    bad_records: list[str] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)  # of a mix: what each one gave
    left_out: list[str] = field(default_factory=list)  # files of a folder that are not read, and why
    unseparated: int = 0  # plain text files that are one document and have blank lines
    unit: Literal["records", "B"] = "records"
    done: int = 0
    total: int | None = None

    def advance(self, count: int, unit: str) -> None:
        """Count what was read, if progress is counted in this unit."""
        self.done += count * (unit == self.unit)

    def note_bad(self, where: str, reason: str, skip: bool) -> None:
        """Count a bad record. Raises InputError unless they are to be skipped and are at most 1 %."""
        if not skip:
            raise InputError(f"{where}: {reason} (or leave such records out: data.on_bad_record=skip)")
        self.bad += 1
        if len(self.bad_records) < LISTED:
            self.bad_records.append(f"{where}: {reason}")
        self.check_share(at_least=MANY)

    def check_share(self, at_least: int = 0) -> None:
        """Raises InputError if more than 1 % of the records are bad, once there are enough of them to tell."""
        if self.bad > 0.01 * self.records and self.records >= at_least:
            shown = "; ".join(self.bad_records[:3])
            raise InputError(
                f"data.source: {self.bad:,} of {self.records:,} records cannot be used, more than 1 %: {shown}"
                f"{'; …' if self.bad > 3 else ''}: repair them, or name other files (data.source.path)"
            )


def read(config: DataConfig, ledger: Ledger | None = None) -> Iterator[Document]:
    """Every document of both splits. Raises InputError that names the file, the line and the remedy."""
    ledger = ledger or Ledger()
    ledger.unit, ledger.total = _unit_and_total(config.source)
    source = config.source
    yield from _mix(source, config, ledger) if isinstance(source, MixSource) else _documents_of(source, config, ledger)
    ledger.check_share()


def documents(config: DataConfig, split: Split) -> Iterator[Any]:
    """The contents of one split."""
    return (document.content for document in read(config) if document.split == split)


def files_of(source: FilesSource, held_out: bool = False) -> list[Path]:
    """The files that are trained on, or the held-out ones; no file is both. Raises InputError if there are none."""
    validation = files.find(source.validation_path, "data.source.validation_path") if source.validation_path else []
    return validation if held_out else _to_train_on(source, validation)[0]


def _to_train_on(source: FilesSource, validation: list[Path]) -> tuple[list[Path], str]:
    """The files that are trained on, and a few words about those that nobody reads."""
    to_train_on, left_out = files.search(source.path, "data.source.path", train_only=True)
    taken = {file.resolve() for file in validation}
    to_train_on = [file for file in to_train_on if file.resolve() not in taken]
    if not to_train_on:
        raise InputError("data.source.path: names only files that validation_path names too: give others to train on")
    taken |= {file.resolve() for file in to_train_on}
    left_out = {why: [file for file in some if file.resolve() not in taken] for why, some in left_out.items()}
    return to_train_on, files.listed(left_out)


def _unit_and_total(source: Any) -> tuple[Literal["records", "B"], int | None]:
    """In what progress is counted, and how much there is."""
    if isinstance(source, MixSource):
        units, totals = zip(*(_unit_and_total(part.source) for part in source.parts), strict=True)
        return (units[0], sum(totals)) if len(set(units)) == 1 and all(totals) else ("records", None)
    if isinstance(source, StoryworldSource):
        return "records", source.documents + source.validation_documents
    if source.max_records is not None:
        return "records", source.max_records
    if isinstance(source, FilesSource):
        return "B", sum(file.stat().st_size for file in files_of(source) + files_of(source, held_out=True))
    counts = [hub.count_rows(source, split) for split in (source.split, source.validation_split) if split]
    return "records", sum(count or 0 for count in counts) or None


# ---------------------------------------------------------------------------------------------------------
# one source


def fingerprint(content: Content) -> int:
    """64 bits of the SHA-256 of a document: the same on every machine, in [0, 2**64)."""
    text = content if isinstance(content, str) else repr(content)
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big")


def split_of(number: int, validation_fraction: float) -> Split:
    """Train or validation, by the document's own fingerprint: adding documents moves none of the others."""
    return "validation" if number < validation_fraction * 2**64 else "train"


def _documents_of(source: Any, config: DataConfig, ledger: Ledger) -> Iterator[Document]:
    """Every document of one source. Held-out files and splits come first, so that a mix that ends early keeps them."""
    if isinstance(source, StoryworldSource):
        counts: dict[Split, int] = {"validation": source.validation_documents, "train": source.documents}
        for split, index, content in told(source, config.records, counts):
            ledger.records += 1
            ledger.advance(1, "records")
            yield Document(content, split, f"storyworld, {split} {index}")
        return
    held_out = source.validation_path if isinstance(source, FilesSource) else source.validation_split
    if isinstance(source, FilesSource):
        left_out = _to_train_on(source, files_of(source, held_out=True))[1]
        ledger.left_out += [left_out] if left_out else []
    seen: set[int] = set()
    contents = _contents(source, False, config, ledger)
    if held_out is not None:
        for where, content, _ in _unique(_contents(source, True, config, ledger), seen, config, ledger):
            yield Document(content, "validation", where)
        for where, content, _ in _unique(contents, seen, config, ledger):
            yield Document(content, "train", where)
        return
    if _is_plain(source, config):  # a few long texts are cut, and each one's end is held out
        fraction = config.validation_fraction
        few = list(islice(contents, math.ceil(FEW_HELD_OUT / fraction)))
        if not few:
            ledger.check_share()
            raise InputError(f"{files_of(source)[0]}: is empty: give a file with text in it")
        if len(few) * fraction < FEW_HELD_OUT:
            for where, text, _ in _unique(few, seen, config, ledger):
                boundary = int(len(text) * (1 - fraction))
                for split, part in (("train", text[:boundary]), ("validation", text[boundary:])):
                    if part:
                        yield Document(part, split, where)
            return
        contents = chain(few, contents)
    for where, content, number in _unique(contents, seen, config, ledger):
        yield Document(content, split_of(number, config.validation_fraction), where)


def _is_plain(source: Any, config: DataConfig) -> bool:
    """Whether it is files of plain text only, whose documents may be books. Records of other files stay whole."""
    if config.records != "text" or not isinstance(source, FilesSource) or source.document_start is not None:
        return False
    return all(files.kind_of(file) in files.PLAIN for file in files_of(source))


def _unique(
    contents: Iterable[tuple[str, Any]], seen: set[int], config: DataConfig, ledger: Ledger
) -> Iterator[tuple[str, Any, int]]:
    """Count documents that equal an earlier one exactly, and leave them out if the config says so. Adds the
    fingerprint."""
    for where, content in contents:
        number = fingerprint(content)
        if number in seen:
            ledger.duplicates += 1
            if config.drop_duplicates:
                continue
        seen.add(number)
        yield where, content, number


def _contents(source: Any, held_out: bool, config: DataConfig, ledger: Ledger) -> Iterator[tuple[str, Any]]:
    """(where, text, conversation or pair) of every record that is good and not empty; the ledger notes the others."""
    parsed = _parsed(islice(_records(source, held_out, config, ledger), source.max_records), source, config, ledger)
    if source.document_start is not None and config.records == "text":
        parsed = _joined(parsed, re.compile(source.document_start))
    for where, content in parsed:
        if isinstance(content, str) and not content.strip():
            ledger.empty += 1
        else:
            yield where, content


def _records(source: Any, held_out: bool, config: DataConfig, ledger: Ledger) -> Iterator[Record]:
    if isinstance(source, HubSource):
        yield from hub.records(source, str(source.validation_split if held_out else source.split))
        return
    column = source.text_field.partition(".")[0] if config.records == "text" else None
    for file in files_of(source, held_out):
        count, has_blank_lines, is_plain = 0, False, files.kind_of(file) in files.PLAIN
        for record in files.records(file, source.separator, partial(ledger.advance, unit="B"), column):
            count += 1
            if count == 1 and is_plain and record.value:
                has_blank_lines = "\n\n" in record.value or "\n\r\n" in record.value
            yield record
        ledger.unseparated += count == 1 and has_blank_lines


def _parsed(records: Iterable[Record], source: Any, config: DataConfig, ledger: Ledger) -> Iterator[tuple[str, Any]]:
    parse = {"text": partial(text_of, text_field=source.text_field), "conversations": conversation_of, "pairs": pair_of}
    for where, value, problem in records:
        ledger.records += 1
        ledger.advance(1, "records")
        if not problem:
            try:
                content = parse[config.records](value)  # type: ignore[operator]
            except BadRecord as error:
                problem = str(error)
        if problem:
            ledger.note_bad(where, problem, config.on_bad_record == "skip")
        else:
            yield where, content


def _joined(lines: Iterable[tuple[str, str]], document_start: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Records -> documents that begin where a record matches the pattern."""
    begun, text = "", ""
    for where, line in lines:
        if text.strip() and document_start.search(line):
            yield begun, text
            text = ""
        if not text.strip():  # blank lines before a document are not part of it
            begun, text = where, ""
            if not line.strip():
                continue
        text += line if line.endswith("\n") else line + "\n"
    yield begun, text


def _mix(mix: MixSource, config: DataConfig, ledger: Ledger) -> Iterator[Document]:
    """Take the next document from the part that lags most, in characters read divided by its weight.

    Held-out documents are passed on as they come.
    """
    weights = [part.weight for part in mix.parts]
    characters, ended = [0.0] * len(weights), [False] * len(weights)
    streams = [_documents_of(part.source, config, ledger) for part in mix.parts]
    ledger.parts += [{"weight": w, "documents": 0, "characters": 0, "validation": 0, "read": 1} for w in weights]
    while True:
        i = min(range(len(weights)), key=lambda n: characters[n] / weights[n])
        document = next(streams[i], None)
        if document is None:
            if not characters[i]:
                raise InputError(f"data.source.parts: part {i + 1} holds no training document")
            ended[i] = True
            if mix.stopping_strategy == "first_exhausted" or all(ended):
                return
            streams[i] = _documents_of(mix.parts[i].source, config, Ledger())
            ledger.parts[i]["read"] += 1
        elif document.split == "train":
            yield document
            content = document.content
            characters[i] += len(content if isinstance(content, str) else repr(content))
            ledger.parts[i]["documents"] += 1
            ledger.parts[i]["characters"] = int(characters[i])
        elif not ended[i]:  # otherwise it came the first time
            ledger.parts[i]["validation"] += 1
            yield document
