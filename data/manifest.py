"""What does manifest.json say about prepared data, and are the shards beside it the ones it describes?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, FiniteFloat, model_validator

from configs.command import InputError
from configs.files import checked, read_json
from data.reading.hashes import hashes, sha256

Count = Annotated[int, Field(ge=0, lt=1 << 60)]
FileName = Annotated[str, Field(pattern=r"^\w[\w.\-]*$", max_length=255)]  # in this folder, not above it
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Shard(BaseModel):
    """One array of token ids, and one of flags if they are of conversations."""

    tokens: Count
    file: FileName
    bytes: Count
    sha256: Digest
    flags_file: FileName | None = None
    flags_bytes: Count = 0
    flags_sha256: Digest | None = None

    def files(self) -> list[tuple[str, int, str]]:
        """(name, bytes, sha256) of each."""
        found = [(self.file, self.bytes, self.sha256)]
        if self.flags_file is not None:
            found.append((self.flags_file, self.flags_bytes, self.flags_sha256 or ""))
        return found


class Counts(BaseModel):
    """One split."""

    documents: Annotated[int, Field(ge=1, lt=1 << 60)]
    tokens: Annotated[int, Field(ge=1, lt=1 << 60)]
    trained_tokens: Count
    bytes: Count
    bytes_per_token: Annotated[FiniteFloat, Field(ge=0)]
    shards: Annotated[list[Shard], Field(min_length=1)]


class Part(BaseModel):
    """What one part of a mix gave."""

    characters: Count
    documents: Count
    validation: Count
    read: Count


class Read(BaseModel):
    """What was read, and what was left out (data.reading.ledger)."""

    records: Count
    empty: Count
    duplicates: Count
    bad: Count
    bad_records: list[str]
    parts: list[Part]
    left_out: list[str] = []
    unseparated: Count = 0


class Dependencies(BaseModel):
    """The part of `depends_on` that is shown."""

    records: Literal["text", "conversations", "pairs"]
    validation_fraction: Annotated[FiniteFloat, Field(ge=0, le=1)]
    drop_duplicates: bool


class Source(BaseModel):
    """The part of `source` that is looked at."""

    kind: str


class Manifest(BaseModel):
    """manifest.json."""

    source: Source
    depends_on: Dependencies
    dtype: Literal["uint16", "uint32"]
    vocab_size: Annotated[int, Field(ge=1, le=1 << 32)]
    tokenizer_sha256: Digest
    read: Read
    train: Counts
    validation: Counts

    def shards(self) -> Iterator[Shard]:
        """Of both splits."""
        yield from self.train.shards
        yield from self.validation.shards

    @model_validator(mode="after")
    def _check_lengths(self) -> Manifest:
        width, flagged = 2 if self.dtype == "uint16" else 4, self.depends_on.records != "text"
        for counts in (self.train, self.validation):
            for shard in counts.shards:
                if shard.bytes != width * shard.tokens or shard.flags_bytes != flagged * shard.tokens:
                    raise ValueError(f"{shard.file} cannot hold {shard.tokens:,} tokens")
            if sum(shard.tokens for shard in counts.shards) != counts.tokens:
                raise ValueError(f"the shards do not hold {counts.tokens:,} tokens")
        return self


def read_manifest(directory: Path) -> dict[str, Any]:
    """manifest.json of prepared data, with every key that is in it. Raises InputError if it does not describe this."""
    file = directory / "manifest.json"
    values: dict[str, Any] = read_json(file)
    checked(values, str(file), Manifest)
    if key_of(values["depends_on"]) != directory.name:
        raise InputError(f"{file}: describes other data")
    return values


def key_of(depends_on: dict[str, Any]) -> str:
    """The name of the directory of what depends on this."""
    return hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()[:16]


def check_shards(directory: Path, manifest: dict[str, Any]) -> None:
    """Every shard must have the SHA-256 that the manifest says. Raises InputError that names one that has not.

    A file is hashed once (1.4 GB/s); as long as its size and its time of change stay, later starts remember it.
    """
    shards = [each for shard in Manifest.model_validate(manifest).shards() for each in shard.files()]
    for name, size, _ in shards:
        file = directory / name
        there = file.stat().st_size if file.is_file() else None
        if there != size:
            problem = "is missing" if there is None else f"has {there:,} bytes"
            raise InputError(f"{file}: {problem}, and the manifest says {size:,} bytes")
    files = [directory / name for name, _, _ in shards]
    try:
        found = hashes(files, directory.parent / "hashes.json")
    except OSError:  # a folder that may only be read remembers nothing
        found = [sha256(file) for file in files]
    for file, digest, (_, _, wanted) in zip(files, found, shards, strict=True):
        if digest != wanted and sha256(file) != wanted:  # what is remembered may be damaged itself
            raise InputError(f"{file}: its bytes have changed since it was written")
