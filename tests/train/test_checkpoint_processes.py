"""Two processes that share a model (FSDP2, gloo): the same files, and the same steps after them."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from configs.command import InputError
from tests.processes import start
from tests.train.checkpoints import Training, adamw, training
from train.checkpoint import TrainerState, newest_intact

OPTIMIZER = "training/optimizer.safetensors"
pytestmark = pytest.mark.skipif(not dist.is_available() or os.name == "nt", reason="needs torch.distributed and fork")


def on_two_processes(function, folder: Path, *arguments) -> None:
    """function(rank, folder, *arguments) in two processes that know of each other; both must come to their end."""
    children = [start(_joined, function, rank, folder, *arguments) for rank in (0, 1)]
    for child in children:
        child.join(timeout=300)
    assert [child.exitcode for child in children] == [0, 0]


def _joined(function, rank: int, folder: Path, *arguments) -> None:
    torch.set_num_threads(1)
    meeting = folder / f"meeting_{function.__name__}"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    function(rank, folder, *arguments)
    os._exit(0)  # without taking the group apart: a gloo thread that wants the GIL at that moment waits for ever


def shared(fused: bool, tied: bool) -> Training:
    """A model whose every parameter is spread over both processes, and AdamW on the shares."""
    from torch.distributed.fsdp import fully_shard

    run = training("adamw", seed=7, tie_word_embeddings=tied)
    for layer in run.lm.model.layers:
        fully_shard(layer)
    fully_shard(run.lm)
    run.optimizers = adamw(run.lm, fused)
    torch.manual_seed(dist.get_rank())  # each draws rows and dropout of its own
    return run


def evaluate(run: Training) -> None:
    """A pass without gradients, after which FSDP2 leaves some parameters gathered."""
    with torch.no_grad():
        run.lm.eval()(torch.zeros(1, 4, dtype=torch.long))


def save_and_go_on(rank: int, folder: Path, fused: bool, tied: bool) -> None:
    run = shared(fused, tied)
    run.steps(2)
    evaluate(run)
    run.save(folder / "checkpoints", keep_last=3)
    run.steps(2)
    evaluate(run)
    run.save(folder / "checkpoints", keep_last=3)


def resume_and_go_on(rank: int, folder: Path, fused: bool, tied: bool) -> None:
    run = shared(fused, tied)
    evaluate(run)
    run.load(folder / "checkpoints/step_00000002")
    kept = run.optimizers[0].state[next(run.lm.parameters())]
    assert kept["exp_avg"].placements == next(run.lm.parameters()).placements
    run.steps(2)
    run.save(folder / "resumed")


@pytest.mark.parametrize(("fused", "tied"), [(False, True), (True, False)])
def test_two_processes_go_on_exactly_and_one_reads_their_files(fused, tied, tmp_path):
    on_two_processes(save_and_go_on, tmp_path, fused, tied)
    on_two_processes(resume_and_go_on, tmp_path, fused, tied)
    whole, resumed = newest_intact(tmp_path / "checkpoints"), newest_intact(tmp_path / "resumed")
    assert whole.name == resumed.name == "step_00000004"
    for name in ("model.safetensors", OPTIMIZER):
        ours, theirs = load_file(resumed / name), load_file(whole / name)
        assert ours.keys() == theirs.keys()
        for key, tensor in theirs.items():
            assert torch.equal(ours[key], tensor), key
    first = load_file(whole.with_name("step_00000002") / "model.safetensors")
    assert not torch.equal(first["model.norm.weight"], theirs_norm(whole))

    alone = training("fused adamw" if fused else "adamw", tie_word_embeddings=tied).load(whole)
    for name, tensor in load_file(whole / "model.safetensors").items():
        assert torch.equal(alone.lm.state_dict()[name], tensor), name
    alone.steps(1)
    names = {file.name for file in alone.save(tmp_path / "alone").iterdir()}
    assert names == {file.name for file in whole.iterdir()}
    one, two = (load_file(newest_intact(folder) / OPTIMIZER) for folder in (tmp_path / "alone", whole.parent))
    assert two.keys() - one.keys() == {"rng.cpu.1"}
    assert not one.keys() - two.keys()
    assert all(one[name].shape == two[name].shape and one[name].dtype == two[name].dtype for name in one)
    assert not torch.equal(two["rng.cpu.0"], two["rng.cpu.1"])


def theirs_norm(directory: Path) -> torch.Tensor:
    return load_file(directory / "model.safetensors")["model.norm.weight"]


def fail_to_save(rank: int, folder: Path) -> None:
    run = Training(training().lm, [], TrainerState(step=1))
    with pytest.raises(InputError, match="could not be written"):
        run.save(folder / "file")


def test_if_the_first_process_cannot_save_every_process_hears_of_it(tmp_path):
    (tmp_path / "file").write_text("")
    on_two_processes(fail_to_save, tmp_path)
