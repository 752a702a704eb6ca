"""Which checkpoint does a path name, and are its files as they were saved? For every room that opens one.

    runs/x/checkpoints/latest               holds the name of the newest one: step_00001000
    …/step_00001000/                        model.safetensors, config.json, tokenizer.json and others
    …/step_00001000/training/manifest.json  size and sha256 of each of these files

Adapters (LoRA) have adapter_config.json, which names the model that they belong to (model/adapters/files.py).
A directory without a manifest, as others make it, is opened without this check.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from configs.read_back import DamagedFile, checked, opened, parse_json, read_name, read_text

TRAINING = "training"  # what only training needs; vLLM and SGLang load every *.safetensors of the directory above
MANIFEST = "manifest.json"
ADAPTER = "adapter_config.json"
STATE = "trainer_state.json"
CARD = "README.md"  # not in the manifest: you may edit it
MOST_BYTES = 10**13  # of a file of a checkpoint
PATIENCE = [0.01] * 20  # seconds to wait for a checkpoint that a run is replacing
TRIES = 50  # checkpoints that a run may remove while one is being opened

Result = TypeVar("Result")


class Entry(BaseModel):
    """What the manifest says of a file."""

    model_config = ConfigDict(extra="forbid")

    bytes: Annotated[int, Field(ge=0, le=MOST_BYTES)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def checkpoint_directory(path: str | Path) -> Path:
    """The directory of a model or of adapters: `path` itself, the newest checkpoint of the run at `path`, or the one
    that a run's `latest` or `best` names.

    Raises DamagedFile, a ValueError.
    """
    path = Path(path)
    if is_model(path):
        return path
    latest = path if is_pointer(path) else path / "checkpoints" / "latest"
    if not is_file(latest):
        raise DamagedFile(f"{path}: is neither a run (checkpoints/latest) nor a model directory (config.json)")
    name = ""
    for pause in [*PATIENCE, 0.0]:
        name = read_name(latest)
        if is_model(latest.parent / name):
            return latest.parent / name
        time.sleep(pause)
    raise DamagedFile(f"{latest}: names {name}, which does not exist: give a checkpoint directory instead")


def is_pointer(path: Path) -> bool:
    """Whether this is a run's `latest` or `best`: a text file that names a checkpoint beside it."""
    return path.name in ("latest", "best") and is_file(path)


def is_adapter(directory: Path) -> bool:
    """Whether a checkpoint directory holds adapters, which need the model that they name."""
    return is_file(directory / ADAPTER)


def is_model(directory: Path) -> bool:
    """Whether a directory holds a model or adapters, as a checkpoint and what others publish does."""
    return is_file(directory / "config.json") or is_adapter(directory)


def read_checkpoint(path: str | Path, read: Callable[[Path], Result]) -> Result:
    """read(directory) for the checkpoint that `path` names. Beside a run that trains, all is of one checkpoint:
    if the run removes it in the meantime, the next one is read."""
    for _ in range(TRIES):
        directory = checkpoint_directory(path)
        before = _identity(directory)
        try:
            return read(directory)
        except Exception:
            gone = before is None or _identity(directory) != before  # None: gone before it could be looked at
            if directory == Path(path) or not gone:
                raise
    raise DamagedFile(f"{path}: its run removes every checkpoint before it can be read: give one of its checkpoints")


def training_folder(checkpoint: Path) -> Path:
    """Where a checkpoint keeps its training state: `training/`, or the directory itself (Headlight 0.1)."""
    folder = checkpoint / TRAINING
    return folder if folder.is_dir() else checkpoint


def manifest_of(files: Iterable[Path], directory: Path) -> dict[str, dict[str, object]]:
    """What the manifest of a directory says about these files."""
    return {
        file.relative_to(directory).as_posix(): {"bytes": file.stat().st_size, "sha256": _sha256(file)}
        for file in files
    }


def read_manifest(checkpoint: Path) -> dict[str, Entry]:
    """A checkpoint's manifest. Raises DamagedFile."""
    file = training_folder(checkpoint) / MANIFEST
    text = read_text(file)
    values = parse_json(text, str(file))
    if text != json.dumps(values, indent=2) + "\n":
        raise DamagedFile(f"{file} is damaged")
    return checked(values, str(file), dict[str, Entry])


def is_damaged(file: Path, entry: Entry) -> bool:
    """Whether a file is not what the manifest says. Reads all of it."""
    with opened(file, MOST_BYTES) as stream:
        return file.stat().st_size != entry.bytes or hashlib.file_digest(stream, "sha256").hexdigest() != entry.sha256


def check_files(directory: Path, *names: str) -> None:
    """These files of a model directory must be as they were saved; there may be fewer.

    Nothing to check where there is no manifest. Raises DamagedFile.
    """
    folder = training_folder(directory)
    if not os.path.lexists(folder / MANIFEST) or (folder == directory and not is_file(folder / STATE)):
        return
    manifest = read_manifest(directory)
    for name in names:
        file = directory / name
        if is_damaged(file, manifest[name]) if name in manifest else os.path.lexists(file):
            raise DamagedFile(
                f"{file} is damaged: it is not what {folder / MANIFEST} says: use another checkpoint; if you changed "
                f"the file yourself, delete that {MANIFEST}"
            )


def is_file(path: Path) -> bool:
    """Whether there is such a file, in a folder that may be searched."""
    try:
        return path.is_file()
    except OSError:  # without permission, or a name that is too long
        return False


def _identity(directory: Path) -> tuple[int, int] | None:
    try:
        found = directory.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
