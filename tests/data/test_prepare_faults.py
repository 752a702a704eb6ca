"""Preparing that is killed, or meets a full disk, or is asked for twice: the shards are the same bytes."""

import errno
import hashlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from configs.command import InputError, exit_on_bad_input
from data import encode_corpus, shards
from data import prepare as prepare_module
from data.config import DataConfig
from data.prepare import dependencies, open_prepared, prepare
from data.storyworld import tell_many
from tests.processes import exit_code, print_to, start

SMALL = [(shards, "SHARD_TOKENS", 30_000), (encode_corpus, "BATCH", 15_000), (encode_corpus, "SAVE_SECONDS", 0.0)]


@pytest.fixture
def small(monkeypatch):
    """Small shards and batches, and a note of progress after each batch."""
    for module, name, value in SMALL:
        monkeypatch.setattr(module, name, value)


def prepare_child(config: DataConfig, out: Path, seconds: float | None = None, *, after_a_note: bool = False) -> None:
    """prepare(), for a process of its own, which SIGPROF kills after so many seconds of work since its start or
    since its first note. Work, not time: what else the machine does moves nothing."""
    begin = lambda: signal.setitimer(signal.ITIMER_PROF, seconds or 0.0)  # noqa: E731
    after_the_first_note(begin) if after_a_note else begin()
    prepare_small(lambda: prepare(config, out, show_progress=False))


def signalled_child(config_file: Path, number: int) -> None:
    """`python -m data.prepare config_file` that gets the signal when it has noted how far it is."""
    print_to(config_file.with_name("said.txt"))
    after_the_first_note(lambda: os.kill(os.getpid(), number))
    sys.argv = ["prepare", str(config_file)]
    prepare_small(lambda: exit_on_bad_input(prepare_module.main))


def prepare_small(command: Callable) -> None:
    for module, name, value in SMALL:
        setattr(module, name, value)
    command()


def after_the_first_note(action: Callable) -> None:
    real = shards.save_progress

    def save_progress(*arguments) -> None:
        real(*arguments)
        shards.save_progress = real
        action()

    shards.save_progress = save_progress


@cache
def stories() -> list[str]:
    return [story.text for story in tell_many(0, 0, 1500)]


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
    return {file.name: re.sub(place, rb'"\1"', file.read_bytes()) for file in directory.iterdir()}


@cache
def undisturbed(make: Callable[[Path], DataConfig]) -> dict[str, bytes]:
    """What prepare() makes of this config where nothing happens to it; with `small`."""
    with tempfile.TemporaryDirectory() as folder:
        return contents(prepare(make(Path(folder)), Path(folder) / "runs").directory)


def notes(out: Path) -> str:
    return "".join(file.read_text() for file in out.glob(".prepared/*.partial/progress.json"))


@pytest.mark.parametrize(("make", "kills"), [pytest.param(text_config, 20, marks=pytest.mark.slow), (chat_config, 4)])
def test_killed_at_random_moments_it_ends_with_the_same_bytes(tmp_path, small, make, kills):
    config, draw = make(tmp_path), random.Random(0)
    before = time.process_time()
    expected = contents(prepare(config, tmp_path / "whole").directory)
    work = time.process_time() - before
    assert len([name for name in expected if name.endswith(".bin")]) > 10

    out, killed, went_on = tmp_path / "killed", 0, 0
    while killed < kills:
        noted, from_the_start = notes(out), draw.random() < 0.25  # there it starts, or learns the tokenizer
        seconds = draw.uniform(0.0, 0.5 if from_the_start else 0.2) * work
        code = exit_code(prepare_child, config, out, max(seconds, 0.001), after_a_note=not from_the_start)
        killed += code == -signal.SIGPROF
        went_on += notes(out) != noted
        assert not (notes(out) and list(out.glob(".prepared/*/manifest.json")))
        if code == 0:  # it was quicker than the kill: the next one starts afresh
            assert contents(prepare(config, out).directory) == expected
            out = out.with_name(f"{out.name}_again")
    assert went_on > kills / 2
    assert exit_code(prepare_child, config, out) == 0
    assert contents(prepare(config, out).directory) == expected


@pytest.mark.slow
@pytest.mark.parametrize("make", [text_config, chat_config])
def test_whatever_was_written_behind_the_last_note_is_written_again(tmp_path, small, monkeypatch, make):
    """The same without luck: stopped after every few batches, with torn files behind what was noted."""
    config = make(tmp_path)
    expected = undisturbed(make)
    real, stops = shards.save_progress, 0

    for batches in (1, 2, 7, 3, 1, 12):
        calls = 0

        def stop_after(*arguments, limit=batches):
            nonlocal calls
            real(*arguments)
            calls += 1
            if calls == limit:
                raise KeyboardInterrupt

        monkeypatch.setattr(shards, "save_progress", stop_after)
        with pytest.raises(KeyboardInterrupt):
            prepare(config, tmp_path / "stopped")
        stops += 1
        (partial,) = (tmp_path / "stopped" / ".prepared").glob("*.partial")
        for split in ("train", "validation"):  # the file that was being written
            for newest in sorted(partial.glob(f"{split}_*.bin"))[-1:]:
                with newest.open("ab") as torn:
                    torn.write(b"torn")
        (partial / "train_00099.bin").write_bytes(b"never noted")
    monkeypatch.setattr(shards, "save_progress", real)
    done = prepare(config, tmp_path / "stopped")
    assert stops == 6
    assert contents(done.directory) == expected
    assert done.directory == open_prepared(done.directory).directory


DAMAGE = "short missing other_text empty_note half_note no_tokenizer bad_tokenizer bad_roles flipped miscounted".split()


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_left_of_a_killed_run_is_not_trusted(tmp_path, small, monkeypatch, capsys, damage):
    config = text_config(tmp_path)
    expected = undisturbed(text_config)
    real = shards.save_progress

    def stop(*arguments):
        real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(shards, "save_progress", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare(config, tmp_path / "stopped")
    monkeypatch.setattr(shards, "save_progress", real)
    (partial,) = (tmp_path / "stopped" / ".prepared").glob("*.partial")
    shard = partial / "train_00000.bin"
    {
        "short": lambda: shard.write_bytes(shard.read_bytes()[:1000]),
        "missing": shard.unlink,
        "other_text": lambda: (shard.write_bytes(bytes(shard.stat().st_size)), os.utime(tmp_path / "stories.jsonl")),
        "empty_note": lambda: (partial / "progress.json").write_text(""),
        "half_note": lambda: (partial / "progress.json").write_text('{"read": 3}'),
        "no_tokenizer": (partial / "tokenizer.json").unlink,
        "bad_tokenizer": lambda: (partial / "tokenizer.json").write_text("{}"),
        "flipped": lambda: shard.write_bytes(bytes([shard.read_bytes()[0] ^ 1]) + shard.read_bytes()[1:]),
        "miscounted": lambda: (partial / "progress.json").write_text(notes(tmp_path / "stopped").replace("1", "2")),
        "bad_roles": lambda: (partial / "tokenizer_config.json").write_text("[]"),
    }[damage]()
    assert contents(prepare(config, tmp_path / "stopped").directory) == expected
    assert str(partial) in capsys.readouterr().err  # what is wrong with it, in a line


def test_a_text_that_changes_while_it_is_read_is_not_kept(tmp_path, monkeypatch):
    config, file = text_config(tmp_path), tmp_path / "stories.jsonl"
    before, real = file.read_bytes(), prepare_module._write

    def edit(*arguments):
        file.write_bytes(before.replace(b"fox", b"owl"))
        return real(*arguments)

    monkeypatch.setattr(prepare_module, "_write", edit)
    with pytest.raises(InputError, match="changed while it was being read: prepare it again"):
        prepare(config, tmp_path / "runs")
    monkeypatch.setattr(prepare_module, "_write", real)
    file.write_bytes(before)
    data = prepare(config, tmp_path / "runs")
    assert "fox" in data.tokenizer.decode(data.stream("train").read(0, 100_000))


def test_a_damaged_manifest_says_what_to_do_and_a_missing_one_is_made_again(tmp_path):
    config = text_config(tmp_path)
    directory = prepare(config, tmp_path / "runs").directory
    expected = contents(directory)
    (directory / "manifest.json").write_text("{")
    with pytest.raises(
        InputError,
        match=f"manifest.json: is not .*: the prepared data is damaged: delete {directory}, then it is prepared again",
    ):
        prepare(config, tmp_path / "runs")
    (directory / "manifest.json").unlink()
    assert contents(prepare(config, tmp_path / "runs").directory) == expected


@pytest.mark.slow
def test_another_first_token_of_a_pretrained_tokenizer_makes_a_new_entry(tmp_path):
    config = text_config(tmp_path)
    prepare(config, tmp_path / "runs").tokenizer.save(tmp_path / "t")
    values = config.model_dump() | {"tokenizer": {"kind": "pretrained", "path": str(tmp_path / "t")}}
    adopting = DataConfig.model_validate(values)
    first = prepare(adopting, tmp_path / "runs").directory
    settings = json.loads((tmp_path / "t/tokenizer_config.json").read_text())
    (tmp_path / "t/tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": "<|im_end|>"}))
    again = prepare(adopting, tmp_path / "runs")
    assert again.directory != first
    assert again.tokenizer.roles["eos_token"] == "<|im_end|>"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_stopped_by_hand_it_says_that_it_continues(tmp_path, number, code):
    config = text_config(tmp_path)
    values = {"output_dir": str(tmp_path / "out"), "data": config.model_dump(exclude_none=True)}
    (tmp_path / "c.yaml").write_text(json.dumps(values))
    assert exit_code(signalled_child, tmp_path / "c.yaml", number) == code
    said = (tmp_path / "said.txt").read_text()
    assert ("stopped; run the same command again to continue" in said) == (number == signal.SIGINT)
    assert "Traceback" not in said
    assert notes(tmp_path / "out")


def test_a_full_disk_is_one_clear_line_and_the_work_is_kept(tmp_path, small, monkeypatch):
    config = text_config(tmp_path)
    expected = undisturbed(text_config)
    real, written = shards.SplitWriter.append, 0

    def append(writer, ids, flags):
        nonlocal written
        written += ids.nbytes
        if written > 400_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(writer, ids, flags)

    monkeypatch.setattr(shards.SplitWriter, "append", append)
    with pytest.raises(InputError, match="the disk of .* is full: free some space; the same command continues"):
        prepare(config, tmp_path / "full")
    assert not list(tmp_path.glob("full/.prepared/*/manifest.json"))
    monkeypatch.setattr(shards.SplitWriter, "append", real)
    (partial,) = (tmp_path / "full" / ".prepared").glob("*.partial")
    assert json.loads((partial / "progress.json").read_text())["read"] > 0
    assert contents(prepare(config, tmp_path / "full").directory) == expected


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_really_full_device(tmp_path, small, monkeypatch):
    """Every write to /dev/full fails as on a full disk, at flush time."""
    monkeypatch.setattr(shards.SplitWriter, "_paths", lambda writer, number: [Path("/dev/full")])
    with pytest.raises(InputError, match="is full: free some space"):
        prepare(text_config(tmp_path), tmp_path / "full")


def test_a_second_process_waits_and_finds_it_prepared(tmp_path):
    config = text_config(tmp_path)
    both = [start(prepare_child, config, tmp_path / "runs") for _ in range(2)]
    for process in both:
        process.join(timeout=300)
    assert [process.exitcode for process in both] == [0, 0]
    (directory,) = (p for p in (tmp_path / "runs" / ".prepared").iterdir() if p.is_dir())
    open_prepared(directory)


def test_a_changed_option_that_changes_the_shards_makes_a_new_entry(tmp_path):
    config = text_config(tmp_path)

    def made_of(**changes):
        return dependencies(config.model_copy(update=changes), tmp_path)

    tokenizer = config.tokenizer.model_copy(update={"vocab_size": 640})
    for changes in (
        {"drop_duplicates": False},
        {"validation_fraction": 0.2},
        {"on_bad_record": "skip"},
        {"tokenizer": tokenizer},
    ):
        assert made_of(**changes) != made_of()
    for changes in ({"sequence_length": 16}, {"isolate_documents": True}, {"too_long": "drop"}):
        assert made_of(**changes) == made_of()


def test_the_manifest_describes_the_shards(tmp_path, small):
    for make in (text_config, chat_config):
        data = prepare(make(tmp_path), tmp_path / "runs")
        for split in ("train", "validation"):
            described = data.manifest[split]
            for shard in described["shards"]:
                for key in [key for key in ("", "flags_") if f"{key}file" in shard]:
                    raw = (data.directory / shard[f"{key}file"]).read_bytes()
                    assert hashlib.sha256(raw).hexdigest() == shard[f"{key}sha256"]
                    assert len(raw) == shard[f"{key}bytes"]
            assert sum(shard["tokens"] for shard in described["shards"]) == described["tokens"]
            ids = data.stream(split).read(0, described["tokens"])
            assert int((ids == data.tokenizer.bos_id).sum()) == described["documents"]
            assert described["bytes_per_token"] == pytest.approx(described["bytes"] / described["trained_tokens"], 1e-4)
