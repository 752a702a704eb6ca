"""Which records does a local file hold? .txt .md .jsonl .json .csv .tsv .parquet .arrow, plain or as .gz or .zst.

Every record comes with its place (`file:line`). So does one that cannot be read: the caller decides whether to stop or
to skip it. Whatever makes the rest of a file unreadable (a truncated .gz) raises InputError at once.
"""

from __future__ import annotations

import csv
import glob
import io
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, NoReturn

from configs.command import InputError, still_busy
from configs.files import resolve
from data.reading.file_bytes import BLOCK, COMPRESSED, clear_errors, opened

if TYPE_CHECKING:
    import pyarrow

PLAIN = {".txt", ".md"}
KINDS = [".txt", ".md", ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow"]
# What a folder holds beside its records: what `datasets` and the Hub write there. cache-….arrow: rows that `map` made.
DESCRIPTIONS = re.compile(r"(config|dataset_infos?|dataset_dict|state)\.json|cache-.*\.arrow", re.IGNORECASE)
CARD = "readme.md"
# The names of parts that `datasets` knows: a word of a folder's or a file's name, between these signs.
PARTS = {"train": "train|training", "validation": "validation|valid|dev|val", "test": "test|testing|eval|evaluation"}
PART = re.compile(
    rf"(?:^|[-._ 0-9])(?:{'|'.join(f'(?P<{part}>{words})' for part, words in PARTS.items())})(?:$|[-._ 0-9])",
    re.IGNORECASE,
)
PIECE = 1 << 18  # bytes after which a long text is read in pieces
ENDLESS = 1 << 21  # bytes; a piece without a good place to end ends here anyway
ROWS = 1000  # rows of a .parquet file read at a time
# BETWEEN_WORDS of data.tokenizer again, for bytes, since a piece is cut before it is decoded: bytes that end and begin
# a word, without the white space of other scripts (U+00A0, U+3000, …)
WORD_END = (
    rb"(?:(?<=[!-~].)|(?<=[\xc3-\xdf]..)|(?<=[\xe0\xe4-\xed\xef]...)|(?<=\xe3\x80[\x81-\xbf].)|(?<=[\xf0-\xf4]....))"
)
WORD_BEGIN = rb"(?:[!-~\xc3-\xe0\xe4-\xed\xef-\xf4]|\xe3\x80[\x81-\xbf])"
BETWEEN_WORDS = re.compile(rb"[\n ](?=" + WORD_BEGIN + rb")" + WORD_END, re.DOTALL)
NEWLINE = b"\n"  # a name, because an f-string of Python 3.11 cannot hold a backslash
TOO_DEEP = "is not valid JSON for us: nested deeper than 100 levels"
JSON_SPACE = (" ", "\n", "\r", "\t")

LONGEST = 1 << 28  # bytes of a record, which is held in memory several times: about 2 GB for such a one

csv.field_size_limit(LONGEST)  # the library's own limit, 128 kB, is shorter than many documents


class Record(NamedTuple):
    """`value`: a text or a dict; None if it could not be read, and `problem` says why.
    A long text comes in pieces, each a record; `first` and `last` mark its two ends."""

    where: str
    value: Any
    problem: str = ""
    first: bool = True
    last: bool = True


def find(path: str | list[str], key: str) -> list[Path]:
    """The files that a path, a folder, a pattern or a list of these names: in a fixed order, each once.

    Raises InputError, with the config key, for a path that leads to no file.
    """
    return search(path, key)[0]


LeftOut = dict[str, list[Path]]  # why -> files


def search(path: str | list[str], key: str, train_only: bool = False) -> tuple[list[Path], LeftOut]:
    """The files that `find` gives, and those that were left out. train_only: what a folder names as its validation or
    test part is left out as well."""
    found: dict[Path, Path] = {}
    left_out: LeftOut = {}
    for one in [path] if isinstance(path, str) else path:
        try:
            with still_busy(f"looking for the files of {key}"):
                files = _expand(one, key, train_only, left_out)
        except OSError as error:
            raise InputError(f"{key}: {error.filename or one} cannot be searched: {error.strerror}") from None
        for file in sorted(files, key=lambda file: file.as_posix()):
            found.setdefault(file.resolve(), file)
    return list(found.values()), left_out


def listed(left_out: LeftOut) -> str:
    """How many files were left out, why, and the first of them by name."""
    lines = []
    for why, files in left_out.items():
        names = ", ".join(sorted(file.name for file in files)[:3]) + ", …" * (len(files) > 3)
        lines += [f"{len(files):,} {why} ({names})"] * bool(files)
    return ", ".join(lines)


def _expand(path: str, key: str, train_only: bool, left_out: LeftOut) -> list[Path]:
    """The files that one path names. Raises InputError, and OSError for a folder that cannot be searched."""
    given, known = resolve(path, key), " ".join(KINDS)
    if given.is_file():
        if suffix_of(given) not in KINDS:
            raise InputError(f"{key}: {path} is a {given.suffix or 'nameless kind of'} file: use one of {known}")
        return [given]
    if given.is_dir():
        inside = sorted(_inside(given))
    elif given.exists():
        raise InputError(f"{key}: {path} is a pipe or a device, not a file: copy what it gives into a file first")
    else:
        inside = [Path(name) for name in glob.glob(str(given), recursive=True)]  # noqa: PTH207 (it knows absolute patterns)
    readable = [file for file in inside if suffix_of(file) in KINDS and file.is_file()]
    is_all_notes = all(suffix_of(file) == ".md" for file in readable)  # then a README is one of them
    files = []
    for file in inside:
        part = part_of(file.relative_to(given)) if given.is_dir() and train_only else "train"
        if suffix_of(file) not in KINDS or not file.is_file():
            why = "" if file.is_dir() and "**" in path else "of another kind"  # ** looks into folders
        elif given.is_dir() and (DESCRIPTIONS.fullmatch(file.name) or (file.name.lower() == CARD and not is_all_notes)):
            why = "that describe data"
        else:
            why = f"of the {part} part" if part != "train" else ""
            files += [file] * (not why)
        if why:
            left_out.setdefault(why, []).append(file)
    if files:
        return files
    if readable:
        raise InputError(
            f"{key}: the folder {path} holds no file to train on, only {listed(left_out)}: to read one all the same, "
            "name it, or use a pattern"
        )
    if given.is_dir():
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
    """Every file of a folder and of the folders in it, links to folders included; none that is hidden. Raises
    OSError."""
    seen = set()  # a link may lead back
    for parent, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if Path(parent).resolve() in seen:
            folders.clear()
            continue
        seen.add(Path(parent).resolve())
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def _raise(error: OSError) -> NoReturn:
    raise error


def suffix_of(file: Path) -> str:
    """.jsonl for stories.jsonl, stories.JSONL and stories.jsonl.gz."""
    return Path(file.stem if file.suffix.lower() in COMPRESSED else file.name).suffix.lower()


def kind_of(file: Path) -> str:
    """As suffix_of, where two names of one kind are one: .jsonl for stories.ndjson."""
    return suffix_of(file).replace(".ndjson", ".jsonl")


def records(
    file: Path, separator: str, on_read: Callable[[int], object], column: str | None = None
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
    """The documents between separators (line ends next to one belong to it). Without any, the file is one document.

    A long one comes in pieces that end between two words, where no token of a byte-level tokenizer crosses from one
    to the other. Where a text has no such place for a long time, a piece ends anywhere.
    """
    mark, left, line, split = separator.encode("utf-8"), b"", 1, False
    first, is_bad = True, False

    def record(raw: bytes, last: bool) -> Record | None:
        """The next piece of the current document; the rest of one that cannot be read is left out."""
        nonlocal first, is_bad, line
        place, was_first, was_bad = line, first, is_bad
        line, first, is_bad = line + raw.count(b"\n"), last, is_bad and not last
        if was_bad:
            return None
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            is_bad = not last
            return Record(f"{file}:{place + raw[: error.start].count(NEWLINE)}", None, _why(raw, error.start))
        if split and was_first:
            bare = text.lstrip("\r\n")
            place, text = place + text[: len(text) - len(bare)].count("\n"), bare
        text = text.rstrip("\r\n") if split and last else text
        return Record(f"{file}:{place}", text, "", was_first, last)

    blocks = iter(lambda: stream.read(BLOCK), b"")
    for block in itertools.chain([stream.read(3).removeprefix(b"\xef\xbb\xbf")], blocks):
        if b"\0" in block:
            raise InputError(f"{file}: holds zero bytes, so it is a binary file, not text: give a UTF-8 text file")
        *whole, left = (left + block).split(mark)
        split = split or bool(whole)
        for raw in whole:
            yield from filter(None, [record(raw, True)])
            line += mark.count(b"\n")
        while len(left) > 2 * PIECE and (end := _clean_end(left, len(mark))):
            yield from filter(None, [record(left[:end], False)])
            left = left[end:]
    if left.strip() or not first:
        yield from filter(None, [record(left, True)])


def _clean_end(raw: bytes, margin: int) -> int:
    """Where a piece of at least PIECE bytes may end, at least `margin` before the end of `raw`; 0 = nowhere yet."""
    place = BETWEEN_WORDS.search(raw, PIECE, len(raw) - margin)
    if place is not None:
        return place.end() if place[0] == b"\n" else place.start()
    return len(raw) // 2 if len(raw) > ENDLESS and raw[len(raw) // 2] & 0xC0 != 0x80 else 0


def _lines(file: Path, stream: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """(where, line with its end) of every line, without a byte order mark."""
    for number, raw in enumerate(iter(lambda: stream.readline(LONGEST + 1), b""), 1):
        if len(raw) > LONGEST:
            raise _too_long(f"{file}:{number}: this line")
        yield f"{file}:{number}", raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw


def _too_long(what: str) -> InputError:
    return InputError(f"{what} is longer than {LONGEST:,} bytes: divide it, or make it a .txt file, read in pieces")


def _why(raw: bytes, at: int) -> str:
    """Why these bytes are not text, with the place in their line."""
    byte = at - raw.rfind(b"\n", 0, at) - 1
    return f"byte {byte} (0x{raw[at]:02x}) is not valid UTF-8: save the file as UTF-8"


def _jsonl(file: Path, stream: BinaryIO) -> Iterator[Record]:
    for where, raw in _lines(file, stream):
        try:
            line = raw.decode("utf-8")
            if line.strip():
                yield _checked(where, json.loads(line))
        except UnicodeDecodeError as error:
            yield Record(where, None, _why(raw, error.start))
        except json.JSONDecodeError as error:
            yield Record(where, None, f"is not valid JSON: {error.msg} (character {error.pos})")
        except RecursionError:
            yield Record(where, None, TOO_DEEP)
        except ValueError as error:  # a number of more digits than Python reads
            yield Record(where, None, f"is not valid JSON: {error}")


def _json(file: Path, stream: Any) -> Iterator[Record]:
    """[record, record, …], read without holding them all; or {"any key": [record, …]}; or {"data": [record, …], …},
    whatever is beside it; or one record."""
    text = io.TextIOWrapper(stream, encoding="utf-8-sig")
    try:
        begins = text.read(BLOCK).lstrip()
        if begins.startswith("["):
            for number, value in enumerate(_elements(begins[1:], text), 1):
                yield _checked(f"{file}, record {number}", value)
            return
        begins += text.read(LONGEST)
        if len(begins) > LONGEST:
            raise _too_long(f"{file}: what it holds (which is not a list)")
        value = json.loads(begins)
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: is not valid UTF-8: {error.reason}: save the file as UTF-8") from None
    except RecursionError:
        raise InputError(f"{file}: {TOO_DEEP}") from None
    except ValueError as error:
        hint = ": if it holds an object a line, name it .jsonl" if "Extra data" in str(error) else ""
        raise InputError(f"{file}: is not valid JSON: {error}{hint}") from None
    lists = [inside for inside in value.values() if isinstance(inside, list)] if isinstance(value, dict) else []
    is_wrapped = len(lists) == 1 and len(value) == 1 and next(iter(value)) not in ("messages", "conversations")
    data = value.get("data") if isinstance(value, dict) else None
    if not is_wrapped and isinstance(data, list) and data and all(isinstance(one, dict) for one in data):
        lists, is_wrapped = [data], True
    for number, one in enumerate(lists[0] if is_wrapped else [value], 1):
        yield _checked(f"{file}, record {number}", one)


def _checked(where: str, value: Any) -> Record:
    return Record(where, value)


def _elements(buffer: str, text: io.TextIOWrapper) -> Iterator[Any]:
    """The elements of a JSON list, after its opening bracket. Raises ValueError."""
    decoder, at, may_end, needs_comma = json.JSONDecoder(), 0, True, False
    while True:
        at = _after_space(buffer, at)
        if at == len(buffer):
            buffer, at = text.read(BLOCK), 0
            if not buffer:
                raise ValueError("the list is not closed: the file ends too early")
        elif buffer[at] == "]" and may_end:
            _check_nothing_follows(buffer[at + 1 :], text)
            return
        elif needs_comma:
            if buffer[at] != ",":
                raise ValueError(f"a comma is missing before {buffer[at : at + 20]!r}")
            at, needs_comma, may_end = at + 1, False, False
        else:
            try:
                value, end = decoder.raw_decode(buffer, at)
            except ValueError:
                value, end = None, len(buffer)
                problem = f"an element is wrong, or ends too early: {buffer[at : at + 40]!r}"
            else:
                problem = ""
            if problem or (end == len(buffer) and isinstance(value, int | float)):  # the rest of it may not be read yet
                more = text.read(max(BLOCK, len(buffer)))
                if len(buffer) - at > LONGEST:
                    raise ValueError(f"an element is longer than {LONGEST:,} characters: make it a .txt file")
                if more:
                    buffer, at = buffer[at:] + more, 0
                    continue
                if problem:
                    raise ValueError(problem)
            yield value
            at, needs_comma, may_end = end, True, True


def _check_nothing_follows(rest: str, text: io.TextIOWrapper) -> None:
    while rest:
        if rest.strip():
            raise ValueError(f"there is more behind the end of the list: {rest.strip()[:20]!r}")
        rest = text.read(BLOCK)


def _after_space(buffer: str, at: int) -> int:
    while buffer[at : at + 1] in JSON_SPACE:
        at += 1
    return at


def _csv(file: Path, stream: BinaryIO, delimiter: str) -> Iterator[Record]:
    lines = (raw.decode("utf-8", "surrogateescape") for _, raw in _lines(file, stream))
    reader = csv.DictReader(lines, delimiter=delimiter, strict=True)
    try:
        names = reader.fieldnames or []
    except csv.Error as error:
        raise InputError(f"{file}:1: {_why_no_csv(error)}") from None
    columns = len(names)
    if columns == 1 and (other := re.search(r"[;|\t]", names[0])):
        raise InputError(f"{file}:1: its fields seem to be separated by {other[0]!r}, but {delimiter!r} is expected")
    while True:
        where = f"{file}:{reader.line_num + 1}"
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise InputError(f"{where}: {_why_no_csv(error)}") from None
        if row is None:
            return
        if None in row or None in row.values():
            yield Record(where, None, f"has another number of fields than the first line has names ({columns})")
        elif any(re.search("[\udc80-\udcff]", value) for value in row.values()):
            yield Record(where, None, "is not valid UTF-8: save the file as UTF-8")
        else:
            yield Record(where, row)


def _why_no_csv(error: csv.Error) -> str:
    if "new-line character" in str(error):
        return "holds a carriage return without a line feed, as old Macs ended lines: save the file with line feeds"
    if "field larger" in str(error):
        return f'begins a field of more than {LONGEST:,} bytes: is a quote (") missing that ends it?'
    remedy = 'double a quote inside a field ("") and end each field that begins with one'
    return f"is not valid CSV: {error}: {remedy}"


def _table(file: Path, stream: Any, kind: str, column: str | None) -> Iterator[Record]:
    import pyarrow

    number = 0
    try:
        for batch in _batches(file, stream, kind, column):
            for row in rows_of(batch):
                number += 1
                yield Record(f"{file}, row {number}", row)
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, RecursionError) as error:
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
    found = {field.name: _undo(field.type) for field in table.schema}
    undo = {name: made for name, made in found.items() if made}
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
