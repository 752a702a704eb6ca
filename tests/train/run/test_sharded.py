"""A model that several processes share (FSDP2, HSDP): the run of one process, and checkpoints that
fit any number.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from configs.command import InputError
from model import save
from tests.processes import little_room, start
from tests.train.checkpoints import TOKENIZER, Training, training
from tests.train.helpers import REPOSITORY, in_a_group, pretrain_rank, run_world, trace, write_config
from train.config import OptimizerConfig
from train.machine.distributed import ALONE, World, full_tensor, processes, shard
from train.optimizer import build_optimizers
from train.run.checkpoint import TrainerState, damage, load_checkpoint, newest_intact, save_checkpoint

ODD = {"intermediate_size": 50, "vocab_size": 194}  # rows that four processes cannot share evenly


def shared(parallel: str = "fsdp2", optimizer: str = "muon", seed: int = 0) -> tuple[Training, World]:
    run = training(seed, **ODD)
    world = ALONE
    if dist.is_initialized():
        world = World(dist.get_rank(), dist.get_world_size(), parallel=parallel)
    if world.shares_model:
        os.environ["LOCAL_WORLD_SIZE"] = "2"  # machines of two processes
        shard(run.lm, torch.float32, world)
    return Training(run.lm, build_optimizers(run.lm, OptimizerConfig(name=optimizer)), TrainerState()), world


def tensors(run: Training) -> dict[str, torch.Tensor]:
    """Everything that a run holds, whole."""
    moments = {
        f"{n}.{number}.{key}": torch.as_tensor(value)
        for n, optimizer in enumerate(run.optimizers)
        for number, state in optimizer.state_dict()["state"].items()
        for key, value in state.items()
    }
    return {name: full_tensor(tensor).clone() for name, tensor in (run.lm.state_dict() | moments).items()}


def save_shared(folder: Path, parallel: str, optimizer: str) -> None:
    run, world = shared(parallel, optimizer)
    run.steps(2)
    directory = save_checkpoint(folder / "checkpoints", run.lm, run.optimizers, TOKENIZER, run.state, 2, world=world)
    held = tensors(run)
    if world.rank == 0:
        sharers = 2 if parallel == "hsdp" else world.size
        assert len(run.lm.model.layers[0].mlp.up_proj.weight.to_local()) == -(-50 // sharers)
        assert damage(directory) is None
        torch.save(held, folder / "held.pt")
        whole = training(**ODD).lm  # the directory that a run of one process writes
        save(whole, folder / "whole", {name: held[name] for name in whole.state_dict()})
        for file in ("model.safetensors", "config.json"):
            assert (folder / "whole" / file).read_bytes() == (directory / file).read_bytes()


def load_shared(folder: Path, parallel: str, optimizer: str) -> None:
    run, world = shared(parallel, optimizer, seed=1)
    load_checkpoint(folder / "checkpoints/step_00000002", run.lm, run.optimizers, world)
    held = tensors(run)
    expected = torch.load(folder / "held.pt")
    assert held.keys() == expected.keys()
    assert all(torch.equal(held[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("parallel", "size", "optimizer", "readers"),
    [
        ("fsdp2", 2, "muon", [("ddp", 1), ("fsdp2", 4)]),
        pytest.param("hsdp", 4, "adamw", [("fsdp2", 2), ("ddp", 2)], marks=pytest.mark.slow),
        pytest.param("fsdp2", 4, "adamw", [("ddp", 1), ("hsdp", 4), ("fsdp2", 3)], marks=pytest.mark.slow),
    ],
)
def test_shards_are_read_by_any_number_of_processes_and_the_directory_is_that_of_one(
    tmp_path, parallel, size, optimizer, readers
):
    assert run_world(size, in_a_group, save_shared, tmp_path, parallel, optimizer) == [0] * size
    assert len(list(tmp_path.glob("checkpoints/step_00000002/training/shards/*.safetensors"))) == size
    for other, number in readers:
        if number == 1:
            load_shared(tmp_path, other, optimizer)
        else:
            assert run_world(number, in_a_group, load_shared, tmp_path, other, optimizer) == [0] * number


def short_of_room_on_rank_1(folder: Path) -> None:
    run, world = shared()
    run.steps(1)
    with little_room(1000 if world.rank else 10**9), pytest.raises(InputError, match="could not be written"):
        save_checkpoint(folder / "checkpoints", run.lm, run.optimizers, TOKENIZER, run.state, 2, world=world)


def test_if_one_process_has_no_room_every_process_hears_of_it_and_nothing_counts_as_a_checkpoint(tmp_path):
    assert run_world(2, in_a_group, short_of_room_on_rank_1, tmp_path) == [0, 0]
    assert newest_intact(tmp_path / "checkpoints") is None
    assert list(tmp_path.glob("checkpoints/*")) == []


def on_machines_of_two(*arguments) -> None:
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    pretrain_rank(*arguments)


@pytest.mark.slow
def test_four_processes_on_two_machines_then_two_then_one_are_the_run_of_one(tmp_path):
    train = {"trace": True, "micro_batch_size": 1, "checkpoint_every": 0}
    config = write_config(tmp_path, train=train, eval={"every": 6, "sample_tokens": 4})
    assert run_world(1, pretrain_rank, config, ["name=whole"]) == [0]
    assert run_world(4, on_machines_of_two, config, ["train.parallel=hsdp"], 3) == [143] * 4
    assert run_world(2, pretrain_rank, config, ["train.parallel=fsdp2"], 7) == [143] * 2
    assert run_world(1, pretrain_rank, config, []) == [0]
    ours = trace(tmp_path / "runs/tiny")
    theirs = trace(tmp_path / "runs/whole")
    for key in ("step", "batch", "lr"):
        assert [line[key] for line in ours] == [line[key] for line in theirs]
    ours_loss, theirs_loss = ([float.fromhex(line["loss"]) for line in lines] for lines in (ours, theirs))
    # Sums in another order: a Xeon with AMX differed by 2.0e-5 after seven steps, an EPYC by less than 1e-5.
    assert ours_loss == pytest.approx(theirs_loss, abs=5e-5)
    assert ours_loss != theirs_loss
    assert "Warning" not in config.with_name("rank0.txt").read_text()


ELASTIC = """
import os, pathlib, signal, sys
from tests.train.helpers import at_each_step
from configs.command import exit_on_bad_input
from train.pretrain import main

def kill(run):
    if run.state.step == 7 and run.world.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)

with at_each_step(kill):
    exit_on_bad_input(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_torchrun_restarts_a_run_of_which_a_process_was_killed_and_it_goes_on_exactly(tmp_path, parallel):
    """From the checkpoint of step 4: steps 5 to 7 are computed twice."""
    train = {"trace": True, "parallel": parallel}
    config = write_config(tmp_path, train=train, eval={"every": 0, "hooks": []})
    assert run_world(2, pretrain_rank, config, ["name=whole"]) == [0, 0]
    (tmp_path / "killed.py").write_text(ELASTIC)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--max-restarts=1"]
    done = subprocess.run(
        [*command, str(tmp_path / "killed.py"), str(config)],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step_00000004, step 4" in done.stdout
    assert trace(tmp_path / "runs/tiny") == trace(tmp_path / "runs/whole")
    weights = [tmp_path / f"runs/{name}/checkpoints/step_00000012/model.safetensors" for name in ("tiny", "whole")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def meet(port: int, rank: int, attempt: int) -> None:
    here = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    here |= {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": attempt}
    os.environ.update({name: str(value) for name, value in here.items()})
    with processes("ddp", "cpu") as world:
        assert world.sum(1) == [2]


def test_restarted_processes_do_not_wait_for_the_dead_ones_whose_addresses_torchrun_keeps():
    agent = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for attempt in (0, 1):
        early = start(meet, agent.port, 1, attempt)
        early.join(timeout=1)  # so it looks for the other one before that has said where it is
        late = start(meet, agent.port, 0, attempt)
        for process in (early, late):
            process.join(timeout=60)
            process.kill()
        assert [early.exitcode, late.exitcode] == [0, 0]
