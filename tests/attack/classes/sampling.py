"""Numbers of sampling at which float32 ends, and models whose logits are non-finite, under every command that draws."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.attack.attack import Case
from tests.attack.victims import trained, write_config

CHAT = ("eval.chat", "runs/tiny", "--max-new-tokens", "4")
SAMPLES = ("eval.samples", "runs/tiny", "The", "--max-new-tokens", "4")
NUMBERS = {
    "temperature": ["1e-308", "5e-324", "1e-30", "-1", "-0.5", "nan", "inf", "-inf", "1e308", "1e400", "x", ""],
    "top-p": ["1e-300", "5e-324", "0", "-0.1", "1.0001", "2", "nan", "inf", "1e-45", "x"],
    "max-new-tokens": ["-1", "1e3", "nan", "x"],
    "seed": ["-1", "1e3", "99999999999999999999999", "nan", "0x1"],
}
HARMLESS = {
    "temperature": ["0", "-0.0", "1e-6", "100"],
    "top-p": ["1", "1e-6", "0.5"],
    "max-new-tokens": ["1", "100"],
    "seed": ["9223372036854775807"],
}
WEIGHTS = {"NaN": float("nan"), "infinite": float("inf"), "1e30": 1e30, "-1e38": -1e38}
TASK = ("eval.tasks", "runs/tiny", "--text", "text.txt", "--limit", "3")
OPENING = {
    "chat": CHAT,
    "samples": SAMPLES,
    "tasks": TASK,
    "attention": ("eval.attention", "runs/tiny", "--text", "The cat sat"),
    "compare": ("eval.compare", "runs/tiny"),
}


def cases() -> Iterator[Case]:
    for command in (CHAT, SAMPLES):
        for option, values in NUMBERS.items():
            for value in values:
                name = f"{command[0]} --{option}={value}"
                yield Case(name, (*command, f"--{option}={value}"), trained, b"a\n", says=option.replace("-", "."))
        for option, values in HARMLESS.items():
            for value in values:
                yield Case(
                    f"{command[0]} --{option}={value}", (*command, f"--{option}={value}"), trained, b"a\n", code=0
                )
    for value in NUMBERS["temperature"]:
        lines = f"/temperature {value}\na\n".encode()
        yield Case(f"/temperature {value}", CHAT, trained, lines, code=0)
    for key, values in (("temperature", NUMBERS["temperature"][:-2]), ("top_p", NUMBERS["top-p"][:-1])):
        for value in values:
            command = (
                "train.pretrain",
                "tiny.yaml",
                f"eval.{key}={value.replace('inf', '.inf').replace('nan', '.nan')}",
            )
            yield Case(f"eval.{key}={value} in a config", command, write_config, says=key)
    for what, factor in WEIGHTS.items():
        for name, command in OPENING.items():
            spoil_it = partial(spoil, factor=factor)
            harmless = name == "chat" or math.isfinite(factor)
            yield Case(f"{name}: weights times {what}", command, spoil_it, b"a\n", may_work=harmless)
    for surrogate in ("\udcff", "a\udc80b"):
        yield Case(f"prompt {surrogate!a}", (*SAMPLES[:2], surrogate, *SAMPLES[3:]), trained, may_work=True)
        yield Case(f"--system {surrogate!a}", (*CHAT, "--system", surrogate), trained, may_work=True)
        yield Case(f"--text {surrogate!a}", (*OPENING["attention"][:3], surrogate), trained, may_work=True)
        yield Case(f"a run {surrogate!a}", ("eval.chat", surrogate), trained)


def spoil(folder: Path, factor: float) -> None:
    """Multiply the weights of every checkpoint, and leave everything else valid."""
    from safetensors.torch import load_file, save_file

    from train.saving.atomic_save import seal

    for file in (trained(folder) / "checkpoints").glob("*/model.safetensors"):
        save_file({name: weights * factor for name, weights in load_file(file).items()}, file, {"format": "pt"})
        seal(file.parent)
