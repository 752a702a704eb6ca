"""Where does the text come from? The built-in world, local files, the Hugging Face Hub, or a mix of these.

A source is read once, from beginning to end, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from configs.command import InputError
from data.config import DataConfig, FilesSource, HubSource, MixSource, StoryworldSource
from data.reading import hub
from data.reading.documents import documents_of, files_of
from data.reading.hashes import stamp
from data.reading.ledger import Document, Ledger, Split


def read(config: DataConfig, ledger: Ledger | None = None) -> Iterator[Document]:
    """Every document of both splits. Raises InputError that names the file, the line and the remedy."""
    ledger = ledger or Ledger()
    _set_total(config.source, ledger)
    if isinstance(config.source, MixSource):
        yield from _mix(config.source, config, ledger)
    else:
        yield from documents_of(config.source, config, ledger)
    ledger.check_share()


def documents(config: DataConfig, split: Split) -> Iterator[Any]:
    """The contents of one split."""
    return (document.content for document in read(config) if document.split == split)


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


def _mix(mix: MixSource, config: DataConfig, ledger: Ledger) -> Iterator[Document]:
    """Take the next document from the part that lags most, in characters read divided by its weight.

    Held-out documents are passed on as they come. A document that comes in pieces stays whole.
    """
    weights = [part.weight for part in mix.parts]
    taken, ended = [0.0] * len(weights), [False] * len(weights)
    streams = [documents_of(part.source, config, ledger) for part in mix.parts]
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
            streams[i] = documents_of(mix.parts[i].source, config, Ledger())
            ledger.parts[i]["read"] += 1
            continue
        if document.split == "validation" and ended[i]:
            continue  # it came the first time
        ledger.parts[i]["documents" if document.split == "train" else "validation"] += 1
        yield document
        taken[i] += document.size * (document.split == "train")
        while not document.last:
            document = next(streams[i])
            yield document
            taken[i] += document.size * (document.split == "train")
        ledger.parts[i]["characters"] = int(taken[i])
