"""runs/<name>/: what a second run of the same name does. Nothing that exists is overwritten."""

from __future__ import annotations

import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.loader import InputError
from configs.meaning import Meaning, keys_that
from data.prepare import PreparedData
from eval.attention.render import PICTURES, VIEWER
from train import report
from train.config import LIMITS, RunConfig, load_run_config
from train.saving.checkpoint import TrainerState, read_state
from train.saving.checkpoint_files import any_checkpoint, damage, newest_intact, settle
from train.tracking import truncate_after

CONTENTS = "data.contents"  # key of the identity that says what the prepared data was made of


@dataclass(frozen=True)
class Start:
    """Where a run begins: at a checkpoint, from scratch (None), or not at all because it is finished."""

    checkpoint: Path | None
    finished: bool
    state: TrainerState | None = None

    def is_own(self, config: RunConfig) -> bool:
        """Whether it goes on from a checkpoint of its own, and not from another run's."""
        return self.checkpoint is not None and _same(self.checkpoint.parent, config.directory / "checkpoints")


def find_start(config: RunConfig) -> Start:
    """Look for what is there and decide. Writes nothing.

    Raises InputError if the directory belongs to another run or to none, if resume=never meets an existing run,
    and if resume names no whole checkpoint.
    """
    try:
        return _find_start(config)
    except OSError as error:
        raise InputError(f"output_dir: {config.directory} cannot be read: {error.strerror}") from None


def _find_start(config: RunConfig) -> Start:
    directory = config.directory
    exists = directory.exists() and (not directory.is_dir() or any(map(_is_something, directory.iterdir())))
    if exists and config.resume == "never":
        raise InputError(f"{directory} exists and resume=never: choose another name, or resume=auto to go on")
    if exists:
        _refuse_foreign(config)
    newest = newest_intact(directory / "checkpoints")
    if newest is None and any_checkpoint(directory / "checkpoints"):
        raise InputError(f"{directory}/checkpoints: none of them is whole: move {directory} away to start afresh")
    if config.resume in ("auto", "never"):
        checkpoint = newest
    else:
        checkpoint = Path(config.resume)
        _refuse_as_start(config, checkpoint, newest)
    if checkpoint is None:
        return Start(None, False)
    state = read_state(checkpoint)
    _refuse_other_identity(config, state.identity or {}, str(checkpoint))
    limit = next((name for name in LIMITS[1:] if getattr(config.train, name) is not None), LIMITS[0])
    if config.max_steps is not None and state.step > config.max_steps:
        raise InputError(
            f"train.{limit} makes {config.max_steps:,} steps, but {checkpoint} is at step {state.step:,}: "
            "raise it or choose another name"
        )
    is_over = config.progress(state.step, state.seconds) >= 1
    if is_over and newest is None:
        raise InputError(f"resume: {checkpoint} is at step {state.step:,} already: raise train.{limit}")
    finished = is_over and newest is not None and _same(checkpoint, newest) and _names_the_same_text(config)
    return Start(checkpoint, finished and report.is_finished(directory, state.step), state)


def _names_the_same_text(config: RunConfig) -> bool:
    """Else a finished run goes on far enough for `check_contents` to see whether the text itself is another."""
    return load_run_config(config.directory / "config.yaml").data.source == config.data.source


def _same(a: Path, b: Path) -> bool:
    return a.resolve() == b.resolve()


def _is_something(path: Path) -> bool:
    """Whether it is more than what a run leaves that was killed before it wrote its config."""
    return path.name not in ("checkpoints", "config.tmp") or (path.is_dir() and any(path.iterdir()))


def check_contents(config: RunConfig, state: TrainerState, data: PreparedData) -> None:
    """The text itself must be what the run was trained on, wherever it lies. Raises InputError if it changed.

    state.identity becomes that of the run as it goes on.
    """
    contents = (state.identity or {}).get(CONTENTS, data.directory.name)
    if contents != data.directory.name:
        problem = "data.source: the text, or what generates it, is no longer what this run was trained on"
        if not config.allow_mismatch:
            raise InputError(f"{problem}: put it back, choose another name, or set allow_mismatch=true")
        _warn(problem)
    state.identity = config.identity() | {CONTENTS: data.directory.name}


def open_for(config: RunConfig, step: int | None) -> None:
    """Make the run directory and write config.yaml; drop what an interrupted run left half done or logged after `step`.

    step: of the checkpoint that the run goes on from; None = it starts afresh, with empty files.

    For one process, and after the checkpoint was read.
    """
    directory = config.directory
    checkpoints = directory / "checkpoints"
    try:
        checkpoints.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=checkpoints):
            pass  # better to learn it now than at the first save
        settle(checkpoints)
        temporary = directory / "config.tmp"
        temporary.write_text(config.to_yaml(), encoding="utf-8")
        temporary.replace(directory / "config.yaml")
        last = -1 if step is None else step
        for name in ("metrics.jsonl", "samples.jsonl", "trace.jsonl", "attention/index.jsonl"):
            truncate_after(directory / name, last)
        for file in (directory / "attention").glob("*"):
            number = re.fullmatch(r"step_(\d{8})", file.stem)
            if int(number[1]) > last if number else file.name in (*PICTURES, VIEWER):  # those are drawn anew at the end
                file.unlink()
    except OSError as error:
        raise InputError(f"output_dir: {directory} cannot be written: {error.strerror}") from None


def _refuse_foreign(config: RunConfig) -> None:
    """A directory that holds files but was not made by a run is left alone; so is another run's."""
    directory = config.directory
    try:
        there = load_run_config(directory / "config.yaml")
    except InputError as error:
        if any_checkpoint(directory / "checkpoints"):
            raise InputError(f"{directory} is a run, but its config cannot be read: {error}") from None
        raise InputError(f"{directory} exists and is not a run: choose another name or output_dir") from None
    if not config.allow_mismatch:  # else the checkpoint says what matters, and a run without one starts afresh
        _refuse_other_identity(config, there.identity(), str(directory))


def _refuse_as_start(config: RunConfig, checkpoint: Path, newest: Path | None) -> None:
    problem = damage(checkpoint)
    if problem is not None:
        raise InputError(f"resume: {problem}: give a checkpoint directory, for example runs/x/checkpoints/step_…")
    step = read_state(checkpoint).step
    if newest is not None and read_state(newest).step > step:
        raise InputError(
            f"resume: {config.directory} already went on to step {read_state(newest).step:,}: choose another name"
        )


def _refuse_other_identity(config: RunConfig, saved: dict[str, Any], where: str) -> None:
    wanted = config.identity()
    saved = {key: value for key, value in saved.items() if key != CONTENTS}
    different = [key for key in sorted(wanted.keys() | saved.keys()) if saved.get(key) != wanted.get(key)]
    if not different:
        return
    listed = ", ".join(f"{key} (there {saved.get(key)!r}, here {wanted.get(key)!r})" for key in different)
    if not config.allow_mismatch:
        raise InputError(
            f"{where} belongs to another run; these keys differ: {listed}: "
            "choose another name, or set them back; allow_mismatch=true goes on nevertheless"
        )
    if fixed := [key for key in different if key in keys_that(RunConfig, Meaning.TENSORS)]:
        raise InputError(
            f"{where} has other tensors ({listed}): allow_mismatch cannot help with {', '.join(fixed)}: "
            "choose another name, or set them back"
        )
    _warn(f"{where} was trained with other settings: {listed}")


def _warn(problem: str) -> None:
    print(f"warning: {problem}: going on, because allow_mismatch is set", file=sys.stderr)
