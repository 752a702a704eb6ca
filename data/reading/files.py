"""Which records does a local file hold, or a dataset? .txt .md .jsonl .json .csv .tsv .parquet .arrow, plain or as .gz
or .zst; and what `datasets` reads from the Hugging Face Hub or a local folder.

Every record comes with its place (`file:line`). So does one that cannot be read: the caller decides whether to stop or
to skip it. Whatever makes the rest of a file unreadable (a truncated .gz) raises InputError at once.
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
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}  # pyarrow's names; unlike others it notices a file that ends too early
BLOCK = 1 << 20  # bytes read at a time
ROWS = 1000  # rows of a table read at a time

# What a folder holds beside its records: what `datasets` and the Hub write there. cache-….arrow: rows that `map` made.
DESCRIPTIONS = re.compile(r"(config|dataset_infos?|dataset_dict|state)\.json|cache-.*\.arrow", re.IGNORECASE)
# The names of parts that `datasets` knows: a word of a folder's or a file's name, between these signs.
HELD_OUT = "validation|valid|dev|val|test|testing|eval|evaluation"
PART = re.compile(rf"(?:^|[-._ 0-9])(?:train|training|({HELD_OUT}))(?:$|[-._ 0-9])", re.IGNORECASE)

csv.field_size_limit((1 << 31) - 1)  # the library's own limit, 128 kB, is shorter than many documents


class Record(NamedTuple):
    """`value`: a text or a dict; None if it could not be read, and `problem` says why."""

    where: str
    value: Any
    problem: str = ""


# ---------------------------------------------------------------------------------------------------------
# which files


def search(paths: str | list[str], key: str, train_only: bool = False) -> list[Path]:
    """The files that a path, a folder, a pattern or a list of these names: in a fixed order, each once. Of a folder,
    what describes records is left out; train_only: so are the parts that it names as validation or test.
    Raises InputError, with the config key, for a path that leads to no file.
    """
    files: dict[Path, Path] = {}
    for path in [paths] if isinstance(paths, str) else paths:
        given = Path(path).expanduser()
        # what exists is no pattern: of `books [old]/*.txt` only the last part is one
        existing = next(part for part in (given, *given.parents) if part.exists())
        parts = (glob.escape(str(existing)), given.relative_to(existing), "**" if given.is_dir() else "")
        with still_busy(f"looking for the files of {key}"):  # links are followed, and nothing that is hidden
            found = glob.glob(str(Path(*parts)), recursive=True)  # noqa: PTH207 (it knows absolute patterns)
            matching = [Path(name) for name in found]
            readable = [file for file in matching if kind_of(file) in KINDS and file.is_file()]
            longest_first = sorted(readable, key=lambda file: -len(file.parts))  # a link may lead back
            some = sorted({file.resolve(): file for file in longest_first}.values(), key=Path.as_posix)
        if given.is_dir():
            is_all_notes = all(kind_of(file) == ".md" for file in some)  # then a README is one of them
            some = [file for file in some if is_all_notes or file.name.lower() != "readme.md"]
            some = [file for file in some if not DESCRIPTIONS.fullmatch(file.name)]
            some = [file for file in some if not (train_only and is_other_part(file.relative_to(given)))]
            for card in (file for file in readable if train_only and file.name == "README.md"):
                some = declared(some, card, key)
        if not some:
            hint = f"give a file of a kind that can be read ({' '.join(KINDS)}), a folder of such files, or a pattern"
            if "shakespeare" in path.lower():
                hint = "fetch input.txt, 1.1 MB, from data/tinyshakespeare of the GitHub repository karpathy/char-rnn"
            what = "this kind of file cannot be read:" if matching else "no such file:"
            what = "no file that can be read and is no validation or test part in" if given.is_dir() else what
            raise InputError(f"{key}: {what} {path}: {hint}")
        for file in some:
            files.setdefault(file.resolve(), file)
    return list(files.values())


def is_other_part(file: Path) -> bool:
    """Whether the name of a folder on the way to a file says that it is a validation or test part, or its own does."""
    match = next(filter(None, map(PART.search, file.parts)), None)
    return match is not None and match[1] is not None


def declared(files: list[Path], card: Path, key: str) -> list[Path]:
    """The files without those that the README.md of a copy from the Hub does not declare (`configs:` in its head) as
    the part `train`. `datasets` reads it. Raises InputError where there is a choice to make."""
    text = card.read_text(encoding="utf-8", errors="replace")
    if not re.match(r"---\r?\n(?:(?!---).*\n)*configs:", text):
        return files
    source = f"data.source={{kind: hub, name: {card.parent}, subset: …, split: …}}"
    with _datasets(f"{key}: {card} does not say which files to train on (choose: {source})") as datasets:
        parts = datasets.load_dataset_builder(str(card.parent)).config.data_files
        if "train" not in parts:
            raise ValueError(f"Its parts are {', '.join(parts)}")
    train = {Path(file).resolve() for file in parts["train"]}
    return [file for file in files if card.parent not in file.parents or file.resolve() in train]


def kind_of(file: Path) -> str:
    """.jsonl for stories.jsonl, stories.JSONL, stories.jsonl.gz and stories.ndjson."""
    name = file.stem if file.suffix.lower() in COMPRESSED else file.name
    return Path(name).suffix.lower().replace(".ndjson", ".jsonl")


# ---------------------------------------------------------------------------------------------------------
# which records


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """The bytes of a file, decompressed. Raises InputError for a compressed file that is damaged."""
    compression = COMPRESSED.get(file.suffix.lower())
    if compression is None:
        with file.open("rb", BLOCK) as stream:
            yield stream
        return
    import pyarrow

    try:
        if not file.stat().st_size:
            raise OSError("it is empty")
        yield io.BufferedReader(pyarrow.input_stream(str(file), compression), BLOCK)
    except OSError as error:
        raise InputError(f"{file}: is truncated or damaged ({error}): fetch it or compress it again") from None


def records(file: Path, separator: str = "", column: str | None = None) -> Iterator[Record]:
    """The records of one file. column: the only one that is needed of a table."""
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
    """The documents between separators (line ends next to one belong to it). Without any, the file is one document.
    A line end of the separator stands for one of Windows, too."""
    is_mapped = file.suffix.lower() not in COMPRESSED and file.stat().st_size > 0
    raw = mmap(stream.fileno(), 0, access=ACCESS_READ) if is_mapped else stream.read()
    if raw.find(b"\0") >= 0:
        raise InputError(f"{file}: holds zero bytes, so it is a binary file, not text: give a UTF-8 text file")
    lines = [re.escape(part) for part in separator.encode("utf-8").replace(b"\r\n", b"\n").split(b"\n")]
    ends = [match.span() for match in re.finditer(b"\r?\n".join(lines), raw)]
    line, at = 1, 3 if raw[:3] == b"\xef\xbb\xbf" else 0
    for end, after in [*ends, (len(raw), len(raw))]:
        piece = raw[at:end]
        if end == len(raw) and not piece.strip():
            return
        try:
            text = piece.decode("utf-8")
            bare = text.lstrip("\r\n") if ends else text
            place = line + text[: len(text) - len(bare)].count("\n")
            yield Record(f"{file}:{place}", bare.rstrip("\r\n") if ends else bare)
        except UnicodeDecodeError as error:
            yield Record(f"{file}:{line + piece[: error.start].count(10)}", None, _why_no_text(piece, error.start))
        line, at = line + raw[at:after].count(b"\n"), after


def _why_no_text(raw: bytes, at: int) -> str:
    """Why these bytes are not text, with the place in their line."""
    byte = at - raw.rfind(b"\n", 0, at) - 1
    return f"byte {byte} (0x{raw[at]:02x}) is not valid UTF-8: save the file as UTF-8"


def _jsonl(file: Path, stream: BinaryIO) -> Iterator[Record]:
    for number, raw in enumerate(stream, 1):
        where = f"{file}:{number}"
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            if number == 1 and (line.lstrip().startswith("[") or line.strip() == "{"):
                raise InputError(f"{file}: holds one JSON value, not one in each line: name it .json")
            if line.strip():
                yield Record(where, json.loads(line))
        except UnicodeDecodeError as error:
            yield Record(where, None, _why_no_text(raw, error.start))
        except (ValueError, RecursionError) as error:
            yield Record(where, None, f"is not valid JSON: {error}")


def _json(file: Path, stream: Any) -> Iterator[Record]:
    """[record, record, …]; or {"any key": [record, …]}; or {"data": [record, …], …}, whatever is beside it; or one
    record."""
    raw = stream.read()
    try:
        value = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        if "Extra data: line 2 column 1" in str(error):  # an object in each line
            yield from _jsonl(file, io.BytesIO(raw))
            return
        raise InputError(f"{file}: is not valid JSON in UTF-8: {error}") from None
    if isinstance(value, dict):
        data, (name, *others) = value.get("data"), [*value, ""]
        if isinstance(data, list) and data and all(isinstance(record, dict) for record in data):
            value = data
        elif others == [""] and isinstance(value[name], list) and name not in LISTS:
            value = value[name]
    for number, record in enumerate(value if isinstance(value, list) else [value], 1):
        yield Record(f"{file}, record {number}", record)


def _csv(file: Path, stream: BinaryIO, delimiter: str) -> Iterator[Record]:
    text = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="")
    reader = csv.DictReader(text, delimiter=delimiter, strict=True)
    line = 1
    try:
        names = reader.fieldnames or []
        if re.search("[\0\udc80-\udcff]", "".join(names)):
            raise InputError(f"{file}: its first line is not valid UTF-8: save the file as UTF-8")
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
        raise InputError(f"{file}:{line}: is not valid CSV: {error}: {remedy}") from None


def as_json(value: Any, kind: pyarrow.DataType) -> Any:
    """A value of a table as the JSON that it was made from.

    A table has every key in every row: in one that did not have it, its value is null. Such keys are left out. Values
    that `datasets` keeps as JSON text (its feature Json) are read, and nulls of their own stay.
    """
    from pyarrow import types

    if value is None:
        return None
    if getattr(kind, "extension_name", "") == "arrow.json":
        return json.loads(value)
    if types.is_struct(kind):
        return {field.name: as_json(value[field.name], field.type) for field in kind if value[field.name] is not None}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [as_json(item, kind.value_type) for item in value]
    return value


# ---------------------------------------------------------------------------------------------------------
# what `datasets` reads: tables, datasets of the Hub, and local folders of its kind


def dataset_records(source: HubSource, split: str) -> Iterator[Record]:
    """Every row of a split, in order. Raises InputError if the Hub cannot be reached (its library retries five times)
    or has no such dataset, subset or split."""
    where = f"{source.name} ({split})"
    with _datasets(f"data.source: {where} cannot be read from the Hugging Face Hub") as datasets:
        yield from _rows(datasets.load_dataset(**_named(source), split=split, streaming=source.streaming), where)


def dataset_identity(source: HubSource) -> str:
    """Changes when the dataset's files change: a hash of the commit on the Hub, or of the local files' dates."""
    with _datasets(f"data.source: {source.name} cannot be read from the Hugging Face Hub") as datasets:
        return datasets.load_dataset_builder(**_named(source)).hash


def _named(source: HubSource) -> dict[str, Any]:
    return {"path": source.name, "name": source.subset, "data_files": source.data_files, "revision": source.revision}


def _table(file: Path, kind: str, column: str | None) -> Iterator[Record]:
    with _datasets(f"{file}: is not a readable {kind} file") as datasets:
        if kind == ".arrow":
            with file.open("rb") as raw:
                raw.seek(-4, io.SEEK_END)
                if raw.read() not in (b"\0\0\0\0", b"ROW1"):  # one that is cut between two batches can be read as well
                    raise ValueError("the file ends too early")
        rows = datasets.load_dataset(kind[1:], data_files=glob.escape(str(file)), split="train", streaming=True)
        yield from _rows(rows.select_columns(column) if column in (rows.column_names or []) else rows, str(file))


def _rows(rows: Any, where: str) -> Iterator[Record]:
    number = 0
    for table in rows.with_format("arrow").iter(batch_size=ROWS):
        columns = [(field.name, field.type) for field in table.schema]
        for row in table.to_pylist():
            number += 1
            yield Record(f"{where}, row {number}", {name: as_json(row[name], kind) for name, kind in columns})


@contextmanager
def _datasets(problem: str) -> Iterator[Any]:
    """The library; whatever it raises becomes one line."""
    cache = os.environ.get("HF_HOME") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:  # without a home it would make a folder named ~
        Path(cache).expanduser().mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise InputError(f"{problem}: no folder for the cache ({error}): set HF_HOME to one") from None
    import datasets

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        yield datasets
    except Exception as error:
        reason = " ".join(str(error).splitlines()[:2])[:300] or type(error).__name__
        if isinstance(error, ConnectionError):
            reason += ": check the network and HF_HUB_OFFLINE, or give local files (data.source.kind=files)"
        raise InputError(f"{problem}: {reason}") from None
