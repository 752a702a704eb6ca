"""Read the records of local files and of the Hugging Face Hub.

Each record has its place (`file:line`). The caller may skip one that cannot be read. A file whose
rest cannot be read (a truncated .gz) raises InputError at once.
"""

from __future__ import annotations

import csv
import glob
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from configs.command import InputError, still_busy
from data.config import HubSource
from data.reading.records import LISTS

if TYPE_CHECKING:
    import pyarrow

PLAIN = (".txt", ".md")
KINDS = [".txt", ".md", ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow"]
# pyarrow's names. Unlike other libraries it notices a file that ends too early.
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
# Bytes are read in blocks of this size, and tables in batches of this many rows.
BLOCK = 1 << 20
ROWS = 1000

# Files that `datasets` and the Hub write beside the records. `map` makes cache-….arrow.
DESCRIPTIONS = re.compile(
    r"(config|dataset_infos?|dataset_dict|state)\.json|cache-.*\.arrow", re.IGNORECASE
)
# The names of parts that `datasets` recognises: a word in a folder's or a file's name.
HELD_OUT = "validation|valid|dev|val|test|testing|eval|evaluation"
PART = re.compile(rf"(?:^|[-._ 0-9])(?:train|training|({HELD_OUT}))(?:$|[-._ 0-9])", re.IGNORECASE)

# The library's own limit, 128 kB, is shorter than many documents.
csv.field_size_limit((1 << 31) - 1)


class Record(NamedTuple):
    """A text or a dict. If it could not be read, `value` is None and `problem` has the reason."""

    where: str
    value: Any
    problem: str = ""


# which files


def search(paths: str | list[str], key: str, train_only: bool = False) -> list[Path]:
    """Find the files of a path, a folder, a pattern or a list of these, in a fixed order.

    train_only: without parts that are named for validation or test. Raises InputError with the key.
    """
    # a dict, because two paths may lead to the same file
    files: dict[Path, Path] = {}
    for path in [paths] if isinstance(paths, str) else paths:
        root = Path(path).expanduser()
        is_folder = root.is_dir()
        # an existing path is no pattern: in `books [old]/*.txt` only the last part is one
        existing = next(part for part in (root, *root.parents) if part.exists())
        rest = root.relative_to(existing)
        pattern = str(Path(glob.escape(str(existing)), rest, "**" if is_folder else ""))
        # a home folder or a network disk may take minutes
        with still_busy(f"looking for the files of {key}"):
            # glob follows links and skips hidden files; pathlib refuses absolute patterns
            matching = [Path(name) for name in glob.glob(pattern, recursive=True)]  # noqa: PTH207
            readable = [file for file in matching if kind_of(file) in KINDS and file.is_file()]
            # a link may lead back to a parent: the shortest name of a file wins
            longest_first = sorted(readable, key=lambda file: -len(file.parts))
            unique = {file.resolve(): file for file in longest_first}
            chosen = sorted(unique.values(), key=Path.as_posix)
        if is_folder:
            # in a folder of notes, a README is one of them
            if any(kind_of(file) != ".md" for file in chosen):
                chosen = [file for file in chosen if file.name.lower() != "readme.md"]
            chosen = [file for file in chosen if not DESCRIPTIONS.fullmatch(file.name)]
            if train_only:
                chosen = [file for file in chosen if not _is_held_out(file.relative_to(root))]
                for file in readable:
                    if file.name == "README.md":
                        chosen = _declared(chosen, file, key)
        if not chosen:
            problem = "this kind of file cannot be read:" if matching else "no such file:"
            if is_folder:
                problem = "no readable file, or only validation and test parts, in"
            remedy = f"give a file ({' '.join(KINDS)}), a folder or a pattern"
            if "shakespeare" in path.lower():
                remedy = "fetch data/tinyshakespeare/input.txt from karpathy/char-rnn on GitHub"
            raise InputError(f"{key}: {problem} {path}: {remedy}")
        for file in chosen:
            files.setdefault(file.resolve(), file)
    return list(files.values())


def _is_held_out(file: Path) -> bool:
    # the first name on the way that matches decides
    for name in file.parts:
        match = PART.search(name)
        if match is not None:
            # only the names of held-out parts are in the group
            return match[1] is not None
    return False


def _declared(files: list[Path], card: Path, key: str) -> list[Path]:
    # In a copy of a dataset from the Hub, the head of README.md may list the files of each part
    # (`configs:`). Then only those of `train` are chosen.
    text = card.read_text(encoding="utf-8", errors="replace")
    if not re.match(r"---\r?\n(?:(?!---).*\n)*configs:", text):
        return files
    source = f"data.source={{kind: hub, name: {card.parent}, subset: …, split: …}}"
    with _datasets(f"{key}: {card} does not name the files to train on (choose: {source})") as hub:
        # `datasets` reads the card, with its patterns and defaults, better than we could
        parts = hub.load_dataset_builder(str(card.parent)).config.data_files
        if "train" not in parts:
            raise ValueError(f"Its parts are {', '.join(parts)}")
    train = {Path(file).resolve() for file in parts["train"]}
    return [file for file in files if card.parent not in file.parents or file.resolve() in train]


def kind_of(file: Path) -> str:
    """Return .jsonl for stories.jsonl, stories.JSONL, stories.jsonl.gz and stories.ndjson."""
    name = file.stem if file.suffix.lower() in COMPRESSED else file.name
    return Path(name).suffix.lower().replace(".ndjson", ".jsonl")


# which records


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """Open the decompressed bytes of a file. Raises InputError if compressed data is damaged."""
    compression = COMPRESSED.get(file.suffix.lower())
    if compression is None:
        with file.open("rb", BLOCK) as stream:
            yield stream
        return
    import pyarrow

    try:
        if not file.stat().st_size:
            raise OSError("it is empty")
        # buffered, so that a .jsonl.gz can be read line by line
        yield io.BufferedReader(pyarrow.input_stream(str(file), compression), BLOCK)
    except OSError as error:
        raise InputError(
            f"{file}: is truncated or damaged ({error}): fetch or compress it again"
        ) from None


def records(file: Path, separator: str = "", column: str | None = None) -> Iterator[Record]:
    """Yield the records of one file. column: read only this column of a table."""
    kind = kind_of(file)
    with opened(file) as stream:
        if kind in PLAIN:
            yield from _plain(file, stream, separator)
        elif kind == ".jsonl":
            yield from _jsonl(file, stream)
        elif kind == ".json":
            yield from _json(file, stream)
        elif kind in (".parquet", ".arrow"):
            yield from _table(file, kind, column)
        else:
            yield from _csv(file, stream, "\t" if kind == ".tsv" else ",")


def _plain(file: Path, stream: BinaryIO, separator: str) -> Iterator[Record]:
    # mapped, so that a file may be larger than the memory
    is_mapped = file.suffix.lower() not in COMPRESSED and file.stat().st_size > 0
    raw = mmap(stream.fileno(), 0, access=ACCESS_READ) if is_mapped else stream.read()
    if raw.find(b"\0") >= 0:
        raise InputError(f"{file}: holds zero bytes, so it is no text: give a UTF-8 text file")
    # its line ends match those of Windows, too
    lines = separator.encode("utf-8").replace(b"\r\n", b"\n").split(b"\n")
    pattern = b"\r?\n".join(map(re.escape, lines))
    # bytes are searched, because a text of gigabytes need not be decoded at once
    ends = [match.span() for match in re.finditer(pattern, raw)]
    line = 1
    start = 3 if raw[:3] == b"\xef\xbb\xbf" else 0  # a byte order mark
    for end, next_start in [*ends, (len(raw), len(raw))]:
        piece = raw[start:end]
        if end == len(raw) and not piece.strip():
            return
        try:
            text = piece.decode("utf-8")
            first_line = line
            # line ends next to a separator belong to it
            if ends:
                stripped = text.lstrip("\r\n")
                first_line += text[: len(text) - len(stripped)].count("\n")
                text = stripped.rstrip("\r\n")
            yield Record(f"{file}:{first_line}", text)
        except UnicodeDecodeError as error:
            bad_line = line + piece[: error.start].count(b"\n")
            yield Record(f"{file}:{bad_line}", None, _not_utf8(piece, error.start))
        line += raw[start:next_start].count(b"\n")
        start = next_start


def _not_utf8(raw: bytes, position: int) -> str:
    byte = position - raw.rfind(b"\n", 0, position) - 1  # in its line
    return f"byte {byte} (0x{raw[position]:02x}) is not valid UTF-8: save the file as UTF-8"


def _jsonl(file: Path, stream: BinaryIO) -> Iterator[Record]:
    for number, raw in enumerate(stream, 1):
        where = f"{file}:{number}"
        try:
            # -sig: Windows' editors put a byte order mark in front of the first line
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            if number == 1 and (line.lstrip().startswith("[") or line.strip() == "{"):
                raise InputError(f"{file}: has no JSON value in each line: name it .json")
            if line.strip():
                yield Record(where, json.loads(line))
        except UnicodeDecodeError as error:
            yield Record(where, None, _not_utf8(raw, error.start))
        except (ValueError, RecursionError) as error:
            yield Record(where, None, f"is not valid JSON: {error}")


def _json(file: Path, stream: Any) -> Iterator[Record]:
    # [record, …], {"any key": [record, …]} or {"data": [record, …], …}; else the value is a record
    raw = stream.read()
    try:
        value = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        # an object in each line
        if "Extra data: line 2 column 1" in str(error):
            yield from _jsonl(file, io.BytesIO(raw))
            return
        raise InputError(f"{file}: is not valid JSON in UTF-8: {error}") from None
    if isinstance(value, dict):
        data = value.get("data")
        if isinstance(data, list) and data and all(isinstance(record, dict) for record in data):
            value = data
        elif len(value) == 1:
            (name,) = value
            if isinstance(value[name], list) and name not in LISTS:
                value = value[name]
    for number, record in enumerate(value if isinstance(value, list) else [value], 1):
        yield Record(f"{file}, record {number}", record)


def _csv(file: Path, stream: BinaryIO, delimiter: str) -> Iterator[Record]:
    # bytes that are not UTF-8 become surrogates, so that a bad row does not end the file
    text = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="")
    # strict: without it, a quote that is never closed swallows the rest of the file
    reader = csv.DictReader(text, delimiter=delimiter, strict=True)
    line = 1
    try:
        names = reader.fieldnames or []
        if re.search("[\0\udc80-\udcff]", "".join(names)):
            raise InputError(f"{file}: its first line is not valid UTF-8: save the file as UTF-8")
        line = reader.line_num + 1
        for row in reader:
            where = f"{file}:{line}"
            # a field may hold line ends
            line = reader.line_num + 1
            # DictReader puts extra fields under None, and None for missing ones
            if None in row or None in row.values():
                yield Record(
                    where, None, f"has more or fewer fields than the {len(names)} of the first line"
                )
            elif any(re.search("[\udc80-\udcff]", value) for value in row.values()):
                yield Record(where, None, "is not valid UTF-8: save the file as UTF-8")
            else:
                yield Record(where, row)
    except csv.Error as error:
        raise InputError(
            f"{file}:{line}: is not valid CSV: {error}: double each quote inside a quoted field"
        ) from None


def as_json(value: Any, kind: pyarrow.DataType) -> Any:
    """Return a value of a table as the JSON that it was made from."""
    from pyarrow import types

    if value is None:
        return None
    # `datasets` keeps some values as JSON text, with nulls of their own (its feature Json)
    if getattr(kind, "extension_name", "") == "arrow.json":
        return json.loads(value)
    if types.is_struct(kind):
        # a table has every key in every row: null where a row did not have it
        present = [field for field in kind if value[field.name] is not None]
        return {field.name: as_json(value[field.name], field.type) for field in present}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [as_json(item, kind.value_type) for item in value]
    return value


# what `datasets` reads: tables, datasets of the Hub, and local folders of its kind


def dataset_records(source: HubSource, split: str) -> Iterator[Record]:
    """Yield every row of a split. Raises InputError if the dataset or the Hub is not there."""
    where = f"{source.name} ({split})"
    with _datasets(f"data.source: {where} cannot be read from the Hugging Face Hub") as datasets:
        rows = datasets.load_dataset(**_named(source), split=split, streaming=source.streaming)
        yield from _rows(rows, where)


def dataset_identity(source: HubSource) -> str:
    """Return a hash of the commit on the Hub, or of the local files' dates."""
    problem = f"data.source: {source.name} cannot be read from the Hugging Face Hub"
    with _datasets(problem) as datasets:
        return datasets.load_dataset_builder(**_named(source)).hash


def _named(source: HubSource) -> dict[str, Any]:
    return {
        "path": source.name,
        "name": source.subset,
        "data_files": source.data_files,
        "revision": source.revision,
    }


def _table(file: Path, kind: str, column: str | None) -> Iterator[Record]:
    with _datasets(f"{file}: is not a readable {kind} file") as datasets:
        if kind == ".arrow":
            # a file that is cut between two batches could be read: look at its end
            with file.open("rb") as raw:
                raw.seek(-4, io.SEEK_END)
                if raw.read() not in (b"\0\0\0\0", b"ROW1"):
                    raise ValueError("the file ends too early")
        # `datasets` reads the name as a pattern, and puts all files into "train"
        rows = datasets.load_dataset(
            kind[1:], data_files=glob.escape(str(file)), split="train", streaming=True
        )
        if column in (rows.column_names or []):
            rows = rows.select_columns(column)
        yield from _rows(rows, str(file))


def _rows(rows: Any, where: str) -> Iterator[Record]:
    number = 0
    # as Arrow tables: `datasets` would turn some columns into arrays and pictures
    for table in rows.with_format("arrow").iter(batch_size=ROWS):
        for row in table.to_pylist():
            number += 1
            value = {field.name: as_json(row[field.name], field.type) for field in table.schema}
            yield Record(f"{where}, row {number}", value)


@contextmanager
def _datasets(problem: str) -> Iterator[Any]:
    # Whatever the library raises becomes one line.
    # note: for a user without a home, it would make a folder named ~
    cache = os.environ.get("HF_HOME") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        Path(cache).expanduser().mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise InputError(f"{problem}: no folder for the cache ({error}): set HF_HOME") from None
    import datasets

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        yield datasets
    except Exception as error:
        # the reason; further lines are advice for programmers
        reason = " ".join(str(error).splitlines()[:2])[:300] or type(error).__name__
        if isinstance(error, ConnectionError):
            reason += ": check the network and HF_HUB_OFFLINE, or use data.source.kind=files"
        raise InputError(f"{problem}: {reason}") from None
