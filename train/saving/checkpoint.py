"""Checkpoints: enough to go on exactly, in a Hugging Face model directory. How they reach the disk: checkpoint_files.

The files are the same whatever the number of processes: tensors are whole, under their parameter's name. Only the
random state is a process's own (`rng.cpu.0`, `rng.cpu.1`, …). No pickle anywhere.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from configs.loader import InputError
from data.tokenizer import Tokenizer
from model import LanguageModel, save
from model.checkpoint_format import read_weights
from train.machine.distributed import share, whole
from train.saving.checkpoint_files import STATE, SaveError, commit, drop_old, step_name

OPTIMIZER = "optimizer.safetensors"


@dataclass
class TrainerState:
    """What besides tensors a run needs to go on: trainer_state.json.

    best_tokens: how many held-out tokens the best loss is of (None: all). skipped: steps that moved nothing.
    evaluated_at: step of the newest evaluation.
    identity: RunConfig.identity() of the run that saved. resolved: what `auto` stood for. scaler, spikes: states of
    the loss scaler (fp16) and of the detector of loss spikes. world_size, torch_version: of the process that saved.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best_loss: float | None = None
    best_step: int | None = None
    best_tokens: int | None = None
    skipped: int = 0
    evaluated_at: int | None = None
    wandb_id: str | None = None
    identity: dict[str, Any] | None = None
    resolved: dict[str, Any] = field(default_factory=dict)
    scaler: dict[str, Any] | None = None
    spikes: dict[str, Any] | None = None
    world_size: int = 1
    torch_version: str = torch.__version__


@dataclass(frozen=True)
class Tensors:
    """All tensors of a run, whole and on the CPU: by parameter name, and by `kind.parameter.key` and `rng.…`."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for part in (self.weights, self.optimizer) for tensor in part.values())


def save_checkpoint(
    checkpoints: Path,
    lm: LanguageModel,
    optimizers: list[torch.optim.Optimizer],
    tokenizer: Tokenizer,
    state: TrainerState,
    keep_last: int,
    keep_best: bool = True,
) -> Path:
    """Write a checkpoint of this step, point `latest` (and `best`) at it, drop the ones no longer kept.

    Every process calls it, and all return once the first one has written. Raises SaveError in all of them.
    """
    state.world_size, state.torch_version = _world_size(), torch.__version__
    tensors = gather(lm, optimizers)
    directory, problem = checkpoints / step_name(state.step), None
    if _rank() == 0:
        try:
            write(checkpoints, lm, tensors, tokenizer, state)
            drop_old(checkpoints, directory, keep_last, keep_best)
        except SaveError as error:
            problem = error
    if not _first_says(problem is None) and problem is None:
        problem = SaveError("the first process could not save, and says why")
    if problem is not None:
        raise problem
    return directory


def gather(lm: LanguageModel, optimizers: list[torch.optim.Optimizer]) -> Tensors:
    """Every tensor of the run, whole, for the first process to write; others keep none. Every process calls it."""
    weights = lm.state_dict()  # FSDP2 leaves some parameters gathered after an evaluation: this puts the shares back
    if lm.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    return Tensors(_whole_on_first(weights), _whole_on_first(_optimizer_tensors(lm, optimizers)) | _random_states())


def write(checkpoints: Path, lm: LanguageModel, tensors: Tensors, tokenizer: Tokenizer, state: TrainerState) -> Path:
    """Write what `gather` returned: for the first process alone. Raises SaveError."""

    def fill(directory: Path) -> None:
        save(lm, directory, tensors.weights)
        tokenizer.save(directory, lm.config.max_position_embeddings)
        save_file(tensors.optimizer, directory / OPTIMIZER)
        (directory / STATE).write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")

    return commit(checkpoints, state.step, fill, tensors.nbytes)


def read_state(directory: Path) -> TrainerState:
    """trainer_state.json of a checkpoint; what an older Headlight did not write has its default. Raises InputError."""
    file = directory / STATE
    try:
        values = dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{file}: cannot go on from here: {error}") from None
    unknown = values.keys() - {each.name for each in fields(TrainerState)}
    if unknown or not isinstance(values.get("step"), int):
        problem = f"nothing here knows the key {sorted(unknown)[0]!r}" if unknown else "it has no key 'step'"
        raise InputError(f"{file}: cannot go on from here: {problem}; was it saved by another version of Headlight?")
    return TrainerState(**values)


def load_checkpoint(directory: Path, lm: LanguageModel, optimizers: list[torch.optim.Optimizer]) -> TrainerState:
    """Restore weights, optimizer state and the random state. Every process reads the files and keeps its own share;
    all return when all have read, so that one may tidy up after that.

    Raises InputError, naming the tensor, if one is missing, of another shape, or none of this run's.
    """
    state = read_state(directory)
    try:
        weights, tensors = read_weights(lm, directory), load_file(directory / OPTIMIZER)
        with torch.no_grad():
            for name, target in lm.state_dict().items():
                if name in weights:  # a tied lm_head is not: it is the embedding
                    target.copy_(share(weights[name], target))
        random = {name: tensors.pop(name) for name in list(tensors) if name.startswith("rng.")}
        if state.step > state.skipped or tensors:  # an optimizer that never moved has no state
            _restore_optimizers(lm, optimizers, tensors)
        _restore_random_state(random)
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"{directory}: cannot go on from here: {error}") from None
    _first_says(True)
    return state


def _whole_on_first(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every process walks through all tensors, for they are put together by all; only the first one keeps them."""
    kept = {}
    for name, tensor in tensors.items():
        full = whole(tensor)
        if _rank() == 0:
            kept[name] = full.cpu().contiguous()
    return kept


def _prefixes(lm: LanguageModel, optimizer: torch.optim.Optimizer) -> list[tuple[torch.nn.Parameter, str]]:
    """An optimizer's parameters in its own order, with what the names of their state begin with."""
    names = {id(p): name for name, p in lm.named_parameters()}
    kind = type(optimizer).__name__.lower()
    return [(p, f"{kind}.{names[id(p)]}.") for group in optimizer.param_groups for p in group["params"]]


def _optimizer_tensors(lm: LanguageModel, optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Optimizer state by parameter name: `muon.model.layers.0….momentum_buffer`."""
    return {
        prefix + key: torch.as_tensor(value)
        for optimizer in optimizers
        for parameter, prefix in _prefixes(lm, optimizer)
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _restore_optimizers(lm: LanguageModel, optimizers: list[torch.optim.Optimizer], tensors: dict[str, Tensor]) -> None:
    """Raises ValueError that names a tensor which is missing, left over, or of a shape that cannot be."""
    left_over = set(tensors)
    for optimizer in optimizers:
        states = [
            (p, prefix, {key.removeprefix(prefix): key for key in tensors if key.startswith(prefix)})
            for p, prefix in _prefixes(lm, optimizer)
        ]
        expected = {"step", "exp_avg", "exp_avg_sq"} if isinstance(optimizer, torch.optim.AdamW) else set()
        expected = expected.union(*(keys for _, _, keys in states))  # of one kind, so all have the same
        for parameter, prefix, keys in states:
            for key in sorted(expected - keys.keys()):
                raise ValueError(f"{OPTIMIZER}: {prefix}{key} is missing")
            if not keys:
                raise ValueError(f"{OPTIMIZER}: nothing is there for {prefix[:-1]}")
            for name in keys.values():
                _check_shape(name, tensors[name], parameter)
            left_over -= set(keys.values())
        saved = [{key: _as_held(tensors[name].clone(), p) for key, name in keys.items()} for p, _, keys in states]
        # the optimizer itself knows where it keeps what: fused, AdamW counts steps on the parameter's device
        optimizer.load_state_dict(optimizer.state_dict() | {"state": dict(enumerate(saved))})
    for name in sorted(left_over):
        raise ValueError(f"{OPTIMIZER}: {name} is not part of this run")


def _as_held(tensor: Tensor, parameter: Tensor) -> Tensor:
    """What of a tensor of the optimizer's state this process holds. AdamW's step count is one number everywhere."""
    return share(tensor, parameter) if tensor.ndim == parameter.ndim else tensor


def _check_shape(name: str, tensor: Tensor, parameter: Tensor) -> None:
    """The shape of the parameter, or one number for a whole side of it."""
    pairs = zip(tensor.shape, parameter.shape, strict=False)
    if tensor.ndim not in (0, parameter.ndim) or any(there not in (1, here) for there, here in pairs):
        raise ValueError(
            f"{OPTIMIZER}: {name} has shape {list(tensor.shape)}, its parameter has {list(parameter.shape)}"
        )


def _random_states() -> dict[str, Tensor]:
    """`rng.cpu.0`, `rng.cpu.1`, …, and `rng.cuda.…`: the random states of all processes. Every process calls it."""
    mine = {"rng.cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        mine["rng.cuda"] = torch.cuda.get_rng_state()
    states: dict[str, Tensor] = {}
    for name, state in mine.items():
        everyone = [state]
        if _world_size() > 1:
            everyone = [torch.empty_like(state) for _ in range(_world_size())]
            dist.all_gather(everyone, state)  # over gloo: these are tensors of the CPU
        states |= {f"{name}.{rank}": each for rank, each in enumerate(everyone)}
    return states


def _restore_random_state(states: dict[str, Tensor]) -> None:
    """A process that was not there when the run was saved (more of them now, or a GPU) gets a stream of its own."""
    rank, first = _rank(), states.get("rng.cpu.0", states.get("rng.cpu"))
    if first is None:
        raise ValueError(f"{OPTIMIZER}: rng.cpu.0 is missing")
    digest = hashlib.sha256(first.numpy().tobytes() + str(rank).encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:7], "big"))
    if rank == 0 or f"rng.cpu.{rank}" in states:
        torch.set_rng_state(states.get(f"rng.cpu.{rank}", first))
    if torch.cuda.is_initialized() and f"rng.cuda.{rank}" in states:
        torch.cuda.set_rng_state(states[f"rng.cuda.{rank}"])


def _first_says(fine: bool) -> bool:
    """What the first process says, told to all once every process has come here."""
    if _world_size() == 1:
        return fine
    answer = torch.tensor(int(fine and _rank() == 0))
    dist.all_reduce(answer)  # over gloo
    return bool(answer)


def _is_one_of_many() -> bool:
    return dist.is_available() and dist.is_initialized()


def _rank() -> int:
    return dist.get_rank() if _is_one_of_many() else 0


def _world_size() -> int:
    return dist.get_world_size() if _is_one_of_many() else 1
