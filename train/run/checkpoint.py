"""Save and load a run's checkpoints, so that a stopped run continues to the last bit.

A checkpoint is a Hugging Face model directory; its `training/` folder has everything else that
resuming needs. Tensors are whole, so any number of processes can resume. Under FSDP2 and HSDP each
process writes its share of weights and moments into `training/shards/`, and reads what it will
hold. There is no pickle anywhere.

A process that is killed at any moment loses no checkpoint:

    files         ->  step_X.tmp   with training/manifest.json: sizes, sha256; flushed to the disk
    step_X.tmp    ->  step_X       one rename
    latest, best                   small files that name a checkpoint; one rename replaces each

A folder is a checkpoint if its files match its manifest; step_X.tmp may be one, too.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from configs.command import InputError
from configs.files import (
    CARD,
    MANIFEST,
    STATE,
    TRAINING,
    DamagedFile,
    checked,
    read_json,
    write_atomically,
)
from data.tokenizer import Tokenizer
from model import LanguageModel, save
from model.files.card import model_card
from model.files.checkpoint import read_weights, stored_names
from train.machine.distributed import ALONE, World, is_sharded, share

STEPS = "step_????????"
# Moments, and the random state of each process: `rng.cpu.0`, `rng.cpu.1`, …
OPTIMIZER = "optimizer.safetensors"
SHARDS = "shards"
# The state of batch sources, if they have one: `input_ids.0` is that of process 0.
SOURCE = "source.safetensors"


@dataclass
class TrainerState:
    """The numbers that a run needs to resume: training/trainer_state.json, field by field."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best_loss: float | None = None
    best_step: int | None = None
    best_tokens: int | None = None  # held-out tokens of the best loss; None: all
    skipped: int = 0  # bad steps, without overflows of fp16
    lr: float | None = None  # of the newest step
    evaluated_at: int | None = None  # step of the newest evaluation
    logged: dict[str, int] = field(default_factory=dict)  # bytes of each log
    wandb_id: str | None = None
    identity: dict[str, Any] | None = None  # RunConfig.identity() of the run that saved
    # The choices of `auto` (train/machine/device.py), and when a resume changed them: {step, what}
    resolved: dict[str, Any] = field(default_factory=dict)
    breaks: list[dict[str, Any]] = field(default_factory=list)
    scaler: dict[str, int | float] | None = None  # the loss scale of fp16


# --------------------------------------------------------------------------------------------------
# save


def save_checkpoint(
    checkpoints: Path,
    lm: LanguageModel,
    optimizers: list[torch.optim.Optimizer],
    tokenizer: Tokenizer,
    state: TrainerState,
    keep_last: int,
    keep_best: bool = True,
    world: World = ALONE,
    source_state: dict[str, Tensor] | None = None,
) -> Path:
    """Write a checkpoint of this step, point `latest` and `best` at it, and delete old ones.

    Every process calls it, and all return when rank 0 has written. If a write fails, it raises
    InputError in all of them, and the earlier checkpoints are unchanged.
    """
    # FSDP2 leaves some parameters gathered after an evaluation. state_dict() shards them again.
    weights = lm.state_dict()
    if lm.adapters is not None:  # the frozen matrices are in the base model
        weights = {name: tensor for name, tensor in weights.items() if ".lora_" in name}
    moments = {  # muon.model.layers.0….momentum_buffer
        prefix + key: torch.as_tensor(value)
        for optimizer in optimizers
        for parameter, prefix in _prefixes(lm, optimizer)
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    # Either rank 0 writes all of it from the CPU, or each process writes its shards.
    shards = checkpoints / f"{SHARDS}.tmp"
    sharded = dict[str, Tensor]()
    if world.shares_model:
        both = {name: weights[name] for name in stored_names(lm)} | moments
        sharded = {name: tensor for name, tensor in both.items() if is_sharded(tensor)}
        _write_shards(shards, sharded, world)
        moments = {name: tensor for name, tensor in moments.items() if name not in sharded}
    if world.rank == 0:
        if not sharded:
            weights = {name: tensor.cpu().contiguous() for name, tensor in weights.items()}
        moments = {name: tensor.cpu().contiguous() for name, tensor in moments.items()}

    # Each process has its own random state, and perhaps a state of its batch source.
    random = {"rng.cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        random["rng.cuda"] = torch.cuda.get_rng_state()
    sources: dict[str, Tensor] = {}
    for rank, (its_random, its_source) in enumerate(world.gather((random, source_state or {}))):
        moments |= {f"{name}.{rank}": x for name, x in its_random.items()}
        sources |= {f"{name}.{rank}": x.contiguous() for name, x in its_source.items()}

    def fill(directory: Path) -> None:
        if sharded:
            shards.rename(directory / TRAINING / SHARDS)
            full = {
                name: torch.empty(weights[name].shape, dtype=weights[name].dtype)
                for name in stored_names(lm)
            }
            _read_shards(directory, full)
        save(lm, directory, full if sharded else weights)
        tokenizer.save(directory, lm.config.max_position_embeddings)
        card = model_card(checkpoints.parent.name, lm, vars(state))
        (directory / CARD).write_text(card, encoding="utf-8")
        save_file(moments, directory / TRAINING / OPTIMIZER)
        if sources:
            save_file(sources, directory / TRAINING / SOURCE)
        # state may be a RunState, which has more fields than a checkpoint keeps
        saved = {each.name: getattr(state, each.name) for each in fields(TrainerState)}
        text = json.dumps(saved, indent=2) + "\n"
        (directory / TRAINING / STATE).write_text(text, encoding="utf-8")

    best_step = state.best_step if keep_best else None
    return world.on_rank0(lambda: commit(checkpoints, state.step, fill, keep_last, best_step))


def _write_shards(folder: Path, tensors: dict[str, Tensor], world: World) -> None:
    """Write this process's shares of DTensors into a new folder. Raises InputError in all."""
    import torch.distributed.checkpoint as dcp

    def clear() -> None:
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(exist_ok=True)
            folder.mkdir()
        except OSError as error:
            raise InputError(
                f"the checkpoint could not be written to {folder}: {error.strerror}"
            ) from error

    world.on_rank0(clear)
    writer = dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        dcp.save(tensors, storage_writer=writer)
    except dcp.CheckpointException as error:  # raised in all processes
        if world.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        reason = next(iter(error.failures.values()))[0]
        raise InputError(f"the checkpoint could not be written to {folder}: {reason}") from None


def _read_shards(directory: Path, tensors: dict[str, Tensor]) -> None:
    """Fill tensors, whole ones or shares of DTensors, from the shards of a checkpoint."""
    import torch.distributed.checkpoint as dcp

    reader = dcp.HuggingFaceStorageReader(str(directory / TRAINING / SHARDS))
    with warnings.catch_warnings():  # each process reads by itself, on purpose
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        dcp.load(tensors, storage_reader=reader, no_dist=True)


def _load_shards(
    lm: LanguageModel, optimizers: list[torch.optim.Optimizer], directory: Path
) -> dict[str, Tensor]:
    """Load weights into lm, and return the moments, laid out as their parameters are."""
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    state = lm.state_dict()
    weights = {name: state[name] for name in stored_names(lm)}
    parameters: dict[str, torch.nn.Parameter] = {}
    for optimizer in optimizers:
        parameters |= {prefix[:-1]: x for x, prefix in _prefixes(lm, optimizer)}
    # The reader fills tensors that exist. Made like their parameters, they get the same layout.
    reader = HuggingFaceStorageReader(str(directory / TRAINING / SHARDS))
    moments = {
        name: torch.zeros_like(parameters[name.rpartition(".")[0]])
        for name in reader.read_metadata().state_dict_metadata
        if name not in weights
    }
    _read_shards(directory, weights | moments)
    return moments


def _prefixes(
    lm: LanguageModel, optimizer: torch.optim.Optimizer
) -> list[tuple[torch.nn.Parameter, str]]:
    """Return an optimizer's parameters, each with the prefix of its state's names in a file."""
    names = {id(p): name for name, p in lm.named_parameters()}
    kind = type(optimizer).__name__.lower()
    return [
        (p, f"{kind}.{names[id(p)]}.") for group in optimizer.param_groups for p in group["params"]
    ]


def commit(
    checkpoints: Path,
    step: int,
    fill: Callable[[Path], None],
    keep_last: int,
    best_step: int | None,
) -> Path:
    """Let `fill` write files into a directory, and make it the checkpoint of this step.

    All or nothing: if a write fails, it raises InputError, and earlier checkpoints are unchanged.
    """
    temporary = checkpoints / f"step_{step:08d}.tmp"
    try:
        checkpoints.mkdir(exist_ok=True)  # not parents=True: a run may have been moved away
        shutil.rmtree(temporary, ignore_errors=True)
        (temporary / TRAINING).mkdir(parents=True)
        fill(temporary)
        files = [file for file in sorted(temporary.rglob("*")) if file.is_file()]
        files = [file for file in files if file.name != CARD]  # a user may edit the card
        hashes = {file.relative_to(temporary).as_posix(): _size_and_hash(file) for file in files}
        manifest = temporary / TRAINING / MANIFEST
        manifest.write_text(json.dumps(hashes, indent=2), encoding="utf-8")
        # Without fsync a crash of the machine may leave a renamed folder with empty files.
        for file in [*files, manifest]:
            with file.open("rb+") as stream:
                os.fsync(stream.fileno())
        return tidy(checkpoints, temporary, keep_last, best_step)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"the checkpoint of step {step:,} could not be written to {checkpoints}: {reason}"
        ) from error


def tidy(checkpoints: Path, newest: Path, keep_last: int, best_step: int | None) -> Path:
    """Name the newest checkpoint, write `latest` and `best`, and delete what is not kept.

    It runs after a save, and after a kill. A checkpoint later than `newest` is damaged, and stays
    until its step is saved again.
    """
    if newest.suffix == ".tmp":
        shutil.rmtree(newest.with_suffix(""), ignore_errors=True)  # the same step, saved before
        newest = newest.rename(newest.with_suffix(""))
    for half_written in (*checkpoints.glob(STEPS + ".tmp"), checkpoints / f"{SHARDS}.tmp"):
        shutil.rmtree(half_written, ignore_errors=True)
    best = None if best_step is None else checkpoints / f"step_{best_step:08d}"
    complete = sorted(path for path in checkpoints.glob(STEPS) if path.name <= newest.name)
    remaining = {*complete[-max(1, keep_last) :], best}
    for pointer, directory in ((checkpoints / "latest", newest), (checkpoints / "best", best)):
        if directory is not None and directory.is_dir():
            write_atomically(pointer, directory.name + "\n")
        else:
            pointer.unlink(missing_ok=True)
    for directory in complete:
        if directory not in remaining:
            with suppress(OSError):  # renamed first, so that no half of it looks damaged
                shutil.rmtree(directory.rename(directory.with_suffix(".tmp")))
    return newest


# --------------------------------------------------------------------------------------------------
# find and load


def newest_intact(checkpoints: Path) -> Path | None:
    """Return the newest checkpoint whose files match its manifest; warn of damaged ones."""
    directories = [*checkpoints.glob(STEPS), *checkpoints.glob(STEPS + ".tmp")]
    # Of one step the .tmp comes first: if it is complete, it was about to replace the other.
    for directory in sorted(directories, key=lambda path: (path.stem, path.suffix), reverse=True):
        problem = damage(directory)
        if problem is None:
            return directory
        if directory.suffix == "":
            print(f"warning: {problem}: trying the checkpoint before it", file=sys.stderr)
    return None


def damage(directory: Path) -> str | None:
    """Return the problem of a checkpoint directory, or None. It hashes every file."""
    try:
        for name, expected in read_json(directory / TRAINING / MANIFEST).items():
            if not (directory / name).is_file() or _size_and_hash(directory / name) != expected:
                return f"{directory / name} is damaged"
    except (OSError, DamagedFile) as error:
        return f"{directory} is not a complete checkpoint ({error})"
    return None


def _size_and_hash(file: Path) -> dict[str, object]:
    with file.open("rb") as stream:
        return {
            "bytes": file.stat().st_size,
            "sha256": hashlib.file_digest(stream, "sha256").hexdigest(),
        }


def read_state(directory: Path) -> TrainerState:
    """Read trainer_state.json; a missing key has its default. Raises InputError."""
    file = directory / TRAINING / STATE
    return checked(read_json(file), str(file), TrainerState, strict=None)


def load_checkpoint(
    directory: Path,
    lm: LanguageModel,
    optimizers: list[torch.optim.Optimizer],
    world: World = ALONE,
) -> TrainerState:
    """Restore weights, optimizer state and random state, of each process its own share.

    Raises InputError, naming the tensor, if one is missing or does not belong to this run.
    """
    state = read_state(directory)
    tensors = load_file(directory / TRAINING / OPTIMIZER)
    # Perhaps another number of processes wrote the shards. Each reads what it will hold.
    if (directory / TRAINING / SHARDS).is_dir():
        tensors |= _load_shards(lm, optimizers, directory)
    else:
        weights = read_weights(lm, directory)
        with torch.no_grad():
            for name, target in lm.state_dict().items():
                if name in weights:  # a tied lm_head is missing: it is the embedding
                    target.copy_(share(weights[name], target))
    random = {name: tensors.pop(name) for name in list(tensors) if name.startswith("rng.")}
    if tensors:  # optimizers that never took a step have no state
        _restore_optimizers(lm, optimizers, tensors, directory / TRAINING / OPTIMIZER)
    # A process that did not exist when the run was saved gets a random stream of its own, always
    # the same one.
    source = random["rng.cpu.0"].numpy().tobytes() + str(world.rank).encode()
    torch.manual_seed(int.from_bytes(hashlib.sha256(source).digest()[:7], "big"))
    if f"rng.cpu.{world.rank}" in random:
        torch.set_rng_state(random[f"rng.cpu.{world.rank}"])
    if torch.cuda.is_initialized() and f"rng.cuda.{world.rank}" in random:
        torch.cuda.set_rng_state(random[f"rng.cuda.{world.rank}"])
    world.gather(None)  # wait for all: rank 0 may delete old checkpoints now
    return state


def _restore_optimizers(
    lm: LanguageModel,
    optimizers: list[torch.optim.Optimizer],
    tensors: dict[str, Tensor],
    file: Path,
) -> None:
    """Load the state of each parameter. Raises InputError for a missing or an extra one."""
    for optimizer in optimizers:
        state = {}
        for number, (parameter, prefix) in enumerate(_prefixes(lm, optimizer)):
            names = [name for name in tensors if name.startswith(prefix)]
            # copies, because load_file's tensors may be unaligned views of one buffer
            saved = {name.removeprefix(prefix): tensors.pop(name).clone() for name in names}
            if not saved:
                raise InputError(f"{file}: {prefix[:-1]} has no state")
            # Moments are shared out like the parameter. AdamW's step count is one number.
            state[number] = {
                key: share(value, parameter) if value.ndim == parameter.ndim else value
                for key, value in saved.items()
            }
        # load_state_dict moves tensors to the right device: fused AdamW counts steps on the GPU
        optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    if tensors:
        raise InputError(f"{file}: {min(tensors)} is not part of this run")


def load_source_state(directory: Path, world: World = ALONE) -> dict[str, Tensor]:
    """Return the saved state of this process's batch source; {} if there is none for it."""
    file = directory / TRAINING / SOURCE
    saved = load_file(file) if file.is_file() else {}
    if {name.rpartition(".")[2] for name in saved} != {str(rank) for rank in range(world.size)}:
        return {}  # the number of processes has changed, so each has other rows now
    # input_ids.0 is that of rank 0
    own = f".{world.rank}"
    return {name.removesuffix(own): tensor for name, tensor in saved.items() if name.endswith(own)}
