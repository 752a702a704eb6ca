"""Token shards on disk. A killed run continues where it was and ends with the same bytes.

A shard is a plain array of token ids. For conversations, a second array holds flags, one byte a token.
`progress.json` says how many documents are safely on disk, and how long every file was then. Whatever a killed run
wrote after that is cut off and written again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from pydantic import BaseModel

from configs.command import InputError
from configs.files import checked, read_json
from data.manifest import Count, Digest, Shard
from data.reading.hashes import sha256

SHARD_TOKENS = 100_000_000
PROGRESS = "progress.json"


@dataclass
class SplitWriter:
    """The shards of one split, written document by document. A shard ends after the document that fills it."""

    directory: Path
    split: str
    dtype: str
    has_flags: bool
    documents: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    bytes: int = 0
    shards: list[dict[str, Any]] = field(default_factory=list)
    _open: list[tuple[BinaryIO, Any]] = field(default_factory=list)  # file and its sha256: ids, then flags
    _size: int = 0  # tokens in the open shard

    def append(self, ids: np.ndarray, flags: np.ndarray | None) -> None:
        """Write the tokens of a document, or of a piece of one."""
        if not self._open:
            self._open = [(path.open("wb"), hashlib.sha256()) for path in self._paths(len(self.shards))]
        for (file, digest), values in zip(self._open, (ids, flags), strict=False):
            raw = values.tobytes()  # type: ignore[union-attr]
            file.write(raw)
            digest.update(raw)
        self._size += len(ids)
        self.tokens += len(ids)

    def end_document(self) -> None:
        """Count a document, and finish the shard if it is full."""
        self.documents += 1
        if self._size >= SHARD_TOKENS:
            self.close()

    def close(self) -> None:
        """Finish the open shard, if any."""
        if not self._open:
            return
        described: dict[str, Any] = {"tokens": self._size}
        for key, (file, digest) in zip(("", "flags_"), self._open, strict=False):
            name = Path(file.name).name
            _sync(file)
            described |= {f"{key}file": name, f"{key}bytes": file.tell(), f"{key}sha256": digest.hexdigest()}
            file.close()
        self.shards.append(described)
        self._open, self._size = [], 0

    def sync(self) -> dict[str, Any]:
        """Make sure that everything written is on disk. Returns what `resume` needs."""
        for file, _ in self._open:
            _sync(file)
        digests = [digest.hexdigest() for _, digest in self._open]
        return self.counts() | {"open": self._size if self._open else None, "digests": digests}

    def counts(self) -> dict[str, Any]:
        """What the manifest says about a split: documents, tokens, trained_tokens, bytes, and its finished shards."""
        keys = ("documents", "tokens", "trained_tokens", "bytes", "shards")
        return {key: getattr(self, key) for key in keys}

    def resume(self, saved: dict[str, Any]) -> None:
        """Continue after what `sync` returned: longer files are cut, later ones are deleted.

        Raises ValueError or OSError if the files do not match it.
        """
        for key in self.counts():
            setattr(self, key, saved[key])
        for shard in self.shards:
            for key in [key for key in ("", "flags_") if f"{key}file" in shard]:
                _check_content(self.directory / shard[f"{key}file"], shard[f"{key}sha256"])
        known = {shard[key] for shard in self.shards for key in ("file", "flags_file") if key in shard}
        if saved["open"] is not None:
            self._size = saved["open"]
            for path, width, wanted in zip(
                self._paths(len(self.shards)), (np.dtype(self.dtype).itemsize, 1), saved["digests"], strict=False
            ):
                self._open.append(_reopened(path, self._size * width))
                known.add(path.name)
                if self._open[-1][1].hexdigest() != wanted:
                    raise ValueError(f"{path}: its bytes have changed since it was written")
        for path in self.directory.glob(f"{self.split}_*"):
            if path.name not in known:
                path.unlink()

    def _paths(self, number: int) -> list[Path]:
        stem = f"{self.split}_{number:05d}"
        return [self.directory / f"{stem}.{suffix}" for suffix in (["bin", "flags"] if self.has_flags else ["bin"])]

    def abandon(self) -> None:
        """Close the files as they are, after an error."""
        for file, _ in self._open:
            with contextlib.suppress(OSError):
                file.close()


def _check_content(path: Path, wanted: str) -> None:
    if sha256(path) != wanted:
        raise ValueError(f"{path}: its bytes have changed since it was written")


def _reopened(path: Path, length: int) -> tuple[BinaryIO, Any]:
    if (there := path.stat().st_size) < length:
        raise ValueError(f"{path}: has {there:,} bytes, not {length:,}")
    file = path.open("r+b")
    file.truncate(length)
    digest = hashlib.sha256()
    for block in iter(lambda: file.read(1 << 20), b""):
        digest.update(block)
    return file, digest


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


class SplitNote(BaseModel):
    """What `SplitWriter.sync` returns."""

    documents: Count
    tokens: Count
    trained_tokens: Count
    bytes: Count
    shards: list[Shard]
    open: Count | None
    digests: list[Digest]


class Progress(BaseModel):
    """progress.json. sha256: of all the rest."""

    sha256: Digest
    read: Count
    stamps: list[list[int]]
    train: SplitNote
    validation: SplitNote


def save_progress(directory: Path, read: int, writers: Sequence[SplitWriter], stamps: list[list[int]]) -> None:
    """Sync the shards, then note that the first `read` documents are on disk, and the stamps of their source files."""
    noted = {"read": read, "stamps": stamps} | {writer.split: writer.sync() for writer in writers}
    write_json(directory / PROGRESS, noted | {"sha256": _digest(noted)})


def load_progress(directory: Path) -> dict[str, Any] | None:
    """The last note of `save_progress`, or None. Raises InputError if it is not what was written."""
    path = directory / PROGRESS
    if not path.is_file():
        return None
    noted: dict[str, Any] = read_json(path)
    checked(noted, str(path), Progress)
    if noted.pop("sha256") != _digest(noted):
        raise InputError(f"{path}: is damaged")
    return noted


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write all of it or nothing; it is on disk when this returns."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write((json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace"))
        _sync(file)
    temporary.replace(path)


def sync_file(path: Path) -> None:
    """Make sure that this file's content is on disk."""
    with path.open("r+b") as file:  # Windows syncs only files opened for writing
        os.fsync(file.fileno())
