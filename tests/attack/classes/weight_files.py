"""Weights that lie: .safetensors files and their index, damaged, forged, or not finite."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.attack.attack import Case
from tests.attack.mutations import WRONG, mutated
from tests.attack.victims import foreign

CHAT = ("eval.chat", "model", "--max-new-tokens", "2")
COMMANDS = [
    CHAT,
    ("model.convert_kv_heads", "model", "--num-key-value-heads", "2", "--out", "out"),
    ("train.pretrain", "tiny.yaml", "name=other", "init_from=model"),
]
FIRST = "model.embed_tokens.weight"
DTYPES = "F64 I64 I32 I8 U8 BOOL F8_E4M3 F8_E5M2 BF16 F16 C64 F4 XX".split()
SHAPES: dict[str, Any] = {
    "empty": [0, 16],
    "no dimension": [],
    "huge": [10**9, 10**9],
    "beyond 64 bits": [2**63, 2**63],
    "negative": [-1, 16],
    "turned": [16, 320],
    "of fractions": [1.5, 16],
    "1,000 dimensions": [1] * 1000,
    "a string": "16",
    "null": None,
}
OFFSETS: dict[str, Any] = {
    "overlapping": [0, 8],
    "beyond the end": [0, 10**12],
    "backwards": [100, 0],
    "beyond 64 bits": [0, 2**70],
    "negative": [-8, 0],
    "one number": [0],
    "null": None,
}


def cases() -> Iterator[Case]:
    for kind in DTYPES:
        yield _header(f"a tensor is declared as {kind}", partial(_set, key="dtype", value=kind))
    for what, value in SHAPES.items():
        yield _header(f"the shape of a tensor is {what}", partial(_set, key="shape", value=value))
    for what, value in OFFSETS.items():
        yield _header(f"the offsets of a tensor are {what}", partial(_set, key="data_offsets", value=value))
    for seed in range(40):
        yield _header(f"header, mutation {seed}", partial(mutated, seed=seed), may_work=True)
    for what, value in WRONG.items():
        yield _header(f"__metadata__ is {what}", lambda header, value=value: header | {"__metadata__": value}, True)
    yield _header("a tensor has a name of escape characters", lambda header: _renamed(header, "\x1b[2J\n"))
    yield _header("a tensor has a name of 10,000 characters", lambda header: _renamed(header, "a" * 10_000))
    for what, length in {"0": 0, "2**63": 2**63, "10**9": 10**9, "1": 1, "2**64 - 1": 2**64 - 1}.items():
        change = partial(_bytes, change=lambda raw, length=length: struct.pack("<Q", length) + raw[8:])
        for command in COMMANDS:
            yield Case(f"the header has {what} bytes ({command[0]})", command, change, b"a\n")
    for seed in range(20):
        yield Case(
            f"a flipped byte in the header, {seed}",
            CHAT,
            partial(_bytes, change=partial(_flip, seed=seed)),
            b"a\n",
            True,
        )
    for command in COMMANDS:
        for what, make in FILES.items():
            yield Case(f"{what} ({command[0]})", command, make, b"a\n")
    for what, content in INDEXES.items():
        yield Case(f"an index with {what}", CHAT, partial(_index, content=content), b"a\n")
    for what, number in {"NaN": "nan", "infinity": "inf"}.items():
        for command in COMMANDS[:2]:
            yield Case(f"a weight is {what} ({command[0]})", command, partial(_not_finite, number=number), b"a\n",
                       may_work=True, may_stop=True)  # fmt: skip


def _checkpoint(folder: Path) -> Path:
    return foreign(folder)


def _bytes(folder: Path, change: Callable[[bytes], bytes]) -> None:
    file = _checkpoint(folder) / "model.safetensors"
    file.write_bytes(change(file.read_bytes()))


def _with_header(raw: bytes, change: Callable[[Any], Any]) -> bytes:
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.dumps(change(json.loads(raw[8 : 8 + length]))).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + raw[8 + length :]


def _header(name: str, change: Callable[[Any], Any], may_work: bool = False) -> Case:
    return Case(name, CHAT, partial(_bytes, change=partial(_with_header, change=change)), b"a\n", may_work)


def _set(header: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    return header | {FIRST: header[FIRST] | {key: value}}


def _renamed(header: dict[str, Any], name: str) -> dict[str, Any]:
    return {name if key == FIRST else key: value for key, value in header.items()}


def _flip(raw: bytes, seed: int) -> bytes:
    draw = random.Random(seed)
    at = 8 + draw.randrange(struct.unpack("<Q", raw[:8])[0])
    return raw[:at] + bytes([raw[at] ^ 1 << draw.randrange(8)]) + raw[at + 1 :]


def _index(folder: Path, content: Any) -> None:
    directory = _checkpoint(folder)
    (directory / "model.safetensors").rename(directory / "part.safetensors")
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    (directory / "model.safetensors.index.json").write_bytes(raw)


def _not_finite(folder: Path, number: str) -> None:
    from safetensors.torch import load_file, save_file

    file = _checkpoint(folder) / "model.safetensors"
    tensors = load_file(file)
    tensors[FIRST][3, 5] = float(number)
    save_file(tensors, file, metadata={"format": "pt"})


def _replaced(folder: Path, make: Callable[[Path], object]) -> None:
    file = _checkpoint(folder) / "model.safetensors"
    file.unlink()
    make(file)


FILES = {
    "no weights": partial(_replaced, make=lambda file: None),
    "an empty file of weights": partial(_replaced, make=lambda file: file.write_bytes(b"")),
    "weights that are a link to themselves": partial(_replaced, make=lambda file: file.symlink_to(file)),
    "weights that are a folder": partial(_replaced, make=lambda file: file.mkdir()),
    "weights that are a pipe": partial(_replaced, make=os.mkfifo),
    "weights that are a text": partial(_replaced, make=lambda file: file.write_text("version https://git-lfs " * 9)),
    "weights that are cut off": partial(_bytes, change=lambda raw: raw[:-100]),
    "weights with more behind them": partial(_bytes, change=lambda raw: raw + b"more"),
    "weights of nothing but zeros": partial(_bytes, change=lambda raw: bytes(len(raw))),
}
INDEXES: dict[str, Any] = {
    "a file above": {"weight_map": {FIRST: "../runs/tiny/checkpoints/step_00000002/model.safetensors"}},
    "an absolute path": {"weight_map": {FIRST: "/etc/passwd.safetensors"}},
    "a file that is not there": {"weight_map": {FIRST: "part2.safetensors"}},
    "a NUL character": {"weight_map": {FIRST: "a\0.safetensors"}},
    "itself": {"weight_map": {FIRST: "model.safetensors.index.json"}},
    "a long name": {"weight_map": {FIRST: "a" * 5000 + ".safetensors"}},
    "one more tensor": {"weight_map": {FIRST: "part.safetensors", "lm_head.weight": "config.json"}},
    "no tensor": {"weight_map": {}},
    "numbers": {"weight_map": {FIRST: 1}},
    "a list": {"weight_map": ["part.safetensors"]},
    "no map": {},
    "half an object": b'{"weight_map": {',
    "no UTF-8": b'{"weight_map": {"\xff": "\xfe"}}',
    "9,000 lists": b"[" * 9000,
}
