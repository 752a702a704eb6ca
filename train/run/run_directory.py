"""runs/<name>/: who may write there, where a run starts, and when it is finished.

The same command on an existing run resumes it. What makes a run itself (`RunConfig.identity`) must
be equal, else the keys that differ are named.
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
from configs.loader import dump_yaml
from data.packing import PreparedData
from eval.page.viewer import VIEWER
from eval.pictures.heads import PICTURES
from eval.run_files import EXPERTS, METRICS, RESULT, SAMPLES, read_result
from train.config import LIMITS, RunConfig, load_run_config
from train.run.checkpoint import STEPS, TrainerState, damage, newest_intact, read_state, tidy

LOCK = "owner.lock"  # held as long as a process works in the run directory
PATIENCE_S = 1.0  # with an owner that is just leaving
CONTENTS = "data.contents"  # key of the identity that says what the prepared data was made of
LOGS = (METRICS, SAMPLES, EXPERTS, "trace.jsonl", "attention/index.jsonl")


@contextmanager
def own(directory: Path) -> Iterator[None]:
    """Be the only process that writes into a folder, which is made if it does not exist.

    The lock ends with the process, however that ends. Raises InputError if another process has it.
    """
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
            (directory / LOCK).unlink()  # while it is locked: who waits for it sees that it is gone
            for folder in (
                directory,
                directory.parent,
            ):  # as if never made, if nothing was written into them
                folder.rmdir()
        lock.release()


@dataclass(frozen=True)
class Start:
    """The begin of a run: at a checkpoint, from scratch (None), or not at all: it is finished.

    newest: the run's own newest checkpoint that is intact; it is not checked again.
    """

    checkpoint: Path | None = None
    finished: bool = False
    state: TrainerState | None = None
    newest: Path | None = None


def find_start(config: RunConfig) -> Start:
    """Look at what exists and decide. Writes nothing; hashes each file once at most.

    Raises InputError if the directory belongs to another run or to no run, if resume=never meets an
    existing run, and if resume names no complete checkpoint.
    """
    directory = config.directory
    newest = None
    begun_with = config
    before_config = {
        LOCK,
        "config.tmp",
    }  # all that a run leaves that was killed before it wrote its config
    if directory.exists() and any(path.name not in before_config for path in directory.iterdir()):
        if config.resume == "never":
            raise InputError(
                f"{directory} exists and resume=never: choose another name, or resume=auto to "
                "continue"
            )
        try:
            begun_with = load_run_config(directory / "config.yaml")
        except InputError as error:
            raise InputError(
                f"{directory} exists and is not a run: {error}: choose another name"
            ) from None
        newest = newest_intact(directory / "checkpoints")
        if newest is None and any((directory / "checkpoints").glob(STEPS)):
            raise InputError(
                f"no checkpoint in {directory} is complete: move it away to start again"
            )
    checkpoint = newest
    if config.resume not in ("auto", "never") and (
        newest is None or newest.resolve() != Path(config.resume).resolve()
    ):
        checkpoint = Path(config.resume)
        if (problem := damage(checkpoint)) is not None:
            raise InputError(
                f"resume: {problem}: give a checkpoint directory: runs/x/checkpoints/step_…"
            )
    if checkpoint is None:
        return Start()

    state = read_state(checkpoint)
    if newest is not None and (reached := read_state(newest).step) > state.step:
        raise InputError(
            f"resume: {directory} already continued to step {reached:,}: choose another name"
        )
    # a key that came after the run was begun: what it does by default is what was done without it
    wanted = config.identity()
    saved = state.identity or {}
    saved = {key: value for key, value in RunConfig().identity().items() if key in wanted} | saved
    different = [
        key for key in sorted({*wanted, *saved} - {CONTENTS}) if saved.get(key) != wanted.get(key)
    ]
    if different:
        listed = ", ".join(
            f"{key} (there {saved.get(key)!r}, here {wanted.get(key)!r})" for key in different
        )
        _refuse(config, f"{checkpoint} belongs to another run; these keys differ: {listed}")
    if config.max_steps is not None and state.step > config.max_steps:
        limit = next(
            (name for name in LIMITS[1:] if getattr(config.train, name) is not None), LIMITS[0]
        )
        raise InputError(
            f"train.{limit} ends before step {state.step:,} of this run: raise it or choose "
            "another name"
        )
    is_over = checkpoint == newest and config.progress(state.step, state.seconds) >= 1
    # with another name for the text, the run continues until `check_contents` can compare the text
    # itself
    is_over = is_over and begun_with.data.source == config.data.source
    result = (
        read_result(directory, lambda problem: None) or {}
    )  # if it cannot be read, it is written again
    return Start(checkpoint, is_over and result.get("step") == state.step, state, newest)


def check_contents(config: RunConfig, state: TrainerState, data: PreparedData) -> None:
    """The text itself must be what the run was trained on, in any place.

    Raises InputError if it changed.
    """
    if (state.identity or {}).get(CONTENTS, data.directory.name) != data.directory.name:
        _refuse(
            config,
            "data.source: the text, or what generates it, is no longer what this run was "
            "trained on",
        )


def _refuse(config: RunConfig, problem: str) -> None:
    if not config.allow_mismatch:
        remedy = "set it back, choose another name, or continue anyway with allow_mismatch=true"
        raise InputError(f"{problem}: {remedy}")
    print(f"warning: {problem}: continuing, because allow_mismatch is set", file=sys.stderr)


def open_for(config: RunConfig, start: Start) -> None:
    """Write config.yaml. In a run that exists, remove what an interrupted run left half done, and
    what it logged and drew after its newest checkpoint.

    For one process, after every process has read the checkpoint. Raises OSError if the directory
    cannot be written.
    """
    directory = config.directory
    checkpoints = config.directory / "checkpoints"
    begun = (directory / "config.yaml").exists()
    (directory / RESULT).unlink(missing_ok=True)  # from here on it is not finished
    write_atomically(
        directory / "config.yaml", dump_yaml(config.model_dump())
    )  # it can be trained from again
    if not begun:
        return
    saved = TrainerState(step=-1)
    if start.newest is not None:
        saved = read_state(start.newest)
        tidy(
            checkpoints,
            start.newest,
            config.train.keep_last,
            saved.best_step if config.train.keep_best else None,
        )
    for name, size in log_sizes(directory).items():
        if size > (before := saved.logged.get(name, 0)):
            os.truncate(directory / name, before)
    for file in (directory / "attention").glob("*"):
        number = re.fullmatch(r"step_(\d{8})", file.stem)
        if (
            int(number[1]) > saved.step if number else file.name in (*PICTURES, VIEWER)
        ):  # drawn again at the end
            file.unlink()


def log_sizes(directory: Path) -> dict[str, int]:
    """Return the bytes of each log.

    A checkpoint keeps them, and a resumed run goes back to them.
    """
    return {
        name: (directory / name).stat().st_size if (directory / name).is_file() else 0
        for name in LOGS
    }
