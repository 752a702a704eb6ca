"""How a checkpoint reaches the disk, and how to tell a complete one from an incomplete one.

    files                   ->  step_X.tmp   each flushed to the disk
    training/manifest.json  ->  step_X.tmp   sizes and sha256 of the files; flushed last, then both directories
    step_X.tmp              ->  step_X       one rename: step_X is never half a checkpoint
    latest, best                             replaced: they hold the old name or the new one

If the process is killed at any moment, the earlier checkpoints stay complete. After a kill, you may find beside step_X:
    step_X.tmp       being written or removed: never read, deleted at the next start
    step_X.old       the complete one that a new step_X is replacing: counts until the new one is there
    step_X.damaged1  found damaged at a start: renamed, so that you can look at it and delete it
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field
from safetensors import SafetensorError

from configs.bounds import MOST_STEPS
from configs.checkpoints import (
    CARD,
    MANIFEST,
    STATE,
    TRAINING,
    is_damaged,
    manifest_of,
    read_manifest,
    training_folder,
)
from configs.read_back import DamagedFile, read_json, read_name

STEPS = "step_????????"
POINTERS = ("latest", "best")
SMALL_FILES = 4_000_000  # bytes of everything but tensors: the tokenizer and a few short texts


class Progress(BaseModel):
    """What this file reads of trainer_state.json: the step, the step of the best checkpoint, and whether it was saved
    only because a signal came."""

    step: Annotated[int, Field(ge=0, le=MOST_STEPS)]
    best_step: Annotated[int, Field(ge=0, le=MOST_STEPS)] | None = None
    at_stop: bool = False


class SaveError(Exception):
    """A checkpoint could not be saved: one line that says why and what to do. The earlier ones are unchanged."""


def step_name(step: int) -> str:
    """The directory of this step's checkpoint: step_00001000."""
    return f"step_{step:08d}"


def commit(checkpoints: Path, step: int, fill: Callable[[Path], None], tensor_bytes: int) -> Path:
    """Let `fill` write its files into a directory, and make it the checkpoint of this step, all or nothing.

    Raises SaveError, with the disk as it was before, if there is no room or a write fails.
    """
    directory = checkpoints / step_name(step)
    temporary = directory.with_suffix(".tmp")
    try:
        checkpoints.mkdir(exist_ok=True)  # not its parents: a run directory that was moved away is not made again
        _finish_replacing(checkpoints)
        shutil.rmtree(temporary, ignore_errors=True)
        needed, free = tensor_bytes + SMALL_FILES, shutil.disk_usage(checkpoints).free
        if free < needed:
            raise SaveError(
                f"no room for a checkpoint in {checkpoints}: it needs {_megabytes(needed)} and {_megabytes(free)} are "
                "free: free space there or lower train.keep_last; earlier checkpoints are unchanged"
            )
        temporary.mkdir()
        (temporary / TRAINING).mkdir()
        fill(temporary)
        _seal(temporary)
        replaced = directory.with_suffix(".old")
        if directory.exists():  # the same step, saved before
            directory.rename(replaced)
        temporary.rename(directory)
        _flush(checkpoints)
        if replaced.exists():
            _remove(replaced)
        point(checkpoints, directory)
    except (OSError, SafetensorError) as error:
        _undo(checkpoints, temporary)
        raise SaveError(
            f"the checkpoint of step {step:,} could not be written to {checkpoints}: {_reason(error)} "
            f"({_megabytes(tensor_bytes)} to write{_free(checkpoints)}): free space there or lower train.keep_last; "
            "earlier checkpoints are unchanged"
        ) from error
    return directory


def drop_old(checkpoints: Path, newest: Path, keep_last: int, keep_best: bool) -> None:
    """Keep the newest `keep_last` (at least the newest one) and the best. Raises SaveError if one cannot be removed.

    An earlier one that was saved only because a signal came is removed first, so that a run that was stopped ends with
    the checkpoints that it would have without the stop.
    """
    best = _read_pointer(checkpoints / "best")
    # checkpoints later than `newest` stay: a run removes only those that it passed itself
    directories = sorted(path for path in checkpoints.glob(STEPS) if path.name <= newest.stem)
    of_stops = [path for path in directories[:-1] if _is_of_stop(path)]
    others = [path for path in directories if path not in of_stops]
    try:
        for directory in [*of_stops, *others[: -max(1, keep_last)]]:
            if not (keep_best and directory.name == best):
                if directory.name == best:
                    (checkpoints / "best").unlink()
                _remove(directory)
    except OSError as error:
        raise SaveError(f"{checkpoints}: an old checkpoint could not be removed: {_reason(error)}") from error


def newest_intact(checkpoints: Path) -> Path | None:
    """The newest checkpoint whose files match its manifest. A newer, damaged one is reported on stderr."""
    directories = [*checkpoints.glob(STEPS), *checkpoints.glob(STEPS + ".old")]
    for directory in sorted(directories, key=lambda path: (path.stem, path.suffix == ""), reverse=True):
        problem = damage(directory)
        if problem is None:
            return directory
        print(f"warning: {problem}: trying the checkpoint before it", file=sys.stderr)
    return None


def any_checkpoint(checkpoints: Path) -> bool:
    """Whether a checkpoint was ever finished here, even if it is damaged now."""
    return any(path.suffix != ".tmp" for path in checkpoints.glob(STEPS + "*"))


def damage(directory: Path) -> str | None:
    """What is wrong with a checkpoint directory, in words, or None. Reads and hashes every file."""
    folder = training_folder(directory)
    try:
        manifest = read_manifest(directory)
        there = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path != folder}
        there -= {(folder / MANIFEST).relative_to(directory).as_posix(), CARD}
        for name in sorted(manifest.keys() - there):
            return f"{directory / name} is missing"
        for name in sorted(there - manifest.keys()):
            return f"{directory / name} is not one of the checkpoint's files ({MANIFEST})"
        for name, expected in manifest.items():
            if is_damaged(directory / name, expected):
                return f"{directory / name} is damaged"
        step = _read_progress(directory).step
        named = re.fullmatch(r"step_(\d{8})(\.old)?", directory.name)
        if named and int(named[1]) != step:
            return f"{directory} holds step {step}, not the step in its name"
    except (OSError, DamagedFile) as error:
        return f"{directory} is not a complete checkpoint ({_reason(error)})"
    return None


def settle(checkpoints: Path, intact: Path | None) -> None:
    """Tidy up after a run that stopped for any reason: for one process, before the run continues.

    intact: what `newest_intact` found. What was half written or half removed is deleted. The damaged checkpoints after
    `intact` are renamed and reported on stderr. `latest` and `best` point at what is there. Only what is newer than
    `intact` is hashed.
    """
    _finish_replacing(checkpoints, intact)
    for leftover in checkpoints.glob(STEPS + ".tmp"):
        shutil.rmtree(leftover)
    for name in POINTERS:
        (checkpoints / name).with_suffix(".tmp").unlink(missing_ok=True)
    for directory in sorted(checkpoints.glob(STEPS)):
        is_newer = intact is None or directory.name > intact.stem
        if is_newer and (problem := damage(directory)) is not None:
            aside = _put_aside(directory)
            print(f"warning: {problem}: kept as {aside.name}, delete it when you like", file=sys.stderr)
    if intact is not None:
        point(checkpoints, intact.with_suffix(""))


def point(checkpoints: Path, newest: Path) -> None:
    """`latest` names the newest checkpoint, `best` the one that its state calls the best, if that one still exists."""
    best_step = _read_progress(newest).best_step
    best = "" if best_step is None else step_name(best_step)
    for pointer, name in zip((checkpoints / name for name in POINTERS), (newest.name, best), strict=True):
        if not name or not (checkpoints / name).is_dir():
            pointer.unlink(missing_ok=True)
        elif _read_pointer(pointer) != name:
            temporary = pointer.with_suffix(".tmp")
            temporary.write_text(name + "\n", encoding="utf-8")
            _flush(temporary)
            temporary.replace(pointer)


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


def _finish_replacing(checkpoints: Path, intact: Path | None = None) -> None:
    """Where a kill came between the two renames of a replacement, keep the new one if it is complete, else the old.

    intact: a checkpoint that needs no second check.
    """
    for replaced in checkpoints.glob(STEPS + ".old"):
        directory = replaced.with_suffix("")
        if directory.exists() and (directory == intact or damage(directory) is None):
            _remove(replaced)
            continue
        if directory.exists():
            _put_aside(directory)
        replaced.rename(directory)


def _undo(checkpoints: Path, temporary: Path) -> None:
    shutil.rmtree(temporary, ignore_errors=True)
    with suppress(OSError):  # if this fails too, step_X.old stays: it is complete and counts at the next start
        _finish_replacing(checkpoints)


def _remove(directory: Path) -> None:
    """Remove a checkpoint. It is renamed first: after a kill, a half-removed one is not mistaken for a damaged one."""
    doomed = directory.with_suffix(".tmp")
    shutil.rmtree(doomed, ignore_errors=True)
    directory.rename(doomed)
    shutil.rmtree(doomed)


def _put_aside(directory: Path) -> Path:
    number = 1
    while (aside := directory.with_suffix(f".damaged{number}")).exists():
        number += 1
    return directory.rename(aside)


def _free(checkpoints: Path) -> str:
    try:
        return f", {_megabytes(shutil.disk_usage(checkpoints).free)} free"
    except OSError:
        return ""


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _read_pointer(pointer: Path) -> str:
    """The name in `latest` or `best`; "" without one, and for a damaged one, which is written again."""
    try:
        return read_name(pointer)
    except DamagedFile:
        return ""


def _read_progress(checkpoint: Path) -> Progress:
    return read_json(training_folder(checkpoint) / STATE, Progress)


def _is_of_stop(checkpoint: Path) -> bool:
    try:
        return _read_progress(checkpoint).at_stop
    except DamagedFile:
        return False


def _flush(path: Path) -> None:
    """Wait until a file, or on POSIX a directory's entries, are on the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows has no such call for directories
    handle = os.open(path, os.O_RDONLY if path.is_dir() or os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
