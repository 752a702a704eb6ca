"""Files of every kind: the same records come out, and every mistake is reported with its file and line."""

import gzip
import json
import re
from functools import cache
from pathlib import Path

import pyarrow
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from configs.command import InputError
from data.config import TokenizerConfig
from data.reading import files
from data.reading.files import find, listed, records, search
from data.reading.records import text_of
from data.tokenizer import train_tokenizer

TEXTS = ["One fox.", 'Two "quoted", with a comma', "Drei\nZeilen\n\nund ß 你好 🦊", " spaces "]
SEPARATOR = "<|endoftext|>"


def write(path: Path) -> Path:
    """TEXTS as a file of the kind that the name says."""
    name = path.name.removesuffix(".gz").removesuffix(".zst").removesuffix(".GZ")
    kind = Path(name).suffix.lower()
    if kind in (".txt", ".md"):
        raw = f"\n{SEPARATOR}\n".join(TEXTS).encode()
    elif kind in (".jsonl", ".ndjson"):
        raw = "".join(json.dumps({"text": text, "n": 1}, ensure_ascii=False) + "\n\n" for text in TEXTS).encode()
    elif kind == ".json":
        raw = json.dumps([{"text": text} for text in TEXTS], indent=1).encode()
    elif kind == ".parquet":
        parquet.write_table(pyarrow.table({"text": TEXTS}), path)
        return path
    elif kind == ".arrow":
        table = pyarrow.table({"n": list(range(len(TEXTS))), "text": TEXTS})
        new = pyarrow.ipc.new_file if name.startswith("file") else pyarrow.ipc.new_stream
        with new(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
        return path
    else:
        quote = lambda text: '"' + text.replace('"', '""') + '"'  # noqa: E731
        mark = "\t" if kind == ".tsv" else ","
        raw = "".join(f"{n}{mark}{quote(t)}\n" for n, t in [("n", "text"), *enumerate(TEXTS)]).encode()
    path.write_bytes(packed(raw, path.suffix))
    return path


def packed(raw: bytes, suffix: str) -> bytes:
    if suffix.lower() == ".gz":
        return gzip.compress(raw)
    return zstandard.ZstdCompressor(write_checksum=True).compress(raw) if suffix == ".zst" else raw


def texts(path: Path) -> list[str]:
    return [text_of(record.value) for record in records(path, SEPARATOR, lambda count: None) if not record.problem]


KINDS = ["a.txt", "a.md", "a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet", "a.arrow", "file.arrow"]
KINDS += ["a.ndjson", "A.JSONL", "A.Txt.GZ"]  # other names of the same
PACKED = ["a.txt.gz", "a.jsonl.gz", "a.json.zst", "a.csv.zst", "a.jsonl.zst", "a.txt.zst"]


@pytest.mark.parametrize("name", KINDS + PACKED)
def test_every_kind_gives_the_same_texts(tmp_path, name):
    assert texts(write(tmp_path / name)) == TEXTS


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json", "a.csv"])
def test_a_byte_order_mark_is_not_text(tmp_path, name):
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


@pytest.mark.parametrize("name", ["a.arrow", "file.arrow", "a.parquet"])
def test_a_truncated_table_is_an_error_wherever_it_ends(tmp_path, name):
    whole = write(tmp_path / name).read_bytes()
    for length in range(1, len(whole), 4):
        (tmp_path / name).write_bytes(whole[:length])
        with pytest.raises(InputError, match=f"{name}: is not a readable "):
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
    (tmp_path / "versioned.json").write_text(json.dumps({"version": "1", "data": [{"text": text} for text in TEXTS]}))
    assert texts(tmp_path / "versioned.json") == TEXTS
    assert texts(tmp_path / "one.json") == ["alone"]


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


SNAPSHOT = ["README.md", "data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet", "dataset_infos.json"]
SAVED = ["dataset_dict.json", *(f"{split}/{name}" for split in ("train", "test") for name in (
    "data-00000-of-00001.arrow", "dataset_info.json", "state.json", "cache-1f.arrow"))]  # fmt: skip
PARTS = ["a.jsonl", "training.jsonl", "dev/a.jsonl", "en-val.jsonl", "test1.jsonl", "latest.jsonl", "eval/train.jsonl"]


@pytest.mark.parametrize(
    ("names", "read", "left_out"),
    [
        (SNAPSHOT, SNAPSHOT[1:2], "2 that describe data (README.md, dataset_infos.json), 1 of the test part (test-000"),
        (SAVED, [SAVED[1]], "that describe data (cache-1f.arrow, "),
        (PARTS, ["a.jsonl", "latest.jsonl", "training.jsonl"], "2 of the validation part (a.jsonl, en-val.jsonl)"),
        (["README.md", "b/note.md", "x.png"], ["README.md", "b/note.md"], "1 of another kind (x.png)"),  # notes
        (["README.md", "book.txt", "b.JSONL", "c.ndjson"], ["b.JSONL", "book.txt", "c.ndjson"], "(README.md)"),
    ],
)
def test_a_folder_is_read_as_datasets_reads_it_and_says_what_is_left_out(tmp_path, names, read, left_out):
    put(tmp_path / "own", *names)
    found, others = search(str(tmp_path / "own"), "key", train_only=True)
    assert [file.relative_to(tmp_path / "own").as_posix() for file in found] == read
    assert left_out in listed(others)
    assert len(found) + sum(map(len, others.values())) == len(names)


def test_the_parts_of_a_folder_are_those_that_datasets_finds(tmp_path):
    from datasets.data_files import SPLIT_KEYWORDS, DataFilesDict, get_data_patterns

    words = [word for some in SPLIT_KEYWORDS.values() for word in some]
    for number, name in enumerate(["{}.csv", "data/{}-00000-of-00001.csv", "{}/a.csv", "x_{}_2.csv", "x{}.csv"]):
        for word in words:
            folder = tmp_path / f"{number}{word}"
            put(folder, name.format("train"), name.format(word))
            theirs = DataFilesDict.from_patterns(get_data_patterns(str(folder)), base_path=str(folder))["train"]
            ours = search(str(folder), "key", train_only=True)[0]
            # the sharded name is taken literally by `datasets`: training-00000-of-00001 is a part of its own there
            assert set(map(str, ours)) == set(theirs) or (number, word) == (1, "training"), (name, word)


def test_links_to_folders_are_read_once_however_they_lead(tmp_path):
    put(tmp_path, "own/a.txt", "elsewhere/b.txt", "elsewhere/deep/c.txt")
    (tmp_path / "own" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "deep" / "back").symlink_to(tmp_path / "own")
    found = find(str(tmp_path / "own"), "key")
    assert [file.relative_to(tmp_path / "own").as_posix() for file in found] == [
        "a.txt",
        "link/b.txt",
        "link/deep/c.txt",
    ]


def test_a_folder_without_a_training_part_says_what_to_name(tmp_path):
    put(tmp_path / "own", "test.jsonl", "README.md")
    message = r"no file to train on, only 1 that describe data \(README.md\), 1 of the test part \(test.jsonl\): "
    with pytest.raises(InputError, match=message):
        search(str(tmp_path / "own"), "key", train_only=True)
    put(tmp_path / "own", "deep/a.txt", "deep/b.bin")
    found, others = search(f"{tmp_path}/own/*", "key", train_only=True)  # a pattern says what it means
    assert [file.name for file in found] == ["README.md", "test.jsonl"]
    assert listed(others) == "1 of another kind (deep)"


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
        ("a.txt", b"fine\n<|endoftext|>\nb\xffd\nmore<|endoftext|>x", "a.txt:3", "byte 1 .0xff. is not valid UTF-8"),
        ("a.csv", b'text,n\nok,1\n"b\n\xffd\n",2\nfine,3\n', "a.csv:3", "not valid UTF-8"),
        ("a.csv", b"text,n\nok,1\nb\xffd,2\nfine,3\n", "a.csv:3", "not valid UTF-8"),
        ("a.csv", b"text,n\nok,1\nbad,2,3\nfine,4\n", "a.csv:3", "another number of fields .* .2."),
        ("a.csv", b"text,n\nok,1\nbad\nfine,4\n", "a.csv:3", "another number of fields"),
    ],
)
def test_a_record_that_cannot_be_read_tells_its_place_and_the_others_still_come(
    tmp_path, name, content, place, problem
):
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
        ("a.json", b'{"text": "a"}\n{"text": "b"}\n', "a.json: .*if it holds an object a line, name it .jsonl"),
        ("a.csv", b"id;text\n1;one\n", "a.csv:1: its fields seem to be separated by ';'"),
        ("a.json", b'{"text"', "a.json: is not valid JSON"),
        ("a.csv", b'text,n\n"never closed,1\n', "a.csv:2: is not valid CSV: .*end of data"),
        ("a.parquet", b"PAR1nonsense", "a.parquet: is not a readable Parquet file"),
        ("a.arrow", b"ARROW1nonsense", "a.arrow: is not a readable Arrow file"),
        ("a.arrow", b"nonsense", "a.arrow: is not a readable Arrow file"),
        ("a.txt", b"text \0 more", "a.txt: holds zero bytes"),
        ("a.txt.gz", b"plain text", "a.txt.gz: is truncated or damaged"),
        ("a.txt.zst", b"plain text", "a.txt.zst: is truncated or damaged"),
        ("a.txt.zst", b"", "a.txt.zst: is truncated or damaged"),
        ("a.jsonl.gz", b"", "a.jsonl.gz: is truncated or damaged"),
        ("a.json", b'[{"text": "a"} {"text": "b"}]', "a.json: is not valid JSON: a comma is missing"),
        ("a.json", b'[{"text": "a"},]', "a.json: is not valid JSON"),
        ("a.json", b'[{"text": "caf\xe9"}]', "a.json: is not valid UTF-8"),
        ("a.json", b'[{"text": "a"}', "a.json: is not valid JSON: the list is not closed"),
    ],
)
def test_a_file_that_cannot_be_read_on_is_one_clear_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        texts(tmp_path / name)


def documents(folder, raw: bytes, separator=SEPARATOR) -> list[str]:
    """The whole documents of a .txt, in which pieces are joined."""
    (folder / "x.txt").write_bytes(raw)
    texts = []
    for record in records(folder / "x.txt", separator, lambda count: None):
        texts.append("") if record.first else None
        texts[-1] += record.value
    return texts


@pytest.mark.parametrize("separator", ["<|endoftext|>", "\n\n", "\n===\n", "-"])
@pytest.mark.parametrize("piece", [5, 1 << 18])
def test_a_separator_may_hold_line_ends_and_stand_anywhere(tmp_path, monkeypatch, separator, piece):
    monkeypatch.setattr(files, "PIECE", piece)
    monkeypatch.setattr(files, "BLOCK", 7)
    wanted = ["one two three four", "five six", "seven\neight nine ten eleven", "last"]
    assert documents(tmp_path, separator.join(wanted).encode(), separator) == wanted
    if separator == SEPARATOR:
        assert documents(tmp_path, b"\r\n\n<|endoftext|>\n\n a\n\n<|endoftext|>\r\nb \n", separator) == ["", " a", "b "]


@given(st.text(alphabet="ab \n\r\u3000\u00a0\u0301é你。🦊0'", max_size=120), st.integers(1, 9))
@settings(derandomize=True, max_examples=400, deadline=None)
def test_the_ids_of_the_pieces_of_a_file_are_the_ids_of_its_text(tmp_path_factory, text, piece):
    file = tmp_path_factory.getbasetemp() / "pieces.txt"
    file.write_bytes((text + "x").encode())
    before, files.PIECE = files.PIECE, piece
    try:
        pieces = [record.value for record in records(file, SEPARATOR, lambda count: None)]
    finally:
        files.PIECE = before
    assert "".join(pieces) == text + "x"
    assert [i for part in pieces for i in bpe().encode(part)] == bpe().encode(text + "x")


@cache
def bpe():
    return train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=512), ["a b\n\nab 你。\n\n ab  é"] * 9)


@pytest.mark.parametrize(
    "text", ["word " * 60_000, "line of a book\r\n" * 20_000, "слово " * 40_000, "一行。\n" * 60_000]
)
def test_long_texts_of_any_kind_are_not_held_in_memory(tmp_path, monkeypatch, text):
    """CRLF, one endless line, and other scripts come in pieces as well."""
    monkeypatch.setattr(files, "PIECE", 1 << 14)
    monkeypatch.setattr(files, "BLOCK", 1 << 14)
    (tmp_path / "x.txt").write_bytes(text.encode())
    pieces = [record.value for record in records(tmp_path / "x.txt", SEPARATOR, lambda count: None)]
    assert "".join(pieces) == text
    assert max(len(piece.encode()) for piece in pieces) < 4 * (1 << 14)


def test_a_text_without_any_space_is_cut_somewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "ENDLESS", 1 << 19)
    text = "你" * 1_000_000
    (tmp_path / "x.txt").write_bytes(text.encode())
    pieces = [record.value for record in records(tmp_path / "x.txt", SEPARATOR, lambda count: None)]
    assert "".join(pieces) == text
    assert len(pieces) == 2


def test_a_damaged_document_is_left_out_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PIECE", 8)
    monkeypatch.setattr(files, "BLOCK", 16)
    (tmp_path / "x.txt").write_bytes(
        b"doc one\n<|endoftext|>doc two is long and has a \xff byte in it and goes on<|endoftext|>doc 3"
    )
    found = list(records(tmp_path / "x.txt", SEPARATOR, lambda count: None))
    bad = [i for i, record in enumerate(found) if record.problem]
    assert len(bad) == 1
    assert "".join(record.value for record in found[bad[0] + 1 :]) == "doc 3"
    assert found[bad[0] + 1].first


@pytest.mark.slow
@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=9), st.lists, max_leaves=9),
    st.integers(1, 9),
)
@settings(derandomize=True, max_examples=200, deadline=None)
def test_a_json_list_is_read_as_the_library_reads_it_whole(tmp_path_factory, value, block):
    file = tmp_path_factory.getbasetemp() / "list.json"
    value = [value, {"text": 'a, ]} "b', "n": [1.5, 10**30]}, value, 12]
    file.write_text(json.dumps(value, indent=block % 3), encoding="utf-8")
    before, files.BLOCK = files.BLOCK, block
    try:
        assert [record.value for record in records(file, SEPARATOR, lambda count: None)] == value
    finally:
        files.BLOCK = before


def test_what_pandas_writes_can_be_read(tmp_path):
    """Its first column, the index, has no name."""
    (tmp_path / "a.csv").write_text(",text\n0,one\n1,two\n")
    assert texts(tmp_path / "a.csv") == ["one", "two"]


def test_only_the_wanted_column_of_a_table_is_read(tmp_path):
    parquet.write_table(pyarrow.table({"text": ["a"], "n": [1]}), tmp_path / "a.parquet")
    (record,) = records(tmp_path / "a.parquet", SEPARATOR, lambda count: None, "text")
    assert record.value == {"text": "a"}
    (record,) = records(tmp_path / "a.parquet", SEPARATOR, lambda count: None, "other")
    assert record.value == {"text": "a", "n": 1}


def test_bytes_read_are_reported(tmp_path):
    for name in KINDS + PACKED:
        file, counts = write(tmp_path / name), []
        list(records(file, SEPARATOR, counts.append))
        assert sum(counts) >= file.stat().st_size
