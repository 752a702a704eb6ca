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
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from configs.command import InputError
from configs.files import CARD, STATE, TRAINING, DamagedFile, checked, read_json
from data.tokenizer import Tokenizer
from model import LanguageModel, save
from model.card import model_card
from model.checkpoint import read_weights
from train.machine.distributed import ALONE, World, full_tensor, share
from train.saving.atomic_save import SaveError, commit, step_name

OPTIMIZER = "optimizer.safetensors"
SOURCE = "source.safetensors"  # what a batch source keeps, if it keeps anything: `input_ids.0`, of process 0


@dataclass
class TrainerState:
    """What a run needs besides tensors to resume: training/trainer_state.json, field by field."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best_loss: float | None = None
    best_step: int | None = None
    best_tokens: int | None = None  # held-out tokens that the best loss was measured on; None: all
    skipped: int = 0  # steps that changed no parameter
    evaluated_at: int | None = None  # step of the newest evaluation
    at_stop: bool = False  # saved only because a signal came
    logged: dict[str, int] = field(default_factory=dict)  # bytes of each log
    wandb_id: str | None = None
    identity: dict[str, Any] | None = None  # RunConfig.identity() of the run that saved
    resolved: dict[str, Any] = field(default_factory=dict)  # what `auto` stood for (train/machine/device.py)
    breaks: list[dict[str, Any]] = field(default_factory=list)  # where that changed at a resume: {step, what}
    scaler: dict[str, int | float] | None = None  # of the losses, in fp16
    spikes: dict[str, list[float]] = field(default_factory=lambda: {"losses": []})  # from which a spike stands out


def read_state(directory: Path) -> TrainerState:
    """trainer_state.json of a checkpoint; a key that is missing there has its default. Raises InputError."""
    file = directory / TRAINING / STATE
    try:
        return checked(read_json(file), str(file), TrainerState, strict=None)
    except DamagedFile as error:
        raise InputError(f"cannot resume: {error}; was it saved by another version of Headlight?") from None


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
    weights, moments = gather(lm, optimizers, world)
    of_source = _by_rank(kept or {}, world)

    def fill(directory: Path) -> None:
        save(lm, directory, weights)
        tokenizer.save(directory, lm.config.max_position_embeddings)
        (directory / CARD).write_text(model_card(checkpoints.parent.name, lm, vars(state)), encoding="utf-8")
        save_file(moments, directory / TRAINING / OPTIMIZER)
        if of_source:
            save_file(of_source, directory / TRAINING / SOURCE)
        saved = {each.name: getattr(state, each.name) for each in fields(TrainerState)}  # not the rest of a RunState
        (directory / TRAINING / STATE).write_text(json.dumps(saved, indent=2) + "\n", encoding="utf-8")

    problem = ""
    if world.is_first:
        try:
            commit(checkpoints, state.step, fill, keep_last, keep_best)
        except SaveError as error:
            problem = str(error)
    if problem := world.gather(problem)[0]:
        raise SaveError(problem)
    return checkpoints / step_name(state.step)


def gather(
    lm: LanguageModel, optimizers: list[torch.optim.Optimizer], world: World = ALONE
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(weights, what optimizers hold by `kind.parameter.key` with the random states `rng.…`), whole and on the CPU, for
    the first process to write. Every process calls it, because gathering a tensor that is spread over them needs all.

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
    for tensors in (weights, moments):
        for name in list(tensors):
            full = full_tensor(tensors.pop(name))
            if world.is_first:
                tensors[name] = full.cpu().contiguous()
    random = {"rng.cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        random["rng.cuda"] = torch.cuda.get_rng_state()
    return weights, moments | _by_rank(random, world)


def _by_rank(mine: dict[str, Tensor], world: World) -> dict[str, Tensor]:
    """`rng.cpu.0`, `rng.cpu.1`, …: such tensors of all processes. Every process calls it."""
    everyone = enumerate(world.gather(mine))
    return {f"{name}.{rank}": tensor.contiguous() for rank, each in everyone for name, tensor in each.items()}


def _prefixes(lm: LanguageModel, optimizer: torch.optim.Optimizer) -> list[tuple[torch.nn.Parameter, str]]:
    """An optimizer's parameters, all or some of the model's, each with the prefix that the names of its state have."""
    names = {id(p): name for name, p in lm.named_parameters()}
    kind = type(optimizer).__name__.lower()
    return [(p, f"{kind}.{names[id(p)]}.") for group in optimizer.param_groups for p in group["params"]]


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
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"{directory}: cannot resume from here: {error}") from None
    _restore_random_state(random, world.rank)
    world.gather(None)
    return state


def _restore_optimizers(lm: LanguageModel, optimizers: list[torch.optim.Optimizer], tensors: dict[str, Tensor]) -> None:
    """Raises ValueError that names a parameter without state, or a state that belongs to no parameter."""
    for optimizer in optimizers:
        state = {}
        for number, (parameter, prefix) in enumerate(_prefixes(lm, optimizer)):
            # copies, because load_file's tensors share one buffer, in which they may stand unaligned
            names = [name for name in tensors if name.startswith(prefix)]
            saved = {name.removeprefix(prefix): tensors.pop(name).clone() for name in names}
            if saved:  # of a moment this process's share; AdamW's step count is one number everywhere
                state[number] = {
                    key: share(value, parameter) if value.ndim == parameter.ndim else value
                    for key, value in saved.items()
                }
            else:
                raise ValueError(f"{OPTIMIZER}: {prefix[:-1]} has no state")
        # load_state_dict puts each tensor where the optimizer wants it: fused AdamW counts steps on the device
        optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    for name in sorted(tensors):
        raise ValueError(f"{OPTIMIZER}: {name} is not part of this run")


def _restore_random_state(states: dict[str, Tensor], rank: int) -> None:
    """A process that did not exist when the run was saved gets a random stream of its own, always the same one."""
    digest = hashlib.sha256(states["rng.cpu.0"].numpy().tobytes() + str(rank).encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:7], "big"))
    if f"rng.cpu.{rank}" in states:
        torch.set_rng_state(states[f"rng.cpu.{rank}"])
    if torch.cuda.is_initialized() and f"rng.cuda.{rank}" in states:
        torch.cuda.set_rng_state(states[f"rng.cuda.{rank}"])


def load_kept(directory: Path, world: World = ALONE) -> dict[str, Tensor]:
    """What this process's batch source kept; {} where another number of processes did, or none."""
    file = directory / TRAINING / SOURCE
    saved = load_file(file) if file.is_file() else {}
    if {name.rpartition(".")[2] for name in saved} != {str(rank) for rank in range(world.size)}:
        return {}
    own = f".{world.rank}"
    return {name.removesuffix(own): tensor for name, tensor in saved.items() if name.endswith(own)}
