"""A run directory has one owner: double starts, killed owners."""

import random
import socket
import sys
import time
from pathlib import Path

import pytest
import torch

from configs.command import InputError, exit_on_bad_input
from tests.processes import print_to, start
from tests.train.helpers import at_each_step, metrics, refusal, write_config
from tests.train.worlds import pretrain_rank, run_world
from train import checkpoint
from train.checkpoint import LOCK, OWNER, damage, own
from train.pretrain import main

SHORT = {"train": {"max_steps": 4, "checkpoint_every": 2}, "eval": {"every": 0}}


def hold(directory: Path, flag: Path) -> None:
    """Own a folder for ever; `flag` appears once that is so."""
    with own(directory):
        flag.touch()
        time.sleep(60)


@pytest.fixture
def holding(tmp_path):
    """A function that has a folder owned by another process, and returns that process."""
    processes = []

    def begin(directory: Path):
        processes.append(start(hold, directory, tmp_path / "flag"))
        until = time.monotonic() + 120
        while not (tmp_path / "flag").exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.join()


def take_and_leave(directory: Path) -> None:
    with own(directory):
        assert {path.name for path in directory.iterdir()} == {OWNER, LOCK}


def test_the_owner_is_named_and_a_folder_at_rest_has_no_file_of_it(tmp_path, holding):
    run = tmp_path / "runs/x"
    take_and_leave(run)
    assert not run.exists()  # nothing was written, so nothing stays
    process = holding(run)
    with pytest.raises(InputError) as caught:
        take_and_leave(run)
    assert str(caught.value).startswith(f"{run} is in use by process {process.pid} on {socket.gethostname()}, since 2")
    process.kill()
    process.join()
    take_and_leave(run)  # a killed one is in nobody's way
    assert not run.exists()


def test_a_second_start_is_refused_in_every_process_by_one_line_and_changes_nothing(tmp_path, holding):
    config, run = write_config(tmp_path, **SHORT), tmp_path / "runs/tiny"
    process = holding(run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert run_world(2, pretrain_rank, config, []) == [2, 2]
    assert f"error: {run} is in use by process {process.pid} on " in (tmp_path / "rank0.txt").read_text()
    assert "error" not in (tmp_path / "rank1.txt").read_text()
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_run_whose_directory_goes_away_stops_with_one_line(tmp_path):
    run = tmp_path / "runs/tiny"
    with at_each_step(lambda running: run.rename(tmp_path / "away") if running.state.step == 3 else None):
        said = refusal(write_config(tmp_path, train={"checkpoint_every": 100}))
    assert said.startswith(f"error: {run} was moved or deleted while a run was writing into it")
    assert not run.exists()


# The same command started twice within seconds: one process trains, the other is refused, nothing is mixed

DOUBLE = {"model": {"hidden_dropout": 0.1}, "train": {"max_steps": 80, "checkpoint_every": 20}, "eval": {"every": 40}}


def start_after(seconds: float, config: Path, output: Path) -> None:
    torch.set_num_threads(1)
    print_to(output)
    checkpoint.PATIENCE_S = 0.1  # or the second one waits until so short a run is over
    time.sleep(seconds)
    sys.argv = ["pretrain", str(config)]
    exit_on_bad_input(main)


def test_double_starts_have_one_owner_each(tmp_path):
    starts = 4
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
        run = folder / "runs/tiny"
        assert all(damage(path) is None for path in (run / "checkpoints").glob("step_*"))
        figures.append((metrics(run), sorted(path.name for path in (run / "checkpoints").iterdir())))
        assert figures[-1] == figures[0]
        assert [m["step"] for m in figures[-1][0] if m["split"] == "train"] == list(range(1, 81))
    assert endings.count([0, 2]) >= starts // 4, endings
