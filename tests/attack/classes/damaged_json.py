"""JSON files of a model that are torn, foreign, too deep, or of the wrong type."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.attack.attack import Case
from tests.attack.victims import foreign

FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
]
CHAT = ("eval.chat", "model", "--max-new-tokens", "2")
BYTES = {
    "nothing": b"",
    "a torn object": b'{"model_type": "qw',
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "a list": b"[1, 2]",
    "null": b"null",
    "a number of 5,000 digits": b"1" * 5000,
    "9,000 lists in one another": b"[" * 9000,
    "an object in an object, 5,000 times": b'{"a":' * 5000 + b"1" + b"}" * 5000,
}


def cases() -> Iterator[Case]:
    for file in FILES:
        for what, raw in BYTES.items():
            damage, harmless = partial(put, file=file, raw=raw), file == "generation_config.json"
            yield Case(f"{file} is {what}", CHAT, damage, b"a\n", may_work=harmless)


def put(folder: Path, file: str, raw: bytes) -> None:
    (foreign(folder) / file).write_bytes(raw)
