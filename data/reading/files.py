"""Which records does a local file hold? .txt .md .jsonl .json .csv .tsv .parquet .arrow, plain or as .gz or .zst.

Every record comes with its place (`file:line`). So does one that cannot be read: the caller decides whether to stop or
to skip it. Whatever makes the rest of a file unreadable (a truncated .gz) raises InputError at once.
"""

from __future__ import annotations

import csv
import glob
import hashlib
import io
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from filelock import FileLock

from configs.command import InputError, still_busy
from configs.files import read_json, resolve

if TYPE_CHECKING:
    import pyarrow

PLAIN = (".txt", ".md")
KINDS = [".txt", ".md", ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow"]
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}  # pyarrow's names; unlike others it notices a file that ends too early
BLOCK = 1 << 20  # bytes read at a time
ROWS = 1000  # rows of a table read at a time
SETTLED = 2_000_000_000  # nanoseconds after which a second change of a file cannot have the same time as the first

# What a folder holds beside its records: what `datasets` and the Hub write there. cache-….arrow: rows that `map` made.
DESCRIPTIONS = re.compile(r"(config|dataset_infos?|dataset_dict|state)\.json|cache-.*\.arrow", re.IGNORECASE)
CARD = "readme.md"
# The names of parts that `datasets` knows: a word of a folder's or a file's name, between these signs.
PARTS = {"train": "train|training", "validation": "validation|valid|dev|val", "test": "test|testing|eval|evaluation"}
PART = re.compile(
    rf"(?:^|[-._ 0-9])(?:{'|'.join(f'(?P<{part}>{words})' for part, words in PARTS.items())})(?:$|[-._ 0-9])",
    re.IGNORECASE,
)

csv.field_size_limit((1 << 31) - 1)  # the library's own limit, 128 kB, is shorter than many documents


class Record(NamedTuple):
    """`value`: a text or a dict; None if it could not be read, and `problem` says why."""

    where: str
    value: Any
    problem: str = ""


# ---------------------------------------------------------------------------------------------------------
# which files


def find(path: str | list[str], key: str) -> list[Path]:
    """The files that a path, a folder, a pattern or a list of these names: in a fixed order, each once.

    Raises InputError, with the config key, for a path that leads to no file.
    """
    return search(path, key)[0]


def search(path: str | list[str], key: str, train_only: bool = False) -> tuple[list[Path], dict[str, list[Path]]]:
    """The files that `find` gives, and those that were left out, by reason. train_only: what a folder names as its
    validation or test part is left out as well."""
    files: dict[Path, Path] = {}
    left_out: dict[str, list[Path]] = {}
    for one in [path] if isinstance(path, str) else path:
        with still_busy(f"looking for the files of {key}"):
            for file in sorted(_expand(one, key, train_only, left_out), key=Path.as_posix):
                files.setdefault(file.resolve(), file)
    return list(files.values()), left_out


def listed(left_out: dict[str, list[Path]]) -> str:
    """How many files were left out, why, and the first of them by name."""
    lines = []
    for why, files in left_out.items():
        names = ", ".join(sorted(file.name for file in files)[:3]) + ", …" * (len(files) > 3)
        lines += [f"{len(files):,} {why} ({names})"] * bool(files)
    return ", ".join(lines)


def _expand(path: str, key: str, train_only: bool, left_out: dict[str, list[Path]]) -> list[Path]:
    """The files that one path names."""
    given, known = resolve(path, key), " ".join(KINDS)
    if given.is_file():
        if suffix_of(given) not in KINDS:
            raise InputError(f"{key}: {path} is a {given.suffix or 'nameless kind of'} file: use one of {known}")
        return [given]
    is_folder = given.is_dir()
    if is_folder:
        inside = sorted(_inside(given))
    else:
        inside = [Path(name) for name in glob.glob(str(given), recursive=True)]  # noqa: PTH207 (it knows absolute patterns)
    readable = [file for file in inside if suffix_of(file) in KINDS and file.is_file()]
    is_all_notes = all(suffix_of(file) == ".md" for file in readable)  # then a README is one of them
    files = []
    for file in inside:
        part = part_of(file.relative_to(given)) if is_folder and train_only else "train"
        if file not in readable:
            why = "" if file.is_dir() and "**" in path else "of another kind"  # ** looks into folders
        elif is_folder and (DESCRIPTIONS.fullmatch(file.name) or (file.name.lower() == CARD and not is_all_notes)):
            why = "that describe data"
        elif part != "train":
            why = f"of the {part} part"
        else:
            files.append(file)
            continue
        if why:
            left_out.setdefault(why, []).append(file)
    if files:
        return files
    if readable:
        raise InputError(
            f"{key}: the folder {path} holds no file to train on, only {listed(left_out)}: to read one all the same, "
            "name it, or use a pattern"
        )
    if is_folder:
        raise InputError(f"{key}: the folder {path} holds no file of these kinds: {known}")
    hint = ""
    if "shakespeare" in path.lower():
        hint = (
            " (tiny Shakespeare is one 1.1 MB text file: input.txt in the folder data/tinyshakespeare of the GitHub "
            "repository karpathy/char-rnn; save it there, or give its place with data.source.path=…)"
        )
    raise InputError(f"{key}: no such file: {path}{hint}")


def part_of(file: Path) -> str:
    """validation or test, if the name of a folder on the way to a file says so, or its own; otherwise train."""
    found = next(filter(None, map(PART.search, file.parts)), None)
    return str(found.lastgroup) if found else "train"


def _inside(folder: Path) -> Iterator[Path]:
    """Every file of a folder and of the folders in it, links to folders included; none that is hidden."""
    seen = set()  # a link may lead back

    def refuse(error: OSError) -> None:  # os.walk would leave out a folder that cannot be opened
        raise error

    for parent, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if Path(parent).resolve() in seen:
            folders.clear()
            continue
        seen.add(Path(parent).resolve())
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def suffix_of(file: Path) -> str:
    """.jsonl for stories.jsonl, stories.JSONL and stories.jsonl.gz."""
    return Path(file.stem if file.suffix.lower() in COMPRESSED else file.name).suffix.lower()


def kind_of(file: Path) -> str:
    """As suffix_of, where two names of one kind are one: .jsonl for stories.ndjson."""
    return suffix_of(file).replace(".ndjson", ".jsonl")


def hashes(files: list[Path], memory: Path) -> list[str]:
    """SHA-256 of every file, hashed only if it is new or changed: a corpus is hashed once, not at every start.

    memory: a JSON file, path -> [size, time of change, SHA-256]. A lock beside it makes the processes of a run take
    turns: the first one hashes, the others find the result. A file that has just changed is not remembered yet.
    """
    memory.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(memory.with_suffix(".lock")):
        try:
            entries = read_json(memory, dict[str, list[Any]])
        except ValueError:  # not there yet, or damaged: hash again
            entries = {}
        known = {key: entry for key, entry in entries.items() if list(map(type, entry)) == [int, int, str]}
        now, keys, stamps = time.time_ns(), [str(file.resolve()) for file in files], {}
        for key, file in zip(keys, files, strict=True):
            with clear_errors(file):
                status = file.stat()
            stamps[key] = [status.st_size, status.st_mtime_ns]
        new = [key for key in stamps if known.get(key, [])[:2] != stamps[key]]
        with still_busy("hashing the files of the corpus"), ThreadPoolExecutor() as pool:
            known |= {key: [*stamps[key], digest] for key, digest in zip(new, pool.map(sha256, new), strict=True)}
        if new:
            settled = {key: entry for key, entry in known.items() if now - entry[1] > SETTLED}
            temporary = memory.with_suffix(".tmp")
            temporary.write_text(json.dumps(settled, indent=1), encoding="utf-8")
            temporary.replace(memory)
    return [known[key][2] for key in keys]


def sha256(file: str | Path) -> str:
    """SHA-256 of one file."""
    with clear_errors(Path(file)), Path(file).open("rb") as raw:
        return hashlib.file_digest(raw, "sha256").hexdigest()


# ---------------------------------------------------------------------------------------------------------
# which bytes


@contextmanager
def clear_errors(file: Path) -> Iterator[None]:
    """Turn what a file system or a compressed file raises into InputError."""
    try:
        yield
    except OSError as error:
        if file.suffix.lower() in COMPRESSED and not error.errno:  # pyarrow's
            raise InputError(f"{file}: is truncated or damaged ({error}): fetch it or compress it again") from None
        raise InputError(f"{file}: cannot be read: {error.strerror or error}") from None


class _Counted(io.FileIO):
    """A file that reports how many bytes are read from it."""

    def __init__(self, file: Path, on_read: Callable[[int], object]):
        super().__init__(file)
        self._on_read = on_read

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer) or 0
        self._on_read(count)
        return count


@contextmanager
def opened(file: Path, on_read: Callable[[int], object] = lambda count: None) -> Iterator[Any]:
    """The bytes of a file, decompressed."""
    with io.BufferedReader(_Counted(file, on_read), BLOCK) as raw:
        packed = COMPRESSED.get(file.suffix.lower())
        if packed is None:
            yield raw
            return
        import pyarrow

        if not raw.peek(1):
            raise OSError("the file is empty")
        yield io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, "r"), packed), BLOCK)


# ---------------------------------------------------------------------------------------------------------
# which records


def records(
    file: Path, separator: str, on_read: Callable[[int], object] = lambda count: None, column: str | None = None
) -> Iterator[Record]:
    """The records of one file. on_read gets the number of bytes (as on disk) of every read; column: the only one that
    is needed of a table."""
    kind = kind_of(file)
    with clear_errors(file), opened(file, on_read) as stream:
        if kind in PLAIN:
            yield from _plain(file, stream, separator)
        elif kind == ".jsonl":
            yield from _jsonl(file, stream)
        elif kind == ".json":
            yield from _json(file, stream)
        elif kind in (".parquet", ".arrow"):
            yield from _table(file, stream, kind, column)
        else:
            yield from _csv(file, stream, "\t" if kind == ".tsv" else ",")


def _plain(file: Path, stream: BinaryIO, separator: str) -> Iterator[Record]:
    """The documents between separators (line ends next to one belong to it). Without any, the file is one document."""
    mark, line, buffer, searched = separator.encode("utf-8"), 1, bytearray(), 0
    is_divided = False

    def record(raw: bytes) -> Record:
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            place = line + raw[: error.start].count(b"\n")
            return Record(f"{file}:{place}", None, _why_no_text(raw, error.start))
        bare = text.lstrip("\r\n") if is_divided else text
        place = line + text[: len(text) - len(bare)].count("\n")
        return Record(f"{file}:{place}", bare.rstrip("\r\n") if is_divided else bare)

    while block := stream.read(BLOCK):
        if b"\0" in block:
            raise InputError(f"{file}: holds zero bytes, so it is a binary file, not text: give a UTF-8 text file")
        buffer += block
        if line == 1 and not is_divided and buffer.startswith(b"\xef\xbb\xbf"):
            del buffer[:3]
        while (at := buffer.find(mark, searched)) >= 0:
            is_divided = True
            yield record(bytes(buffer[:at]))
            line += buffer.count(b"\n", 0, at + len(mark))
            del buffer[: at + len(mark)]
            searched = 0
        searched = max(0, len(buffer) - len(mark))  # the mark may be cut in two
    if buffer.strip():
        yield record(bytes(buffer))


def _lines(file: Path, stream: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """(where, line with its end) of every line, without a byte order mark."""
    for number, raw in enumerate(stream, 1):
        yield f"{file}:{number}", raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw


def _why_no_text(raw: bytes, at: int) -> str:
    """Why these bytes are not text, with the place in their line."""
    byte = at - raw.rfind(b"\n", 0, at) - 1
    return f"byte {byte} (0x{raw[at]:02x}) is not valid UTF-8: save the file as UTF-8"


def _jsonl(file: Path, stream: BinaryIO) -> Iterator[Record]:
    for where, raw in _lines(file, stream):
        try:
            line = raw.decode("utf-8")
            if line.strip():
                yield Record(where, json.loads(line))
        except UnicodeDecodeError as error:
            yield Record(where, None, _why_no_text(raw, error.start))
        except (ValueError, RecursionError) as error:
            yield Record(where, None, f"is not valid JSON: {error}")


def _json(file: Path, stream: Any) -> Iterator[Record]:
    """[record, record, …]; or {"any key": [record, …]}; or {"data": [record, …], …}, whatever is beside it; or one
    record."""
    try:
        raw = b"".join(iter(lambda: stream.read(BLOCK), b""))  # in blocks, which are counted
        value = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: is not valid UTF-8: {error.reason}: save the file as UTF-8") from None
    except (ValueError, RecursionError) as error:
        hint = ": if it holds an object a line, name it .jsonl" if "Extra data" in str(error) else ""
        raise InputError(f"{file}: is not valid JSON: {error}{hint}") from None
    inside = value if isinstance(value, list) else [value]
    if isinstance(value, dict):
        data, (name, *others) = value.get("data"), [*value, ""]
        if isinstance(data, list) and data and all(isinstance(one, dict) for one in data):
            inside = data
        elif others == [""] and isinstance(value[name], list) and name not in ("messages", "conversations"):
            inside = value[name]
    for number, one in enumerate(inside, 1):
        yield Record(f"{file}, record {number}", one)


def _csv(file: Path, stream: BinaryIO, delimiter: str) -> Iterator[Record]:
    lines = (raw.decode("utf-8", "surrogateescape") for _, raw in _lines(file, stream))
    reader = csv.DictReader(lines, delimiter=delimiter, strict=True)
    line = 1
    try:
        names = reader.fieldnames or []
        if len(names) == 1 and (other := re.search(r"[;|\t]", names[0])):
            raise InputError(
                f"{file}:1: its fields seem to be separated by {other[0]!r}, but {delimiter!r} is expected"
            )
        line = reader.line_num + 1
        for row in reader:
            where, line = f"{file}:{line}", reader.line_num + 1
            if None in row or None in row.values():
                yield Record(where, None, f"has another number of fields than the first line has names ({len(names)})")
            elif any(re.search("[\udc80-\udcff]", value) for value in row.values()):
                yield Record(where, None, "is not valid UTF-8: save the file as UTF-8")
            else:
                yield Record(where, row)
    except csv.Error as error:
        remedy = 'double a quote inside a field ("") and end each field that begins with one'
        if "new-line character" in str(error):
            remedy = "old Macs ended lines with a carriage return: save the file with line feeds"
        raise InputError(f"{file}:{line}: is not valid CSV: {error}: {remedy}") from None


def _table(file: Path, stream: Any, kind: str, column: str | None) -> Iterator[Record]:
    import pyarrow

    number = 0
    try:
        for batch in _batches(file, stream, kind, column):
            for row in rows_of(batch):
                number += 1
                yield Record(f"{file}, row {number}", row)
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        name = kind[1:].capitalize()
        raise InputError(f"{file}: is not a readable {name} file, from row {number + 1} on: {reason}") from None


def _batches(file: Path, stream: Any, kind: str, column: str | None) -> Iterator[pyarrow.RecordBatch]:
    """The rows of a .parquet or .arrow file, a batch at a time; only one column of them, if it is there."""
    from pyarrow import ipc, parquet

    if kind == ".parquet":
        table = parquet.ParquetFile(stream)
        columns = [column] if column in table.schema_arrow.names else None
        yield from table.iter_batches(batch_size=ROWS, columns=columns)
        return
    if stream.peek(6)[:6] == b"ARROW1":  # the format of files; `datasets` writes that of streams
        opened_file = ipc.open_file(stream)
        batches = map(opened_file.get_batch, range(opened_file.num_record_batches))
    else:
        with file.open("rb") as raw:
            raw.seek(-4, os.SEEK_END)
            if raw.read() != b"\0\0\0\0":  # a stream that is cut between two batches can be read as well
                raise ValueError("the file ends too early")
        batches = iter(ipc.open_stream(stream))
    for batch in batches:
        yield batch.select([column]) if column in batch.schema.names else batch


def rows_of(table: pyarrow.RecordBatch | pyarrow.Table) -> Iterator[dict[str, Any]]:
    """The rows of a table as the JSON that it was made from.

    A table has every key in every row: in one that did not have it, its value is null. Such keys are left out, inside
    the fields of a row. (The row's own fields stay; a null one counts as missing.) Values that `datasets` keeps as JSON
    text (its feature Json) are read, and nulls of their own stay.
    """
    undo = {field.name: made for field in table.schema if (made := _undo(field.type))}
    for row in table.to_pylist():
        yield row | {name: made(row[name]) for name, made in undo.items() if row[name] is not None}


def _undo(kind: pyarrow.DataType) -> Callable[[Any], Any] | None:
    """What makes the JSON again of which a value of this type was made; None where it is the same."""
    from pyarrow import types

    if getattr(kind, "extension_name", "") == "arrow.json":
        return json.loads
    if types.is_struct(kind):
        inside = {field.name: _undo(field.type) or (lambda value: value) for field in kind}
        return lambda value: {name: inside[name](one) for name, one in value.items() if one is not None}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        of_one = _undo(kind.value_type)
        return of_one and (lambda value: [one if one is None else of_one(one) for one in value])
    return None
