"""DDP and FSDP2 on two processes (gloo): the same run as one process, and what goes wrong is said once."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from configs.command import InputError
from eval import language_modeling
from eval.attention import snapshots
from tests.train.helpers import REPOSITORY, metrics, pretrain, write_config
from tests.train.worlds import failing_on_rank_1, pretrain_rank, run_world, trace
from train.checkpoint import damage
from train.optimizer import orthogonalize
from train.pretrain import main  # noqa: F401
from train.processes import IN_MEMORY, SharedMemory

TIED = {"tie_word_embeddings": True}


def parallel_config(folder, **sections):
    train = {"trace": True, "checkpoint_every": 0} | sections.pop("train", {})
    return write_config(folder, train=train, eval={"every": 0, "sample_tokens": 4}, **sections)


def close(ours: list[dict], theirs: list[dict], key: str) -> float:
    pairs = [(float.fromhex(a[key]), float.fromhex(b[key])) for a, b in zip(ours, theirs, strict=True)]
    return max(abs(a - b) for a, b in pairs)


@pytest.mark.parametrize(
    ("parallel", "changes"),
    [
        ("ddp", {"train": {"micro_batch_size": 2}}),
        pytest.param("fsdp2", {"train": {"micro_batch_size": 2}, "model": TIED}, marks=pytest.mark.slow),
        pytest.param("fsdp2", {"train": {"optimizer": {"name": "adamw", "lr": 2e-3}}}, marks=pytest.mark.slow),
    ],
    ids=["ddp, muon", "fsdp2, muon, tied", "fsdp2, adamw"],
)
def test_one_process_then_two_then_one_is_the_run_of_one(tmp_path, parallel, changes):
    """The signal that ends the middle part reaches one of two processes only: both stop at the same step."""
    config = parallel_config(tmp_path, **changes)
    chosen = [f"train.parallel={parallel}"]
    assert run_world(1, pretrain_rank, config, ["name=whole"]) == [0]
    assert run_world(1, pretrain_rank, config, chosen, 3) == [143]
    assert run_world(2, pretrain_rank, config, chosen, 7) == [143, 143]
    assert "stopped at step 8" in config.with_name("rank0.txt").read_text()
    (line,) = config.with_name("rank1.txt").read_text().strip().splitlines()
    assert line.startswith("SIGTERM: saving after this step …")
    assert run_world(1, pretrain_rank, config, chosen) == [0]

    ours, theirs = trace(tmp_path / "runs/tiny"), trace(tmp_path / "runs/whole")
    assert [line["step"] for line in ours] == list(range(1, 13))
    for key in ("step", "batch", "lr"):
        assert [line[key] for line in ours] == [line[key] for line in theirs]
    assert ours[:4] == theirs[:4]
    assert ours[4:8] != theirs[4:8]  # sums in another order: two processes did take part
    assert close(ours, theirs, "loss") < 1e-5
    assert close(ours, theirs, "grad_norm") < 1e-3
    for checkpoint in (tmp_path / "runs").glob("*/checkpoints/step_*"):
        assert damage(checkpoint) is None


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_two_processes_look_at_their_heads_and_are_scored_as_one(tmp_path, parallel):
    config = write_config(
        tmp_path, train={"trace": True}, eval={"every": 6, "attention": {"every": 6, "early": [1], "max_tokens": 8}}
    )
    assert run_world(1, pretrain_rank, config, ["name=one"]) == [0]
    assert run_world(2, pretrain_rank, config, ["name=two", f"train.parallel={parallel}"]) == [0, 0]
    one, two = ([m for m in metrics(tmp_path / "runs" / name) if m["split"] == "val"] for name in ("one", "two"))
    assert [m["step"] for m in two] == [0, 6, 12]
    assert [m["loss"] for m in two] == pytest.approx([m["loss"] for m in one], abs=1e-5)
    for name in ("attention/viewer.html", "attention/timelapse.gif", "samples.jsonl", "report.md", "checkpoints/best"):
        assert (tmp_path / "runs/two" / name).stat().st_size > 0
    ours, theirs = (snapshots.read_all(tmp_path / "runs" / name)[0] for name in ("two", "one"))
    assert [one.step for one in ours] == [one.step for one in theirs] == [0, 1, 6, 12]
    for mine, alone in zip(ours, theirs, strict=True):
        for name, values in alone.scores.items():
            assert values == pytest.approx(mine.scores[name], abs=1e-3, nan_ok=True), name
    said = config.with_name("rank0.txt").read_text()
    assert "hook is off" not in said
    assert said.count(f"watch it: {(tmp_path / 'runs/two/attention/viewer.html').as_uri()}") == 1
    assert config.with_name("rank1.txt").read_text() == ""


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
    assert config.with_name("rank0.txt").read_text() == (
        "error: 3 processes cannot share the 8 rows of a step evenly (train.tokens_per_step / data.sequence_length): "
        "start 2, or make the rows a multiple of 3\n"
    )
    assert config.with_name("rank1.txt").read_text() == ""
    assert not (tmp_path / "runs").exists()


def test_dropout_differs_between_processes_and_resumes_exactly(tmp_path):
    """Killed by SIGTERM and resumed with as many processes: every random state is its own process's."""
    config = parallel_config(tmp_path, model={"hidden_dropout": 0.3})
    assert run_world(2, pretrain_rank, config, ["name=whole"]) == [0, 0]
    assert run_world(2, pretrain_rank, config, [], 5) == [143, 143]
    assert run_world(2, pretrain_rank, config, []) == [0, 0]
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


def counting_rank(config: Path, overrides: list[str], fail: bool = False) -> None:
    """A run that writes how many held-out batches its process read; with `fail`, rank 1 runs out of memory there."""
    rank, read = os.environ.get("RANK", "0"), []
    loss_sum = language_modeling._loss_sum

    def counted(lm, batch, may_retry):
        read.append(len(batch.row_ids))
        config.with_name(f"read{rank}").write_text(str(len(read)))
        if fail and rank == "1":
            lm = refuse
        return loss_sum(lm, batch, may_retry)

    def refuse(**batch):
        raise torch.OutOfMemoryError("no memory is left")

    language_modeling._loss_sum = counted
    pretrain_rank(config, overrides)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_the_processes_share_the_validation_and_find_the_same_loss(tmp_path, parallel):
    changes = {"eval": {"every": 1, "hooks": ["validation"], "max_tokens": None}, "train": {"max_steps": 1}}
    config = write_config(tmp_path, **changes)
    pretrain(config, "name=alone", "train.micro_batch_size=2")
    options = ["train.micro_batch_size=2", f"train.parallel={parallel}"]
    assert run_world(2, counting_rank, config, options) == [0, 0]
    alone, shared = (
        [line["loss"] for line in metrics(tmp_path / "runs" / name) if line["split"] == "val"]
        for name in ("alone", "tiny")
    )
    assert shared[0] == (alone[0] if parallel == "ddp" else pytest.approx(alone[0], rel=1e-6))  # before the first step
    counts = [int(config.with_name(f"read{rank}").read_text()) for rank in (0, 1)]
    assert abs(counts[0] - counts[1]) <= 2  # at the start and at the end
    assert min(counts) > 5


def test_memory_that_runs_out_in_the_validation_of_one_fsdp2_process_ends_the_run(tmp_path):
    """The forward passes of FSDP2 are made together, so a second try of one process would wait for ever."""
    config = write_config(tmp_path, eval={"every": 0, "hooks": ["validation"]}, train={"max_steps": 1})
    codes = run_world(2, counting_rank, config, ["train.parallel=fsdp2"], True)
    assert codes[1] == 2
    assert codes[0] not in (0, None)
    assert "out of memory while evaluating" in config.with_name("rank1.txt").read_text()


# ---------------------------------------------------------------------------------------------------------
# what the processes on the cores of one machine add up in the memory that they share: the same bits in all of them

SIZE, CALLS = 3, 6


def numbers(rank: int, call: int) -> list[torch.Tensor]:
    """What process `rank` brings to a call: more every time, so that the room has to grow."""
    draw = torch.Generator().manual_seed(100 * call + rank)
    return [torch.randn(3 + call, 5, generator=draw), torch.randn(7 * call + 1, generator=draw)]


def matrices(call: int) -> list[torch.Tensor]:
    """What they share to compute: two stacks, of which one has fewer matrices than there are processes."""
    draw = torch.Generator().manual_seed(call)
    return [torch.randn(5, 4, 6, generator=draw), torch.randn(2, 3, 3, generator=draw)]


def add_up_and_put_together(folder: Path, quickest: int) -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    memory = SharedMemory(rank, size)
    for call in range(CALLS):
        own = numbers(rank, call)
        memory.add_up(own)
        if rank != quickest:
            time.sleep(0.02)  # what it reads now must still be there when the quickest is in the next call
        items = matrices(call)
        torch.save((own, memory.in_shares(orthogonalize, items)), folder / f"{rank}_{call}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("quickest", range(SIZE))
def test_all_processes_find_the_sum_in_the_order_of_their_ranks(tmp_path, quickest):
    left = set(IN_MEMORY.glob("headlight-*"))
    assert run_world(SIZE, add_up_and_put_together, tmp_path, quickest) == [0] * SIZE
    for call in range(CALLS):
        brought = [numbers(rank, call) for rank in range(SIZE)]
        expected = [torch.stack(tensors).sum(dim=0) for tensors in zip(*brought, strict=True)]
        items = matrices(call)
        found = [torch.load(tmp_path / f"{rank}_{call}.pt") for rank in range(SIZE)]
        for own, orthogonal in found:
            torch.testing.assert_close(own, expected)
            torch.testing.assert_close(orthogonal, [orthogonalize(each) for each in items])
            assert all(torch.equal(mine, first) for mine, first in zip(orthogonal, found[0][1], strict=True))
            assert all(torch.equal(mine, first) for mine, first in zip(own, found[0][0], strict=True))
    assert set(IN_MEMORY.glob("headlight-*")) <= left


def without_room() -> None:
    dist.init_process_group("gloo")
    shutil.disk_usage = lambda where: SimpleNamespace(free=1000)
    with pytest.raises(InputError, match=r"no room for 4 MiB .*: set train\.processes=1"):
        SharedMemory(dist.get_rank(), 2).add_up([torch.ones(2**18)])
    dist.destroy_process_group()


def test_without_room_every_process_says_so():
    assert run_world(2, without_room) == [0, 0]
