"""Checkpoints: atomic, checksummed, enough to go on exactly. A checkpoint is a Hugging Face model directory.

Written to step_XXXXXXXX.tmp, every file flushed to disk, manifest.json (sizes and sha256) last, then renamed;
`latest` is replaced after that. A process killed at any moment leaves the previous checkpoint whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from configs.loader import InputError
from data.tokenizer import Tokenizer
from model import LanguageModel, save
from model.checkpoint_format import load_weights


@dataclass
class TrainerState:
    """What besides tensors a run needs to go on. identity: RunConfig.identity() of the run that saved."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best_loss: float | None = None
    best_step: int | None = None
    wandb_id: str | None = None
    identity: dict[str, Any] | None = None
    resolved: dict[str, Any] = field(default_factory=dict)
    scaler: dict[str, Any] | None = None
    spikes: dict[str, float] | None = None
    world_size: int = 1
    torch_version: str = torch.__version__


class SaveError(Exception):
    """A checkpoint could not be written."""


def step_name(step: int) -> str:
    return f"step_{step:08d}"


def save_checkpoint(
    checkpoints: Path,
    lm: LanguageModel,
    optimizers: list[torch.optim.Optimizer],
    tokenizer: Tokenizer,
    state: TrainerState,
    keep_last: int,
) -> Path:
    """Write a checkpoint of this step, point `latest` (and `best`) at it, drop the ones no longer kept."""
    directory = checkpoints / step_name(state.step)
    temporary = directory.with_suffix(".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    save(lm, temporary)
    tokenizer.save(temporary)
    save_file(_optimizer_tensors(lm, optimizers), temporary / "optimizer.safetensors")
    _write_text(temporary / "trainer_state.json", json.dumps(asdict(state), indent=2) + "\n")
    files = sorted(temporary.iterdir())
    manifest = {file.name: {"bytes": file.stat().st_size, "sha256": _sha256(file)} for file in files}
    _write_text(temporary / "manifest.json", json.dumps(manifest, indent=2) + "\n")
    for file in temporary.iterdir():
        _flush(file)
    _flush(temporary)
    if directory.exists():  # the same step, saved before: a run that was started again at this very step
        shutil.rmtree(directory)
    temporary.rename(directory)
    _flush(checkpoints)
    _point(checkpoints / "latest", directory.name)
    if state.best_step == state.step:
        _point(checkpoints / "best", directory.name)
    _drop_old(checkpoints, directory, keep_last)
    return directory


def newest_intact(checkpoints: Path) -> Path | None:
    """The newest checkpoint whose files are what its manifest says; a damaged one is named on stderr."""
    for directory in sorted(checkpoints.glob("step_????????"), reverse=True):
        problem = damage(directory)
        if problem is None:
            return directory
        print(f"warning: {problem}: trying the checkpoint before it", file=sys.stderr)
    return None


def damage(directory: Path) -> str | None:
    """What is wrong with a checkpoint directory, in words, or None."""
    try:
        manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
        for name, expected in manifest.items():
            file = directory / name
            if file.stat().st_size != expected["bytes"] or _sha256(file) != expected["sha256"]:
                return f"{file} is damaged"
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        return f"{directory} is not a whole checkpoint ({error})"
    return None


def read_state(directory: Path) -> TrainerState:
    """trainer_state.json of a checkpoint. Raises InputError if it is not one."""
    file = directory / "trainer_state.json"
    try:
        return TrainerState(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{file}: cannot go on from here: {error}") from None


def load_checkpoint(directory: Path, lm: LanguageModel, optimizers: list[torch.optim.Optimizer]) -> TrainerState:
    """Restore weights, optimizer state and the random state. Raises InputError for another architecture."""
    try:
        load_weights(lm, directory)
        tensors = load_file(directory / "optimizer.safetensors")
        _restore_optimizers(lm, optimizers, tensors)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise InputError(f"{directory}: cannot go on from here: {error}") from None
    return read_state(directory)


def _optimizer_tensors(lm: LanguageModel, optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Optimizer state by parameter name (`muon.model.layers.0….momentum_buffer`), and the random state."""
    names = {id(p): name for name, p in lm.named_parameters()}
    tensors = {"rng.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["rng.cuda"] = torch.cuda.get_rng_state()
    for optimizer in optimizers:
        kind = type(optimizer).__name__.lower()
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                tensors[f"{kind}.{names[id(parameter)]}.{key}"] = torch.as_tensor(value).clone().contiguous()
    return tensors


def _restore_optimizers(lm: LanguageModel, optimizers: list[torch.optim.Optimizer], tensors: dict[str, Tensor]) -> None:
    names = {id(p): name for name, p in lm.named_parameters()}
    for optimizer in optimizers:
        kind = type(optimizer).__name__.lower()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                prefix = f"{kind}.{names[id(parameter)]}."
                state = {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}
                if not state:
                    raise ValueError(f"optimizer.safetensors holds nothing for {prefix[:-1]}")
                # AdamW keeps its step count on the CPU unless it is fused
                move = lambda key, t, p=parameter: t if key == "step" and not p.is_cuda else t.to(p.device)  # noqa: E731
                optimizer.state[parameter] = {key: move(key, t) for key, t in state.items()}
    torch.set_rng_state(tensors["rng.cpu"])
    if torch.cuda.is_available() and "rng.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["rng.cuda"])


def _drop_old(checkpoints: Path, newest: Path, keep_last: int) -> None:
    everything = sorted(checkpoints.glob("step_????????"))
    best = checkpoints / "best"
    # what is later than the newest was damaged, and the run has gone on from before it
    kept = {path.name for path in [path for path in everything if path.name <= newest.name][-keep_last:]}
    kept.add(best.read_text(encoding="utf-8").strip() if best.is_file() else "")
    for directory in everything:
        if directory.name not in kept:
            shutil.rmtree(directory)


def _point(file: Path, name: str) -> None:
    temporary = file.with_suffix(".tmp")
    _write_text(temporary, name + "\n")
    _flush(temporary)
    temporary.replace(file)


def _write_text(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _flush(path: Path) -> None:
    """Wait until a file, or on POSIX a directory's entries, are on the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows has no such call for directories
    handle = os.open(path, os.O_RDONLY if path.is_dir() or os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
