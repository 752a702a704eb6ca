"""runs/<name>/: its lock, where a run starts, and when it is finished.

The same command on an existing run resumes it, if `RunConfig.identity` is the same.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from configs.command import InputError
from configs.files import write_atomically, writing_to
from configs.parse import dump_yaml
from data.packing import PreparedData
from eval.page.viewer import VIEWER
from eval.pictures.run_pictures import PICTURES
from eval.run_files import EXPERTS, METRICS, RESULT, SAMPLES, read_result
from train.config import RunConfig, load_run_config
from train.run.checkpoint import STEPS, TrainerState, damage, newest_intact, read_state, tidy

LOCK = "owner.lock"  # A process locks it as long as it writes into the run directory.
PATIENCE_S = 1.0  # Another process may be about to end.
CONTENTS = "data.contents"  # This key of the identity is a hash of the text.
TRAIN_HERE = "train it here again under another name, and fork that run"
LOGS = (METRICS, SAMPLES, EXPERTS, "trace.jsonl", "attention/index.jsonl")


@contextmanager
def own(directory: Path) -> Iterator[None]:
    """Lock a folder, which is made if it does not exist. Raises InputError if it is in use."""
    # The system frees this lock when the process ends, even if it is killed.
    lock = FileLock(directory / LOCK, timeout=PATIENCE_S)
    directory.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(
            f"{directory} is in use by another process: wait until it ends, or stop it"
        ) from None
    try:
        with writing_to(directory):
            yield
    finally:
        with suppress(OSError):
            (directory / LOCK).unlink()  # while locked, so that a process that waits sees it gone
            # A run that was refused leaves no empty folders. One with files is not removed: rmdir
            # fails.
            for folder in (directory, directory.parent):
                folder.rmdir()
        lock.release()


@dataclass(frozen=True)
class Start:
    """The begin of a run: at a checkpoint, from scratch, or not at all if it is finished."""

    checkpoint: Path | None = None  # None: from scratch
    finished: bool = False
    state: TrainerState | None = None  # of the checkpoint
    newest: Path | None = None  # the run's own newest intact checkpoint


def find_start(config: RunConfig) -> Start:
    """Look at what exists and decide; write nothing.

    Raises InputError if the directory belongs to another run or to no run, if it exists and
    resume=never, or if resume names no complete checkpoint.
    """
    directory = config.directory
    newest = None
    begun_with = config
    # A run that was killed before it wrote its config leaves only these.
    before_config = {LOCK, "config.tmp"}
    if directory.exists() and any(path.name not in before_config for path in directory.iterdir()):
        if config.resume == "never":
            problem = f"{directory} exists and resume=never"
            raise InputError(f"{problem}: choose another name, or resume=auto to continue")
        try:
            begun_with = load_run_config(directory / "config.yaml")
        except InputError as error:
            problem = f"{directory} exists and is not a run: {error}"
            raise InputError(f"{problem}: choose another name") from None
        newest = newest_intact(directory / "checkpoints")
        if newest is None and any((directory / "checkpoints").glob(STEPS)):
            raise InputError(
                f"no checkpoint in {directory} is complete: move it away to start again"
            )
    checkpoint = newest
    if config.resume not in ("auto", "never"):
        named = Path(config.resume)
        if newest is None or newest.resolve() != named.resolve():  # else it is checked already
            checkpoint = named
            damaged = damage(named)
            if damaged is not None:
                remedy = "give a checkpoint directory: runs/x/checkpoints/step_…"
                raise InputError(f"resume: {damaged}: {remedy}")
    if checkpoint is None:
        return Start()

    state = read_state(checkpoint)
    reached = read_state(newest).step if newest is not None else 0
    if reached > state.step:
        raise InputError(
            f"resume: {directory} already continued to step {reached:,}: choose another name"
        )
    current = config.during(state.step)
    # The step before has made this checkpoint: `changes` may have given it other values.
    here = config.during(state.step - 1).identity()
    # Keys that are newer than the run have their defaults: these do what was done without the key.
    defaults = RunConfig().identity()
    there = {key: defaults[key] for key in here if key in defaults} | (state.identity or {})
    keys = sorted({*here, *there} - {CONTENTS})
    different = [
        f"{key} (there {there.get(key)!r}, here {here.get(key)!r})"
        for key in keys
        if there.get(key) != here.get(key)
    ]
    if different:
        listed = ", ".join(different)
        refuse(config, f"{checkpoint} belongs to another run; these keys differ: {listed}")
    if current.max_steps is not None and state.step > current.max_steps:
        limit = "max_tokens" if current.train.max_tokens is not None else "max_steps"
        problem = f"train.{limit} ends before step {state.step:,} of this run"
        raise InputError(f"{problem}: raise it or choose another name")

    is_over = checkpoint == newest and current.progress(state.step, state.seconds) >= 1
    # If the text has another path now, go on until `check_contents` can compare the text itself.
    is_over = is_over and begun_with.data.source == config.data.source
    result = read_result(directory, lambda problem: None) or {}  # if unreadable, write it again
    return Start(checkpoint, is_over and result.get("step") == state.step, state, newest)


def check_contents(config: RunConfig, state: TrainerState, data: PreparedData) -> None:
    """Raise InputError if the text is not the one that the run was trained on."""
    there = state.identity or {}
    # One of `changes` may have begun, or ended, with this step: another text, or other rows of it.
    here = {key: value for key, value in config.identity().items() if key.startswith("data.")}
    if any(there.get(key, value) != value for key, value in here.items()):
        return
    for change in config.changes:
        borders = (change.at, change.at + (change.steps or 0))
        if state.step in borders and any(key.startswith("data.") for key in change.keys):
            return
    # The folder's name is a hash of the text. So the text may have moved, but must not change.
    if there.get(CONTENTS, data.directory.name) != data.directory.name:
        changed = "the text, or what generates it, is no longer what this run was trained on"
        refuse(config, f"data.source: {changed}")


def refuse(
    config: RunConfig, problem: str, remedy: str = "set it back, choose another name"
) -> None:
    """Raise InputError, or only warn with allow_mismatch."""
    if not config.allow_mismatch:
        raise InputError(f"{problem}: {remedy}, or continue anyway with allow_mismatch=true")
    print(f"warning: {problem}: continuing, because allow_mismatch is set", file=sys.stderr)


def open_for(config: RunConfig, start: Start) -> None:
    """Write config.yaml, and bring an existing run back to its newest checkpoint.

    Rank 0 calls it when all processes have read the checkpoint. Raises OSError.
    """
    directory = config.directory
    begun = (directory / "config.yaml").exists()
    (directory / RESULT).unlink(missing_ok=True)  # from here on the run is not finished
    write_atomically(directory / "config.yaml", dump_yaml(config.model_dump()))
    if not begun:
        return
    saved = TrainerState(step=-1)
    if start.newest is not None:
        saved = read_state(start.newest)
        best_step = saved.best_step if config.train.keep_best else None
        tidy(directory / "checkpoints", start.newest, config.train.keep_last, best_step)
    # Later lines of the logs, and later pictures, come again: the resumed run repeats these steps.
    for name, size in log_sizes(directory).items():
        size_before = saved.logged.get(name, 0)
        if size > size_before:
            os.truncate(directory / name, size_before)
    for file in (directory / "attention").glob("*"):
        number = re.fullmatch(r"step_(\d{8})", file.stem)
        is_later = number is not None and int(number[1]) > saved.step
        if is_later or file.name in (*PICTURES, VIEWER):
            file.unlink()


def log_sizes(directory: Path) -> dict[str, int]:
    """Return the bytes of each log, 0 if there is none."""
    files = {name: directory / name for name in LOGS}
    return {name: file.stat().st_size if file.is_file() else 0 for name, file in files.items()}
