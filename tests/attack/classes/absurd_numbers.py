"""Numbers that no run can have: every numeric key of a config, and every numeric option of a command line."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from configs.command import InputError
from configs.loader import load_config, validate
from tests.attack.attack import Case
from tests.attack.victims import own_folder, trained, write_config
from tests.configs.every_key import all_keys
from train.config import RunConfig

VALUES = ["-1", "0", "1" + "0" * 30, "1e308", ".inf", "-.inf", ".nan", '"1"', "true", str(2**63), "0.5", "null", "[]"]
NUMBERS = ["-1", "0", "1" + "0" * 30, "1e308", "inf", "nan", "", "one", "9" * 5000, "1_0", "0x10", "0.5", "١"]
SOURCES = {  # what a source needs besides
    "storyworld": "data.source={kind: storyworld, documents: 20, validation_documents: 5}",
    "mix": "data.source={kind: mix, parts: [{source: {kind: files, path: text.txt}}]}",
}
OPTIONS = [
    ("train.sweep", "tiny.yaml", "seed=1", "--seeds"),
    ("train.sweep", "tiny.yaml", "seed=1", "--jobs"),
    *(("train.budget", "tiny.yaml", f"--{name}") for name in ("memory-gb", "tflops", "mfu")),
    ("data.inspect", "tiny.yaml", "--rows"),
    ("data.tokenizer_report", "tiny.yaml", "--sizes"),
    *(("eval.samples", "runs/tiny", "a", f"--{name}") for name in ("max-new-tokens", "temperature", "top-p", "seed")),
    *(("eval.chat", "runs/tiny", f"--{name}") for name in ("max-new-tokens", "temperature", "top-p", "seed")),
    *(("eval.attention", "runs/tiny", "--text", "a", f"--{n}") for n in ("max-tokens", "layers", "heads", "head")),
    *(("eval.questions", "runs/tiny", f"--{name}") for name in ("documents", "show")),
    *(("eval.tasks", "runs/tiny", "--text", "text.txt", f"--{name}") for name in ("limit", "window", "stride")),
    ("model.convert_kv_heads", "runs/tiny", "--out", "new", "--num-key-value-heads"),
]
HUGE = {  # within all bounds, and far beyond any machine
    "wide": ["model.hidden_size=131072", "model.num_attention_heads=1024", "model.num_key_value_heads=8"],
    "deep": ["model.num_hidden_layers=1000", "model.hidden_size=8192", "model.intermediate_size=65536"],
    "many words": ["model.vocab_size=1048576", "model.hidden_size=131072"],
    "long": [
        "data.sequence_length=1048576",
        "model.max_position_embeddings=1048576",
        "train.tokens_per_step=1048576",
        "model.hidden_size=8192",  # in a narrow model such a row fits into the memory of many machines
        "model.num_attention_heads=64",
    ],
    "a large step at once": ["train.tokens_per_step=1073741824", "train.micro_batch_size=33554432"],
    "all of it": [
        "model.num_hidden_layers=1000",
        "model.hidden_size=131072",
        "model.num_attention_heads=1024",
        "model.num_key_value_heads=1024",
        "model.intermediate_size=1048576",
        "model.vocab_size=1048576",
    ],
}


def cases() -> Iterator[Case]:
    for key in numeric_keys():
        for value in VALUES:
            given = in_yaml(key, value)
            wrong = given is not None and is_refused(given)
            if wrong:
                yield Case(
                    f"pretrain {key}={value}", ("train.pretrain", "tiny.yaml", *given), write_config, says="`|=|must be"
                )
            elif given is not None:
                yield Case(f"budget {key}={value}", ("train.budget", "tiny.yaml", *given), write_config, may_work=True)
    for key in ("data.source.storyworld.documents", "data.sequence_length", "data.source.mix.parts.weight"):
        for value in VALUES:
            if (given := in_yaml(key, value)) and is_refused(given) and "sequence_length (" not in is_refused(given):
                yield Case(f"prepare {key}={value}", ("data.prepare", "tiny.yaml", *given), write_config, says="`")
    for number, option in enumerate(OPTIONS):
        for value in NUMBERS:
            may_work = value in ("0", "0.5", "-1") or (value == "0.5" and option[-1] in ("--temperature", "--top-p"))
            command = (*option[:-1], f"{option[-1]}={value}")
            prepare = write_config if option[1] == "tiny.yaml" else partial(with_text)
            name = f"option {number} {option[0]} {option[-1]}={value[:40]}"
            yield Case(name, command, prepare, b"a\n", may_work, says=option[-1] if not may_work else r"\S")
    for what, overrides in HUGE.items():
        needs = r"a training step (of .* needs .*B \(weights .*memory is|needs more memory)"
        yield Case(
            f"pretrain, {what}", ("train.pretrain", "tiny.yaml", *overrides), write_config, says=needs, check=empty
        )
        yield Case(f"budget, {what}", ("train.budget", "tiny.yaml", *overrides), write_config, may_work=True)


@cache
def numeric_keys() -> tuple[str, ...]:
    """Every key that may hold a number, of each kind of source."""
    return tuple(key for key, field in all_keys(RunConfig) if {"int", "float"} & words(field.annotation))


def words(annotation: Any) -> set[str]:
    return set("".join(c if c.isalpha() else " " for c in str(annotation)).split())


def in_yaml(key: str, value: str) -> list[str] | None:
    """The overrides that set a key; None for one that stands in a list of sections."""
    for kind, source in SOURCES.items():
        if key == f"data.source.{kind}.parts.weight":
            return [source.replace("{source:", f"{{weight: {value}, source:")]
        if key.startswith(f"data.source.{kind}.") and "parts" not in key:
            return [source, f"{key.replace(f'source.{kind}', 'source')}={value}"]
    if key.startswith("data.source.files."):
        return [f"{key.replace('source.files', 'source')}={value}"]
    if key.startswith("model.rope_scaling."):
        yarn = "model.rope_scaling={rope_type: yarn, factor: 2.0, original_max_position_embeddings: 64}"
        return [yarn, f"{key}={value}"]
    if key.startswith("eval.hooks."):
        return [f"eval.hooks=[{{name: samples, {key.rpartition('.')[2]}: {value}}}]"]
    if "parts" in key or key.startswith("data.source.hub"):
        return None
    if key in ("train.max_tokens", "train.max_minutes"):
        return ["train.max_steps=null", f"{key}={value}"]
    return [f"{key}={value}"]


@cache
def _file() -> Path:
    return write_config(own_folder())


def is_refused(overrides: list[str]) -> str:
    """What is wrong with these overrides; "" if they make a valid config, and a command would go on."""
    try:
        validate(RunConfig, load_config(_file(), overrides))
    except InputError as error:
        return str(error)
    return ""


def with_text(folder: Path) -> None:
    trained(folder)


def empty(folder: Path) -> str:
    return "something was written" if (folder / "runs").exists() else ""
