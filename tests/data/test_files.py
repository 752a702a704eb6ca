"""Files of every kind: the same records come out, and every mistake is told with its file and line."""

import gzip
import json
from pathlib import Path

import pyarrow
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from configs.loader import InputError
from data import files
from data.files import find, records
from data.records import text_of

TEXTS = ["One fox.", 'Two "quoted", with a comma', "Drei\nZeilen\n\nund ß 你好 🦊", " spaces "]
SEPARATOR = "<|endoftext|>"


def write(path: Path) -> Path:
    """TEXTS as a file of the kind that the name says."""
    name = path.name.removesuffix(".gz").removesuffix(".zst")
    kind = Path(name).suffix
    if kind in (".txt", ".md"):
        raw = f"\n{SEPARATOR}\n".join(TEXTS).encode()
    elif kind == ".jsonl":
        raw = "".join(json.dumps({"text": text, "n": 1}, ensure_ascii=False) + "\n\n" for text in TEXTS).encode()
    elif kind == ".json":
        raw = json.dumps([{"text": text} for text in TEXTS], indent=1).encode()
    elif kind == ".parquet":
        parquet.write_table(pyarrow.table({"text": TEXTS}), path)
        return path
    else:
        quote = lambda text: '"' + text.replace('"', '""') + '"'  # noqa: E731
        mark = "\t" if kind == ".tsv" else ","
        raw = "".join(f"{n}{mark}{quote(t)}\n" for n, t in [("n", "text"), *enumerate(TEXTS)]).encode()
    path.write_bytes(packed(raw, path.suffix))
    return path


def packed(raw: bytes, suffix: str) -> bytes:
    if suffix == ".gz":
        return gzip.compress(raw)
    return zstandard.ZstdCompressor(write_checksum=True).compress(raw) if suffix == ".zst" else raw


def texts(path: Path) -> list[str]:
    return [text_of(record.value) for record in records(path, SEPARATOR, lambda count: None) if not record.problem]


KINDS = ["a.txt", "a.md", "a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet"]
PACKED = ["a.txt.gz", "a.jsonl.gz", "a.json.zst", "a.csv.zst", "a.jsonl.zst", "a.txt.zst"]


@pytest.mark.parametrize("name", KINDS + PACKED)
def test_every_kind_gives_the_same_texts(tmp_path, name):
    assert texts(write(tmp_path / name)) == TEXTS


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json", "a.csv"])
def test_a_byte_order_mark_is_no_text(tmp_path, name):
    file = write(tmp_path / name)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert texts(file) == TEXTS


@pytest.mark.parametrize("name", PACKED)
def test_a_truncated_file_is_an_error_wherever_it_ends(tmp_path, name):
    whole = write(tmp_path / name).read_bytes()
    for length in range(1, len(whole)):
        (tmp_path / name).write_bytes(whole[:length])
        with pytest.raises(InputError, match=f"{name}: is truncated or damaged"):
            texts(tmp_path / name)


@pytest.mark.parametrize("name", PACKED)
def test_a_file_may_be_compressed_in_parts(tmp_path, name):
    """As `cat a.gz b.gz` and parallel compressors make them."""
    raw = write(tmp_path / name.rpartition(".")[0]).read_bytes()
    parts = [raw[:50], raw[50:51], b"", raw[51:]]
    (tmp_path / name).write_bytes(b"".join(packed(part, Path(name).suffix) for part in parts))
    assert texts(tmp_path / name) == TEXTS


def test_damaged_bytes_in_a_compressed_file_are_an_error(tmp_path):
    for name in ("a.jsonl.gz", "a.jsonl.zst"):
        raw = bytearray(write(tmp_path / name).read_bytes())
        raw[30] ^= 255
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(InputError, match=f"{name}: is truncated or damaged"):
            texts(tmp_path / name)


@given(st.lists(st.text(alphabet="ab \n\r\té🦊", max_size=30), min_size=1, max_size=5), st.booleans())
@settings(derandomize=True, max_examples=150, deadline=None)
def test_long_texts_come_in_pieces_that_join_to_the_text(tmp_path_factory, lines, small):
    file = tmp_path_factory.mktemp("t") / "x.txt"
    text = "\n".join(lines) * 3 + "x"
    file.write_bytes(text.encode())
    before, files.PIECE = files.PIECE, 7 if small else files.PIECE
    try:
        pieces = list(records(file, SEPARATOR, lambda count: None))
    finally:
        files.PIECE = before
    assert "".join(piece.value for piece in pieces) == text
    assert [piece.first for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_a_json_file_may_wrap_its_list_or_be_one_record(tmp_path):
    (tmp_path / "wrapped.json").write_text(json.dumps({"texts": TEXTS}))
    (tmp_path / "one.json").write_text(json.dumps({"text": "alone", "tags": []}))
    assert texts(tmp_path / "wrapped.json") == TEXTS
    assert texts(tmp_path / "one.json") == ["alone"]


def test_folders_patterns_and_lists_give_each_file_once_in_a_fixed_order(tmp_path):
    for name in ("b/2.txt", "b/1.md", "a.jsonl", ".hidden/x.txt", "b/picture.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    names = lambda path: [f.relative_to(tmp_path).as_posix() for f in find(path, "key")]  # noqa: E731
    assert names(str(tmp_path)) == ["a.jsonl", "b/1.md", "b/2.txt"]
    assert names(f"{tmp_path}/**/*.txt") == ["b/2.txt"]
    assert names([f"{tmp_path}/b/2.txt", str(tmp_path)]) == ["b/2.txt", "a.jsonl", "b/1.md"]
    with pytest.raises(InputError, match=r"key: no such file: .*\*.csv"):
        find(f"{tmp_path}/*.csv", "key")


@pytest.mark.parametrize(
    ("name", "content", "place", "problem"),
    [
        (
            "a.jsonl",
            b'{"text": "a"}\n{"text": "caf\xe9"}\n{"text": "b"}\n',
            "a.jsonl:2",
            "byte 13 .0xe9. is not valid UTF-8",
        ),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', "a.jsonl:2", "is not valid JSON"),
        ("a.jsonl", b'{"text": "a"}\n' + b"[" * 100_000 + b"\n", "a.jsonl:2", "is not valid JSON"),
        ("a.txt", b"fine\nb\xffd\nfine\n", "a.txt:2", "byte 1 .0xff. is not valid UTF-8"),
        ("a.csv", b"text,n\nok,1\nb\xffd,2\nfine,3\n", "a.csv:3", "not valid UTF-8"),
        ("a.csv", b"text,n\nok,1\nbad,2,3\nfine,4\n", "a.csv:3", "not as many fields .* .2."),
        ("a.csv", b"text,n\nok,1\nbad\nfine,4\n", "a.csv:3", "not as many fields"),
    ],
)
def test_a_record_that_cannot_be_read_tells_its_place_and_the_others_still_come(
    tmp_path, name, content, place, problem
):
    import re

    (tmp_path / name).write_bytes(content)
    found = list(records(tmp_path / name, SEPARATOR, lambda count: None))
    bad = [record for record in found if record.problem]
    assert [record.where for record in bad] == [f"{tmp_path}/{place}"]
    assert re.search(problem, bad[0].problem)
    assert len(found) > 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b'[{"text": "a"}, {"text": ', "a.json: is not valid JSON"),
        ("a.json", b'{"text"', "a.json: is not valid JSON"),
        ("a.csv", b'text,n\n"never closed,1\n', "a.csv:2: is not valid CSV: .*end of data"),
        ("a.parquet", b"PAR1nonsense", "a.parquet: is not a readable Parquet file"),
        ("a.txt", b"text \0 more", "a.txt: holds zero bytes"),
        ("a.txt.gz", b"plain text", "a.txt.gz: is truncated or damaged"),
        ("a.txt.zst", b"plain text", "a.txt.zst: is truncated or damaged"),
    ],
)
def test_a_file_that_cannot_be_read_on_is_one_clear_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        texts(tmp_path / name)


def test_bytes_read_are_told(tmp_path):
    for name in KINDS + PACKED:
        file, counts = write(tmp_path / name), []
        list(records(file, SEPARATOR, counts.append))
        assert sum(counts) >= file.stat().st_size
