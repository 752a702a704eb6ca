"""How are the files of `eval.tasks` read? Whole; an error names the file and the line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from configs.command import InputError
from data.reading.files import kind_of, opened, records

JSON = (".jsonl", ".json")


def check_kind(file: Path, kinds: Sequence[str]) -> None:
    """Raises InputError for a file that is not there or of another kind."""
    if not file.exists():
        raise InputError(f"{file}: there is no such file")
    if file.is_dir():
        raise InputError(f"{file}: is a folder: name a file")
    if kind_of(file) not in kinds:
        raise InputError(f"{file}: is a {kind_of(file) or 'nameless kind of'} file: use {' or '.join(kinds)}")


def text_of(file: Path) -> str:
    """The whole text of a file (.gz and .zst too), a byte order mark left out. Raises InputError, also for no text."""
    if not file.exists():
        raise InputError(f"{file}: there is no such file")
    with opened(file) as stream:
        raw = stream.read().removeprefix(b"\xef\xbb\xbf")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        reason = f"byte 0x{raw[error.start]:02x} is not valid UTF-8: save the file as UTF-8"
        raise InputError(f"{file}:{line}: {reason}") from None
    if not text.strip():
        raise InputError(f"{file}: is empty: give a text")
    return text


def json_records(file: Path, limit: int | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """(file:line, record) of a .jsonl or .json file, the first `limit` of them.

    Raises InputError for a file without records, what is not JSON, and a record that is not an object.
    """
    check_kind(file, JSON)
    found = False
    for record in islice(records(file), limit):
        if record.problem:
            raise InputError(f"{record.where}: {record.problem}")
        if not isinstance(record.value, dict):
            raise InputError(f"{record.where}: must be an object with named fields, not {str(record.value)[:40]!r}")
        found = True
        yield record.where, record.value
    if not found:
        raise InputError(f"{file}: is empty: give one record a line")


def field(where: str, record: dict[str, Any], key: str) -> Any:
    """A field that must be there. Raises InputError."""
    if record.get(key) is None:
        raise InputError(f"{where}: has no field `{key}` (it has {', '.join(map(str, record)) or 'no fields'})")
    return record[key]


def checked_text(where: str, value: Any, what: str, may_be_empty: bool = False) -> str:
    """A text that can be scored. Raises InputError."""
    if not isinstance(value, str):
        raise InputError(f"{where}: {what} must be a text, not {str(value)[:40]!r}")
    if not may_be_empty and not value.strip():
        raise InputError(f"{where}: {what} is empty: give a text, or leave the record out")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"{where}: {what} holds half a surrogate pair, which is not a character: repair it") from None
    return value
