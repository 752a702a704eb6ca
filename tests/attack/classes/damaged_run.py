"""Every file of a run, damaged in every way, in front of every command that reads it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from tests.attack.attack import Case
from tests.attack.victims import stopped, trained

RUN, NEWEST = "runs/tiny", "checkpoints/step_00000004"
CHAT = ("eval.chat", RUN, "--max-new-tokens", "2", "--device", "cpu")
TASKS = ("eval.tasks", RUN, "--text", "text.txt", "--limit", "2", "--device", "cpu")
HEADS = ("eval.attention", RUN, "--device", "cpu")
COMPARE = ("eval.compare", RUN, "--skip-decode", "--device", "cpu")
CONVERT = ("model.convert_kv_heads", RUN, "--num-key-value-heads", "2", "--out", "converted")
RESUME = ("train.pretrain", "tiny.yaml", "eval.hooks=[]")
BEGIN = ("train.pretrain", "tiny.yaml", "name=second", f"init_from={RUN}", "train.max_steps=1", "eval.hooks=[]")

# file -> the commands that read it; True where the command may go on without it
READ_BY: dict[str, dict[tuple[str, ...], bool]] = {
    "metrics.jsonl": {RESUME: True, COMPARE: True},
    "samples.jsonl": {RESUME: True},
    "attention/index.jsonl": {RESUME: True},
    "attention/step_00000004.npz": {HEADS: True, COMPARE: True},
    "result.json": {COMPARE: True, RESUME: True},
    "report.md": {COMPARE: True},
    "config.yaml": {CHAT: True, TASKS: True, RESUME: True, COMPARE: True},
    "checkpoints/latest": {CHAT: True, COMPARE: True, RESUME: True, BEGIN: True},
    "checkpoints/best": {RESUME: True},
    f"{NEWEST}/model.safetensors": {CHAT: False, TASKS: False, BEGIN: False, CONVERT: False, RESUME: True},
    f"{NEWEST}/config.json": {CHAT: False, BEGIN: False, CONVERT: False, COMPARE: False, RESUME: True},
    f"{NEWEST}/tokenizer.json": {CHAT: False, TASKS: False, CONVERT: False, COMPARE: False, RESUME: True},
    f"{NEWEST}/tokenizer_config.json": {CHAT: False, BEGIN: False, CONVERT: False, RESUME: True},
    f"{NEWEST}/training/optimizer.safetensors": {RESUME: True},
    f"{NEWEST}/training/trainer_state.json": {COMPARE: False, RESUME: True},
    f"{NEWEST}/training/manifest.json": {CHAT: False, BEGIN: False, COMPARE: False, RESUME: True},
}
MAY_CHANGE = ("*.jsonl", "*latest", "*best", "*result.json", "*report.md", "*.png", "*.gif", "*.html", "*hashes.json")


def of_bytes(change: Callable[[bytes, random.Random], bytes]) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        file.write_bytes(change(file.read_bytes(), random.Random(str(file.name))))

    return damage


def flipped(raw: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(raw))
    return raw[:place] + bytes([raw[place] ^ 1 << chance.randrange(8)]) + raw[place + 1 :]


def instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        file.unlink()
        make(file)

    return damage


def sparse(file: Path) -> None:
    with file.open("wb") as stream:
        stream.truncate(5 * 10**12)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "is empty": of_bytes(lambda raw, chance: b""),
    "is torn early": of_bytes(lambda raw, chance: raw[: chance.randrange(min(len(raw), 20))]),
    "is torn": of_bytes(lambda raw, chance: raw[: chance.randrange(len(raw))]),
    "has a flipped bit": of_bytes(flipped),
    "has another flipped bit": of_bytes(lambda raw, chance: flipped(raw, random.Random(len(raw)))),
    "is not UTF-8": of_bytes(lambda raw, chance: b'{"a": "\xff\xfe"}\n'),
    "ends in bytes that are not UTF-8": of_bytes(lambda raw, chance: raw + b'{"step": 9, "a": "\xe7\x8c'),
    "is a list": of_bytes(lambda raw, chance: b"[1, 2]\n"),
    "is null": of_bytes(lambda raw, chance: b"null\n"),
    "is a number of 5,000 digits": of_bytes(lambda raw, chance: b"1" * 5000 + b"\n"),
    "is an object of 3,000 in one another": of_bytes(lambda raw, chance: b'{"a":' * 3000 + b"1" + b"}" * 3000 + b"\n"),
    "is 9,000 lists in one another": of_bytes(lambda raw, chance: b"[" * 9000 + b"\n"),
    "is of zeros": of_bytes(lambda raw, chance: b"\0" * len(raw)),
    "leads out of the run": of_bytes(lambda raw, chance: b"../../other\n"),
    "is missing": lambda file: file.unlink(),
    "is a folder": instead(Path.mkdir),
    "is a pipe": instead(os.mkfifo),
    "points nowhere": instead(lambda file: file.symlink_to("nowhere")),
    "points at itself": instead(lambda file: file.symlink_to(file.name)),
    "is endless": instead(lambda file: file.symlink_to("/dev/zero")),
    "is of five terabytes": instead(sparse),
}
ABSENT_IS_FINE = {f"{NEWEST}/training/manifest.json": (CHAT, BEGIN, COMPARE), f"{NEWEST}/tokenizer_config.json": ()}


def cases() -> Iterator[Case]:
    """Every other one: a command reads a file in the same way whatever the damage."""
    return islice(every_case(), 0, None, 2)


def every_case() -> Iterator[Case]:
    for file, commands in READ_BY.items():
        for number, (what, damage) in enumerate(DAMAGES.items()):
            for place, (command, may_work) in enumerate(commands.items()):
                if len(commands) > 2 and (number + place) % 2:  # every other command, each one with half of the damages
                    continue
                fine = may_work or (what == "is missing" and command in ABSENT_IS_FINE.get(file, ()))
                yield Case(
                    f"{file} {what}: {command[0]}{' from it' * (command == BEGIN)}",
                    command,
                    partial(damaged, file=file, damage=damage, is_resumed=command == RESUME),
                    b"a\n",
                    may_work=fine,
                    may_change=MAY_CHANGE,
                )


def damaged(folder: Path, file: str, damage: Callable[[Path], None], is_resumed: bool) -> None:
    run = stopped(folder) if is_resumed and file != "result.json" else trained(folder)
    damage(run / file)
