"""How is a file read that may be damaged, or was written by somebody else? Every room reads text, JSON and logs here.

    text = read_text(file)                          UTF-8, within a size limit
    values = read_json(file, Manifest)              also: JSON, not nested too deep, checked against a pydantic type
    records = read_lines(file, warn=print)          one JSON object a line; a damaged line is named and skipped
    append_line(file, record)                       a line that a full disk cuts off is taken back
    keep_lines(file, lambda record: …)              lines are taken off a log, damaged ones stay
    name = read_name(file)                          one plain file name, as in checkpoints/latest

Each raises `DamagedFile`: one line that names the file and what is wrong with it. What is not a regular file (a folder,
a pipe, a device) is refused before it is read: it could have no end.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from configs.command import InputError
from configs.shown_text import escape

MOST_BYTES = 100_000_000  # of a file that is read whole; the largest that Headlight writes are viewers of some MB
MOST_OF_A_LOG = 4_000_000_000  # bytes: ten million lines
MOST_OF_A_LINE = 10_000_000
MOST_DEPTH = 100  # of nested JSON; tokenizer.json, the deepest that is known, has 8
# flags of os.open: a pipe without another end is an error, not a wait forever; bytes stay as they are on Windows
AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
DEMANDS = {  # pydantic's words, and ours
    "^Value error, ": "",
    "^Input should be": "must be",
    "^Field required$": "is missing",
    "^(Extra inputs are not permitted|Unexpected keyword argument)$": "is unknown",
    r"a valid dictionary( or instance of \w+)?$": "an object of keys and values",
    "^must be None$": "must be null",
}
NAME = re.compile(r"[\w.\-]{1,255}")


class DamagedFile(InputError, ValueError):
    """A file is missing, damaged or foreign. The message names it; a caller adds what to do."""


@contextmanager
def opened(file: Path, most_bytes: int) -> Iterator[BufferedReader]:
    """A regular file of at most this size, to read bytes from. Raises DamagedFile, also for an error while reading."""
    try:
        stream = open(file, "rb", opener=lambda path, flags: os.open(path, flags | AT_ONCE))  # noqa: SIM115
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        raise DamagedFile(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    with stream:
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise DamagedFile(f"{file}: is a pipe or a device, not a file")
        if found.st_size > most_bytes:
            raise DamagedFile(f"{file}: is larger than {most_bytes:,} bytes, so it is not what its name says")
        try:
            yield stream
        except OSError as error:
            raise DamagedFile(f"{file}: cannot be read: {error.strerror}") from None


def read_text(file: Path, most_bytes: int = MOST_BYTES) -> str:
    """The text of a UTF-8 file. Raises DamagedFile."""
    with opened(file, most_bytes) as stream:
        raw = stream.read(most_bytes)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedFile(f"{file}: is not UTF-8 text (byte {error.start:,})") from None


def read_json(file: Path, kind: Any = dict[str, Any], most_bytes: int = MOST_BYTES) -> Any:
    """The value of a JSON file, of this kind: a pydantic model or a type such as dict[str, int].

    Values are taken as they are written: "1" is text, not a number. Raises DamagedFile.
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
    if is_deep(value):
        raise DamagedFile(f"{where}: is nested too deep")
    return checked(value, where, kind)


def checked(value: Any, where: str, kind: Any, strict: bool | None = True) -> Any:
    """The value, of this kind. strict=None: for a dataclass, whose fields say themselves how strict they are.

    Raises DamagedFile that names the key.
    """
    try:
        return _adapter(kind).validate_python(value, strict=strict)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key, given = escape(".".join(map(str, problem["loc"])))[:200], problem["input"]
        found = f", and is {given!r:.60}" if isinstance(given, str | int | float) and key else ""
        raise DamagedFile(f"{where}: {f'`{key}`: ' if key else ''}{_as_demand(problem['msg'])}{found}") from None


def read_lines(
    file: Path, warn: Callable[[str], None] | None = None, kind: Any = dict[str, Any]
) -> list[dict[str, Any]]:
    """The records of a .jsonl file, each of this kind, in order; none without the file.

    A line that is damaged is skipped, and `warn` gets a line that names it. The last one is skipped without a word if
    it has no line end, because a process may be writing it. Raises DamagedFile if the file cannot be read at all.
    """
    return [record for _, record in _lines(file, warn, kind) if record is not None]


def keep_lines(
    file: Path,
    is_kept: Callable[[dict[str, Any]], bool],
    warn: Callable[[str], None] | None = None,
    kind: Any = dict[str, Any],
) -> None:
    """Take the other lines off a .jsonl file, and a last one without a line end that a full disk or a kill cut off.

    Kept lines keep their bytes. A damaged line shares the fate of the line before it: what it was is unknown.
    Raises DamagedFile, and OSError if the file cannot be written.
    """
    kept, size, cut, keeps = list[bytes](), 0, None, True
    for raw, record in _lines(file, warn, kind):
        keeps = is_kept(record) if record is not None else keeps and raw.endswith(b"\n")
        if keeps:
            kept.append(raw if raw.endswith(b"\n") else raw + b"\n")
        elif cut is None:
            cut = size
        size += len(raw)
    left = sum(map(len, kept))
    if left == cut:  # nothing is kept after it; this needs no room on the disk
        os.truncate(file, cut)
    elif left != size:
        temporary = file.with_suffix(".tmp")
        try:
            temporary.write_bytes(b"".join(kept))
            temporary.replace(file)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def append_line(file: Path, record: dict[str, Any]) -> None:
    """Append one line, all of it or nothing: after an error the file is as it was. Raises OSError."""
    raw = (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | AT_ONCE, 0o666)
    try:
        before = os.fstat(handle)
        if not stat.S_ISREG(before.st_mode):
            raise OSError(errno.EINVAL, "It is not a file but a pipe or device")
        try:
            if os.write(handle, raw) != len(raw):
                # a full disk takes a part, and the error would come with the rest
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(handle, before.st_size)
            raise
    finally:
        os.close(handle)


def read_name(file: Path) -> str:
    """The one plain name in a file such as `latest`: no folder, nothing above. Raises DamagedFile."""
    name = read_text(file, 10_000).strip()
    if not NAME.fullmatch(name) or name in (".", ".."):
        raise DamagedFile(f"{file}: must hold one plain name, such as step_00001000, and holds {name[:40]!r}")
    return name


def _lines(file: Path, warn: Callable[[str], None] | None, kind: Any) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Every line as bytes, and its record; None for a damaged one."""
    if not os.path.lexists(file):
        return
    with opened(file, MOST_OF_A_LOG) as stream:
        number = 0
        while raw := stream.readline(MOST_OF_A_LINE):
            number, where = number + 1, f"{file}:{number + 1}"
            if len(raw) == MOST_OF_A_LINE:
                raise DamagedFile(f"{where}: is longer than {MOST_OF_A_LINE:,} bytes: remove this line")
            record = None
            try:
                record = parse_json(raw.decode("utf-8"), where, kind)
            except ValueError as error:  # UnicodeDecodeError and DamagedFile
                if warn is not None and raw.endswith(b"\n") and raw.strip():
                    problem = error if isinstance(error, DamagedFile) else f"{where}: is not UTF-8 text"
                    warn(f"{problem}: this line is skipped")
            yield raw, record


@cache
def _adapter(kind: Any) -> TypeAdapter:
    return TypeAdapter(kind)


def is_deep(value: Any) -> bool:
    """Whether lists and objects are nested deeper than MOST_DEPTH."""
    level = [value]
    for _ in range(MOST_DEPTH):
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
