"""Save and load a run's checkpoints, so that a stopped run continues to the last bit.

A checkpoint is a Hugging Face model directory; its `training/` folder has everything else that
resuming needs. It does not depend on the number of processes: tensors are whole, under their
parameter's name. Only the random state belongs to one process (`rng.cpu.0`, `rng.cpu.1`, …). No
pickle anywhere.

Where each process holds a share of the model (FSDP2, HSDP), each writes its share of weights and
moments into a file of its own in `training/shards/`, and rank 0 writes the Hugging Face directory
from these. A process that resumes reads the parts that it will hold, whoever wrote them.

A process that is killed at any moment loses no checkpoint:

    files         ->  step_X.tmp   with training/manifest.json: sizes, sha256; flushed to the disk
    step_X.tmp    ->  step_X       one rename
    latest, best                   small files that name a checkpoint; one rename replaces each

A folder counts as a checkpoint if its files are what its manifest says. That holds for step_X.tmp,
too: a step that is saved again is complete there before the old one makes room for it.
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
from torch.distributed.tensor import DTensor

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
from train.machine.distributed import ALONE, World, share

STEPS = "step_????????"
OPTIMIZER = "optimizer.safetensors"
SHARDS = "shards"  # of all processes, where they share a model
# what a batch source keeps, if it keeps anything: `input_ids.0`, of process 0
SOURCE = "source.safetensors"


@dataclass
class TrainerState:
    """The numbers that a run needs to resume: training/trainer_state.json, field by field."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best_loss: float | None = None
    best_step: int | None = None
    best_tokens: int | None = None  # held-out tokens that the best loss was measured on; None: all
    skipped: int = 0  # bad steps that changed no parameter; overflows of fp16 are not counted
    lr: float | None = None  # of the newest step
    evaluated_at: int | None = None  # step of the newest evaluation
    logged: dict[str, int] = field(default_factory=dict)  # bytes of each log
    wandb_id: str | None = None
    identity: dict[str, Any] | None = None  # RunConfig.identity() of the run that saved
    resolved: dict[str, Any] = field(
        default_factory=dict
    )  # what `auto` stood for (train/machine/device.py)
    breaks: list[dict[str, Any]] = field(
        default_factory=list
    )  # where that changed at a resume: {step, what}
    scaler: dict[str, int | float] | None = None  # of the losses, in fp16


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

    source_state: what this process's batch source needs to continue. Every process calls it. All
    return once the first one has written. Raises InputError in all of them, with the earlier
    checkpoints as they were, if a write fails.
    """
    # Weights, and what optimizers hold, on the CPU for the first process to write, or in shards.
    # Frozen parameters are among the weights, but not those beside adapters: they are in the base.
    # No optimizer holds frozen ones.
    weights = (
        lm.state_dict()
    )  # FSDP2 leaves some parameters gathered after an evaluation: this puts the shares back
    if lm.adapters is not None:
        weights = {name: tensor for name, tensor in weights.items() if ".lora_" in name}
    moments = {  # muon.model.layers.0….momentum_buffer
        prefix + key: torch.as_tensor(value)
        for optimizer in optimizers
        for parameter, prefix in _prefixes(lm, optimizer)
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    shards = checkpoints / f"{SHARDS}.tmp"
    sharded = dict[str, Tensor]()
    if world.shares_model:
        both = {name: weights[name] for name in stored_names(lm)} | moments
        sharded = {name: tensor for name, tensor in both.items() if isinstance(tensor, DTensor)}
        _write_shards(shards, sharded, world)
        moments = {name: tensor for name, tensor in moments.items() if name not in sharded}
    if world.rank == 0:
        if not sharded:
            weights = {name: tensor.cpu().contiguous() for name, tensor in weights.items()}
        moments = {name: tensor.cpu().contiguous() for name, tensor in moments.items()}

    # What belongs to one process: `rng.cpu.0`, `rng.cpu.1`, …, and what its batch source keeps.
    random = {"rng.cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        random["rng.cuda"] = torch.cuda.get_rng_state()
    of_ranks = list(enumerate(world.gather((random, source_state or {}))))
    moments |= {
        f"{name}.{rank}": x for rank, (its_random, _) in of_ranks for name, x in its_random.items()
    }
    of_source = {
        f"{name}.{rank}": x.contiguous()
        for rank, (_, its_own) in of_ranks
        for name, x in its_own.items()
    }

    def fill(directory: Path) -> None:
        if sharded:
            shards.rename(directory / TRAINING / SHARDS)
            whole = {
                name: torch.empty(weights[name].shape, dtype=weights[name].dtype)
                for name in stored_names(lm)
            }
            _read_shards(directory, whole)
        save(lm, directory, whole if sharded else weights)
        tokenizer.save(directory, lm.config.max_position_embeddings)
        (directory / CARD).write_text(
            model_card(checkpoints.parent.name, lm, vars(state)), encoding="utf-8"
        )
        save_file(moments, directory / TRAINING / OPTIMIZER)
        if of_source:
            save_file(of_source, directory / TRAINING / SOURCE)
        saved = {
            each.name: getattr(state, each.name) for each in fields(TrainerState)
        }  # not the rest of a RunState
        (directory / TRAINING / STATE).write_text(
            json.dumps(saved, indent=2) + "\n", encoding="utf-8"
        )

    best_step = state.best_step if keep_best else None
    return world.on_rank0(lambda: commit(checkpoints, state.step, fill, keep_last, best_step))


def _write_shards(folder: Path, tensors: dict[str, Tensor], world: World) -> None:
    """Every process writes its shares of DTensors into a new folder, as safetensors.

    Raises InputError in all.
    """
    import torch.distributed.checkpoint as dcp  # an optional subject

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
    try:
        dcp.save(
            tensors, storage_writer=dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True)
        )
    except dcp.CheckpointException as error:  # all processes know of it
        if world.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        reason = next(iter(error.failures.values()))[0]
        raise InputError(f"the checkpoint could not be written to {folder}: {reason}") from None


def _read_shards(directory: Path, tensors: dict[str, Tensor]) -> None:
    """Fill tensors, whole ones or this process's shares of DTensors, from the shards of a
    checkpoint.
    """
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():  # that each process reads by itself: it is meant so
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        dcp.load(
            tensors,
            storage_reader=dcp.HuggingFaceStorageReader(str(directory / TRAINING / SHARDS)),
            no_dist=True,
        )


def _load_shards(
    lm: LanguageModel, optimizers: list[torch.optim.Optimizer], directory: Path
) -> dict[str, Tensor]:
    """Weights come to their places. Returns the moments, laid out as their parameters are."""
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    state = lm.state_dict()
    weights = {name: state[name] for name in stored_names(lm)}
    parameters = {
        prefix[:-1]: p for optimizer in optimizers for p, prefix in _prefixes(lm, optimizer)
    }
    names = (
        HuggingFaceStorageReader(str(directory / TRAINING / SHARDS))
        .read_metadata()
        .state_dict_metadata
    )
    moments = {
        name: torch.zeros_like(parameters[name.rpartition(".")[0]])
        for name in names
        if name not in weights
    }
    _read_shards(directory, weights | moments)
    return moments


def _prefixes(
    lm: LanguageModel, optimizer: torch.optim.Optimizer
) -> list[tuple[torch.nn.Parameter, str]]:
    """An optimizer's parameters, all or some of the model's, each with the prefix that the names of
    its state have.
    """
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
    """Let `fill` write its files into a directory, and make it the checkpoint of this step: all or
    nothing.

    Raises InputError, with the earlier checkpoints as they were, if a write fails.
    """
    temporary = checkpoints / f"step_{step:08d}.tmp"
    try:
        checkpoints.mkdir(
            exist_ok=True
        )  # not its parents: a run directory that was moved away is not made again
        shutil.rmtree(temporary, ignore_errors=True)
        (temporary / TRAINING).mkdir(parents=True)
        fill(temporary)
        files = [
            path for path in sorted(temporary.rglob("*")) if path.is_file() and path.name != CARD
        ]
        manifest = {file.relative_to(temporary).as_posix(): _size_and_hash(file) for file in files}
        (temporary / TRAINING / MANIFEST).write_text(
            json.dumps(manifest, indent=2), encoding="utf-8"
        )
        for file in [*files, temporary / TRAINING / MANIFEST]:
            with file.open("rb+") as stream:
                os.fsync(stream.fileno())
        return tidy(checkpoints, temporary, keep_last, best_step)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InputError(
            f"the checkpoint of step {step:,} could not be written to {checkpoints}: {reason}"
        ) from error


def tidy(checkpoints: Path, newest: Path, keep_last: int, best_step: int | None) -> Path:
    """Give the newest checkpoint its name, point `latest` and `best` at what they name, and delete
    all but the newest `keep_last` and the best one: after a save, and after a kill. Returns the
    newest one's path.

    A later one is damaged, and stays until its step is saved again.
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
            with suppress(
                OSError
            ):  # renamed first: half of a checkpoint is not to be mistaken for a damaged one
                shutil.rmtree(directory.rename(directory.with_suffix(".tmp")))
    return newest


# --------------------------------------------------------------------------------------------------
# find and load


def newest_intact(checkpoints: Path) -> Path | None:
    """The newest checkpoint whose files match its manifest.

    A newer, damaged one is reported on stderr.
    """
    directories = [*checkpoints.glob(STEPS), *checkpoints.glob(STEPS + ".tmp")]
    for directory in sorted(directories, key=lambda path: (path.stem, path.suffix), reverse=True):
        problem = damage(directory)
        if problem is None:
            return directory
        if directory.suffix == "":
            print(f"warning: {problem}: trying the checkpoint before it", file=sys.stderr)
    return None


def damage(directory: Path) -> str | None:
    """Return the problem of a checkpoint directory, or None. Hashes every file of its manifest."""
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
    """trainer_state.json of a checkpoint; a key that is missing there has its default.

    Raises InputError.
    """
    file = directory / TRAINING / STATE
    return checked(read_json(file), str(file), TrainerState, strict=None)


def load_checkpoint(
    directory: Path,
    lm: LanguageModel,
    optimizers: list[torch.optim.Optimizer],
    world: World = ALONE,
) -> TrainerState:
    """Restore weights, optimizer state and the random state. Every process reads the files and
    keeps its own share.

    All return when all have read, so that one of them can tidy up then. Raises InputError, naming
    the tensor, if one is missing, or does not belong to this run.
    """
    state = read_state(directory)
    tensors = load_file(directory / TRAINING / OPTIMIZER)
    if (directory / TRAINING / SHARDS).is_dir():
        tensors |= _load_shards(lm, optimizers, directory)
    else:
        weights = read_weights(lm, directory)
        with torch.no_grad():
            for name, target in lm.state_dict().items():
                if name in weights:  # a tied lm_head is not: it is the embedding
                    target.copy_(share(weights[name], target))
    random = {name: tensors.pop(name) for name in list(tensors) if name.startswith("rng.")}
    # optimizers that never took a step have no state: all answers earned the same, or all steps
    # overflowed
    if tensors:
        _restore_optimizers(lm, optimizers, tensors, directory / TRAINING / OPTIMIZER)
    # a process that did not exist when the run was saved gets a random stream of its own, always
    # the same one
    digest = hashlib.sha256(
        random["rng.cpu.0"].numpy().tobytes() + str(world.rank).encode()
    ).digest()
    torch.manual_seed(int.from_bytes(digest[:7], "big"))
    if f"rng.cpu.{world.rank}" in random:
        torch.set_rng_state(random[f"rng.cpu.{world.rank}"])
    if torch.cuda.is_initialized() and f"rng.cuda.{world.rank}" in random:
        torch.cuda.set_rng_state(random[f"rng.cuda.{world.rank}"])
    world.gather(None)
    return state


def _restore_optimizers(
    lm: LanguageModel,
    optimizers: list[torch.optim.Optimizer],
    tensors: dict[str, Tensor],
    file: Path,
) -> None:
    """Raises InputError that names a parameter without state, or a state that belongs to no
    parameter.
    """
    for optimizer in optimizers:
        state = {}
        for number, (parameter, prefix) in enumerate(_prefixes(lm, optimizer)):
            # copies, because load_file's tensors share one buffer, in which they may stand
            # unaligned
            names = [name for name in tensors if name.startswith(prefix)]
            saved = {name.removeprefix(prefix): tensors.pop(name).clone() for name in names}
            if not saved:
                raise InputError(f"{file}: {prefix[:-1]} has no state")
            state[
                number
            ] = {  # of a moment this process's share; AdamW's step count is one number everywhere
                key: share(value, parameter) if value.ndim == parameter.ndim else value
                for key, value in saved.items()
            }
        # load_state_dict puts each tensor where the optimizer wants it: fused AdamW counts steps on
        # the device
        optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    if tensors:
        raise InputError(f"{file}: {min(tensors)} is not part of this run")


def load_source_state(directory: Path, world: World = ALONE) -> dict[str, Tensor]:
    """Return the saved state of this process's batch source; {} if there is none, or the number of
    processes changed."""
    file = directory / TRAINING / SOURCE
    saved = load_file(file) if file.is_file() else {}
    if {name.rpartition(".")[2] for name in saved} != {str(rank) for rank in range(world.size)}:
        return {}
    own = f".{world.rank}"
    return {name.removesuffix(own): tensor for name, tensor in saved.items() if name.endswith(own)}
