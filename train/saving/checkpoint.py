"""Checkpoints: a Hugging Face model directory, and in `training/` all that an exact resume needs.

The files do not depend on the number of processes: tensors are whole, under their parameter's name. Only the random
state belongs to one process (`rng.cpu.0`, `rng.cpu.1`, …). No pickle anywhere. commit.py writes them safely.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from configs.checkpoints import CARD, STATE, TRAINING, training_folder
from configs.command import InputError
from data.tokenizer import Tokenizer
from model import LanguageModel, save
from model.adapters.files import check_base
from model.saving.card import Progress, model_card
from model.saving.checkpoint_format import read_weights
from train.machine.distributed import ALONE, World, share, whole
from train.saving.commit import SaveError, commit, drop_old, step_name
from train.saving.state import TrainerState, read_state

OPTIMIZER = "optimizer.safetensors"
SOURCE = "source.safetensors"  # what a batch source keeps, if it keeps anything: `0.input_ids`, of process 0


@dataclass(frozen=True)
class Tensors:
    """All tensors of a run, whole and on the CPU. optimizer: by `kind.parameter.key`, and the random states `rng.…`."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]


def save_checkpoint(
    checkpoints: Path,
    lm: LanguageModel,
    optimizers: list[torch.optim.Optimizer],
    tokenizer: Tokenizer,
    state: TrainerState,
    keep_last: int,
    keep_best: bool = True,
    world: World = ALONE,
    kept: dict[str, Tensor] | None = None,
) -> Path:
    """Write a checkpoint of this step, point `latest` (and `best`) at it, delete those that are no longer kept.

    kept: what this process's batch source needs to continue. Every process calls it. All return once the first one has
    written. Raises SaveError in all of them.
    """
    state.world_size, state.torch_version = world.size, torch.__version__
    tensors = gather(lm, optimizers, world)
    everyone = enumerate(world.gather(kept or {}))
    of_source = {f"{rank}.{name}": each.contiguous() for rank, one in everyone for name, each in one.items()}

    def fill(directory: Path) -> None:
        save(lm, directory, tensors.weights)
        tokenizer.save(directory, lm.config.max_position_embeddings)
        known = {key: getattr(state, key) for key in Progress.model_fields}
        progress = Progress(**known)
        (directory / CARD).write_text(model_card(checkpoints.parent.name, lm, progress), encoding="utf-8")
        save_file(tensors.optimizer, directory / TRAINING / OPTIMIZER)
        if of_source:
            save_file(of_source, directory / TRAINING / SOURCE)
        saved = {each.name: getattr(state, each.name) for each in fields(TrainerState)}
        (directory / TRAINING / STATE).write_text(json.dumps(saved, indent=2) + "\n", encoding="utf-8")

    directory, problem = checkpoints / step_name(state.step), None
    if world.is_first:
        try:
            size = sum(
                tensor.nbytes for part in (tensors.weights, tensors.optimizer, of_source) for tensor in part.values()
            )
            commit(checkpoints, state.step, fill, size)
            drop_old(checkpoints, directory, keep_last, keep_best)
        except SaveError as error:
            problem = error
    if not world.gather(problem is None)[0] and problem is None:
        problem = SaveError("the first process could not save; its message says why")
    if problem is not None:
        raise problem
    return directory


def gather(lm: LanguageModel, optimizers: list[torch.optim.Optimizer], world: World = ALONE) -> Tensors:
    """Every tensor of the run, whole, for the first process to write; others keep none. Every process calls it.

    Frozen parameters are among the weights, but not those beside adapters: they are in the base. No optimizer holds
    frozen ones, so they have no other tensors.
    """
    weights = lm.state_dict()  # FSDP2 leaves some parameters gathered after an evaluation: this puts the shares back
    if lm.adapters is not None:
        weights = {name: tensor for name, tensor in weights.items() if ".lora_" in name}
    elif lm.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    moments = {  # muon.model.layers.0….momentum_buffer
        prefix + key: torch.as_tensor(value)
        for optimizer in optimizers
        for parameter, prefix in _prefixes(lm, optimizer)
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    return Tensors(_whole_on_first(weights, world), _whole_on_first(moments, world) | _random_states(world))


def load_checkpoint(
    directory: Path, lm: LanguageModel, optimizers: list[torch.optim.Optimizer], world: World = ALONE
) -> TrainerState:
    """Restore weights, optimizer state and the random state. Every process reads the files and keeps its own share.

    All return when all have read, so that one of them can tidy up then. Raises InputError, naming the tensor, if one is
    missing, has another shape, or does not belong to this run.
    """
    state = read_state(directory)
    try:
        if lm.adapters is not None:
            check_base(directory, lm.adapters.base_sha256)
        weights, tensors = read_weights(lm, directory), load_file(training_folder(directory) / OPTIMIZER)
        with torch.no_grad():
            for name, target in lm.state_dict().items():
                if name in weights:  # a tied lm_head is not: it is the embedding
                    target.copy_(share(weights[name], target))
        random = {name: tensors.pop(name) for name in list(tensors) if name.startswith("rng.")}
        if state.step > state.skipped or tensors:  # an optimizer that never moved has no state
            _restore_optimizers(lm, optimizers, tensors)
        _restore_random_state(random, world.rank)
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"{directory}: cannot resume from here: {error}") from None
    world.gather(None)
    return state


def load_kept(directory: Path, world: World = ALONE) -> dict[str, Tensor]:
    """What this process's batch source kept; {} where another number of processes did, or none. Raises InputError."""
    file = training_folder(directory) / SOURCE
    if not file.is_file():
        return {}
    try:
        saved = load_file(file)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{file}: cannot resume from here: {error}") from None
    if {name.partition(".")[0] for name in saved} != {str(rank) for rank in range(world.size)}:
        return {}
    prefix = f"{world.rank}."
    return {name.removeprefix(prefix): tensor for name, tensor in saved.items() if name.startswith(prefix)}


def _whole_on_first(tensors: dict[str, Tensor], world: World) -> dict[str, Tensor]:
    """Every process goes through all tensors, because gathering one needs them all; only the first one keeps them."""
    kept = {}
    for name, tensor in tensors.items():
        full = whole(tensor)
        if world.is_first:
            kept[name] = full.cpu().contiguous()
    return kept


def _prefixes(lm: LanguageModel, optimizer: torch.optim.Optimizer) -> list[tuple[torch.nn.Parameter, str]]:
    """An optimizer's parameters, all or some of the model's, each with the prefix that the names of its state have."""
    names = {id(p): name for name, p in lm.named_parameters()}
    kind = type(optimizer).__name__.lower()
    return [(p, f"{kind}.{names[id(p)]}.") for group in optimizer.param_groups for p in group["params"]]


def _restore_optimizers(lm: LanguageModel, optimizers: list[torch.optim.Optimizer], tensors: dict[str, Tensor]) -> None:
    """Raises ValueError that names a tensor which is missing, left over, or has an impossible shape."""
    left_over = set(tensors)
    for optimizer in optimizers:
        states = [
            (p, prefix, {key.removeprefix(prefix): key for key in tensors if key.startswith(prefix)})
            for p, prefix in _prefixes(lm, optimizer)
        ]
        expected = {"step", "exp_avg", "exp_avg_sq"} if isinstance(optimizer, torch.optim.AdamW) else set()
        expected = expected.union(*(keys for _, _, keys in states))  # of one kind, so all have the same
        for parameter, prefix, keys in states:
            if not parameter.requires_grad and not keys:
                continue  # frozen, but given to the optimizer
            for key in sorted(expected - keys.keys()):
                raise ValueError(f"{OPTIMIZER}: {prefix}{key} is missing")
            if not keys:
                raise ValueError(f"{OPTIMIZER}: {prefix[:-1]} has no state")
            for name in keys.values():
                _check_shape(name, tensors[name], parameter)
            left_over -= set(keys.values())
        saved = [{key: _as_held(tensors[name].clone(), p) for key, name in keys.items()} for p, _, keys in states]
        state = {number: values for number, values in enumerate(saved) if values}
        # load_state_dict puts each tensor where the optimizer wants it: fused AdamW counts steps on the device
        optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    for name in sorted(left_over):
        raise ValueError(f"{OPTIMIZER}: {name} is not part of this run")


def _as_held(tensor: Tensor, parameter: Tensor) -> Tensor:
    """This process's share of a tensor of the optimizer's state. AdamW's step count is one number everywhere."""
    return share(tensor, parameter) if tensor.ndim == parameter.ndim else tensor


def _check_shape(name: str, tensor: Tensor, parameter: Tensor) -> None:
    """Raises ValueError unless it is a number, or has the parameter's shape, with 1 allowed in any dimension."""
    if not tensor.dtype.is_floating_point:
        raise ValueError(f"{OPTIMIZER}: {name} holds {tensor.dtype}, not floating-point numbers")
    pairs = zip(tensor.shape, parameter.shape, strict=False)
    if tensor.ndim not in (0, parameter.ndim) or any(there not in (1, here) for there, here in pairs):
        raise ValueError(
            f"{OPTIMIZER}: {name} has shape {list(tensor.shape)}, its parameter has {list(parameter.shape)}"
        )


def _random_states(world: World) -> dict[str, Tensor]:
    """`rng.cpu.0`, `rng.cpu.1`, …, and `rng.cuda.…`: the random states of all processes. Every process calls it."""
    mine = {"rng.cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        mine["rng.cuda"] = torch.cuda.get_rng_state()
    states: dict[str, Tensor] = {}
    for name, state in mine.items():
        everyone = [state]
        if world.size > 1:
            everyone = [torch.empty_like(state) for _ in range(world.size)]
            dist.all_gather(everyone, state)  # over gloo: these are tensors of the CPU
        states |= {f"{name}.{rank}": each for rank, each in enumerate(everyone)}
    return states


def _restore_random_state(states: dict[str, Tensor], rank: int) -> None:
    """A process that did not exist when the run was saved gets a random stream of its own, always the same one."""
    first = states.get("rng.cpu.0")
    if first is None:
        raise ValueError(f"{OPTIMIZER}: rng.cpu.0 is missing")
    devices = {"rng.cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        devices["rng.cuda"] = torch.cuda.get_rng_state()
    for name, state in states.items():
        alike = devices.get(name.rpartition(".")[0], state)
        if state.dtype != torch.uint8 or state.shape != alike.shape:
            raise ValueError(f"{OPTIMIZER}: {name} is not a random state of PyTorch")
    digest = hashlib.sha256(first.numpy().tobytes() + str(rank).encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:7], "big"))
    try:
        if rank == 0 or f"rng.cpu.{rank}" in states:
            torch.set_rng_state(states.get(f"rng.cpu.{rank}", first))
        if torch.cuda.is_initialized() and f"rng.cuda.{rank}" in states:
            torch.cuda.set_rng_state(states[f"rng.cuda.{rank}"])
    except RuntimeError as error:
        raise ValueError(f"{OPTIMIZER}: rng.cpu.{rank} is not a random state of PyTorch: {error}") from None
