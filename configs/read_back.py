"""How is a file read that may be damaged, or was written by somebody else? Every room reads text, JSON and logs here.

    text = read_text(file)                          UTF-8, within a size limit
    values = read_json(file, Manifest)              also: JSON, not nested too deep, checked against a pydantic type
    records = read_lines(file, warn=print)          one JSON object a line; a damaged line is named and skipped
    append_line(file, record)                       a line that a full disk cuts off is taken back
    name = read_name(file)                          one plain file name, as in checkpoints/latest

Each raises `DamagedFile`: one line that names the file and what is wrong with it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from configs.command import InputError

MOST_BYTES = 100_000_000  # of a file that is read whole; the largest that Headlight writes are viewers of some MB
MOST_DEPTH = 100  # of nested JSON; tokenizer.json, the deepest that is known, has 8
DEMANDS = {  # pydantic's words, and ours
    "^Value error, ": "",
    "^Input should be": "must be",
    "^Field required$": "is missing",
    "^Extra inputs are not permitted$": "is unknown here",
    r"a valid dictionary( or instance of \w+)?$": "an object of keys and values",
    "^must be None$": "must be null",
}
NAME = re.compile(r"[\w.\-]{1,255}")


class DamagedFile(InputError, ValueError):
    """A file is missing, damaged or foreign. The message names it; a caller adds what to do."""


def read_text(file: Path, most_bytes: int = MOST_BYTES) -> str:
    """The text of a UTF-8 file. Raises DamagedFile."""
    try:
        with file.open("rb") as stream:
            raw = stream.read(most_bytes + 1)
        text = raw.decode("utf-8")
    except OSError as error:
        raise DamagedFile(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DamagedFile(f"{file}: is not UTF-8 text (byte {error.start:,})") from None
    except ValueError as error:  # a path with a NUL character
        raise DamagedFile(f"{file}: cannot be read: {error}") from None
    if len(raw) > most_bytes:
        raise DamagedFile(f"{file}: is larger than {most_bytes:,} bytes, so it is not what its name says")
    return text


def read_json(file: Path, kind: Any = dict[str, Any], most_bytes: int = MOST_BYTES) -> Any:
    """The value of a JSON file, of this kind: a pydantic model or a type such as dict[str, int].

    Values are taken as they are written: "1" is no number. Raises DamagedFile.
    """
    return parse_json(read_text(file, most_bytes), str(file), kind)


def parse_json(text: str, where: str, kind: Any = dict[str, Any]) -> Any:
    """The value of a JSON text. where: its file, and its line if it is one of several. Raises DamagedFile."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise DamagedFile(f"{where}: is nested too deep") from None
    except json.JSONDecodeError as error:
        raise DamagedFile(f"{where}: is not valid JSON: {error.msg} (character {error.pos:,})") from None
    except ValueError as error:  # a number of more digits than Python reads
        raise DamagedFile(f"{where}: is not valid JSON: {error}") from None
    if _is_deeper(value, MOST_DEPTH):
        raise DamagedFile(f"{where}: is nested too deep")
    return checked(value, where, kind)


def checked(value: Any, where: str, kind: Any) -> Any:
    """This value as a pydantic model or a type. where: its file. Raises DamagedFile that names the first problem."""
    try:
        return TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key, given = ".".join(map(str, problem["loc"])), problem["input"]
        found = f", and is {given!r:.60}" if isinstance(given, str | int | float) and key else ""
        raise DamagedFile(f"{where}: {f'`{key[:200]}`: ' if key else ''}{_as_demand(problem['msg'])}{found}") from None


def read_lines(file: Path, warn: Callable[[str], None] | None = None) -> list[dict[str, Any]]:
    """The objects of a .jsonl file, in order; none without the file.

    A line that is damaged is skipped, and `warn` is told its number; the last one is skipped in silence if it has no
    line end, because a process may be writing it. Raises DamagedFile if the file cannot be read at all.
    """
    if not file.is_file():
        return []
    records = []
    for number, line in enumerate(_lines(file), start=1):
        try:
            records.append(parse_json(line.decode("utf-8"), f"{file}:{number}"))
        except ValueError as error:  # UnicodeDecodeError and DamagedFile
            if line.endswith(b"\n") and line.strip() and warn is not None:
                problem = error if isinstance(error, DamagedFile) else f"{file}:{number}: is not UTF-8 text"
                warn(f"warning: {problem}: this line is skipped")
    return records


def append_line(file: Path, record: dict[str, Any]) -> None:
    """Append one line, all of it or nothing: after an error the file is as it was. Raises OSError."""
    raw = (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
    with file.open("ab", buffering=0) as stream:
        before = os.fstat(stream.fileno()).st_size
        try:
            written = stream.write(raw)
            if written != len(raw):
                raise OSError(28, os.strerror(28))  # a full disk takes a part first and the error comes with the rest
        except OSError:
            stream.truncate(before)
            raise


def read_name(file: Path) -> str:
    """The one plain name in a file such as `latest`: no folder, nothing above. Raises DamagedFile."""
    name = read_text(file, 10_000).strip()
    if not NAME.fullmatch(name) or name in (".", ".."):
        raise DamagedFile(f"{file}: must hold one plain name, such as step_00001000, and holds {name[:40]!r}")
    return name


def _lines(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as stream:
            while line := stream.readline(MOST_BYTES):
                yield line
    except OSError as error:
        raise DamagedFile(f"{file}: cannot be read: {error.strerror}") from None


def _is_deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        level = [inner for one in level if isinstance(one, dict | list) for inner in _inside(one)]
        if not level:
            return False
    return True


def _inside(value: dict[Any, Any] | list[Any]) -> Any:
    return value.values() if isinstance(value, dict) else value


def _as_demand(message: str) -> str:
    for pattern, plain in DEMANDS.items():
        message = re.sub(pattern, plain, message)
    return message
