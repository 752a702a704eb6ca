"""A run directory has one owner: double starts, killed owners, file systems without locks, folders that move away."""

import errno
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import filelock
import pytest

from configs import locks
from tests.processes import start
from tests.train.double_starts import checked, undisturbed
from tests.train.helpers import REPOSITORY, metrics, pretrain, refusal, write_config
from tests.train.worlds import pretrain_rank, run_world
from train.saving import owner
from train.saving.owner import CARD, FILES, LEASE, LOCK, holder, owned
from train.sweep import __main__ as sweep

HERE = socket.gethostname()
SHORT = {"train": {"max_steps": 4, "checkpoint_every": 2}, "eval": {"every": 0}}


def hold(directory: Path, flag: Path, with_locks: bool = True, child: bool = False) -> None:
    """Own a folder for ever; `flag` appears once that is so. child: leave a forked process behind."""
    if not with_locks:
        without_locks()
    with owned(directory) as ours:
        assert not ours.problem, ours.problem
        if child and os.fork() == 0:
            time.sleep(60)
            os._exit(0)
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

    def begin(directory: Path, *arguments, **options):
        flag = tmp_path / "flag"
        process = start(hold, directory, flag, *arguments, **options)
        processes.append(process)
        wait_for(flag)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.join()


def wait_for(file: Path) -> None:
    until = time.monotonic() + 120
    while not file.exists():
        assert time.monotonic() < until, f"{file} did not appear"
        time.sleep(0.01)


def refused(directory: Path) -> str:
    with owned(directory) as ours:
        return ours.problem


def lockless(monkeypatch):
    monkeypatch.setattr(filelock.FileLock, "acquire", filelock.FileLock.acquire)
    without_locks()


# One owner


@pytest.mark.slow
def test_the_owner_is_named_and_a_folder_at_rest_has_no_file_of_it(tmp_path, holding):
    run = tmp_path / "runs/x"
    assert refused(run) == ""
    assert not (tmp_path / "runs").exists()  # nothing was written, so nothing stays
    process = holding(run)
    told = refused(run)
    assert told.startswith(f"{run} is in use by process {process.pid} on {HERE}, since 2")
    assert told.endswith(": wait until it ends, or stop it")
    assert holder(run) in told
    assert sorted(path.name for path in run.iterdir()) == sorted([CARD, LOCK])


def test_a_killed_owner_leaves_nothing_in_the_way(tmp_path, holding):
    process = holding(tmp_path / "x")
    process.kill()
    process.join()
    assert holder(tmp_path / "x") == ""
    began = time.monotonic()
    with owned(tmp_path / "x") as ours:
        assert ours.problem == ""
        assert json.loads((tmp_path / "x" / CARD).read_text())["pid"] == os.getpid()
    assert time.monotonic() - began < owner.PATIENCE_S
    assert list((tmp_path / "x").iterdir()) == []


def test_a_process_that_was_forked_by_a_killed_owner_does_not_hold_the_lock(tmp_path, holding):
    process = holding(tmp_path / "x", child=True)
    process.kill()
    process.join()
    assert refused(tmp_path / "x") == ""


def test_a_command_started_by_the_owner_does_not_hold_the_lock(tmp_path):
    with owned(tmp_path / "x"):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    try:
        assert refused(tmp_path / "x") == ""
    finally:
        child.communicate(b"\n")


def test_looking_who_owns_a_folder_never_refuses_its_owner(tmp_path, holding):
    """`holder` takes the lock for a moment: whoever wants it waits for longer than that."""
    (tmp_path / "x").mkdir()
    for _ in range(30):
        (tmp_path / "x" / LOCK).touch()
        with owned(tmp_path / "x") as ours:
            assert ours.problem == ""
            assert holder(tmp_path / "x") == holder(tmp_path / "x") != ""
        assert holder(tmp_path / "x") == ""


# File systems without locks


def test_without_locks_a_live_owner_is_respected_and_a_dead_one_is_not(tmp_path, holding, monkeypatch):
    lockless(monkeypatch)
    process = holding(tmp_path / "x", with_locks=False)
    assert f"process {process.pid} on {HERE}" in refused(tmp_path / "x")
    process.kill()
    process.join()
    assert refused(tmp_path / "x") == ""


@pytest.mark.parametrize("renews", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_without_locks_an_owner_on_another_host_is_watched(renews, tmp_path, holding, monkeypatch, capsys):
    """Nobody can ask whether its process lives: it does as long as it renews its lease."""
    lockless(monkeypatch)
    monkeypatch.setattr(locks, "LEASE_S", 3.0)
    run = tmp_path / "x"
    run.mkdir()
    (run / CARD).write_text('{"pid": 7, "host": "alpha", "since": "2026-01-01 00:00:00"}')
    lease = f"filelock/2\npid=7\nhost=alpha\nmode=lease\ntoken={'0' * 32}\nduration=3.0\nstart=1\n\n"
    (run / LEASE).write_text(lease)
    if renews:
        monkeypatch.setattr(locks, "LEASE_S", 0.3)  # it waits for less than the lease lasts: as if it were renewed
        (run / LEASE).write_text(lease.replace("3.0", "0.3"))
        monkeypatch.setattr(time, "sleep", renewing(run / LEASE, time.sleep))
    told = refused(run)
    assert ("process 7 on alpha" in told) == renews
    assert "to see whether process 7 on alpha" in capsys.readouterr().err


def renewing(lease: Path, sleep):
    def slept(seconds):
        sleep(seconds)
        os.utime(lease)

    return slept


def test_without_locks_a_run_trains_and_leaves_no_lease(tmp_path, monkeypatch):
    lockless(monkeypatch)
    pretrain(write_config(tmp_path, **SHORT))
    assert not [name for name in FILES if (tmp_path / "runs/tiny" / name).exists()]


# The real command


def test_a_second_start_of_a_running_run_is_refused_and_changes_nothing(tmp_path, holding):
    config, run = write_config(tmp_path, **SHORT), tmp_path / "runs/tiny"
    process = holding(run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    said = refusal(config)
    assert said.startswith(f"error: {run} is in use by process {process.pid} on {HERE}, since ")
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
    process.kill()
    process.join()
    assert run_world(2, pretrain_rank, config, []) == [0, 0]
    assert not [name for name in FILES if (run / name).exists()]


@pytest.mark.parametrize("how", ["moved", "deleted", "replaced"])
@pytest.mark.parametrize("due", ["a line of metrics.jsonl", "a checkpoint", "an evaluation"])
def test_a_run_whose_directory_goes_away_stops_with_one_line(how, due, tmp_path, monkeypatch):
    every = {name: int(name == due) for name in ("a line of metrics.jsonl", "a checkpoint", "an evaluation")}
    sections = {"log_every": every["a line of metrics.jsonl"] or 100, "checkpoint_every": every["a checkpoint"] or 100}
    config = write_config(
        tmp_path,
        train={"max_steps": 9, **sections},
        eval={"every": 0, "attention": {"every": every["an evaluation"], "max_tokens": 12}},
    )
    run, away = tmp_path / "runs/tiny", tmp_path / "away"
    import train.loop

    step = train.loop.training_step

    def moving(running, *arguments, **options):
        if running.state.step == 3:
            shutil.rmtree(run) if how == "deleted" else run.rename(away)
            if how == "replaced":
                run.mkdir()
        return step(running, *arguments, **options)

    monkeypatch.setattr(train.loop, "training_step", moving)
    done = pretrain(config, code=2)
    told = f"error: {run} was moved, replaced or deleted while this process was writing into it"
    assert done.stderr.splitlines()[-1].startswith(told)
    assert "warning" not in done.stdout + done.stderr
    assert list(run.iterdir()) == [] if how == "replaced" else not run.exists()
    if how == "moved" and due == "a checkpoint":
        away.rename(run)
        monkeypatch.undo()
        pretrain(config)
        assert [m["step"] for m in metrics(run) if m["split"] == "train"] == [9]


def test_checkpoints_that_were_deleted_under_a_run_are_reported_and_made_again(tmp_path, monkeypatch):
    config, checkpoints = write_config(tmp_path, **SHORT), tmp_path / "runs/tiny/checkpoints"
    import train.loop

    step = train.loop.training_step

    def deleting(running, *arguments, **options):
        if running.state.step == 3:
            shutil.rmtree(checkpoints)
        return step(running, *arguments, **options)

    monkeypatch.setattr(train.loop, "training_step", deleting)
    done = pretrain(config)
    assert done.stdout.count(f"warning: {checkpoints} was moved or deleted; it is made again") == 1
    assert (checkpoints / "latest").read_text() == "step_00000004\n"


# Sweeps


KEY = "model.num_key_value_heads=1,2"


def on_first_look(monkeypatch, act) -> None:
    """Do this when a sweep that waits looks for the first time whether the other process has ended."""
    has_ended, looks = sweep.Adopted.has_ended, []

    def looked(adopted):
        if not looks:
            act()
        looks.append(adopted)
        return has_ended(adopted)

    monkeypatch.setattr(sweep.Adopted, "has_ended", looked)


def test_a_second_sweep_is_refused_and_trains_nothing(tmp_path, holding):
    config, folder = write_config(tmp_path, **SHORT), tmp_path / "runs/tiny-sweep-num_key_value_heads"
    process = holding(folder)
    said = refusal(config, KEY, script=sweep.main)
    assert said.startswith(f"error: {folder} is in use by process {process.pid} on {HERE}, since ")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [folder.name]


def test_a_sweep_waits_for_a_run_that_another_process_trains(tmp_path, holding, monkeypatch):
    config = write_config(tmp_path, train={"max_steps": 4, "checkpoint_every": 2}, eval={"every": 2})
    for heads in (1, 2):
        pretrain(config, f"model.num_key_value_heads={heads}", f"name=tiny-{heads}-seed0")
    process = holding(tmp_path / "runs/tiny-1-seed0")
    on_first_look(monkeypatch, process.kill)
    done = pretrain(config, KEY, "--skip-decode", script=sweep.main)
    assert "2 runs, 1 of them already trained" in done.stdout
    waited = f"[1/2] tiny-1-seed0: is trained by process {process.pid} on {HERE}, since "
    assert waited in done.stdout
    assert "[2/2] tiny-1-seed0: trained" in done.stdout


def test_a_sweep_that_waits_can_be_stopped(tmp_path, holding, monkeypatch):
    config = write_config(tmp_path, **SHORT)
    process = holding(tmp_path / "runs/tiny-1-seed0")
    on_first_look(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGINT))
    done = pretrain(config, KEY, code=130, script=sweep.main)
    assert "tiny-1-seed0: is not waited for any more; its process continues" in done.stdout
    assert "FAILED" not in done.stdout
    assert process.is_alive()


@pytest.mark.slow
def test_a_sweep_goes_on_with_the_runs_that_a_killed_sweep_left_behind(tmp_path):
    hooks = ["validation", {"name": "tests.train.holding:while_held", "every": 2}]
    config = write_config(tmp_path, train=SHORT["train"], eval={"every": 2, "hooks": hooks})
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "hold").touch()
    command = [sys.executable, "-u", "-m", "train.sweep", str(config), KEY, "--skip-decode", "--trust-hooks"]
    both = {"cwd": REPOSITORY, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with (tmp_path / "first.txt").open("w") as told:
        first = subprocess.Popen(command, cwd=REPOSITORY, stdout=told, stderr=told)
    wait_for(runs / "held")
    first.kill()
    first.wait()
    second = subprocess.Popen(command, **both)
    lines = []
    while not lines or "waiting until that ends" not in lines[-1]:
        lines.append(second.stdout.readline())
        assert lines[-1], lines
    assert "is in use by process" in pretrain(config, KEY, "--trust-hooks", code=2, script=sweep.main).stderr
    (runs / "hold").unlink()
    printed, _ = second.communicate(timeout=300)
    assert second.returncode == 0, printed
    assert "FAILED" not in printed
    assert "[1/2] tiny-2-seed0: trained" in printed
    pretrain(config, "name=alone", "--trust-hooks")
    assert metrics(runs / "tiny-2-seed0") == metrics(runs / "alone")


# Double starts


@pytest.mark.parametrize("starts", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_double_starts_have_one_owner_each(starts, tmp_path):
    expected, dice = undisturbed(tmp_path / "alone"), random.Random(starts)
    endings = [checked(tmp_path / f"twice{number}", expected, dice) for number in range(starts)]
    assert endings.count("refused") >= starts // 3, endings
