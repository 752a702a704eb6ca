"""How a checkpoint reaches the disk, so that a process which is killed at any moment loses none.

    files         ->  step_X.tmp   with training/manifest.json: sizes and sha256; all of it flushed to the disk
    step_X.tmp    ->  step_X       one rename
    latest, best                   small files that name a checkpoint; one rename replaces each

A folder counts as a checkpoint if its files are what its manifest says. That holds for step_X.tmp, too: a step that is
saved again is complete there before the old one makes room for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from configs.files import CARD, MANIFEST, STATE, TRAINING, DamagedFile, read_json

STEPS = "step_????????"


class SaveError(Exception):
    """A checkpoint could not be saved: one line that says why and what to do. The earlier ones are unchanged."""


def step_name(step: int) -> str:
    """The directory of this step's checkpoint: step_00001000."""
    return f"step_{step:08d}"


def commit(checkpoints: Path, step: int, fill: Callable[[Path], None], keep_last: int, keep_best: bool) -> None:
    """Let `fill` write its files into a directory, and make it the checkpoint of this step: all or nothing.

    Raises SaveError, with the earlier checkpoints as they were, if a write fails.
    """
    temporary = checkpoints / f"{step_name(step)}.tmp"
    try:
        checkpoints.mkdir(exist_ok=True)  # not its parents: a run directory that was moved away is not made again
        shutil.rmtree(temporary, ignore_errors=True)
        (temporary / TRAINING).mkdir(parents=True)
        fill(temporary)
        seal(temporary)
        tidy(checkpoints, temporary, keep_last, keep_best)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise SaveError(
            f"the checkpoint of step {step:,} could not be written to {checkpoints}: {reason}: free space there or "
            "lower train.keep_last; earlier checkpoints are unchanged"
        ) from error


def seal(directory: Path) -> None:
    """Describe every file of a checkpoint in its manifest, and wait until all of them are on the disk."""
    files = [path for path in directory.rglob("*") if path.is_file() and path.name not in (CARD, MANIFEST)]
    manifest = directory / TRAINING / MANIFEST
    described = {file.relative_to(directory).as_posix(): _described(file) for file in sorted(files)}
    manifest.write_text(json.dumps(described, indent=2), encoding="utf-8")
    for file in [*files, manifest]:
        _flush(file)


def tidy(checkpoints: Path, newest: Path, keep_last: int, keep_best: bool) -> Path:
    """Give the newest checkpoint its name, point `latest` and `best` at what they name, and delete all but the newest
    `keep_last` and the best one: after a save, and after a kill. Returns the newest one's name.

    An earlier one that was saved only because a signal came is deleted, so that a run that was stopped ends with the
    checkpoints that it would have without the stop. A later one is damaged, and stays until its step is saved again.
    """
    if newest.suffix == ".tmp":
        shutil.rmtree(newest.with_suffix(""), ignore_errors=True)  # the same step, saved before
        newest = newest.rename(newest.with_suffix(""))
    for half_written in checkpoints.glob(STEPS + ".tmp"):
        shutil.rmtree(half_written, ignore_errors=True)
    best_step = _state(newest).get("best_step")
    best = None if best_step is None else checkpoints / step_name(best_step)
    earlier = sorted(path for path in checkpoints.glob(STEPS) if path.name < newest.name)
    planned = [path for path in earlier if not _state(path).get("at_stop")]
    kept = [*planned, newest][-max(1, keep_last) :] + [best] * keep_best
    for pointer, directory in ((checkpoints / "latest", newest), (checkpoints / "best", best)):
        if directory is not None and directory in kept and directory.is_dir():
            replace_text(pointer, directory.name + "\n")
        else:
            pointer.unlink(missing_ok=True)
    for directory in earlier:
        if directory not in kept:
            with suppress(OSError):  # renamed first: half of a checkpoint is not to be mistaken for a damaged one
                shutil.rmtree(directory.rename(directory.with_suffix(".tmp")))
    return newest


def _state(checkpoint: Path) -> dict[str, Any]:
    """trainer_state.json; nothing where it cannot be read."""
    try:
        return read_json(checkpoint / TRAINING / STATE)
    except DamagedFile:
        return {}


def newest_intact(checkpoints: Path) -> Path | None:
    """The newest checkpoint whose files match its manifest. A newer, damaged one is reported on stderr."""
    directories = [*checkpoints.glob(STEPS), *checkpoints.glob(STEPS + ".tmp")]
    for directory in sorted(directories, key=lambda path: (path.stem, path.suffix), reverse=True):
        problem = damage(directory)
        if problem is None:
            return directory
        if directory.suffix == "":
            print(f"warning: {problem}: trying the checkpoint before it", file=sys.stderr)
    return None


def damage(directory: Path) -> str | None:
    """What is wrong with a checkpoint directory, in words, or None. Reads and hashes every file of its manifest."""
    try:
        for name, expected in read_json(directory / TRAINING / MANIFEST).items():
            if not (directory / name).is_file() or _described(directory / name) != expected:
                return f"{directory / name} is damaged"
    except (OSError, DamagedFile) as error:
        return f"{directory} is not a complete checkpoint ({error})"
    return None


def _described(file: Path) -> dict[str, object]:
    with file.open("rb") as stream:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def replace_text(file: Path, text: str) -> None:
    """Write a file so that it holds all of the text or is as before, even if the machine stops. Raises OSError."""
    temporary = file.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    _flush(temporary)
    temporary.replace(file)


def _flush(file: Path) -> None:
    with file.open("rb+") as stream:
        os.fsync(stream.fileno())
