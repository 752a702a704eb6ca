"""A kill at any step of saving, a full disk, a damaged file, a second start: a run finds its last
whole checkpoint.
"""

import errno
import itertools
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from configs.command import InputError, exit_on_bad_input
from tests.processes import exit_code, little_room, print_to, start
from tests.train.checkpoints import training
from tests.train.helpers import (
    at_each_step,
    at_step,
    bad_loss,
    metrics,
    pretrain,
    pretrain_rank,
    refusal,
    run_world,
    stopped_at,
    write_config,
)
from train.pretrain import main
from train.run import run_directory
from train.run.checkpoint import commit, damage, newest_intact, read_state, tidy
from train.run.run_directory import LOCK, own

STATE = [f"training/{name}" for name in ("optimizer.safetensors", "trainer_state.json", "manifest.json")]
FILES = "config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json".split() + STATE


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Checkpoints of step 1 and step 2."""
    checkpoints = tmp_path_factory.mktemp("two")
    run = training()
    for _ in range(2):
        run.steps(1)
        run.save(checkpoints)
    return checkpoints


@pytest.fixture
def checkpoints(two, tmp_path):
    return Path(shutil.copytree(two, tmp_path / "checkpoints"))


def steps_in(checkpoints: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in checkpoints.glob("step_????????"))


# Killed while it saves


def write_checkpoint(checkpoints: Path, step: int, content: str) -> None:
    """A checkpoint as far as the protocol is concerned."""

    def fill(directory: Path) -> None:
        (directory / "training/trainer_state.json").write_text(json.dumps({"step": step, "best_step": step}))
        (directory / "model.safetensors").write_text(content)

    commit(checkpoints, step, fill, 9, step)


def content(checkpoints: Path) -> str:
    return (newest_intact(checkpoints) / "model.safetensors").read_text()


def killed_at(number: int, action, *arguments) -> None:
    """action(*arguments), killed before operation `number` of those that change the disk, a write
    being half done.
    """
    count = itertools.count()

    def watch(owner, name: str, begin=None) -> None:
        call = getattr(owner, name)

        def watched(*given, **options):
            if next(count) == number:
                if begin is not None:
                    begin(*given)
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*given, **options)

        setattr(owner, name, watched)

    for name in ("rename", "replace", "unlink", "rmdir", "mkdir", "fsync"):
        watch(os, name)
    watch(Path, "write_text", lambda file, text, *rest: file.open("w").write(text[: len(text) // 2]))
    watch(Path, "write_bytes", lambda file, raw: file.open("wb").write(raw[: len(raw) // 2]))
    action(*arguments)


def find_and_settle(checkpoints: Path) -> None:
    newest = newest_intact(checkpoints)
    tidy(checkpoints, newest, 9, read_state(newest).best_step)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
@pytest.mark.parametrize("step", [4, 6], ids=["the same step again", "a new step"])
def test_killed_before_every_operation_of_a_save_the_old_checkpoint_counts_or_the_new_one(step, tmp_path):
    """And the start after it is killed as well, once at each of its own operations in turn."""
    write_checkpoint(tmp_path / "first", 4, "old")
    contents = []
    for number in itertools.count():
        checkpoints = tmp_path / f"at_{number}"
        shutil.copytree(tmp_path / "first", checkpoints)
        code = exit_code(killed_at, number, write_checkpoint, checkpoints, step, "new")
        contents.append(content(checkpoints))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        exit_code(killed_at, number % 12, find_and_settle, checkpoints)
        assert content(checkpoints) == contents[-1]
        find_and_settle(checkpoints)
        assert content(checkpoints) == contents[-1]
        whole = {4: "old", step: "new"} if contents[-1] == "new" else {4: "old"}
        assert {path.name for path in checkpoints.iterdir()} == {"latest", "best", *map("step_{:08d}".format, whole)}
        assert all(damage(path) is None for path in checkpoints.glob("step_*"))
        for pointer in ("latest", "best"):
            assert (checkpoints / pointer).read_text() == f"step_{max(whole):08d}\n"
    assert number > 15
    # first always the old one, from some moment on the new one
    assert contents == sorted(contents, reverse=True)
    assert contents.count("new") > 3
    assert steps_in(checkpoints) == sorted({4, step})


# A full disk


@pytest.mark.parametrize("limit", [200, 1500, 20_000, 120_000])
def test_a_disk_that_is_full_in_the_middle_of_a_save_leaves_everything_as_it_was(limit, checkpoints):
    run = training(seed=3)
    run.steps(3)
    before = {path: path.stat().st_mtime_ns for path in checkpoints.rglob("*") if path.is_file()}
    with little_room(limit), pytest.raises(InputError, match="step 3 could not be written .*File too large"):
        run.save(checkpoints)
    assert before == {path: path.stat().st_mtime_ns for path in checkpoints.rglob("*") if path.is_file()}
    assert not [path for path in checkpoints.iterdir() if "00000003" in path.name]


def test_a_disk_that_is_full_before_the_first_checkpoint_is_named(tmp_path, monkeypatch):
    config = write_config(tmp_path)

    def full(*of):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("train.pretrain.open_for", full)
    assert refusal(config) == f"error: {tmp_path / 'runs/tiny'}: No space left on device\n"


def pretrain_with_room_for(size: int, config: Path) -> None:
    """No file may grow beyond `size` bytes: the kernel takes a part of a line and refuses the rest."""
    with little_room(size):
        pretrain_rank(config, [])


def test_on_a_full_disk_a_run_trains_on_says_so_and_resumes_from_what_was_saved(tmp_path):
    sections = {"train": {"max_steps": 8, "checkpoint_every": 2}, "eval": {"every": 2, "sample_tokens": 2}}
    config = write_config(tmp_path, **sections)
    run = tmp_path / "runs/tiny"
    pretrain(config, "name=whole")
    with stopped_at(3):
        pretrain(config, code=143)
    # room for figures, not for the weights
    assert exit_code(pretrain_with_room_for, 60_000, config) == 2
    lines = (tmp_path / "rank0.txt").read_text().splitlines()
    assert sum(line.startswith("warning: the checkpoint of step 6 could not be written") for line in lines) == 1
    assert lines[-1].startswith("error: the checkpoint of step 8 could not be written")
    assert newest_intact(run / "checkpoints") == run / "checkpoints/step_00000004"
    pretrain(config)
    assert metrics(run) == metrics(tmp_path / "runs/whole")


# Damaged files


def flip_a_bit(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


DAMAGES = {
    "empty": lambda file: file.write_bytes(b""),
    "cut off at its end": lambda file: file.write_bytes(file.read_bytes().rstrip()[:-1]),
    "a flipped bit": flip_a_bit,
    "deleted": lambda file: file.unlink(),
    "a directory": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", DAMAGES)
def test_every_damage_to_every_file_is_found_and_the_checkpoint_before_it_is_used(kind, name, checkpoints, capsys):
    assert newest_intact(checkpoints) == checkpoints / "step_00000002"
    DAMAGES[kind](checkpoints / "step_00000002" / name)
    assert newest_intact(checkpoints) == checkpoints / "step_00000001"
    assert capsys.readouterr().err.count("\n") == 1


def test_a_run_continues_past_a_damaged_checkpoint_to_the_same_end(tmp_path):
    """The command itself: two damaged ones, and a `latest` that names nothing."""
    changes = {"eval": {"every": 4, "sample_tokens": 2}, "train": {"keep_last": 3}}
    config = write_config(tmp_path, **changes)
    checkpoints = tmp_path / "runs/tiny/checkpoints"
    pretrain(config)
    whole = metrics(tmp_path / "runs/tiny")
    (checkpoints / "step_00000012/training/optimizer.safetensors").unlink()
    flip_a_bit(checkpoints / "step_00000008/model.safetensors")
    (checkpoints / "latest").write_text("step_00000099\n")
    done = pretrain(config)
    assert "resumed from " + str(checkpoints / "step_00000004") in done.stdout
    assert done.stderr.count("trying the checkpoint before it") == 2
    assert metrics(tmp_path / "runs/tiny") == whole
    assert (checkpoints / "latest").read_text() == "step_00000012\n"
    assert steps_in(checkpoints) == [4, 8, 12]
    for step in (4, 8, 12):
        (checkpoints / f"step_{step:08d}/training/manifest.json").unlink()
    assert "is complete: move it away" in pretrain(config, code=2).stderr


# Which are kept, and what a run may continue


@pytest.mark.parametrize(("keep_last", "keep_best"), [(1, True), (3, True), (2, False)])
def test_which_checkpoints_are_kept(keep_last, keep_best, tmp_path):
    run = training()
    for step in range(1, 6):
        run.steps(1)
        if step == 2:
            run.state.best_step = 2
            run.state.best_loss = 1.0
        run.save(tmp_path, keep_last, keep_best)
        newest = set(range(max(1, step - keep_last + 1), step + 1))
        assert steps_in(tmp_path) == sorted(newest | ({2} if keep_best and step >= 2 else set()))
        assert (tmp_path / "latest").read_text() == f"step_{step:08d}\n"
        assert (tmp_path / "best").exists() == (keep_best and step >= 2)
    if keep_best:
        assert (tmp_path / "best").read_text() == "step_00000002\n"


def test_a_run_that_goes_on_has_no_result_before_its_new_end(tmp_path, monkeypatch):
    config = write_config(tmp_path, train={"max_steps": 2}, eval={"every": 0})
    pretrain(config)
    at_step(monkeypatch, [3], bad_loss)
    pretrain(config, "train.max_steps=4", code=3)
    assert not (tmp_path / "runs/tiny/result.json").exists()


def test_settings_that_differ_are_named_and_may_be_allowed(tmp_path):
    config = write_config(tmp_path, train={"max_steps": 4, "checkpoint_every": 2}, eval={"every": 0})
    pretrain(config)
    other = ["seed=5", "train.grad_clip=2.0", "train.max_steps=6"]
    refused = pretrain(config, *other, code=2).stderr
    assert "seed (there 0, here 5), train.grad_clip (there 1.0, here 2.0)" in refused
    assert pretrain(config, *other, "allow_mismatch=true").stderr.count("warning: ") == 1
    assert [m["step"] for m in metrics(tmp_path / "runs/tiny", "train")] == list(range(1, 7))
    wrong = pretrain(config, *other, "train.max_steps=8", "model.hidden_size=64", "allow_mismatch=true", code=2)
    assert "model.embed_tokens.weight has shape [320, 32]" in wrong.stderr
    # the others are the run's settings from now on
    text, other[-1] = tmp_path / "text.txt", "train.max_steps=8"
    text.write_text(text.read_text() + "One more line.\n")
    assert "no longer what this run was" in pretrain(config, *other, code=2).stderr
    assert "trained on: continuing" in pretrain(config, *other, "allow_mismatch=true").stderr


# --------------------------------------------------------------------------------------------------
# a run directory has one owner: double starts, killed owners


SHORT = {"train": {"max_steps": 4, "checkpoint_every": 2}, "eval": {"every": 0}}


def hold(directory: Path, flag: Path) -> None:
    """Own a folder for ever; `flag` appears once that is so."""
    with own(directory):
        flag.touch()
        time.sleep(60)


def take_and_leave(directory: Path) -> None:
    with own(directory):
        assert {path.name for path in directory.iterdir()} == {LOCK}


def test_a_folder_has_one_owner_and_at_rest_no_file_of_it(tmp_path):
    run = tmp_path / "runs/x"
    flag = tmp_path / "flag"
    take_and_leave(run)
    assert not run.exists()  # nothing was written, so nothing stays
    process = start(hold, run, flag)
    until = time.monotonic() + 120
    while not flag.exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    with pytest.raises(InputError, match="is in use by another process"):
        take_and_leave(run)
    process.kill()
    process.join()
    take_and_leave(run)  # a killed one is in nobody's way
    assert not run.exists()


def test_a_second_start_is_refused_in_every_process_by_one_line_and_changes_nothing(tmp_path):
    config = write_config(tmp_path, **SHORT)
    run = tmp_path / "runs/tiny"
    with own(run):
        before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
        assert run_world(2, pretrain_rank, config, []) == [2, 2]
        assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    assert f"error: {run} is in use by another process: " in (tmp_path / "rank0.txt").read_text()


def test_a_run_whose_directory_goes_away_stops_with_one_line(tmp_path):
    run = tmp_path / "runs/tiny"
    with at_each_step(lambda running: run.rename(tmp_path / "away") if running.state.step == 3 else None):
        said = refusal(write_config(tmp_path, train={"checkpoint_every": 100}))
    assert said.startswith(f"error: {run} was moved or deleted while a run was writing into it")
    assert not run.exists()


# The same command started twice within seconds: one process trains, the other is refused, nothing
# is mixed


def start_after(seconds: float, config: Path, output: Path) -> None:
    torch.set_num_threads(1)
    print_to(output)
    run_directory.PATIENCE_S = 0.1  # or the second one waits until so short a run is over
    time.sleep(seconds)
    sys.argv = ["pretrain", str(config)]
    exit_on_bad_input(main)


@pytest.mark.parametrize("delay", [0.0, 0.2, 1.5])
def test_of_two_starts_one_trains_and_the_other_is_refused(tmp_path, delay):
    config = write_config(tmp_path, train={"max_steps": 80, "checkpoint_every": 20}, eval={"every": 40})
    processes = [start(start_after, s, config, tmp_path / f"{n}.txt") for n, s in enumerate((0.0, delay))]
    for process in processes:
        process.join(timeout=300)
    texts = [(tmp_path / f"{n}.txt").read_text() for n in range(2)]
    assert sorted(process.exitcode for process in processes) in ([0, 2], [0, 0]), texts
    for process, text in zip(processes, texts, strict=True):
        assert process.exitcode == 0 or ("is in use by another process" in text and text.count("\n") == 1), text
    run = tmp_path / "runs/tiny"
    assert all(damage(path) is None for path in (run / "checkpoints").glob("step_*"))
    assert [line["step"] for line in metrics(run, "train")] == list(range(1, 81))
    assert [line["step"] for line in metrics(run, "val")] == [0, 40, 80]
