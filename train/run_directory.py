"""runs/<name>/: what a second run of the same name does. Nothing that exists is overwritten."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.loader import InputError
from train.checkpoint import damage, newest_intact, read_state
from train.config import RunConfig
from train.tracking import truncate_after


@dataclass(frozen=True)
class Start:
    """Where a run begins: at a checkpoint, from scratch (None), or not at all because it is finished."""

    checkpoint: Path | None
    finished: bool


def find_start(config: RunConfig) -> Start:
    """Look for what is there and decide. Writes nothing.

    Raises InputError if the directory belongs to another run, if resume=never meets an existing run, and if
    resume names no whole checkpoint.
    """
    directory = config.directory
    newest = newest_intact(directory / "checkpoints")
    if config.resume == "never":
        if directory.exists() and any(directory.iterdir()):
            raise InputError(f"{directory} exists and resume=never: choose another name, or resume=auto to go on")
        return Start(None, False)
    if config.resume == "auto":
        if newest is None:
            _refuse_foreign(directory)
            return Start(None, False)
        checkpoint = newest
    else:
        checkpoint = Path(config.resume)
        problem = damage(checkpoint)
        if problem is not None:
            raise InputError(f"resume: {problem}: give a checkpoint directory, for example runs/x/checkpoints/step_…")
        if newest is not None and read_state(newest).step > read_state(checkpoint).step:
            raise InputError(
                f"resume: {directory} already went on to step {read_state(newest).step:,}: choose another name"
            )
    state = read_state(checkpoint)
    _refuse_other_identity(config, checkpoint, state.identity or {})
    finished = state.step >= config.train.max_steps and checkpoint == newest
    if state.step > config.train.max_steps:
        raise InputError(
            f"train.max_steps is {config.train.max_steps:,}, but {checkpoint} is at step {state.step:,}: "
            "raise it or choose another name"
        )
    return Start(checkpoint, finished and (directory / "report.md").is_file())


def open_for(config: RunConfig, step: int) -> None:
    """Make the run directory and write config.yaml; drop what an interrupted run logged after `step`."""
    directory = config.directory
    try:
        (directory / "checkpoints").mkdir(parents=True, exist_ok=True)
        (directory / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
        truncate_after(directory / "samples.jsonl", step)
    except OSError as error:
        raise InputError(f"output_dir: {directory} cannot be written: {error.strerror}") from None


def _refuse_foreign(directory: Path) -> None:
    """A directory that holds files but was not made by a run is left alone."""
    if not directory.exists():
        return
    if not directory.is_dir() or (any(directory.iterdir()) and not (directory / "config.yaml").is_file()):
        raise InputError(f"{directory} exists and is not a run: choose another name or output_dir")


def _refuse_other_identity(config: RunConfig, checkpoint: Path, saved: dict[str, Any]) -> None:
    wanted = config.identity()
    for key in ("model.vocab_size",):  # the tokenizer fills it in later; the data section decides it
        wanted.pop(key, None)
        saved.pop(key, None)
    different = [
        f"{key} (there {saved.get(key)!r}, here {wanted.get(key)!r})"
        for key in sorted(wanted.keys() | saved.keys())
        if saved.get(key) != wanted.get(key)
    ]
    if different:
        raise InputError(
            f"{checkpoint} belongs to another run; these keys differ: {', '.join(different)}: "
            "choose another name, or set them back"
        )
