"""Files of every kind: the same records come out, and every mistake is reported with its file and
line.
"""

import gzip
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from configs.command import InputError
from data.reading.files import records, search
from data.reading.records import text_of

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
    return pyarrow.compress(raw, "zstd", asbytes=True) if suffix == ".zst" else raw


def texts(path: Path) -> list[str]:
    return [text_of(record.value) for record in records(path, SEPARATOR) if not record.problem]


KINDS = ["a.txt", "a.md", "a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet", "a.arrow", "file.arrow"]
KINDS += ["a.ndjson", "A.JSONL", "A.Txt.GZ"]  # other names of the same
PACKED = ["a.txt.gz", "a.jsonl.gz", "a.csv.zst", "a.jsonl.zst"]


@pytest.mark.parametrize("name", KINDS + PACKED)
def test_every_kind_gives_the_same_texts(tmp_path, name):
    assert texts(write(tmp_path / name)) == TEXTS


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json", "a.csv"])
def test_a_byte_order_mark_is_not_text(tmp_path, name):
    file = write(tmp_path / name)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert texts(file) == TEXTS


@pytest.mark.parametrize("name", [*PACKED, "a.arrow", "file.arrow", "a.parquet"])
def test_a_truncated_file_is_an_error_wherever_it_ends(tmp_path, name):
    whole = write(tmp_path / name).read_bytes()
    for length in range(1, len(whole), 1 if name in PACKED else 4):
        (tmp_path / name).write_bytes(whole[:length])
        with pytest.raises(InputError, match=f"{name}: is "):
            texts(tmp_path / name)


@pytest.mark.parametrize("name", PACKED)
def test_a_file_may_be_compressed_in_parts(tmp_path, name):
    """As `cat a.gz b.gz` and parallel compressors make them."""
    raw = write(tmp_path / name.rpartition(".")[0]).read_bytes()
    parts = [packed(part, Path(name).suffix) for part in (raw[:50], raw[50:51], b"", raw[51:])]
    (tmp_path / name).write_bytes(b"".join(parts))
    assert texts(tmp_path / name) == TEXTS


def test_a_json_file_may_wrap_its_list_or_be_one_record(tmp_path):
    listed = [{"text": text} for text in TEXTS]
    file = tmp_path / "x.json"
    file.write_text(json.dumps({"version": "1", "data": listed}))
    assert texts(file) == TEXTS
    file.write_text(json.dumps({"text": "alone", "tags": []}))
    assert texts(file) == ["alone"]
    file.write_text("\n".join(json.dumps(record) for record in listed))  # JSON Lines by their name
    assert texts(file) == TEXTS


def test_without_a_home_a_table_says_what_to_set(tmp_path, monkeypatch):
    write(tmp_path / "a.parquet")
    for name in ("HOME", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="HF_HOME"):
        texts(tmp_path / "a.parquet")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    assert texts(tmp_path / "a.parquet") == TEXTS
    assert not (tmp_path / "~").exists()


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


SNAPSHOT = ["README.md", "data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet", "dataset_infos.json"]
SAVED = ["dataset_dict.json", *(f"{split}/{name}" for split in ("train", "test") for name in (
    "data-00000-of-00001.arrow", "dataset_info.json", "state.json", "cache-1f.arrow"))]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "read"),
    [
        (SNAPSHOT, SNAPSHOT[1:2]),
        (SAVED, [SAVED[1]]),
        (["README.md", "b/note.md", "x.png"], ["README.md", "b/note.md"]),  # notes
        (["README.md", "book.txt", "b.JSONL", "c.ndjson"], ["b.JSONL", "book.txt", "c.ndjson"]),
    ],
)
def test_a_folder_is_read_as_datasets_reads_it(tmp_path, names, read):
    put(tmp_path / "own", *names)
    found = search(str(tmp_path / "own"), "key", train_only=True)
    assert [file.relative_to(tmp_path / "own").as_posix() for file in found] == read


@pytest.mark.parametrize(
    ("configs", "read"),
    [
        ("- {config_name: a, data_files: [{split: train, path: en/a.*}, {split: test, path: en/b.*}]}", ["en/a.txt"]),
        ("- {config_name: a, data_files: en/*}\n- {config_name: b, default: true, data_files: de/*}", ["de/a.txt"]),
        # which language?
        ("- {config_name: a, data_files: en/*}\n- {config_name: b, data_files: de/*}", r"'a', 'b'"),
        ("- {config_name: a, data_files: [{split: train_sft, path: en/a.*}]}", "train_sft"),
    ],
)
def test_a_copy_from_the_hub_is_read_as_its_readme_declares(tmp_path, configs, read):
    snapshot = tmp_path / "copy"
    put(snapshot, "en/a.txt", "en/b.txt", "de/a.txt")
    put(tmp_path, "other.txt")
    (snapshot / "README.md").write_text(f"---\nlicense: mit\nconfigs:\n{configs}\n---\n# Texts\n")
    if isinstance(read, list):
        assert search(str(snapshot), "key", train_only=True) == [snapshot / name for name in read]
        found = search(str(tmp_path), "key", train_only=True)
        assert found == [*(snapshot / name for name in read), tmp_path / "other.txt"]
    else:
        with pytest.raises(InputError, match=f"subset: ….*{read}"):
            search(str(snapshot), "key", train_only=True)


def test_the_parts_of_a_folder_are_those_that_datasets_finds(tmp_path):
    from datasets.data_files import SPLIT_KEYWORDS, DataFilesDict, get_data_patterns

    words = [word for some in SPLIT_KEYWORDS.values() for word in some]
    for number, name in enumerate(["{}.csv", "data/{}-00000-of-00001.csv", "{}/a.csv", "x_{}_2.csv", "x{}.csv"]):
        for word in words:
            folder = tmp_path / f"{number}{word}"
            put(folder, name.format("train"), name.format(word))
            theirs = DataFilesDict.from_patterns(get_data_patterns(str(folder)), base_path=str(folder))["train"]
            ours = search(str(folder), "key", train_only=True)
            # the sharded name is taken literally by `datasets`: training-00000-of-00001 is a part
            # of its own there
            assert set(map(str, ours)) == set(theirs) or (number, word) == (1, "training"), (name, word)


def test_folders_patterns_lists_and_links_give_each_file_once_in_a_fixed_order(tmp_path):
    put(tmp_path / "own", "b/2.txt", "b/1.md", "a.jsonl", ".hidden/x.txt", "b/picture.png")
    put(tmp_path, "elsewhere/deep/c.txt")
    (tmp_path / "own" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "deep" / "back").symlink_to(tmp_path / "own")
    own = tmp_path / "own"
    names = lambda path: [f.relative_to(own).as_posix() for f in search(path, "key")]  # noqa: E731
    assert names(str(own)) == ["a.jsonl", "b/1.md", "b/2.txt", "link/deep/c.txt"]
    assert names(f"{own}/b/*.txt") == ["b/2.txt"]
    assert names([f"{own}/b/2.txt", str(own)]) == ["b/2.txt", "a.jsonl", "b/1.md", "link/deep/c.txt"]
    with pytest.raises(InputError, match="no such file"):
        search(f"{own}/*.csv", "key")
    with pytest.raises(InputError, match="kind of file"):  # it is there
        search(f"{own}/b/picture.png", "key")


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.arrow"])
def test_what_exists_is_no_pattern(tmp_path, name):
    folder = tmp_path / "books [old]"
    folder.mkdir()
    file = write(folder / name)
    for path in (file, folder, f"{folder}/*", f"{folder}/[ab].*"):
        assert search(str(path), "key") == [file]
    assert texts(file) == TEXTS


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": "caf\xe9"}\n{"text": "b"}\n', "a.jsonl:2"),
        ("a.jsonl", b'{"text": "a"}\n' + b"[" * 100_000 + b"\n", "a.jsonl:2"),
        ("a.json", b'{"text": "a"}\n{"text": ', "a.json:2"),
        ("a.txt", b"fine\n<|endoftext|>\nb\xffd\nmore<|endoftext|>x", "a.txt:3"),
        ("a.csv", b'text,n\nok,1\n"b\n\xffd\n",2\nfine,3\n', "a.csv:3"),
        ("a.csv", b"text,n\nok,1\nbad,2,3\nfine,4\n", "a.csv:3"),
        ("a.csv", b"text,n\nok,1\nbad\nfine,4\n", "a.csv:3"),
    ],
)
def test_a_record_that_cannot_be_read_tells_its_place_and_the_others_still_come(tmp_path, name, content, place):
    (tmp_path / name).write_bytes(content)
    found = list(records(tmp_path / name, SEPARATOR))
    assert [record.where for record in found if record.problem] == [f"{tmp_path}/{place}"]
    assert len(found) > 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", b'[{"text": "a"}, {"text": '),
        ("a.jsonl", b'[\n{"text": "a"},\n{"text": "b"}\n]\n'),
        ("a.jsonl", b'[{"text": "a"}, {"text": "b"}]'),
        ("a.jsonl", b'{\n "text": "a"\n}\n'),
        ("a.csv", "text,n\nfine,1\n".encode("utf-16")),
        ("a.tsv", "text\tn\nfine\t1\n".encode("utf-16-le")),
        ("a.csv", b"caf\xe9,text\n1,fine\n"),
        ("a.json", b'[{"text": "caf\xe9"}]'),
        ("a.csv", b'text,n\n"never closed,1\n'),
        ("a.txt", b"text \0 more"),
        *((f"a.{kind}", b"plain text") for kind in ("parquet", "arrow", "txt.gz", "txt.zst")),
        ("a.txt.zst", b""),
    ],
)
def test_a_file_that_cannot_be_read_on_is_one_clear_line(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=re.escape(name)) as error:
        texts(tmp_path / name)
    assert "\n" not in str(error.value)


def documents(folder, raw: bytes, separator=SEPARATOR) -> list[str]:
    (folder / "x.txt").write_bytes(raw)
    return [record.value for record in records(folder / "x.txt", separator)]


@pytest.mark.parametrize("separator", ["<|endoftext|>", "\n\n", "\n===\n", "-"])
def test_a_separator_may_hold_line_ends_and_stand_anywhere(tmp_path, separator):
    wanted = ["one two three four", "five six", "seven\neight nine ten eleven", "last"]
    assert documents(tmp_path, separator.join(wanted).encode(), separator) == wanted
    windows = [text.replace("\n", "\r\n") for text in wanted]
    raw = separator.join(wanted).replace("\n", "\r\n").encode()
    for mark in (separator, separator.replace("\n", "\r\n")):
        assert documents(tmp_path, raw, mark) == windows
    places = [record.where for record in records(tmp_path / "x.txt", separator)]
    (tmp_path / "x.txt").write_bytes(raw.replace(b"\r", b""))
    assert places == [record.where for record in records(tmp_path / "x.txt", separator)]
    if separator == SEPARATOR:
        assert documents(tmp_path, b"\r\n\n<|endoftext|>\n\n a\n\n<|endoftext|>\r\nb \n", separator) == ["", " a", "b "]


def test_what_other_programs_write_can_be_read(tmp_path):
    """pandas names no index column; `datasets` writes streams; gzip and zstd are programs of their
    own.
    """
    (tmp_path / "a.csv").write_text(",text\n0,one\n1,two\n")  # what pandas.DataFrame.to_csv writes
    assert texts(tmp_path / "a.csv") == ["one", "two"]
    rows = datasets.Dataset.from_dict({"text": TEXTS})
    rows.to_json(tmp_path / "b.jsonl")
    rows.to_csv(tmp_path / "b.csv")
    rows.to_parquet(tmp_path / "b.parquet")
    rows.save_to_disk(tmp_path / "saved")
    written = [tmp_path / f"b.{kind}" for kind in ("jsonl", "csv", "parquet")]
    for file in [*written, *search(str(tmp_path / "saved"), "key")]:
        assert texts(file) == TEXTS
    for program, file in (("gzip", written[0]), ("zstd", written[1])):
        if shutil.which(program):
            subprocess.run([program, "-qk", file], check=True)
            assert texts(file.with_name(file.name + {"gzip": ".gz", "zstd": ".zst"}[program])) == TEXTS
