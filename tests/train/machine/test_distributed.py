"""Several processes (DDP, FSDP2, the cores of one machine): the same run as one process, and what
goes wrong.
"""

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import train.loop
import train.run.begin_and_end
from configs.command import InputError
from eval.attention import snapshots
from tests.processes import start
from tests.train.helpers import (
    REPOSITORY,
    assert_held_the_same,
    at_each_step,
    in_a_group,
    losses,
    noting_rank,
    pretrain_rank,
    run_world,
    trace,
    write_config,
)
from train.config import load_run_config
from train.machine import cpu_processes
from train.machine.cpu_processes import IN_MEMORY, SharedMemory, number_of_processes
from train.optimizer import orthogonalize
from train.run.checkpoint import damage


def parallel_config(folder, **sections):
    train = {"trace": True, "checkpoint_every": 0} | sections.pop("train", {})
    return write_config(folder, train=train, eval={"every": 0, "sample_tokens": 4}, **sections)


@pytest.mark.parametrize(
    ("parallel", "changes"),
    [
        pytest.param("ddp", {"micro_batch_size": 2}, id="ddp, muon"),
        pytest.param("fsdp2", {"micro_batch_size": 2}, id="fsdp2, muon", marks=pytest.mark.slow),
        pytest.param("fsdp2", {"optimizer": {"name": "adamw", "lr": 2e-3}}, id="fsdp2, adamw", marks=pytest.mark.slow),
    ],
)
def test_one_process_then_two_then_one_is_the_run_of_one(tmp_path, parallel, changes):
    """The signal that ends the middle part reaches one of two processes only: both stop at the same
    step.
    """
    config = parallel_config(tmp_path, train=changes)
    chosen = [f"train.parallel={parallel}"]
    assert run_world(1, pretrain_rank, config, ["name=whole"]) == [0]
    assert run_world(1, pretrain_rank, config, chosen, 3) == [143]
    assert run_world(2, pretrain_rank, config, chosen, 7) == [143, 143]
    assert "stopped at step 8" in config.with_name("rank0.txt").read_text()
    (line,) = config.with_name("rank1.txt").read_text().strip().splitlines()
    assert line.startswith("SIGTERM: saving after this step …")
    assert run_world(1, pretrain_rank, config, chosen) == [0]

    ours = trace(tmp_path / "runs/tiny")
    theirs = trace(tmp_path / "runs/whole")
    for key in ("step", "batch", "lr"):
        assert [line[key] for line in ours] == [line[key] for line in theirs]
    assert ours[:4] == theirs[:4]
    assert ours[4:8] != theirs[4:8]  # sums in another order: two processes did take part
    for key, largest in (("loss", 1e-5), ("grad_norm", 1e-3)):
        pairs = ((float.fromhex(a[key]), float.fromhex(b[key])) for a, b in zip(ours, theirs, strict=True))
        assert max(abs(a - b) for a, b in pairs) < largest
    for checkpoint in (tmp_path / "runs").glob("*/checkpoints/step_*"):
        assert damage(checkpoint) is None


@pytest.mark.parametrize("parallel", ["ddp", pytest.param("fsdp2", marks=pytest.mark.slow)])
def test_two_processes_share_the_validation_look_at_their_heads_and_are_scored_as_one(tmp_path, parallel):
    looks = {"every": 6, "max_tokens": None, "attention": {"every": 6, "early": [1], "max_tokens": 8}}
    config = write_config(tmp_path, train={"micro_batch_size": 2}, eval=looks)
    assert run_world(1, pretrain_rank, config, ["name=one"]) == [0]
    assert run_world(2, pretrain_rank, config, ["name=two", f"train.parallel={parallel}"]) == [0, 0]
    one, two = (losses(tmp_path / "runs" / name) for name in ("one", "two"))
    # before the first step
    assert two[0] == (one[0] if parallel == "ddp" else pytest.approx(one[0], rel=1e-6))
    assert two == pytest.approx(
        one, rel=1e-5
    )  # steps of two rows at a time are added up in another order: 4e-6 with AVX2
    ours, theirs = (snapshots.read_all(tmp_path / "runs" / name)[0] for name in ("two", "one"))
    assert [each.step for each in ours] == [each.step for each in theirs] == [0, 1, 6, 12]
    for mine, alone in zip(ours, theirs, strict=True):
        for name, values in alone.scores.items():
            assert values == pytest.approx(mine.scores[name], abs=1e-3, nan_ok=True), name
    assert (tmp_path / "runs/two/attention/viewer.html").stat().st_size > 0
    assert "hook is off" not in config.with_name("rank0.txt").read_text()
    assert config.with_name("rank1.txt").read_text() == ""


def failing_on_rank_1(config: Path, overrides: list[str]) -> None:
    """The same, but on rank 1 the second capture finds that its map is not the kernel's."""
    capture = snapshots.capture
    calls = itertools.count(1)

    def wrong(*arguments, **options):
        if next(calls) == 2 and os.environ["RANK"] == "1":
            capture(*arguments, **options)  # which the other process makes as well
            raise RuntimeError("layer 0: the recomputed attention weights do not give the kernel's output")
        return capture(*arguments, **options)

    snapshots.capture = wrong
    pretrain_rank(config, overrides)


@pytest.mark.slow
def test_a_capture_that_fails_in_one_process_stops_the_hook_in_all_and_none_waits(tmp_path):
    config = write_config(tmp_path, eval={"every": 6, "attention": {"every": 6, "early": [], "max_tokens": 8}})
    assert run_world(2, failing_on_rank_1, config, ["train.parallel=fsdp2"]) == [0, 0]
    said = config.with_name("rank0.txt").read_text()
    assert said.count("warning: the attention hook is off from here: RuntimeError: it failed in another process") == 1
    assert "finished at step 12" in said


def test_processes_that_cannot_share_a_step_are_refused_before_anything_is_written(tmp_path):
    config = parallel_config(tmp_path)
    assert run_world(3, pretrain_rank, config, []) == [2, 2, 2]
    assert "error: 3 processes cannot share the 8 rows of a step evenly" in config.with_name("rank0.txt").read_text()
    assert config.with_name("rank1.txt").read_text() == ""
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_dropout_differs_between_processes_and_resumes_exactly(tmp_path, parallel):
    """Killed by SIGTERM and resumed with as many processes: every random state is its own
    process's. Evaluated in between, after which FSDP2 leaves some parameters gathered.
    """
    evaluated = {"every": 3, "hooks": ["validation"]}
    train = {"trace": True, "checkpoint_every": 0, "parallel": parallel}
    config = write_config(tmp_path, train=train, eval=evaluated, model={"hidden_dropout": 0.3})
    assert run_world(2, noting_rank, config, ["name=whole"]) == [0, 0]
    assert run_world(2, noting_rank, config, [], 5) == [143, 143]
    assert run_world(2, noting_rank, config, []) == [0, 0]
    for rank in (0, 1):
        assert_held_the_same(tmp_path / "runs/tiny", tmp_path / "runs/whole", rank)
    assert trace(tmp_path / "runs/tiny") == trace(tmp_path / "runs/whole")


@pytest.mark.slow
def test_the_command_of_the_readme_under_torchrun(tmp_path):
    config = parallel_config(tmp_path, train={"max_steps": 3})
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "-m", "train.pretrain", str(config)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "2 processes, ddp" in done.stdout
    assert done.stdout.count("finished at step 3") == 1
    assert "Warning" not in done.stderr


def short_of_memory_on_rank_1(config: Path, overrides: list[str]) -> None:
    """A run of which one process runs out of memory in every validation."""
    report_initial_loss = train.run.begin_and_end.report_initial_loss

    def refuse(module, inputs):
        if not module.training:
            raise torch.OutOfMemoryError("no memory is left")

    def hooked(run):
        report_initial_loss(run)
        if run.world.rank == 1:
            run.lm.register_forward_pre_hook(refuse)

    train.run.begin_and_end.report_initial_loss = hooked
    pretrain_rank(config, overrides)


def test_memory_that_runs_out_in_the_validation_of_one_fsdp2_process_ends_the_run(tmp_path):
    """The forward passes of FSDP2 are made together, so a second try of one process would wait for
    ever.
    """
    config = write_config(tmp_path, eval={"every": 0, "hooks": ["validation"]}, train={"max_steps": 1})
    codes = run_world(2, short_of_memory_on_rank_1, config, ["train.parallel=fsdp2"])
    assert codes[1] == 2
    assert codes[0] not in (0, None)
    assert "out of memory while evaluating" in config.with_name("rank1.txt").read_text()


# --------------------------------------------------------------------------------------------------
# what the processes on the cores of one machine add up in the memory that they share: the same bits
# in all of them

SIZE = 3
CALLS = 6


def tensors(call: int, rank: int = 0) -> list[torch.Tensor]:
    """Two that a process brings to a call, more every time, so that the room has to grow; and two
    stacks of matrices, of which one has fewer than there are processes.
    """
    draw = torch.Generator().manual_seed(100 * call + rank)
    shapes = [(3 + call, 5), (7 * call + 1,), (5, 4, 6), (2, 3, 3)]
    return [torch.randn(shape, generator=draw) for shape in shapes]


def add_up_and_put_together(folder: Path, quickest: int) -> None:
    rank = dist.get_rank()
    memory = SharedMemory(rank, SIZE)
    for call in range(CALLS):
        own = tensors(call, rank)[:2]
        memory.add_up(own)
        if rank != quickest:
            # what it reads now must still be there when the quickest is in the next call
            time.sleep(0.02)
        torch.save(own + memory.in_shares(orthogonalize, tensors(call)[2:]), folder / f"{rank}_{call}.pt")


@pytest.mark.parametrize("quickest", range(SIZE))
def test_all_processes_find_the_sum_and_the_shares_of_all_bit_by_bit(tmp_path, quickest):
    left = set(IN_MEMORY.glob("headlight-*"))
    assert run_world(SIZE, in_a_group, add_up_and_put_together, tmp_path, quickest) == [0] * SIZE
    for call in range(CALLS):
        brought = zip(*(tensors(call, rank)[:2] for rank in range(SIZE)), strict=True)
        expected = [torch.stack(each).sum(dim=0) for each in brought] + [orthogonalize(x) for x in tensors(call)[2:]]
        results = [torch.load(tmp_path / f"{rank}_{call}.pt") for rank in range(SIZE)]
        for own in results:
            torch.testing.assert_close(own, expected)
            assert all(torch.equal(mine, first) for mine, first in zip(own, results[0], strict=True))
    assert set(IN_MEMORY.glob("headlight-*")) <= left


def without_room() -> None:
    shutil.disk_usage = lambda where: SimpleNamespace(free=1000)
    with pytest.raises(InputError, match=r"no room for 4 MiB .*: set train\.processes=1"):
        SharedMemory(dist.get_rank(), 2).add_up([torch.ones(2**18)])


def test_without_room_every_process_says_so():
    assert run_world(2, in_a_group, without_room) == [0, 0]


# --------------------------------------------------------------------------------------------------
# train.processes: equal to one, exact when it goes on, and gone when the first one is gone


TWO = "train.processes=2"


def as_command(config: Path, overrides: list[str], kill_at: int | None = None, victim: int = 0, change=None) -> None:
    """`python -m train.pretrain config overrides…`; it prints into rank0.txt. victim: the rank of
    the process that kills itself before step `kill_at`. change: called first, to spoil something.
    """
    torch.set_num_threads(1)
    if change is not None:
        change()
    tempfile.tempdir = str(config.with_name("temporary"))
    config.with_name("temporary").mkdir(exist_ok=True)

    def kill(run) -> None:
        if kill_at is not None:
            with config.with_name("pids.txt").open("a") as pids:
                pids.write(f"{os.getpid()}\n")
        if run.state.step == kill_at and run.world.rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)

    with at_each_step(kill):
        pretrain_rank(config, overrides)


def command(config: Path, *overrides: str, **options) -> tuple[int | None, str]:
    """Exit code, and what it said."""
    process = start(as_command, config, list(overrides), **options)
    process.join(timeout=200)
    process.kill()
    return process.exitcode, config.with_name("rank0.txt").read_text(encoding="utf-8")


def config_of(folder: Path, **train) -> Path:
    return write_config(folder, train={"trace": True, "compile": False} | train, eval={"every": 6})


def test_a_killed_run_of_two_processes_goes_on_exactly(tmp_path):
    """Two processes equal one: test_equivalence.py."""
    config = config_of(tmp_path)
    assert command(config, "name=two", TWO)[0] == 0
    assert command(config, "name=killed", TWO, kill_at=7)[0] == -signal.SIGKILL
    code, said = command(config, "name=killed", TWO)
    assert code == 0, said
    assert "exact until" not in said
    two, killed = (tmp_path / "runs" / name for name in ("two", "killed"))
    assert trace(killed) == trace(two)
    weights = [(run / "checkpoints/step_00000012/model.safetensors").read_bytes() for run in (two, killed)]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("victim", [0, 1])
def test_no_process_outlives_the_others(tmp_path, victim):
    config = config_of(tmp_path, max_steps=10_000_000)
    code, said = command(config, TWO, kill_at=7, victim=victim)
    pids = {int(line) for line in config.with_name("pids.txt").read_text().splitlines()}
    assert len(pids) == 2
    if victim == 1:
        assert code == 2
        assert said.strip().splitlines()[-1].startswith("error: process 1 of 2 ended with exit code -9; the same")
    else:
        assert code == -signal.SIGKILL
    assert "Traceback" not in said
    limit = time.monotonic() + 60
    while any(map(is_alive, pids)):
        assert time.monotonic() < limit, "a process goes on without the others"
        time.sleep(0.05)
    assert not list(config.with_name("temporary").iterdir()), "a temporary folder is left behind"


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def cannot_copy() -> None:
    cpu_processes.CAN_COPY = False


def process_1_is_short_of_memory() -> None:
    losses = train.loop.losses

    def short_of_memory(run, *arguments):
        if run.world.rank == 1 and run.state.micro_rows > 1:
            raise torch.OutOfMemoryError("DefaultCPUAllocator: can't allocate memory")
        return losses(run, *arguments)

    train.loop.losses = short_of_memory


@pytest.mark.slow
@pytest.mark.parametrize("change", [cannot_copy, process_1_is_short_of_memory])
def test_where_processes_start_anew_or_halve_their_rows_together_no_bit_changes(tmp_path, change):
    """Memory: both compute row by row from then on, and the step is not lost."""
    is_short = change is process_1_is_short_of_memory
    config = config_of(tmp_path, max_steps=6)
    code, said = command(config, TWO, *(["train.micro_batch_size=1"] if is_short else []))
    assert code == 0, said
    code, said = command(config, "name=changed", TWO, change=change)
    assert code == 0, said
    assert ("out of memory with 2 rows at a time: 1 from here" in said) == is_short
    assert trace(tmp_path / "runs/changed") == trace(tmp_path / "runs/tiny")


@pytest.mark.skipif(not cpu_processes.CAN_COPY, reason="here processes start anew")
def test_a_copy_shares_the_compiler_and_loads_none_of_its_own():
    """This saves 85 MB of memory a process."""
    code = """
import sys, torch
from train.machine.cpu_processes import on_processes
def build():
    before = set(sys.modules)
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))])
    return [name for name in sys.modules if name not in before]
torch.set_num_threads(2)
print(build() if sys.argv[1:] else on_processes(2, build))
"""
    alone, copied = (
        subprocess.check_output([sys.executable, "-c", code, *argument], text=True, cwd=REPOSITORY)
        for argument in (["alone"], [])
    )
    assert "torch._dynamo" in alone  # or this test has nothing to tell
    assert copied == "[]\n"


def test_auto_is_one_a_core_with_at_least_512_tokens_each_and_a_run_keeps_its_number(tmp_path, monkeypatch):
    def number(cores: int, **train) -> int:
        monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
        return number_of_processes(load_run_config(write_config(tmp_path, train={"tokens_per_step": 4096} | train)))

    monkeypatch.delenv("WORLD_SIZE", raising=False)
    # 128 rows, which 6 cannot share
    assert [number(cores) for cores in (1, 2, 6, 64)] == [1, 2, 4, 8]
    assert number(2, tokens_per_step=512) == 1
    assert number(2, processes=4) == 4
    assert number(4, parallel="fsdp2") == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert number(4) == 1  # torchrun's
    monkeypatch.delenv("WORLD_SIZE")
    assert command(config_of(tmp_path, tokens_per_step=1024), TWO)[0] == 0
    # a resumed run keeps its number where there are as many cores
    assert [number(cores) for cores in (8, 1)] == [2, 1]
