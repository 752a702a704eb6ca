"""runs/<name>/: who writes there, where a run starts, what a second run of the same name does, when it is finished."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from configs.command import InputError
from configs.files import DamagedFile, read_json
from data.prepare import PreparedData
from eval.attention.render import PICTURES, VIEWER
from eval.run_files import EXPERTS, METRICS, RESULT, SAMPLES, read_result
from train.checkpoint import STEPS, TrainerState, damage, newest_intact, read_state, replace_text, tidy
from train.config import LIMITS, RunConfig, load_run_config

LOCK, CARD = "owner.lock", "owner.json"  # held as long as a process works there; who that is
PATIENCE_S = 1.0  # with an owner that is just leaving
CONTENTS = "data.contents"  # key of the identity that says what the prepared data was made of
LOGS = (METRICS, SAMPLES, EXPERTS, "trace.jsonl", "attention/index.jsonl")


@contextmanager
def own(directory: Path) -> Iterator[None]:
    """Be the one process that writes into a folder, which is made if it does not exist. The lock ends with the process,
    however that ends. Raises InputError if another process has it."""
    lock, card = FileLock(directory / LOCK, timeout=PATIENCE_S), directory / CARD
    directory.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire()
    except Timeout:
        who = "another process"
        with suppress(DamagedFile, KeyError):
            who = "process {pid} on {host}, since {since}".format(**read_json(card))
        raise InputError(f"{directory} is in use by {who}: wait until it ends, or stop it") from None
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    try:
        card.write_text(json.dumps(owner), encoding="utf-8")
        yield
    finally:
        with suppress(OSError):
            card.unlink(missing_ok=True)
            (directory / LOCK).unlink()  # while it is locked: who waits for it sees that it is gone
            for folder in (directory, directory.parent):  # as if never made, if nothing was written into them
                folder.rmdir()
        lock.release()


@dataclass(frozen=True)
class Start:
    """Where a run begins: at a checkpoint, from scratch (None), or not at all because it is finished.

    newest: the run's own newest checkpoint that is intact; it is not checked again.
    """

    checkpoint: Path | None = None
    finished: bool = False
    state: TrainerState | None = None
    newest: Path | None = None


def find_start(config: RunConfig) -> Start:
    """Look at what exists and decide. Writes nothing; hashes each file once at most.

    Raises InputError if the directory belongs to another run or to no run, if resume=never meets an existing run,
    and if resume names no complete checkpoint.
    """
    directory, newest = config.directory, None
    before_config = {LOCK, CARD, "config.tmp"}  # all that a run leaves that was killed before it wrote its config
    if directory.exists() and not {path.name for path in directory.iterdir()} <= before_config:
        if config.resume == "never":
            raise InputError(f"{directory} exists and resume=never: choose another name, or resume=auto to continue")
        if not (directory / "config.yaml").is_file():
            raise InputError(f"{directory} exists and is not a run (config.yaml): choose another name or output_dir")
        newest = newest_intact(directory / "checkpoints")
        if newest is None and any((directory / "checkpoints").glob(STEPS)):
            raise InputError(f"no checkpoint in {directory} is complete: move it away to start again")
    checkpoint = newest
    if config.resume not in ("auto", "never") and (newest is None or newest.resolve() != Path(config.resume).resolve()):
        checkpoint = Path(config.resume)
        if (problem := damage(checkpoint)) is not None:
            raise InputError(f"resume: {problem}: give a checkpoint directory: runs/x/checkpoints/step_…")
    if checkpoint is None:
        return Start()

    state = read_state(checkpoint)
    if newest is not None and (reached := read_state(newest).step) > state.step:
        raise InputError(f"resume: {directory} already continued to step {reached:,}: choose another name")
    wanted, saved = config.identity(), state.identity or {}
    different = [key for key in sorted({*wanted, *saved} - {CONTENTS}) if saved.get(key) != wanted.get(key)]
    if different:
        listed = ", ".join(f"{key} (there {saved.get(key)!r}, here {wanted.get(key)!r})" for key in different)
        _refuse(config, f"{checkpoint} belongs to another run; these keys differ: {listed}")
    if config.max_steps is not None and state.step > config.max_steps:
        limit = next((name for name in LIMITS[1:] if getattr(config.train, name) is not None), LIMITS[0])
        raise InputError(
            f"train.{limit} makes {config.max_steps:,} steps, but {checkpoint} is at step {state.step:,}: "
            "raise it or choose another name"
        )
    is_over = checkpoint == newest and config.progress(state.step, state.seconds) >= 1
    # with another name for the text, the run continues until `check_contents` can compare the text itself
    is_over = is_over and load_run_config(directory / "config.yaml").data.source == config.data.source
    result = read_result(directory, lambda problem: None) or {}  # if it cannot be read, it is written again
    return Start(checkpoint, is_over and result.get("step") == state.step, state, newest)


def check_contents(config: RunConfig, state: TrainerState, data: PreparedData) -> None:
    """The text itself must be what the run was trained on, in any place. Raises InputError if it changed.

    state.identity becomes the identity of the continued run.
    """
    if (state.identity or {}).get(CONTENTS, data.directory.name) != data.directory.name:
        _refuse(config, "data.source: the text, or what generates it, is no longer what this run was trained on")
    state.identity = config.identity() | {CONTENTS: data.directory.name}


def _refuse(config: RunConfig, problem: str) -> None:
    if not config.allow_mismatch:
        remedy = "set it back, choose another name, or continue anyway with allow_mismatch=true"
        raise InputError(f"{problem}: {remedy}")
    print(f"warning: {problem}: continuing, because allow_mismatch is set", file=sys.stderr)


def open_for(config: RunConfig, start: Start) -> None:
    """Make the run directory and write config.yaml. If it exists, remove what an interrupted run left half done, and
    what it logged and drew after its newest checkpoint.

    For one process, after every process has read the checkpoint. Raises OSError if the directory cannot be written.
    """
    directory, checkpoints = config.directory, config.directory / "checkpoints"
    (directory / RESULT).unlink(missing_ok=True)  # from here on it is not finished
    replace_text(directory / "config.yaml", config.to_yaml())
    checkpoints.mkdir(exist_ok=True)
    saved = TrainerState(step=-1)
    if start.newest is not None:
        saved = read_state(start.newest)
        tidy(checkpoints, start.newest, config.train.keep_last, saved.best_step if config.train.keep_best else None)
    for name, size in log_sizes(directory).items():
        if size > (before := saved.logged.get(name, 0)):
            os.truncate(directory / name, before)
    for file in (directory / "attention").glob("*"):
        number = re.fullmatch(r"step_(\d{8})", file.stem)
        if int(number[1]) > saved.step if number else file.name in (*PICTURES, VIEWER):  # drawn again at the end
            file.unlink()


def log_sizes(directory: Path) -> dict[str, int]:
    """Bytes of each log, 0 where there is none yet; a checkpoint keeps them, and a resumed run goes back to them."""
    files = {name: directory / name for name in LOGS}
    return {name: file.stat().st_size if file.is_file() else 0 for name, file in files.items()}
