"""A run directory has one owner: double starts, killed owners, file systems without locks, folders that move away."""

import errno
import os
import random
import shutil
import socket
import sys
import time
from pathlib import Path

import filelock
import pytest
import torch

import train.loop
from configs.command import exit_on_bad_input
from tests.processes import print_to, start
from tests.train.helpers import metrics, pretrain, refusal, write_config
from tests.train.worlds import pretrain_rank, run_world
from train.pretrain import main
from train.saving import run_lock
from train.saving.atomic_save import damage
from train.saving.run_lock import FILES, LOCK, holder, owned

HERE = socket.gethostname()
SHORT = {"train": {"max_steps": 4, "checkpoint_every": 2}, "eval": {"every": 0}}


def hold(directory: Path, flag: Path, with_locks: bool = True) -> None:
    """Own a folder for ever; `flag` appears once that is so."""
    if not with_locks:
        without_locks()
    with owned(directory) as ours:
        assert not ours.problem, ours.problem
        flag.touch()
        time.sleep(60)


def without_locks() -> None:
    """From here on the file system answers as one without locks."""

    def refuse(*arguments, **options):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    filelock.FileLock.acquire = refuse


@pytest.fixture
def holding(tmp_path):
    """A function that has a folder owned by another process, and returns that process."""
    processes = []

    def begin(directory: Path, *arguments):
        flag = tmp_path / "flag"
        processes.append(start(hold, directory, flag, *arguments))
        until = time.monotonic() + 120
        while not flag.exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.join()


def refused(directory: Path) -> str:
    with owned(directory) as ours:
        return ours.problem


def test_the_owner_is_named_and_a_folder_at_rest_has_no_file_of_it(tmp_path, holding):
    run = tmp_path / "runs/x"
    assert refused(run) == ""
    assert not (tmp_path / "runs").exists()  # nothing was written, so nothing stays
    process = holding(run)
    told = refused(run)
    assert told.startswith(f"{run} is in use by process {process.pid} on {HERE}, since 2")
    assert holder(run) in told
    process.kill()
    process.join()
    assert holder(run) == refused(run) == ""  # a killed one is in nobody's way
    assert list(run.iterdir()) == []


def test_looking_who_owns_a_folder_never_refuses_its_owner(tmp_path):
    """`holder` takes the lock for a moment: whoever wants it waits for longer than that."""
    (tmp_path / "x").mkdir()
    for _ in range(30):
        (tmp_path / "x" / LOCK).touch()
        with owned(tmp_path / "x") as ours:
            assert ours.problem == ""
            assert holder(tmp_path / "x") == holder(tmp_path / "x") != ""
        assert holder(tmp_path / "x") == ""


def test_without_locks_a_live_owner_is_respected_and_a_dead_one_is_not(tmp_path, holding, monkeypatch):
    monkeypatch.setattr(filelock.FileLock, "acquire", filelock.FileLock.acquire)
    without_locks()
    process = holding(tmp_path / "x", False)
    assert f"process {process.pid} on {HERE}" in refused(tmp_path / "x")
    process.kill()
    process.join()
    assert refused(tmp_path / "x") == ""
    pretrain(write_config(tmp_path, **SHORT))
    assert not [name for name in FILES if (tmp_path / "runs/tiny" / name).exists()]


def test_a_second_start_of_a_running_run_is_refused_by_one_line_and_changes_nothing(tmp_path, holding):
    config, run = write_config(tmp_path, **SHORT), tmp_path / "runs/tiny"
    process = holding(run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert refusal(config).startswith(f"error: {run} is in use by process {process.pid} on {HERE}, since ")
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_finished_run_prints_its_result_while_another_process_owns_it(tmp_path, holding):
    config, run = write_config(tmp_path, **SHORT), tmp_path / "runs/tiny"
    pretrain(config)
    assert not [name for name in FILES if (run / name).exists()]
    holding(run)
    assert "finished at step 4" in pretrain(config).stdout
    assert "is in use by" in pretrain(config, "train.max_steps=6", code=2).stderr


@pytest.mark.slow
def test_all_processes_of_a_run_end_when_the_first_is_refused(tmp_path, holding):
    config, run = write_config(tmp_path, **SHORT), tmp_path / "runs/tiny"
    process = holding(run)
    assert run_world(2, pretrain_rank, config, []) == [2, 2]
    told = (tmp_path / "rank0.txt").read_text()
    assert f"error: {run} is in use by process {process.pid} on {HERE}, since " in told
    assert "error" not in (tmp_path / "rank1.txt").read_text()


@pytest.mark.parametrize("how", ["moved", "deleted", "replaced"])
@pytest.mark.parametrize("due", ["log_every", "checkpoint_every", "an evaluation"])
def test_a_run_whose_directory_goes_away_stops_with_one_line(how, due, tmp_path, monkeypatch):
    every = {"log_every": 100, "checkpoint_every": 100} | ({due: 1} if due != "an evaluation" else {})
    looks = {"every": int(due == "an evaluation"), "max_tokens": 12}
    config = write_config(tmp_path, train={"max_steps": 9, **every}, eval={"every": 0, "attention": looks})
    run, away, step = tmp_path / "runs/tiny", tmp_path / "away", train.loop.forward_backward

    def moving(running, *arguments, **options):
        if running.state.step == 3:
            shutil.rmtree(run) if how == "deleted" else run.rename(away)
            if how == "replaced":
                run.mkdir()
        return step(running, *arguments, **options)

    monkeypatch.setattr(train.loop, "forward_backward", moving)
    done = pretrain(config, code=2)
    told = f"error: {run} was moved, replaced or deleted while this process was writing into it"
    assert done.stderr.splitlines()[-1].startswith(told)
    assert "warning" not in done.stdout + done.stderr
    assert list(run.iterdir()) == [] if how == "replaced" else not run.exists()


def test_checkpoints_that_were_deleted_under_a_run_are_reported_and_made_again(tmp_path, monkeypatch):
    config, checkpoints = write_config(tmp_path, **SHORT), tmp_path / "runs/tiny/checkpoints"
    step = train.loop.forward_backward

    def deleting(running, *arguments, **options):
        if running.state.step == 3:
            shutil.rmtree(checkpoints)
        return step(running, *arguments, **options)

    monkeypatch.setattr(train.loop, "forward_backward", deleting)
    done = pretrain(config)
    assert done.stdout.count(f"warning: {checkpoints} was moved or deleted; it is made again") == 1
    assert (checkpoints / "latest").read_text() == "step_00000004\n"


# The same command started twice within seconds: one process trains, the other is refused, nothing is mixed

DOUBLE = {"model": {"hidden_dropout": 0.1}, "train": {"max_steps": 80, "checkpoint_every": 20}, "eval": {"every": 40}}


def start_after(seconds: float, config: Path, output: Path) -> None:
    torch.set_num_threads(1)
    print_to(output)
    run_lock.PATIENCE_S = 0.1  # or the second one waits until so short a run is over
    time.sleep(seconds)
    sys.argv = ["pretrain", str(config)]
    exit_on_bad_input(main)


@pytest.mark.parametrize("starts", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_double_starts_have_one_owner_each(starts, tmp_path):
    dice, figures, endings = random.Random(starts), [], []
    for number in range(starts):
        folder = tmp_path / str(number)
        folder.mkdir()
        config, delay = write_config(folder, **DOUBLE), dice.choice([0.0, dice.uniform(0, 0.3), dice.uniform(0, 3)])
        twice = [start(start_after, s, config, folder / f"{n}.txt") for n, s in enumerate((0.0, delay))]
        for process in twice:
            process.join(timeout=300)
        printed = [(folder / f"{n}.txt").read_text() for n in range(2)]
        endings.append(sorted(process.exitcode for process in twice))
        assert endings[-1] in ([0, 2], [0, 0]), printed
        for process, other, text in zip(twice, reversed(twice), printed, strict=True):
            if process.exitcode == 2:
                assert f"is in use by process {other.pid} on " in text
                assert text.count("\n") == 1, text
        if endings[-1] == [0, 0]:  # one after the other
            assert sorted("step 0: loss" in text for text in printed) == [False, True], printed
        run = folder / "runs/tiny"
        assert all(damage(path) is None for path in (run / "checkpoints").glob("step_*"))
        figures.append((metrics(run), sorted(path.name for path in (run / "checkpoints").iterdir())))
        assert figures[-1] == figures[0]
        assert [m["step"] for m in figures[-1][0] if m["split"] == "train"] == list(range(1, 81))
    assert endings.count([0, 2]) >= starts // 4, endings
