"""runs/<name>/: where a run starts, what a second run of the same name does, and when a run is finished."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.command import InputError
from configs.files import DamagedFile, keep_lines
from configs.schema import Tag, keys_with
from configs.text import escape
from data.prepare import PreparedData
from eval.attention.render import PICTURES, VIEWER
from eval.run_files import EXPERTS, METRICS, RESULT, SAMPLES, STEPPED, read_result
from train.config import LIMITS, RunConfig, load_run_config
from train.saving.atomic_save import damage, drop_old, newest_intact, replace_text, settle
from train.saving.checkpoint import TrainerState, read_state
from train.saving.run_lock import FILES as LOCK_FILES
from train.saving.run_lock import Owner

CONTENTS = "data.contents"  # key of the identity that says what the prepared data was made of
LOGS = (METRICS, SAMPLES, EXPERTS, "trace.jsonl", "attention/index.jsonl")


@dataclass(frozen=True)
class Start:
    """Where a run begins: at a checkpoint, from scratch (None), or not at all because it is finished.

    newest: the run's own newest checkpoint that is intact; it is not checked again.
    """

    checkpoint: Path | None
    finished: bool
    state: TrainerState | None = None
    newest: Path | None = None

    def is_own(self, config: RunConfig) -> bool:
        """Whether it resumes from its own checkpoint, and not from another run's."""
        return self.checkpoint is not None and _same(self.checkpoint.parent, config.directory / "checkpoints")


def start_of_owner(config: RunConfig, owner: Owner) -> Start:
    """What `find_start` finds. Raises InputError if another process owns the directory, unless the run is finished."""
    if not owner.problem:
        return find_start(config)
    if (config.directory / RESULT).is_file():
        with suppress(InputError):  # the owner may be changing what is read here
            start = find_start(config)
            if start.finished:
                return start
    raise InputError(owner.problem)


def find_start(config: RunConfig) -> Start:
    """Look at what exists and decide. Writes nothing; hashes each file once at most.

    Raises InputError if the directory belongs to another run or to no run, if resume=never meets an existing run,
    and if resume names no complete checkpoint.
    """
    checkpoint = newest = _newest_of_own(config)
    if config.resume not in ("auto", "never"):
        checkpoint = Path(config.resume)
        if newest is None or not _same(checkpoint, newest):
            if (problem := damage(checkpoint)) is not None:
                raise InputError(f"resume: {problem}: give a checkpoint directory: runs/x/checkpoints/step_…")
            if newest is not None and (reached := read_state(newest).step) > read_state(checkpoint).step:
                raise InputError(
                    f"resume: {config.directory} already continued to step {reached:,}: choose another name"
                )
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
    finished = is_over and newest is not None and _same(checkpoint, newest) and _has_result(config, state.step)
    return Start(checkpoint, finished, state, newest)


def _newest_of_own(config: RunConfig) -> Path | None:
    """The newest intact checkpoint of the run directory, if there is one. Raises InputError if it is not this run's."""
    directory, checkpoints = config.directory, config.directory / "checkpoints"
    if not directory.exists() or (directory.is_dir() and not any(map(_is_something, directory.iterdir()))):
        return None
    if config.resume == "never":
        raise InputError(f"{directory} exists and resume=never: choose another name, or resume=auto to continue")
    has_checkpoint = any(path.suffix != ".tmp" for path in checkpoints.glob("step_*"))
    try:
        there = load_run_config(directory / "config.yaml")
    except InputError as error:
        if has_checkpoint:
            raise InputError(f"{directory} is a run, but its config cannot be read: {error}") from None
        raise InputError(f"{directory} exists and is not a run: choose another name or output_dir") from None
    if not config.allow_mismatch:  # else the checkpoint decides, and a run without one starts again
        _refuse_other_identity(config, there.identity(), str(directory))
    newest = newest_intact(checkpoints)
    if newest is None and has_checkpoint:
        raise InputError(f"{checkpoints}: no checkpoint in it is complete: move {directory} away to start again")
    return newest


def _is_something(path: Path) -> bool:
    """Whether it is more than what a run leaves that was killed before it wrote its config."""
    return path.name not in ("checkpoints", "config.tmp", *LOCK_FILES) or (path.is_dir() and any(path.iterdir()))


def _same(a: Path, b: Path) -> bool:
    return a.resolve() == b.resolve()


def _has_result(config: RunConfig, step: int) -> bool:
    """Whether this step's result was written, for a text of the same name.

    With another name for the text, the run continues until `check_contents` can compare the text itself.
    """
    result = read_result(config.directory, lambda problem: None)  # without one that can be read, it is written again
    if result is None or result.get("step") != step:
        return False
    return load_run_config(config.directory / "config.yaml").data.source == config.data.source


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
            "choose another name, set them back, or continue anyway with allow_mismatch=true"
        )
    if fixed := [key for key in different if key in keys_with(RunConfig, Tag.TENSORS)]:
        raise InputError(
            f"{where} has other tensors ({listed}): allow_mismatch cannot help with {', '.join(fixed)}: "
            "choose another name, or set them back"
        )
    _warn(f"{where} was trained with other settings: {listed}")


def check_contents(config: RunConfig, state: TrainerState, data: PreparedData) -> None:
    """The text itself must be what the run was trained on, in any place. Raises InputError if it changed.

    state.identity becomes the identity of the continued run.
    """
    contents = (state.identity or {}).get(CONTENTS, data.directory.name)
    if contents != data.directory.name:
        problem = "data.source: the text, or what generates it, is no longer what this run was trained on"
        if not config.allow_mismatch:
            raise InputError(f"{problem}: put it back, choose another name, or set allow_mismatch=true")
        _warn(problem)
    state.identity = config.identity() | {CONTENTS: data.directory.name}


def _warn(problem: str) -> None:
    print(f"warning: {problem}: continuing, because allow_mismatch is set", file=sys.stderr)


def open_for(config: RunConfig, start: Start) -> None:
    """Make the run directory and write config.yaml. If it exists, first remove what an interrupted run left half done,
    and what it logged and drew after the step where it starts.

    For one process, after every process has read the checkpoint. Raises InputError if the directory cannot be written.
    """
    directory, last = config.directory, -1 if start.state is None else start.state.step
    checkpoints = directory / "checkpoints"
    try:
        checkpoints.mkdir(parents=True, exist_ok=True)
        (directory / RESULT).unlink(missing_ok=True)  # from here on it is not finished
        newest = settle(checkpoints, start.newest)
        if newest is not None:  # a kill may have come before the last save deleted what it replaces
            drop_old(checkpoints, newest, config.train.keep_last, config.train.keep_best)
        sizes = start.state.logged if start.state is not None and start.is_own(config) else {}
        for name in LOGS:
            truncate_after(directory / name, last, sizes.get(name))
        for file in (directory / "attention").glob("*"):
            number = re.fullmatch(r"step_(\d{8})", file.stem)
            if int(number[1]) > last if number else file.name in (*PICTURES, VIEWER):  # drawn again at the end
                file.unlink()
        replace_text(directory / "config.yaml", config.to_yaml())
    except OSError as error:
        raise InputError(f"output_dir: {directory} cannot be written: {error.strerror}") from None


def log_sizes(directory: Path) -> dict[str, int]:
    """Bytes of each log, 0 where there is none yet; a checkpoint keeps them for `truncate_after`."""
    files = {name: directory / name for name in LOGS}
    return {name: file.stat().st_size if file.is_file() else 0 for name, file in files.items()}


def truncate_after(file: Path, step: int, size: int | None = None) -> None:
    """Drop the lines of a .jsonl file that are later than `step`, or beyond its first `size` bytes. Raises OSError.

    The step alone does not say enough: an evaluation may have logged at the step where the run resumes and been killed
    before it was saved, and it comes again. A damaged line is reported and stays; a file that cannot be read at all is
    reported and left alone.
    """

    def warn(problem: str) -> None:
        print(escape(f"warning: {problem}"), file=sys.stderr)

    try:
        if size is not None and file.is_file() and file.stat().st_size > size:
            os.truncate(file, size)
        keep_lines(file, lambda record: record["step"] <= step, warn, STEPPED)
    except DamagedFile as error:
        warn(f"{error}: training continues without it")
