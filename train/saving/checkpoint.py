"""Checkpoints: a Hugging Face model directory, and in `training/` all that an exact resume needs.

The files do not depend on the number of processes: tensors are whole, under their parameter's name. Only the random
state belongs to one process (`rng.cpu.0`, `rng.cpu.1`, …). No pickle anywhere. atomic_save.py writes them safely, and
a manifest of sha256 protects them: what is read back here was checked against it when the run looked for its start.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from configs.command import InputError
from configs.files import CARD, STATE, TRAINING, DamagedFile, checked, read_json
from data.tokenizer import Tokenizer
from model import LanguageModel, save
from model.card import Progress, model_card
from model.checkpoint import read_weights
from train.machine.distributed import ALONE, World, share, whole
from train.saving.atomic_save import SaveError, commit, drop_old, step_name

OPTIMIZER = "optimizer.safetensors"
SOURCE = "source.safetensors"  # what a batch source keeps, if it keeps anything: `0.input_ids`, of process 0


@dataclass
class TrainerState:
    """What a run needs besides tensors to resume: training/trainer_state.json, field by field.

    best_tokens: how many held-out tokens the best loss was measured on (None: all). skipped: steps that changed no
    parameter. evaluated_at: step of the newest evaluation. hooks_done: names of hooks that ran at a later one, which a
    signal cut short. at_stop: saved only because a signal came. logged: bytes of each log. identity:
    RunConfig.identity() of the run that saved. resolved: what `auto` stood for, and what else the last bits depend on
    (train/machine/device.py). breaks: where that changed at a resume: {step, what}. scaler: state of the loss scaler
    (fp16). spikes: the last losses, from which a spike stands out. world_size, torch_version: of the process that
    saved.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best_loss: float | None = None
    best_step: int | None = None
    best_tokens: int | None = None
    skipped: int = 0
    evaluated_at: int | None = None
    hooks_done: list[str] = field(default_factory=list)
    at_stop: bool = False
    logged: dict[str, int] = field(default_factory=dict)
    wandb_id: str | None = None
    identity: dict[str, Any] | None = None
    resolved: dict[str, Any] = field(default_factory=dict)
    breaks: list[dict[str, Any]] = field(default_factory=list)
    scaler: dict[str, int | float] | None = None
    spikes: dict[str, list[float]] = field(default_factory=lambda: {"losses": []})
    world_size: int = 1
    torch_version: str = torch.__version__


def read_state(directory: Path) -> TrainerState:
    """trainer_state.json of a checkpoint; a key that is missing there has its default. Raises InputError."""
    file = directory / TRAINING / STATE
    try:
        return checked(read_json(file), str(file), TrainerState, strict=None)
    except DamagedFile as error:
        problem = str(error).removeprefix(f"{file}: ")
        raise InputError(
            f"{file}: cannot resume from here: {problem}; was it saved by another version of Headlight?"
        ) from None


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
    weights, moments = gather(lm, optimizers, world)
    everyone = enumerate(world.gather(kept or {}))
    of_source = {f"{rank}.{name}": each.contiguous() for rank, one in everyone for name, each in one.items()}

    def fill(directory: Path) -> None:
        save(lm, directory, weights)
        tokenizer.save(directory, lm.config.max_position_embeddings)
        known = {key: getattr(state, key) for key in Progress.model_fields}
        (directory / CARD).write_text(model_card(checkpoints.parent.name, lm, Progress(**known)), encoding="utf-8")
        save_file(moments, directory / TRAINING / OPTIMIZER)
        if of_source:
            save_file(of_source, directory / TRAINING / SOURCE)
        saved = {each.name: getattr(state, each.name) for each in fields(TrainerState)}  # not the rest of a RunState
        (directory / TRAINING / STATE).write_text(json.dumps(saved, indent=2) + "\n", encoding="utf-8")

    directory, problem = checkpoints / step_name(state.step), None
    if world.is_first:
        try:
            commit(checkpoints, state.step, fill)
            drop_old(checkpoints, directory, keep_last, keep_best)
        except SaveError as error:
            problem = error
    if not world.gather(problem is None)[0] and problem is None:
        problem = SaveError("the first process could not save; its message says why")
    if problem is not None:
        raise problem
    return directory


def gather(
    lm: LanguageModel, optimizers: list[torch.optim.Optimizer], world: World = ALONE
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(weights, what optimizers hold by `kind.parameter.key` with the random states `rng.…`), whole and on the CPU, for
    the first process to write; others keep only the random states. Every process calls it.

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
    return _whole_on_first(weights, world), _whole_on_first(moments, world) | _random_states(world)


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


def _random_states(world: World) -> dict[str, Tensor]:
    """`rng.cpu.0`, `rng.cpu.1`, …, and `rng.cuda.…`: the random states of all processes. Every process calls it."""
    mine = {"rng.cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        mine["rng.cuda"] = torch.cuda.get_rng_state()
    return {f"{name}.{rank}": state for rank, each in enumerate(world.gather(mine)) for name, state in each.items()}


def load_checkpoint(
    directory: Path, lm: LanguageModel, optimizers: list[torch.optim.Optimizer], world: World = ALONE
) -> TrainerState:
    """Restore weights, optimizer state and the random state. Every process reads the files and keeps its own share.

    All return when all have read, so that one of them can tidy up then. Raises InputError, naming the tensor, if one is
    missing, or does not belong to this run.
    """
    state = read_state(directory)
    try:
        weights, tensors = read_weights(lm, directory), load_file(directory / TRAINING / OPTIMIZER)
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
    """What this process's batch source kept; {} where another number of processes did, or none."""
    file = directory / TRAINING / SOURCE
    saved = load_file(file) if file.is_file() else {}
    if {name.partition(".")[0] for name in saved} != {str(rank) for rank in range(world.size)}:
        return {}
    prefix = f"{world.rank}."
    return {name.removeprefix(prefix): tensor for name, tensor in saved.items() if name.startswith(prefix)}


def _restore_optimizers(lm: LanguageModel, optimizers: list[torch.optim.Optimizer], tensors: dict[str, Tensor]) -> None:
    """Raises ValueError that names a parameter without state, or a state that belongs to no parameter."""
    for optimizer in optimizers:
        state = {}
        for number, (parameter, prefix) in enumerate(_prefixes(lm, optimizer)):
            names = [name for name in tensors if name.startswith(prefix)]
            if not names and parameter.requires_grad:  # a frozen one may be given to an optimizer
                raise ValueError(f"{OPTIMIZER}: {prefix[:-1]} has no state")
            if names:  # copies, because load_file's tensors share one buffer, in which they may stand unaligned
                saved = {name.removeprefix(prefix): tensors.pop(name).clone() for name in names}
                state[number] = {  # of a moment this process's share; AdamW's step count is one number everywhere
                    key: share(value, parameter) if value.ndim == parameter.ndim else value
                    for key, value in saved.items()
                }
        # load_state_dict puts each tensor where the optimizer wants it: fused AdamW counts steps on the device
        optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    for name in sorted(tensors):
        raise ValueError(f"{OPTIMIZER}: {name} is not part of this run")


def _restore_random_state(states: dict[str, Tensor], rank: int) -> None:
    """A process that did not exist when the run was saved gets a random stream of its own, always the same one."""
    first = states["rng.cpu.0"]
    digest = hashlib.sha256(first.numpy().tobytes() + str(rank).encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:7], "big"))
    if f"rng.cpu.{rank}" in states:
        torch.set_rng_state(states[f"rng.cpu.{rank}"])
    if torch.cuda.is_initialized() and f"rng.cuda.{rank}" in states:
        torch.cuda.set_rng_state(states[f"rng.cuda.{rank}"])
