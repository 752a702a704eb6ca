"""A run on several cores: as many processes as train.processes says, equal to one, exact when it goes on, and gone when
the first one is gone."""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from configs.command import exit_on_bad_input
from configs.files import read_json
from tests.processes import print_to, start
from tests.train.helpers import write_config
from tests.train.worlds import trace
from train import processes
from train.config import load_run_config
from train.pretrain import main
from train.processes import number_of_processes

TWO = "train.processes=2"


def as_command(config: Path, overrides: list[str], kill_at: int | None = None, victim: int = 0) -> None:
    """`python -m train.pretrain config overrides…`; what it prints is in said.txt. victim: the rank of the process that
    kills itself before step `kill_at`."""
    import train.loop

    torch.set_num_threads(1)
    print_to(config.with_name("said.txt"))
    tempfile.tempdir = str(temporary_folder(config))
    step = train.loop.forward_backward

    def killed(run, *arguments, **options):
        if run.state.step == kill_at and run.world.rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        if kill_at is not None:
            with config.with_name("pids.txt").open("a") as pids:
                pids.write(f"{os.getpid()}\n")
        return step(run, *arguments, **options)

    train.loop.forward_backward = killed
    sys.argv = ["pretrain", str(config), *overrides]
    exit_on_bad_input(main)


def temporary_folder(config: Path) -> Path:
    """Where such a command has its temporary files."""
    folder = config.with_name("temporary")
    folder.mkdir(exist_ok=True)
    return folder


def command(config: Path, *overrides: str, **options) -> tuple[int | None, str]:
    """Exit code, and what it said."""
    process = start(as_command, config, list(overrides), **options)
    process.join(timeout=200)
    process.kill()
    return process.exitcode, config.with_name("said.txt").read_text(encoding="utf-8")


def config_of(folder: Path, **train) -> Path:
    return write_config(folder, train={"trace": True, "compile": False} | train, eval={"every": 6})


def test_two_processes_are_the_run_of_one_and_a_killed_one_goes_on_exactly(tmp_path):
    config = config_of(tmp_path)
    assert command(config, "name=one", "train.processes=1")[0] == 0
    code, said = command(config, "name=two", TWO)
    assert code == 0, said
    assert "2 processes of 1 thread each, which add up their gradients once a step" in said
    assert said.count("step     12   val loss") == 1
    assert command(config, "name=killed", TWO, kill_at=7)[0] == -signal.SIGKILL
    code, said = command(config, "name=killed", TWO)
    assert code == 0
    assert "exact until" not in said
    one, two, killed = (trace(tmp_path / "runs" / name) for name in ("one", "two", "killed"))
    assert killed == two
    assert [line["batch"] for line in one] == [line["batch"] for line in two]
    assert two != one  # sums in another order: two processes did take part
    losses = ([float.fromhex(line["loss"]) for line in lines] for lines in (one, two))
    # Muon makes small singular values up to 3.4445 ** 5, 500 times, larger, and float32's rounding in them
    assert next(losses) == pytest.approx(next(losses), abs=1e-4)
    weights = [(tmp_path / "runs" / name / "checkpoints/step_00000012/model.safetensors") for name in ("two", "killed")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert (
        read_json(tmp_path / "runs/two/checkpoints/step_00000012/training/trainer_state.json")["resolved"]["world_size"]
        == 2
    )


@pytest.mark.parametrize("victim", [0, 1])
def test_no_process_outlives_the_others(tmp_path, victim):
    config = config_of(tmp_path, max_steps=10_000_000)
    code, said = command(config, TWO, kill_at=7, victim=victim)
    pids = {int(line) for line in config.with_name("pids.txt").read_text().splitlines()}
    assert len(pids) == 2
    if victim == 1:
        assert code == 2
        assert said.strip().splitlines()[-1].startswith("error: process 1 of 2 ended (signal 9); the same command")
    else:
        assert code == -signal.SIGKILL
    assert "Traceback" not in said
    limit = time.monotonic() + 60
    while any(map(is_alive, pids)):
        assert time.monotonic() < limit, "a process goes on without the others"
        time.sleep(0.05)
    assert not list(temporary_folder(config).iterdir()), "a temporary folder is left behind"


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.slow
def test_where_a_process_cannot_be_copied_the_others_start_anew(tmp_path, monkeypatch):
    code, said = command(config_of(tmp_path), TWO)
    assert code == 0, said
    process = start(as_command_anew, config_of(tmp_path), ["name=anew", TWO])
    process.join(timeout=200)
    assert process.exitcode == 0, (tmp_path / "said.txt").read_text()
    assert trace(tmp_path / "runs/anew") == trace(tmp_path / "runs/tiny")


def as_command_anew(config: Path, overrides: list[str]) -> None:
    processes.CAN_COPY = False
    as_command(config, overrides)


@pytest.mark.slow
def test_memory_that_runs_out_in_one_process_halves_the_rows_of_all(tmp_path):
    """Process 1 cannot hold two rows at a time; both compute one by one from then on, and the step is not lost."""
    code, said = command(config_of(tmp_path, max_steps=6), TWO, "train.micro_batch_size=1")
    assert code == 0, said
    process = start(as_command_without_memory, config_of(tmp_path, max_steps=6), ["name=short", TWO])
    process.join(timeout=200)
    said = (tmp_path / "said.txt").read_text()
    assert process.exitcode == 0, said
    assert "out of memory with 2 rows at a time: 1 from here" in said
    assert trace(tmp_path / "runs/short") == trace(tmp_path / "runs/tiny")


def as_command_without_memory(config: Path, overrides: list[str]) -> None:
    import train.loop

    passes = train.loop.forward_backward

    def short_of_memory(run, *arguments):
        if run.world.rank == 1 and run.state.micro_rows > 1:
            raise torch.OutOfMemoryError("DefaultCPUAllocator: can't allocate memory")
        return passes(run, *arguments)

    train.loop.forward_backward = short_of_memory
    as_command(config, overrides)


def numbers(tmp_path: Path, cores: int, monkeypatch, **changes) -> int:
    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    train = {"tokens_per_step": 4096} | changes.pop("train", {})
    return number_of_processes(load_run_config(write_config(tmp_path, train=train, **changes)))


def test_auto_is_one_a_core_with_at_least_512_tokens_each(tmp_path, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert numbers(tmp_path, 1, monkeypatch) == 1
    assert numbers(tmp_path, 2, monkeypatch) == 2
    assert numbers(tmp_path, 6, monkeypatch) == 4  # 128 rows, which 6 cannot share
    assert numbers(tmp_path, 64, monkeypatch) == 8
    assert numbers(tmp_path, 2, monkeypatch, train={"tokens_per_step": 512}) == 1
    assert numbers(tmp_path, 2, monkeypatch, train={"processes": 4}) == 4
    assert numbers(tmp_path, 4, monkeypatch, train={"parallel": "fsdp2"}) == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert numbers(tmp_path, 4, monkeypatch) == 1  # torchrun's


def test_a_resumed_run_keeps_its_number_where_there_are_as_many_cores(tmp_path, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    config = config_of(tmp_path, tokens_per_step=1024)
    assert command(config, TWO)[0] == 0
    for cores, expected in ((8, 2), (2, 2), (1, 1)):
        assert numbers(tmp_path, cores, monkeypatch, train={"tokens_per_step": 4096}) == expected
