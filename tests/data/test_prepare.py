"""Preparing: text in, shards out; nothing stale, nothing half-written, every mistake with file and
line.
"""

import errno
import json
import os
import random
import re
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from configs.command import InputError
from data import prepare as prepare_module
from data import tokenizer as tokenizer_module
from data.config import DataConfig
from data.prepare import open_prepared, prepare
from data.reading.documents import documents
from storyworld import tell
from tests.processes import exit_code, start


def config(path, **changes) -> DataConfig:
    kind = {"source": {"kind": "files", "path": str(path)}, "tokenizer": {"kind": "byte"}, "sequence_length": 16}
    return DataConfig.model_validate(kind | changes)


@pytest.fixture
def text_file(tmp_path):
    file = tmp_path / "book.txt"
    file.write_text("".join(f"Line {i} of the book.\n" for i in range(200)), encoding="utf-8")
    return file


def test_every_token_is_in_the_shards_once_whatever_is_encoded_and_written_at_a_time(tmp_path, monkeypatch):
    """A document begins and ends once, however many pieces, batches, shards and rows it fills."""
    many = tmp_path / "many.jsonl"
    many.write_text("".join(json.dumps({"text": f"document {i}"}) + "\n" for i in range(300)), encoding="utf-8")
    whole = prepare(config(many), tmp_path / "a")
    expected = [i for d in documents(config(many), "train") for i in whole.tokenizer.encode_documents([d])[0]]
    monkeypatch.setattr(prepare_module, "SHARD_TOKENS", 100)
    monkeypatch.setattr(prepare_module, "BATCH", 7)
    monkeypatch.setattr(tokenizer_module, "PIECE", 5)
    pieces = prepare(config(many), tmp_path / "b")
    assert len(pieces.manifest["train"]["shards"]) > 5
    one = whole.stream("train")
    other = pieces.stream("train")
    assert len(one) == len(other) == whole.manifest["train"]["tokens"]
    assert one.read(0, len(one)).tolist() == other.read(0, len(other)).tolist() == expected
    # joined at the ends
    assert other.read(len(other) - 3, 6).tolist() == expected[-3:] + expected[:3]


def test_prepared_data_is_found_again_and_never_stale(text_file, tmp_path):
    def made(file=text_file, **changes):
        directory = prepare(config(file, **changes), tmp_path / "runs").directory
        return directory, (directory / "manifest.json").stat().st_mtime_ns

    first = made()
    assert made() == made(sequence_length=8) == made(isolate_documents=True) == made(too_long="drop") == first
    (tmp_path / "elsewhere.txt").write_bytes(text_file.read_bytes())
    assert made(tmp_path / "elsewhere.txt") == first
    changes = {"drop_duplicates": True}, {"validation_fraction": 0.2}, {"on_bad_record": "skip"}
    entries = {first, *(made(**one) for one in (*changes, {"tokenizer": {"kind": "char"}}))}
    assert len(entries) == 5
    text_file.write_text("another text altogether, " * 50, encoding="utf-8")
    assert made() not in entries


@pytest.mark.parametrize("damage", [lambda raw: raw[:-2], lambda raw: raw[:99] + bytes([raw[99] ^ 4]) + raw[100:]])
def test_a_damaged_shard_is_named(text_file, tmp_path, damage):
    data = prepare(config(text_file), tmp_path / "runs")
    shard = data.directory / "train_00000.bin"
    shard.write_bytes(damage(shard.read_bytes()))
    with pytest.raises(InputError, match="train_00000.bin: its bytes have changed"):
        open_prepared(data.directory)


def test_a_large_vocabulary_is_stored_in_four_bytes(tmp_path):
    file = tmp_path / "wide.txt"
    file.write_text("".join(map(chr, [*range(0x20, 0xD800), *range(0xE000, 0x13000)])) * 2, encoding="utf-8")
    data = prepare(config(file, tokenizer={"kind": "char"}), tmp_path / "runs")
    assert data.manifest["dtype"] == "uint32"
    stream = data.stream("validation")
    assert data.tokenizer.decode(stream.read(0, len(stream))) == next(documents(config(file), "validation"))


def test_a_bad_file_leaves_no_shards_behind(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n\n{"body": "b"}\n')
    for name, message in (("shakespeare.txt", "no such file"), ("x.jsonl", "x.jsonl:3: has no field `text`")):
        with pytest.raises(InputError, match=message):
            prepare(config(tmp_path / name), tmp_path / "runs")
        assert not list((tmp_path / "runs").rglob("*.bin"))


# --------------------------------------------------------------------------------------------------
# preparing that is killed, meets a full disk, or is asked for twice: the shards are the same bytes


SMALL = [(prepare_module, "SHARD_TOKENS", 15_000), (prepare_module, "BATCH", 20)]


@pytest.fixture
def small(monkeypatch):
    """Small shards and batches."""
    for module, name, value in SMALL:
        monkeypatch.setattr(module, name, value)


def prepare_child(config: DataConfig, out: Path, seconds: float | None = None, *, after_a_note: bool = False) -> None:
    """prepare(), for a process of its own, which SIGPROF kills after so many seconds of work since
    its start or since its first note. Work, not time: what else the machine does moves nothing.
    """
    begin = lambda: signal.setitimer(signal.ITIMER_PROF, seconds or 0.0)  # noqa: E731
    after_the_first_note(begin) if after_a_note else begin()
    for module, name, value in SMALL:
        setattr(module, name, value)
    prepare(config, out, show_progress=False)


def after_the_first_note(action: Callable) -> None:
    real = prepare_module.write_atomically

    def write(path: Path, content: str | bytes) -> None:
        real(path, content)
        if path.stem.isdigit():
            prepare_module.write_atomically = real
            action()

    prepare_module.write_atomically = write


@cache
def stories() -> list[str]:
    return [tell(0, index).text for index in range(1500)]


def text_config(folder: Path) -> DataConfig:
    texts = stories()
    lines = [json.dumps({"text": text}) + "\n" for text in texts + texts[:100]]
    (folder / "stories.jsonl").write_text("".join(lines), encoding="utf-8")
    source = {"kind": "files", "path": str(folder / "stories.jsonl")}
    return DataConfig.model_validate(
        {"source": source, "tokenizer": {"kind": "bpe", "vocab_size": 512}, "drop_duplicates": True}
    )


def chat_config(folder: Path) -> DataConfig:
    turn = lambda role, content: {"role": role, "content": content}  # noqa: E731
    records = [{"messages": [turn("user", f"Story {i}?"), turn("assistant", s)]} for i, s in enumerate(stories())]
    (folder / "chat.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    source = {"kind": "files", "path": str(folder / "chat.jsonl")}
    return DataConfig.model_validate({"source": source, "tokenizer": {"kind": "byte"}, "records": "conversations"})


def contents(directory: Path) -> dict[str, bytes]:
    """The files of prepared data, the manifest among them; where the text lay is left out of it."""
    place = rb'"[^"]*/(stories|chat)\.jsonl"'
    files = [file for file in directory.iterdir() if file not in notes(directory.parents[1])]
    return {file.name: re.sub(place, rb'"\1"', file.read_bytes()) for file in files if file.suffix != ".lock"}


def notes(out: Path) -> list[Path]:
    """Return the shards that are written; a kill at the very end may leave some."""
    return sorted(out.glob(".prepared/*/[0-9]*.json"))


@pytest.mark.parametrize(("make", "kills"), [pytest.param(text_config, 20, marks=pytest.mark.slow), (chat_config, 4)])
def test_killed_at_random_moments_it_ends_with_the_same_bytes(tmp_path, small, make, kills):
    config = make(tmp_path)
    draw = random.Random(0)
    before = time.process_time()
    expected = contents(prepare(config, tmp_path / "whole").directory)
    work = time.process_time() - before
    assert len([name for name in expected if name.endswith(".bin")]) > 10

    out = tmp_path / "killed"
    killed = 0
    went_on = 0
    while killed < kills:
        # there it starts, or learns the tokenizer
        noted = notes(out)
        from_the_start = draw.random() < 0.25
        seconds = draw.uniform(0.0, 0.5 if from_the_start else 0.2) * work
        code = exit_code(prepare_child, config, out, max(seconds, 0.001), after_a_note=not from_the_start)
        killed += code == -signal.SIGPROF
        went_on += notes(out) != noted
        if code == 0:  # it was quicker than the kill: the next one starts afresh
            assert contents(prepare(config, out).directory) == expected
            out = out.with_name(f"{out.name}_again")
    assert went_on > kills / 2
    assert exit_code(prepare_child, config, out) == 0
    assert contents(prepare(config, out).directory) == expected


def test_a_damaged_manifest_says_what_to_do_and_a_missing_one_is_made_again(tmp_path):
    config = text_config(tmp_path)
    directory = prepare(config, tmp_path / "runs").directory
    expected = contents(directory)
    (directory / "manifest.json").write_text("{")
    with pytest.raises(InputError, match=f"delete {directory}"):
        prepare(config, tmp_path / "runs")
    (directory / "manifest.json").unlink()
    assert contents(prepare(config, tmp_path / "runs").directory) == expected


def test_after_a_full_disk_the_work_is_kept(tmp_path, small, monkeypatch):
    config = text_config(tmp_path)
    expected = contents(prepare(config, tmp_path / "whole").directory)
    real = prepare_module.write_atomically
    written = 0

    def write(path, content):
        nonlocal written
        written += len(content)
        if written > 400_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, content)

    monkeypatch.setattr(prepare_module, "write_atomically", write)
    with pytest.raises(OSError, match="No space left on device") as caught:
        prepare(config, tmp_path / "full")
    # which a write that fails does not know
    assert Path(caught.value.filename).parent == tmp_path / "full/.prepared"
    assert not list(tmp_path.glob("full/.prepared/*/manifest.json"))
    monkeypatch.setattr(prepare_module, "write_atomically", real)
    assert json.loads(notes(tmp_path / "full")[0].read_text())["train"]["documents"] > 0
    assert contents(prepare(config, tmp_path / "full").directory) == expected


def one_of_several(config: DataConfig, out: Path, log: Path, killed_in: int | None = None) -> None:
    """prepare() as `python -m data.prepare` calls it; it logs the shards that it writes. killed_in:
    its own n-th shard, of which one file is on disk then.
    """
    prepare_module.SHARD_TOKENS = 500
    real = prepare_module.write_atomically

    def write(path: Path, content: str | bytes) -> None:
        real(path, content)
        if path.suffix == ".bin" and len(written) == killed_in:
            os.kill(os.getpid(), signal.SIGKILL)
        if path.stem.isdigit():
            written.append(path.stem)
            log.write_text("\n".join(written))
            time.sleep(0.05)  # on one core, too, the other one gets its turn

    written: list[str] = []
    prepare_module.write_atomically = write
    prepare(config, out, together=True)


@pytest.mark.parametrize("killed_in", [None, 3])
def test_two_processes_write_each_shard_once_and_one_takes_over_from_a_killed_one(tmp_path, killed_in, monkeypatch):
    monkeypatch.setattr(prepare_module, "SHARD_TOKENS", 500)
    lines = [json.dumps({"text": f"This is document {i % 390}."}) + "\n" for i in range(400)]
    (tmp_path / "many.jsonl").write_text("".join(lines), encoding="utf-8")
    out = tmp_path / "runs"
    read = config(tmp_path / "many.jsonl", drop_duplicates=True)
    expected = contents(prepare(read, tmp_path / "alone").directory)
    kills = (None, killed_in)
    both = [start(one_of_several, read, out, tmp_path / f"{n}.log", kills[n]) for n in (0, 1)]
    for process in both:
        process.join(timeout=300)
    assert [process.exitcode for process in both] == [0, -signal.SIGKILL if killed_in else 0]
    (directory,) = (path for path in (out / ".prepared").iterdir() if path.is_dir())
    assert contents(directory) == expected
    assert notes(out) == []
    shares = [(tmp_path / f"{n}.log").read_text().split() for n in (0, 1)]
    assert len(shares[1]) == killed_in if killed_in else len(shares[1]) > 3
    assert sorted(shares[0] + shares[1]) == sorted({name[-9:-4] for name in expected if name.endswith(".bin")})


def test_a_second_process_waits_and_finds_it_prepared(tmp_path):
    config = text_config(tmp_path)
    both = [start(prepare_child, config, tmp_path / "runs") for _ in range(2)]
    for process in both:
        process.join(timeout=300)
    assert [process.exitcode for process in both] == [0, 0]
    (directory,) = (p for p in (tmp_path / "runs" / ".prepared").iterdir() if p.is_dir())
    open_prepared(directory)
