"""Prepared data that is damaged, foreign or half deleted, met by training and by inspecting."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from data.shards import write_signed
from tests.attack.attack import Case
from tests.attack.mutations import WRONG, change_json, mutated
from tests.attack.victims import CONFIG, stopped, write_config

TRAIN, INSPECT, BUDGET = ("train.pretrain", "tiny.yaml"), ("data.inspect", "tiny.yaml"), ("train.budget", "tiny.yaml")
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "is empty": lambda raw: b"",
    "is cut off": lambda raw: raw[:-3],
    "is longer": lambda raw: raw + b"\0\0",
    "has a flipped bit": lambda raw: raw[: len(raw) // 2] + bytes([raw[len(raw) // 2] ^ 1]) + raw[len(raw) // 2 + 1 :],
    "holds ids beyond the vocabulary": lambda raw: b"\xff" * len(raw),
    "is not UTF-8": lambda raw: b"\xff\xfe" + raw,
    "is nested too deep": lambda raw: b'{"a":' * 5000 + b"1" + b"}" * 5000,
}
FILES = ("manifest.json", "train_00000.bin", "validation_00000.bin", "tokenizer.json", "tokenizer_config.json")
LINKS: dict[str, Callable[[Path], object]] = {
    "is missing": lambda file: None,
    "is a folder": lambda file: file.mkdir(),
    "is a pipe": os.mkfifo,
    "is a link to itself": lambda file: file.symlink_to(file),
}
KEYS = "source depends_on dtype vocab_size tokenizer_sha256 read train validation".split()
COUNTS = "documents tokens trained_tokens bytes bytes_per_token shards".split()
SHARD = "tokens file bytes sha256 flags_file".split()
VALUES = {what: WRONG[what] for what in ("a string", "null", "-1", "10**30", "NaN", "a list", "an object")}
PLACES = {"above": "../../../text.txt", "absolute": "/etc/passwd", "with a NUL": "a\0", "long": "a" * 5000}


def cases() -> Iterator[Case]:
    for file in FILES:
        for command in (TRAIN, INSPECT):
            for what, change in DAMAGE.items():
                yield _case(f"{file} {what}", command, partial(_bytes, file=file, change=change), _works(file, what))
            for what, make in LINKS.items():
                again = file in ("manifest.json", "tokenizer_config.json")  # as if there were none
                yield _case(f"{file} {what}", command, partial(_replaced, file=file, make=make), again)
    for path in (
        [(key,) for key in KEYS] + [("train", key) for key in COUNTS] + [("train", "shards", 0, k) for k in SHARD]
    ):
        for what, value in VALUES.items():
            change = partial(_set, path=path, value=value)
            name = f"manifest.json: {'.'.join(map(str, path))} is {what}"
            yield _case(name, INSPECT, partial(_manifest, change=change), may_work=path[-1] == "flags_file")
    for what, value in PLACES.items():
        change = partial(_set, path=("train", "shards", 0, "file"), value=value)
        yield _case(f"a shard's name is {what}", TRAIN, partial(_manifest, change=change))
    for seed in range(40):
        change = partial(_manifest, change=partial(mutated, seed=seed))
        for command in (INSPECT, BUDGET):
            yield _case(f"manifest.json, mutation {seed}", command, change, may_work=True)
    for seed in range(20):
        change = partial(_progress, change=partial(mutated, seed=seed))
        yield Case(f"progress.json, mutation {seed} ({INSPECT[0]})", INSPECT, change, may_work=True)
    for what, damage in DAMAGE.items():
        for file in ("progress.json", "train_00000.bin", "tokenizer.json"):
            change = partial(_partial, file=file, change=damage)
            yield Case(f"half prepared, {file} {what}", INSPECT, change, may_work=True)
    for what, damage in (DAMAGE | {"holds other hashes": lambda raw: raw.replace(b"1", b"2")}).items():
        change = partial(_bytes, file="../hashes.json", change=damage)
        yield Case(f"hashes.json {what} ({INSPECT[0]})", INSPECT, change, may_work=True)


def _works(file: str, what: str) -> bool:
    return (file, what) == ("tokenizer_config.json", "has a flipped bit")  # of a letter in the chat template


def _case(name: str, command: tuple[str, ...], prepare: Callable[[Path], object], may_work: bool = False) -> Case:
    return Case(f"{name} ({command[0]})", command, prepare, may_work=may_work)


def _directory(folder: Path) -> Path:
    stopped(folder)
    (found,) = (file.parent for file in (folder / "runs" / ".prepared").glob("*/manifest.json"))
    return found


def _bytes(folder: Path, file: str, change: Callable[[bytes], bytes]) -> None:
    path = _directory(folder) / file
    path.write_bytes(change(path.read_bytes()))


def _replaced(folder: Path, file: str, make: Callable[[Path], object]) -> None:
    path = _directory(folder) / file
    path.unlink()
    make(path)


def _manifest(folder: Path, change: Callable[[Any], Any]) -> None:
    change_json(_directory(folder) / "manifest.json", change)


def _set(values: Any, path: tuple[str | int, ...], value: Any) -> Any:
    inside = values
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return values


def _progress(folder: Path, change: Callable[[Any], Any]) -> None:
    _half_prepared(folder)
    (partial_,) = (folder / "runs" / ".prepared").glob("*.partial")
    change_json(partial_ / "progress.json", change)


def _partial(folder: Path, file: str, change: Callable[[bytes], bytes]) -> None:
    _half_prepared(folder)
    (partial_,) = (folder / "runs" / ".prepared").glob("*.partial")
    (partial_ / file).write_bytes(change((partial_ / file).read_bytes()))


def _half_prepared(folder: Path) -> None:
    """As if preparing had been killed just before its end."""
    directory = _directory(folder)
    manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    shutil.rmtree(folder / "runs" / "tiny")
    write_config(folder, train=CONFIG["train"])
    noted: dict[str, Any] = {"read": 60}
    for split in ("train", "validation"):
        counts = {key: value for key, value in manifest[split].items() if key != "bytes_per_token"}
        noted[split] = counts
    write_signed(directory / "progress.json", noted)
    (directory / "manifest.json").unlink()
    directory.rename(directory.with_name(f"{directory.name}.partial"))
