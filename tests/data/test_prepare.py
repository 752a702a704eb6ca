"""Preparing: text in, shards out; nothing stale, nothing half-written, every mistake with file and line."""

import json
import os
import shutil

import numpy as np
import pytest
from data.fingerprints import fingerprint
from data.reading.sources import documents

from configs.command import InputError
from data import encode_corpus, shards
from data import prepare as prepare_module
from data import tokenizer as tokenizer_module
from data.config import DataConfig
from data.prepare import open_prepared, prepare
from data.reading import files, hashes
from data.reading.documents import split_of


def config(path, **changes) -> DataConfig:
    kind = {"source": {"kind": "files", "path": str(path)}, "tokenizer": {"kind": "byte"}, "sequence_length": 16}
    return DataConfig.model_validate(kind | changes)


@pytest.fixture
def text_file(tmp_path):
    file = tmp_path / "book.txt"
    file.write_text("".join(f"Line {i} of the book.\n" for i in range(200)), encoding="utf-8")
    return file


@pytest.fixture
def jsonl_file(tmp_path):
    file = tmp_path / "many.jsonl"
    file.write_text("".join(json.dumps({"text": f"document {i}"}) + "\n" for i in range(300)), encoding="utf-8")
    return file


def test_a_text_file_is_split_by_position(text_file, tmp_path):
    text = text_file.read_text(encoding="utf-8")
    data = prepare(config(text_file), tmp_path / "runs")
    parts = [data.stream(split) for split in ("train", "validation")]
    decoded = [data.tokenizer.decode(part.read(0, len(part))) for part in parts]
    assert "".join(decoded) == text
    assert len(decoded[1]) == pytest.approx(0.1 * len(text), abs=1)
    assert data.manifest["train"]["bytes"] + data.manifest["validation"]["bytes"] == len(text.encode())


def test_a_text_read_in_pieces_begins_and_ends_once(text_file, tmp_path, monkeypatch):
    """An end token stands at the real end of a document, however many pieces and rows it fills."""
    whole = prepare(config(text_file), tmp_path / "whole")
    monkeypatch.setattr(files, "PIECE", 50)
    monkeypatch.setattr(tokenizer_module, "PIECE", 20)
    pieces = prepare(config(text_file), tmp_path / "pieces")
    for split in ("train", "validation"):
        stream, tokenizer = pieces.stream(split), pieces.tokenizer
        ids = stream.read(0, len(stream))
        assert np.flatnonzero(ids == tokenizer.bos_id).tolist() == [0]
        assert np.flatnonzero(ids == tokenizer.eos_id).tolist() == [len(ids) - 1]
        assert np.array_equal(ids, whole.stream(split).read(0, len(ids)))
        assert pieces.manifest[split]["documents"] == 1


def test_documents_are_split_by_their_own_hash(jsonl_file):
    train, held_out = (list(documents(config(jsonl_file), split)) for split in ("train", "validation"))
    assert len(train) + len(held_out) == 300
    assert not set(train) & set(held_out)
    assert 10 < len(held_out) < 60
    assert all(split_of(fingerprint(text), 0.1) == "validation" for text in held_out)


def test_every_token_is_in_the_shards_once_whatever_their_size(jsonl_file, tmp_path, monkeypatch):
    whole = prepare(config(jsonl_file), tmp_path / "a")
    monkeypatch.setattr(shards, "SHARD_TOKENS", 100)
    monkeypatch.setattr(encode_corpus, "BATCH", 90)
    pieces = prepare(config(jsonl_file), tmp_path / "b")
    assert len(pieces.manifest["train"]["shards"]) > 5
    one, many = whole.stream("train"), pieces.stream("train")
    assert len(one) == len(many) == whole.manifest["train"]["tokens"]
    assert np.array_equal(one.read(0, len(one)), many.read(0, len(many)))
    expected = [i for d in documents(config(jsonl_file), "train") for i in whole.tokenizer.encode_documents([d])[0]]
    assert one.read(0, len(one)).tolist() == expected
    assert np.array_equal(many.read(len(many) - 3, 6), np.array(expected[-3:] + expected[:3]))  # joined at the ends


def test_prepared_data_is_found_again_and_never_stale(text_file, tmp_path, monkeypatch):
    first = prepare(config(text_file), tmp_path / "runs")
    with monkeypatch.context() as patched:
        patched.setattr(prepare_module, "_write", lambda *_: pytest.fail("prepared twice"))
        assert prepare(config(text_file), tmp_path / "runs").directory == first.directory
        assert prepare(config(text_file, sequence_length=8), tmp_path / "runs").directory == first.directory
    text_file.write_text("another text altogether, " * 50, encoding="utf-8")
    changed = prepare(config(text_file), tmp_path / "runs")
    assert changed.directory != first.directory
    assert prepare(config(text_file, tokenizer={"kind": "char"}), tmp_path / "runs").directory != changed.directory


def test_a_failed_preparation_leaves_nothing_behind(text_file, tmp_path, monkeypatch):
    def fails(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare_module, "encode_corpus", fails)
    with pytest.raises(KeyboardInterrupt):
        prepare(config(text_file), tmp_path / "runs")
    left = {path.name for path in (tmp_path / "runs" / ".prepared").iterdir()} - {"hashes.json", "hashes.lock"}
    assert [name.partition(".")[2] for name in left] == ["lock"]


DAMAGE = {
    "shorter": (lambda raw: raw[:-2], "has 7,724 bytes, and the manifest says 7,726 bytes"),
    "a flipped bit": (lambda raw: raw[:99] + bytes([raw[99] ^ 4]) + raw[100:], "bytes have changed since it was"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_shard_is_named(text_file, tmp_path, damage):
    data = prepare(config(text_file), tmp_path / "runs")
    shard, (change, problem) = data.directory / "train_00000.bin", DAMAGE[damage]
    shard.write_bytes(change(shard.read_bytes()))
    with pytest.raises(InputError, match=f"train_00000.bin: .*{problem}.*: delete {data.directory}, then it is prep"):
        open_prepared(data.directory)


def test_a_shard_is_hashed_once(text_file, tmp_path, monkeypatch):
    data, hashed, real = prepare(config(text_file), tmp_path / "runs"), [], hashes.sha256
    for shard in data.directory.glob("*.bin"):
        os.utime(shard, (1e9, 1e9))
    monkeypatch.setattr(hashes, "sha256", lambda file: hashed.append(file) or real(file))
    for _ in range(3):
        open_prepared(data.directory)
    assert len(hashed) == 2
    memory = tmp_path / "runs/.prepared/hashes.json"
    memory.write_text(memory.read_text().replace("0", "1"))  # what is remembered may be damaged itself
    open_prepared(data.directory)


def test_a_shard_that_is_cut_off_while_it_is_in_use_is_named(text_file, tmp_path):
    """Memory-mapped, it would kill the process (SIGBUS)."""
    data = prepare(config(text_file), tmp_path / "runs")
    stream = data.stream("train")
    shutil.rmtree(data.directory.parent)
    assert len(stream.read(0, 100)) == 100  # deleted files stay readable as long as they are open
    data = prepare(config(text_file), tmp_path / "runs")
    stream = data.stream("train")
    os.truncate(data.directory / "train_00000.bin", 5000)
    assert len(stream.read(0, 100)) == 100
    with pytest.raises(InputError, match="train_00000.bin: was cut off to 5,000 bytes while it was in use: delete"):
        stream.read(2450, 100)


def test_a_large_vocabulary_is_stored_in_four_bytes(tmp_path):
    file = tmp_path / "wide.txt"
    file.write_text("".join(map(chr, [*range(0x20, 0xD800), *range(0xE000, 0x13000)])) * 2, encoding="utf-8")
    data = prepare(config(file, tokenizer={"kind": "char"}), tmp_path / "runs")
    assert data.manifest["dtype"] == "uint32"
    stream = data.stream("validation")
    assert data.tokenizer.decode(stream.read(0, len(stream))) == next(documents(config(file), "validation"))


def test_a_dataset_in_a_local_folder_goes_through_the_hub_path(tmp_path, jsonl_file):
    folder = tmp_path / "dataset"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes(jsonl_file.read_bytes())
    source = {"kind": "hub", "name": str(folder), "split": "train"}
    data = prepare(config(jsonl_file, source=source), tmp_path / "runs")
    assert data.manifest["train"]["documents"] + data.manifest["validation"]["documents"] == 300


def test_an_unknown_dataset_is_one_clear_line(tmp_path, jsonl_file):
    with pytest.raises(
        InputError, match="cannot read no/such-dataset .train. from the Hugging Face Hub: .*local files"
    ):
        prepare(config(jsonl_file, source={"kind": "hub", "name": "no/such-dataset"}), tmp_path / "runs")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.txt", None, "no such file: .*none.txt"),
        ("shakespeare.txt", None, "tiny Shakespeare is one 1.1 MB text file: .*karpathy/char-rnn"),
        ("empty.txt", b"", "empty.txt: is empty"),
        ("blank.txt", b" \n \n", "blank.txt: is empty"),
        ("binary.txt", b"ELF\0\1\2", "binary.txt: holds zero bytes"),
        ("latin.txt", "one\ntwo caf\u00e9\n".encode("latin-1"), "latin.txt:2: byte 7 .0xe9. is not valid UTF-8"),
        ("x.pdf", b"%PDF", "x.pdf is a .pdf file: use one of .txt .md .jsonl"),
        ("bad.jsonl", b'{"text": "a"}\n{"text": \n', "bad.jsonl:2: is not valid JSON"),
        ("field.jsonl", b'{"text": "a"}\n\n{"body": "b"}\n', "field.jsonl:3: has no field `text` .it has body."),
        ("half.jsonl", b'{"text": "a\\ud800b"}\n', "half.jsonl:1: field `text` holds half a surrogate pair"),
        ("type.jsonl", b'{"text": 3}\n', "type.jsonl:1: .*`text`"),
    ],
)
def test_every_bad_file_is_one_line_with_the_place(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        prepare(config(tmp_path / name), tmp_path / "runs")
    assert not list((tmp_path / "runs").rglob("*.bin"))


def test_a_folder_without_text_says_so(tmp_path):
    (tmp_path / "picture.png").write_bytes(b"")
    with pytest.raises(InputError, match="holds no file of these kinds: .txt"):
        prepare(config(tmp_path), tmp_path / "runs")
