"""Does a file still hold the same text? SHA-256 of files, remembered: a corpus is hashed once, not at every start."""

from __future__ import annotations

import hashlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

from filelock import FileLock
from pydantic import Field, TypeAdapter

from configs.command import still_busy
from configs.files import read_json
from data.reading.file_bytes import clear_errors

ENTRY = TypeAdapter(tuple[int, int, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]])  # size, time of change, SHA-256
MOST_BYTES = 1 << 30  # of the memory: some hundred bytes for each file of a corpus
SETTLED = 2_000_000_000  # nanoseconds after which a second change of a file cannot have the same time as the first


def stamp(file: Path) -> list[int]:
    """Size and time of change, in nanoseconds, of a file."""
    with clear_errors(file):
        status = file.stat()
    return [status.st_size, status.st_mtime_ns]


def hashes(files: list[Path], memory: Path) -> list[str]:
    """SHA-256 of every file, hashed only if it is new or changed. Raises InputError if one cannot be read.

    memory: a JSON file, path -> [size, time of change, SHA-256]. A lock beside it makes the processes of a run take
    turns: the first one hashes, the others find the result. A file that has just changed is not remembered yet.
    """
    memory.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(memory.with_suffix(".lock")):
        known, now = _remembered(memory), time.time_ns()
        keys = [str(file.resolve()) for file in files]
        stamps = dict(zip(keys, map(stamp, files), strict=True))
        new = [key for key in keys if known.get(key, [])[:2] != stamps[key]]
        with still_busy("hashing the files of the corpus"), ThreadPoolExecutor() as pool:
            known |= {key: [*stamps[key], digest] for key, digest in zip(new, pool.map(sha256, new), strict=True)}
        found = [known[key][2] for key in keys]
        if new:
            settled = {key: entry for key, entry in known.items() if now - entry[1] > SETTLED}
            temporary = memory.with_suffix(".tmp")
            temporary.write_text(json.dumps(settled, indent=1), encoding="utf-8")
            temporary.replace(memory)
    return found


def sha256(file: str | Path) -> str:
    """SHA-256 of one file."""
    with clear_errors(Path(file)), Path(file).open("rb") as raw:
        return hashlib.file_digest(raw, "sha256").hexdigest()


def _remembered(memory: Path) -> dict[str, list[Any]]:
    try:
        known = read_json(memory, dict[str, list[Any]])
        return {key: list(ENTRY.validate_python(tuple(entry), strict=True)) for key, entry in known.items()}
    except ValueError:
        return {}  # not there yet, or damaged: hash again
