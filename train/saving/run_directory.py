"""runs/<name>/: who writes there, where a run starts, what a second run of the same name does, when it is finished."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from configs.command import InputError
from configs.files import DamagedFile, read_json
from data.prepare import PreparedData
from eval.attention.render import PICTURES
from eval.attention.viewer import VIEWER
from eval.run_files import EXPERTS, METRICS, RESULT, SAMPLES, read_result
from train.config import LIMITS, RunConfig, load_run_config
from train.saving.atomic_save import STEPS, damage, newest_intact, replace_text, tidy
from train.saving.checkpoint import TrainerState, read_state

LOCK, CARD = "owner.lock", "owner.json"  # held as long as a process works there; who that is
PATIENCE_S = 1.0  # with an owner that is just leaving
CONTENTS = "data.contents"  # key of the identity that says what the prepared data was made of
LOGS = (METRICS, SAMPLES, EXPERTS, "trace.jsonl", "attention/index.jsonl")


class Owner:
    """A folder into which one process writes at a time: `with Owner(directory) as owner:`, and in that, `owner.take()`.

    The lock ends with the process that holds it, however that ends.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self.lock = FileLock(directory / LOCK, timeout=PATIENCE_S)
        self.card = ""  # what owner.json holds as long as the folder is ours; "" in a process that took nothing
        self.made: list[Path] = []

    def take(self) -> None:
        """Own the folder, which is made if it does not exist. Raises InputError if another process has it."""
        self.made = [path for path in (self.directory, *self.directory.parents) if not path.exists()]
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self.lock.acquire()
        except Timeout:
            who = "another process"
            with suppress(DamagedFile, KeyError):
                who = "process {pid} on {host}, since {since}".format(**read_json(self.directory / CARD))
            raise InputError(f"{self.directory} is in use by {who}: wait until it ends, or stop it") from None
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        card = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
        (self.directory / CARD).write_text(card, encoding="utf-8")
        self.card = card

    @property
    def lost(self) -> bool:
        """Whether the folder is no longer ours: it was moved, deleted or replaced, or another process took it."""
        try:
            return self.card != "" and (self.directory / CARD).read_text(encoding="utf-8") != self.card
        except (FileNotFoundError, NotADirectoryError):
            return True
        except (OSError, ValueError):
            return False  # the next write says what is wrong

    def check(self) -> None:
        """Raises InputError if the folder is no longer ours."""
        if self.lost:
            raise InputError(
                f"{self.directory} was moved, replaced or deleted while this process was writing into it, so it stops: "
                "checkpoints that were saved are where the folder is now; move it back and the same command continues"
            )

    def __enter__(self) -> Owner:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):
            if self.lock.is_locked and not self.lost:
                (self.directory / CARD).unlink(missing_ok=True)
                (self.directory / LOCK).unlink()  # while it is locked: who waits for it sees that it is gone
                for path in self.made:  # as if it had never been made, if nothing was written into it
                    path.rmdir()
        self.lock.release()


@dataclass(frozen=True)
class Start:
    """Where a run begins: at a checkpoint, from scratch (None), or not at all because it is finished.

    newest: the run's own newest checkpoint that is intact; it is not checked again.
    """

    checkpoint: Path | None = None
    finished: bool = False
    state: TrainerState | None = None
    newest: Path | None = None

    @property
    def is_own(self) -> bool:
        """Whether it resumes from its own checkpoint, and not from another run's."""
        return self.checkpoint is not None and self.checkpoint == self.newest


def find_start(config: RunConfig) -> Start:
    """Look at what exists and decide. Writes nothing; hashes each file once at most.

    Raises InputError if the directory belongs to another run or to no run, if resume=never meets an existing run,
    and if resume names no complete checkpoint.
    """
    newest = checkpoint = _newest_of_own(config)
    if config.resume not in ("auto", "never") and (newest is None or newest.resolve() != Path(config.resume).resolve()):
        checkpoint = Path(config.resume)
        if (problem := damage(checkpoint)) is not None:
            raise InputError(f"resume: {problem}: give a checkpoint directory: runs/x/checkpoints/step_…")
    if checkpoint is None:
        return Start()
    state = read_state(checkpoint)
    if newest is not None and (reached := read_state(newest).step) > state.step:
        raise InputError(f"resume: {config.directory} already continued to step {reached:,}: choose another name")
    _refuse_other_identity(config, state, checkpoint)
    if config.max_steps is not None and state.step > config.max_steps:
        limit = next((name for name in LIMITS[1:] if getattr(config.train, name) is not None), LIMITS[0])
        raise InputError(
            f"train.{limit} makes {config.max_steps:,} steps, but {checkpoint} is at step {state.step:,}: "
            "raise it or choose another name"
        )
    is_over = checkpoint == newest and config.progress(state.step, state.seconds) >= 1
    # with another name for the text, the run continues until `check_contents` can compare the text itself
    is_over = is_over and load_run_config(config.directory / "config.yaml").data.source == config.data.source
    result = read_result(config.directory, lambda problem: None) or {}  # if it cannot be read, it is written again
    return Start(checkpoint, is_over and result.get("step") == state.step, state, newest)


def _newest_of_own(config: RunConfig) -> Path | None:
    """The newest intact checkpoint of the run directory, if there is one. Raises InputError if it is no run's."""
    directory, checkpoints = config.directory, config.directory / "checkpoints"
    before_config = {LOCK, CARD, "config.tmp"}  # all that a run leaves that was killed before it wrote its config
    if not directory.exists() or {path.name for path in directory.iterdir()} <= before_config:
        return None
    if config.resume == "never":
        raise InputError(f"{directory} exists and resume=never: choose another name, or resume=auto to continue")
    try:
        load_run_config(directory / "config.yaml")
    except InputError as error:
        raise InputError(
            f"{directory} exists and is not a run with a config that can be read: {error}: choose another name or "
            "output_dir"
        ) from None
    newest = newest_intact(checkpoints)
    if newest is None and any(checkpoints.glob(STEPS)):
        raise InputError(f"{checkpoints}: no checkpoint in it is complete: move {directory} away to start again")
    return newest


def _refuse_other_identity(config: RunConfig, state: TrainerState, checkpoint: Path) -> None:
    wanted, saved = config.identity(), state.identity or {}
    different = [key for key in sorted({*wanted, *saved} - {CONTENTS}) if saved.get(key) != wanted.get(key)]
    if different:
        listed = ", ".join(f"{key} (there {saved.get(key)!r}, here {wanted.get(key)!r})" for key in different)
        _refuse(config, f"{checkpoint} belongs to another run; these keys differ: {listed}")


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
        saved = read_state(tidy(checkpoints, start.newest, config.train.keep_last, config.train.keep_best))
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
