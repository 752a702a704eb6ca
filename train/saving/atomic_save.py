"""How a checkpoint reaches the disk, so that a process which is killed at any moment loses none.

    files         ->  step_X.tmp   each flushed to the disk; last training/manifest.json, with their sizes and sha256
    step_X.tmp    ->  step_X       one rename
    latest, best                   small files that name a checkpoint; one rename replaces each

A folder counts as a checkpoint if its files are what its manifest says, whatever it is called; step_X.tmp does, too.
So a step that is saved again is never missing: the new one is complete before the old one makes room for it (it is
renamed to step_X.removed, which no longer counts). The next start completes what was interrupted.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from configs.files import (
    CARD,
    MANIFEST,
    STATE,
    TRAINING,
    DamagedFile,
    is_damaged,
    manifest_of,
    read_json,
    read_manifest,
    read_name,
)

STEPS = "step_????????"


class SaveError(Exception):
    """A checkpoint could not be saved: one line that says why and what to do. The earlier ones are unchanged."""


def step_name(step: int) -> str:
    """The directory of this step's checkpoint: step_00001000."""
    return f"step_{step:08d}"


def commit(checkpoints: Path, step: int, fill: Callable[[Path], None]) -> Path:
    """Let `fill` write its files into a directory, and make it the checkpoint of this step, all or nothing.

    Raises SaveError, with the disk as it was before, if a write fails.
    """
    directory = checkpoints / step_name(step)
    temporary, replaced = directory.with_suffix(".tmp"), directory.with_suffix(".removed")
    try:
        checkpoints.mkdir(exist_ok=True)  # not its parents: a run directory that was moved away is not made again
        for leftover in (temporary, replaced):
            shutil.rmtree(leftover, ignore_errors=True)
        temporary.mkdir()
        (temporary / TRAINING).mkdir()
        fill(temporary)
        _seal(temporary)
        if directory.exists():  # the same step, saved before
            directory.rename(replaced)
        temporary.rename(directory)
        _flush(checkpoints)
        shutil.rmtree(replaced, ignore_errors=True)
        point(checkpoints, directory)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            if replaced.exists() and not directory.exists():
                replaced.rename(directory)
            shutil.rmtree(temporary)
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise SaveError(
            f"the checkpoint of step {step:,} could not be written to {checkpoints}: {reason}: free space there or "
            "lower train.keep_last; earlier checkpoints are unchanged"
        ) from error
    return directory


def _seal(directory: Path) -> None:
    """Flush every file, then describe them in manifest.json, then flush that and the directories, inner ones first."""
    paths = sorted(directory.rglob("*"))
    files = [path for path in paths if path.is_file()]
    for file in files:
        _flush(file)
    manifest = manifest_of([file for file in files if file != directory / CARD], directory)
    written = directory / TRAINING / MANIFEST
    written.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    _flush(written)
    for path in [*(path for path in reversed(paths) if path.is_dir()), directory]:
        _flush(path)


def point(checkpoints: Path, newest: Path) -> None:
    """`latest` names the newest checkpoint, `best` the one that its state calls the best, if that one still exists."""
    best_step = _state(newest).get("best_step")
    names = {"latest": newest.name, "best": "" if best_step is None else step_name(best_step)}
    for pointer, name in names.items():
        if not name or not (checkpoints / name).is_dir():
            (checkpoints / pointer).unlink(missing_ok=True)
        elif _read_pointer(checkpoints / pointer) != name:
            replace_text(checkpoints / pointer, name + "\n")


def replace_text(file: Path, text: str) -> None:
    """Write a file so that it holds all of the text or is as before, even if the machine stops. Raises OSError."""
    temporary = file.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    _flush(temporary)
    temporary.replace(file)


def drop_old(checkpoints: Path, newest: Path, keep_last: int, keep_best: bool) -> None:
    """Keep the newest `keep_last` (at least the newest one) and the best. What cannot be removed stays for now.

    An earlier one that was saved only because a signal came is removed first, so that a run that was stopped ends with
    the checkpoints that it would have without the stop. Later ones than `newest` stay: they belong to the future of a
    run that resumes from an earlier step.
    """
    best = _read_pointer(checkpoints / "best")
    directories = sorted(path for path in checkpoints.glob(STEPS) if path.name <= newest.name)
    of_stops = [path for path in directories[:-1] if _state(path).get("at_stop")]
    others = [path for path in directories if path not in of_stops]
    for directory in [*of_stops, *others[: -max(1, keep_last)]]:
        if directory.name == best:
            if keep_best:
                continue
            (checkpoints / "best").unlink()
        removed = directory.with_suffix(".removed")
        with suppress(OSError):  # renamed first: half of a checkpoint is not to be mistaken for a damaged one
            directory.rename(removed)
            shutil.rmtree(removed)


def newest_intact(checkpoints: Path) -> Path | None:
    """The newest checkpoint whose files match its manifest. A newer, damaged one is reported on stderr."""
    directories = [*checkpoints.glob(STEPS), *checkpoints.glob(STEPS + ".tmp")]
    for directory in sorted(directories, key=lambda path: (path.stem, path.suffix == ""), reverse=True):
        problem = damage(directory)
        if problem is None:
            return directory
        if directory.suffix == "":
            print(f"warning: {problem}: trying the checkpoint before it", file=sys.stderr)
    return None


def damage(directory: Path) -> str | None:
    """What is wrong with a checkpoint directory, in words, or None. Reads and hashes every file of its manifest."""
    try:
        for name, expected in read_manifest(directory).items():
            if is_damaged(directory / name, expected):
                return f"{directory / name} is damaged"
    except (OSError, DamagedFile) as error:
        return f"{directory} is not a complete checkpoint ({error})"
    return None


def settle(checkpoints: Path, intact: Path | None) -> Path | None:
    """Tidy up after a run that stopped for any reason: for one process, before the run continues.

    intact: what `newest_intact` found; what is newer is damaged, and is kept under another name for you to look at.
    What was half written or half removed is deleted. `latest` and `best` point at what is there.
    """
    for directory in checkpoints.glob(STEPS):
        if intact is not None and (directory.name > intact.stem or directory.with_suffix(".tmp") == intact):
            aside = directory.with_suffix(".damaged")
            shutil.rmtree(aside, ignore_errors=True)
            directory.rename(aside)
            print(f"warning: {directory.name} is kept as {aside.name}: delete it when you like", file=sys.stderr)
    if intact is not None and intact.suffix == ".tmp":  # a kill came between its last byte and its name
        intact = intact.rename(intact.with_suffix(""))
    for leftover in [*checkpoints.glob(STEPS + ".tmp"), *checkpoints.glob(STEPS + ".removed")]:
        shutil.rmtree(leftover)
    for pointer in ("latest.tmp", "best.tmp"):
        (checkpoints / pointer).unlink(missing_ok=True)
    if intact is not None:
        point(checkpoints, intact)
    return intact


def _read_pointer(pointer: Path) -> str:
    """The name in `latest` or `best`; "" without one, and for a damaged one, which is written again."""
    try:
        return read_name(pointer)
    except DamagedFile:
        return ""


def _state(checkpoint: Path) -> dict[str, Any]:
    """trainer_state.json; nothing where it cannot be read."""
    try:
        return read_json(checkpoint / TRAINING / STATE)
    except DamagedFile:
        return {}


def _flush(path: Path) -> None:
    """Wait until a file, or on POSIX a directory's entries, are on the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows has no such call for directories
    handle = os.open(path, os.O_RDONLY if path.is_dir() or os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
