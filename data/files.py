"""Records of local files: .txt .md .jsonl .json .csv .tsv .parquet, plain or as .gz or .zst, one at a time.

A record comes with the place where it stands (`file:line`), also when it cannot be read, so that whoever asked can
stop there or go on. What makes the rest of a file unreadable (a truncated .gz) raises InputError at once.
"""

from __future__ import annotations

import csv
import glob
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from configs.loader import InputError

PLAIN = {".txt", ".md"}
KINDS = [".txt", ".md", ".jsonl", ".json", ".csv", ".tsv", ".parquet"]
COMPRESSED = {".gz", ".zst"}
BLOCK = 1 << 20  # bytes read at a time
PIECE = 1 << 18  # characters after which a long text is passed on in pieces
ROWS = 1000  # rows of a .parquet file read at a time

csv.field_size_limit(1 << 30)  # the library's own limit, 128 kB, is shorter than many documents


class Record(NamedTuple):
    """`value`: a text or a dict. Where `problem` is not empty it could not be read, and value is None.
    A long text comes in pieces, each a record; `first` and `last` tell where the text begins and ends."""

    where: str
    value: Any
    problem: str = ""
    first: bool = True
    last: bool = True


def find(path: str | list[str], key: str) -> list[Path]:
    """The files that a path, a folder, a pattern or a list of these names, in a fixed order, each once.

    Raises InputError, naming the config key, for a path that leads to none.
    """
    found: list[Path] = []
    for one in [path] if isinstance(path, str) else path:
        found += sorted(_expand(one, key), key=lambda file: file.as_posix())
    return list(dict.fromkeys(found))


def _expand(path: str, key: str) -> list[Path]:
    given, known = Path(path), " ".join(KINDS)
    if given.is_file():
        if kind_of(given) not in KINDS:
            raise InputError(f"{key}: {path} is a {given.suffix or 'nameless kind of'} file: use one of {known}")
        return [given]
    if given.is_dir():
        inside = [file for file in given.rglob("*") if not _is_hidden(file.relative_to(given))]
    else:
        inside = [Path(name) for name in glob.glob(path, recursive=True)]  # noqa: PTH207 (it knows absolute patterns)
    files = [file for file in inside if file.is_file() and kind_of(file) in KINDS]
    if files:
        return files
    if given.is_dir():
        raise InputError(f"{key}: the folder {path} holds no file of these kinds: {known}")
    hint = ""
    if "shakespeare" in path.lower():
        hint = (
            " (tiny Shakespeare is one 1.1 MB text file: input.txt in the folder data/tinyshakespeare of the GitHub "
            "repository karpathy/char-rnn; save it there, or give its place with data.source.path=…)"
        )
    raise InputError(f"{key}: no such file: {path}{hint}")


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def kind_of(file: Path) -> str:
    """.jsonl for stories.jsonl and for stories.jsonl.gz."""
    return Path(file.stem).suffix if file.suffix in COMPRESSED else file.suffix


def records(file: Path, separator: str, on_read: Callable[[int], object]) -> Iterator[Record]:
    """The records of one file. on_read is told how many bytes (as they lie on the disk) have been taken."""
    kind = kind_of(file)
    with clear_errors(file), opened(file, on_read) as stream:
        if kind in PLAIN:
            yield from _plain(file, stream, separator)
        elif kind == ".jsonl":
            yield from _jsonl(file, stream)
        elif kind == ".json":
            yield from _json(file, stream)
        elif kind == ".parquet":
            yield from _parquet(file, stream)
        else:
            yield from _csv(file, stream, "\t" if kind == ".tsv" else ",")


@contextmanager
def clear_errors(file: Path) -> Iterator[None]:
    """What a file system or a compressed file may raise -> InputError."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{file}: is truncated or damaged ({error}): fetch it or compress it again") from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror or error}") from None


class _Counted(io.FileIO):
    """A file that tells how many bytes are taken from it."""

    def __init__(self, file: Path, on_read: Callable[[int], object]):
        super().__init__(file)
        self._on_read = on_read

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer) or 0
        self._on_read(count)
        return count


class _Zst(io.RawIOBase):
    """The bytes inside a .zst file. Unlike the library's own reader it notices when the file ends too early."""

    def __init__(self, compressed: io.BufferedReader[Any]):
        import zstandard

        self._compressed, self._damage = compressed, zstandard.ZstdError
        self._new_frame = zstandard.ZstdDecompressor().decompressobj
        self._frame, self._inside = self._new_frame(), False
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            unread = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._inside = self._new_frame(), False
            unread = unread or self._compressed.read(BLOCK // 8)
            if not unread:
                break
            self._inside = True
            try:
                self._ready = self._frame.decompress(unread)
            except self._damage as error:
                raise EOFError(str(error)) from None
        if not self._ready and self._inside:
            raise EOFError("the file ends in the middle of a frame")
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count


@contextmanager
def opened(file: Path, on_read: Callable[[int], object] = lambda count: None) -> Iterator[Any]:
    """The bytes of a file, decompressed."""
    with io.BufferedReader(_Counted(file, on_read), BLOCK) as raw:
        if file.suffix == ".gz":
            with gzip.open(raw) as stream:
                yield stream
        elif file.suffix == ".zst":
            yield io.BufferedReader(_Zst(raw), BLOCK)
        else:
            yield raw


def _lines(file: Path, stream: BinaryIO) -> Iterator[tuple[str, str, str]]:
    """(where, line with its end, what is wrong with it) of every line; a byte order mark at the start is no text."""
    for number, raw in enumerate(stream, 1):
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        try:
            yield f"{file}:{number}", raw.decode("utf-8"), ""
        except UnicodeDecodeError as error:
            problem = f"byte {error.start} (0x{raw[error.start]:02x}) is not valid UTF-8: save the file as UTF-8"
            yield f"{file}:{number}", "", problem


def _plain(file: Path, stream: BinaryIO, separator: str) -> Iterator[Record]:
    """The documents between separators (line ends next to one belong to it); without any, the file is one document.

    A long one comes in pieces that end where one word ends with its line and the next line begins with a word:
    there no token of a byte-level tokenizer reaches from one to the other.
    """
    piece: list[str] = []
    where, size, first = f"{file}:1", 0, True
    for here, line, problem in _lines(file, stream):
        if problem:
            yield Record(here, None, problem)
        if "\0" in line:
            raise InputError(f"{file}: holds zero bytes, so it is a binary file, not text: give a UTF-8 text file")
        *ended, line = line.split(separator) if separator in line else [line]
        for text in ended:
            yield Record(where, "".join([*piece, text]).rstrip("\r\n"), "", first, True)
            piece, size, first = [], 0, True
        if size >= PIECE and piece[-1][-2:-1].strip() and line[:1].strip():
            yield Record(where, "".join(piece), "", first, False)
            piece, size, first = [], 0, False
        if ended:
            line = line.lstrip("\r\n")
        if not piece:
            where = here
        piece.append(line)
        size += len(line)
    if not first or "".join(piece).strip():
        yield Record(where, "".join(piece), "", first, True)


def _jsonl(file: Path, stream: BinaryIO) -> Iterator[Record]:
    for where, line, problem in _lines(file, stream):
        if problem:
            yield Record(where, None, problem)
        elif line.strip():
            try:
                yield Record(where, json.loads(line))
            except (ValueError, RecursionError) as error:
                yield Record(where, None, f"is not valid JSON: {error}")


def _json(file: Path, stream: Any) -> Iterator[Record]:
    """[record, record, …], read without holding them all; or {"any key": [record, …]}; or a single record."""
    import ijson

    begins = stream.peek(BLOCK).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if stream.peek(3).startswith(b"\xef\xbb\xbf"):
        stream.read(3)
    try:
        if begins == b"[":
            for number, value in enumerate(ijson.items(stream, "item", use_float=True), 1):
                yield Record(f"{file}, record {number}", value)
            return
        value = json.loads(stream.read())
    except (ijson.JSONError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: is not valid JSON: {' '.join(str(error).split())[:200]}") from None
    lists = [inside for inside in value.values() if isinstance(inside, list)] if isinstance(value, dict) else []
    is_wrapped = len(lists) == 1 and len(value) == 1 and next(iter(value)) not in ("messages", "conversations")
    for number, one in enumerate(lists[0] if is_wrapped else [value], 1):
        yield Record(f"{file}, record {number}", one)


def _csv(file: Path, stream: BinaryIO, delimiter: str) -> Iterator[Record]:
    unreadable: list[Record] = []

    def lines() -> Iterator[str]:
        for where, line, problem in _lines(file, stream):
            unreadable.extend([Record(where, None, problem)] if problem else [])
            yield line

    reader = csv.DictReader(lines(), delimiter=delimiter, restkey="", strict=True)
    columns = len(reader.fieldnames or [])
    while True:
        where = f"{file}:{reader.line_num + 1}"
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise InputError(f"{where}: is not valid CSV: {error}") from None
        yield from unreadable
        unreadable.clear()
        if row is None:
            return
        if "" in row or None in row.values():
            yield Record(where, None, f"has not as many fields as the first line has names ({columns})")
        else:
            yield Record(where, row)


def _parquet(file: Path, stream: Any) -> Iterator[Record]:
    import pyarrow
    from pyarrow import parquet

    try:
        number = 0
        for batch in parquet.ParquetFile(stream).iter_batches(batch_size=ROWS):
            for row in batch.to_pylist():
                number += 1
                yield Record(f"{file}, row {number}", row)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{file}: is not a readable Parquet file: {' '.join(str(error).split())[:200]}") from None
