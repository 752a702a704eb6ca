"""Which runs make up a sweep? The baseline, and one run for each changed key or rung, all of them with every seed.

A rung is a set of changes with a name, from the config's own `rungs`; configs/ladder.yaml is made of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from configs.command import InputError
from configs.loader import flatten
from configs.meaning import Meaning, keys_that
from train.config import RunConfig, load_run_config
from train.methods.sections import script_of

LONGEST_LABEL = 60  # characters of a value in the name of a run


@dataclass(frozen=True)
class Variant:
    """label: part of the names of its runs. changes: its overrides besides the fixed ones, [] = the baseline.

    is_rung: whether the config's `rungs` have it, not the command line.
    """

    label: str
    changes: list[str]
    config: RunConfig
    is_rung: bool = False


@dataclass(frozen=True)
class PlannedRun:
    """One run of one variant: its checked config, and the overrides that make it on the command line."""

    variant: Variant
    config: RunConfig
    overrides: list[str]
    trust_hooks: bool = False

    @property
    def script(self) -> str:
        """Fine-tuning and every other method have their own script."""
        if (own := script_of(self.config)) is not None:
            return own
        tunes = self.config.init_from is not None and self.config.data.records == "conversations"
        return "train.sft" if tunes else "train.pretrain"


def plan(path: str, arguments: Sequence[str], seeds: int, *, trust_hooks: bool = False) -> list[PlannedRun]:
    """Every run, baseline first, seed by seed. Trains and writes nothing.

    arguments: `key=value` holds for all runs, `key=a,b,c` is swept; where none is, the config's `rungs` are. Raises
    InputError for a key that does not exist or cannot be swept, a value that does not fit, and if there is nothing to
    compare.
    """
    fixed, swept = read_arguments(arguments)
    rungs = load_run_config(path, fixed, trust_hooks=trust_hooks).rungs
    if rungs is not None:
        fixed.append("rungs=null")  # a single run has none
    if swept or not rungs:
        variants = variants_of(path, fixed, swept, trust_hooks=trust_hooks)
    else:
        variants = rungs_of(path, fixed, rungs)
    if len(variants) == 1 and not swept and seeds == 1:
        raise InputError(
            "nothing is swept: give a key two values or more, for example model.num_key_value_heads=1,2,4, or --seeds 3"
        )
    runs = []
    for seed in range(variants[0].config.seed, variants[0].config.seed + seeds):
        for variant in variants:
            name = "-".join(filter(None, (variants[0].config.name, variant.label, f"seed{seed}")))
            overrides = [*fixed, *variant.changes, f"seed={seed}", f"name={json.dumps(name, ensure_ascii=False)}"]
            runs.append(PlannedRun(variant, load_run_config(path, overrides), overrides, trust_hooks))
    return runs


def read_arguments(arguments: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """(overrides that hold for all runs, values of each swept key). Raises InputError."""
    fixed, swept = [], {}
    seen = set()
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or not key:
            raise InputError(f"`{argument}`: write key=value,value,…, for example model.num_key_value_heads=1,2,4")
        if key in seen:
            raise InputError(f"`{key}` is given twice: write its values together, {key}=value,value")
        seen.add(key)
        values = split_values(text)
        if len(values) == 1:
            fixed.append(argument)
            continue
        if values[-1] == "":  # `key=1,` sweeps a single value against the baseline
            values.pop()
        if "" in values:
            raise InputError(f"`{argument}`: a value is empty: write it out, or null")
        if key == "seed":
            raise InputError(
                f"`{argument}`: seeds are not swept: --seeds {len(values)} trains every variant with that many"
            )
        if problem := _not_sweepable(key):
            raise InputError(f"`{argument}`: {problem}")
        swept[key] = values
    return fixed, swept


def split_values(text: str) -> list[str]:
    """Split `a,b` at the commas outside brackets and quotes."""
    values, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'" and (depth or not values[-1].strip()):
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        if letter == "," and not depth and not quote:
            values.append("")
        else:
            values[-1] += letter
    return [value.strip() for value in values]


def variants_of(
    path: str, fixed: Sequence[str], swept: dict[str, list[str]], *, trust_hooks: bool = False
) -> list[Variant]:
    """The baseline, then a variant for each value that changes it. No config comes twice. Raises InputError."""
    base = load_run_config(path, list(fixed), trust_hooks=trust_hooks)
    baseline = Variant(_label_of_baseline(base, swept), [], base)
    variants, labels = [baseline], set()
    for key, values in swept.items():
        for value in values:
            config = _checked(path, [*fixed, f"{key}={value}"], key, value)
            label = _label(value) if len(swept) == 1 else f"{key.rpartition('.')[2]}-{_label(value)}"
            if config == base:
                if (
                    len(swept) == 1 and baseline is variants[0]
                ):  # its runs are named after the value as it is written here
                    variants[0] = Variant(label, [], base)
                continue
            if any(config == variant.config for variant in variants):
                continue
            variants.append(Variant(label, [f"{key}={value}"], config))
    for number, variant in enumerate(variants):
        if variant.label in labels:  # such as the lists [1, 2] and "1_2"
            variants[number] = Variant(f"{variant.label}-{number}", variant.changes, variant.config)
        labels.add(variant.label)
    return variants


def rungs_of(path: str, fixed: Sequence[str], rungs: dict[str, dict[str, Any]]) -> list[Variant]:
    """The baseline, then every rung, in the order of the file. Raises InputError for one that repeats another.

    rungs: name -> {key: value}; a key may be dotted, or hold others.
    """
    variants = [Variant("baseline", [], load_run_config(path, list(fixed)))]
    for name, values in rungs.items():
        where = f"{path}: `rungs.{name}`"
        if (label := _slug(name)) != name or name == variants[0].label:
            raise InputError(f"{where}: a rung's name is letters, digits and _ . + -, and not baseline: choose another")
        changes = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in flatten(values).items()]
        if problem := next(filter(None, (_not_sweepable(change.partition("=")[0]) for change in changes)), ""):
            raise InputError(f"{where}: {problem}")
        try:
            config = load_run_config(path, [*fixed, *changes])
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        if same := next((variant for variant in variants if variant.config == config), None):
            raise InputError(f"{where} is the same as {same.label}: give it a change of its own, or leave it out")
        variants.append(Variant(label, changes, config, is_rung=True))
    return variants


def _not_sweepable(key: str) -> str:
    """Why this key is not what runs may differ in, "" if it may be."""
    if key.partition(".")[0] in ("extends", *keys_that(RunConfig, Meaning.BOOKKEEPING)):
        return f"{key} changes nothing that is trained, so there is nothing to sweep"
    return ""


def _checked(path: str, overrides: list[str], key: str, value: str) -> RunConfig:
    try:
        return load_run_config(path, overrides)
    except InputError as error:
        message = str(error)
        raise InputError(message if f"`{key}={value}`" in message else f"`{key}={value}`: {message}") from None


def _label_of_baseline(base: RunConfig, swept: dict[str, list[str]]) -> str:
    """With one key: the baseline's own value, so that the same run serves every sweep of that key."""
    if len(swept) != 1:
        return "baseline"
    value: Any = base.model_dump()
    for part in next(iter(swept)).split("."):
        value = value.get(part) if isinstance(value, dict) else None
    label = "" if value is None or isinstance(value, dict) else _slug(json.dumps(value, ensure_ascii=False))
    return label or "baseline"


def _label(value: str) -> str:
    """A value as part of a folder's name."""
    return _slug(value) or "value"


def _slug(value: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", value).strip("_")[:LONGEST_LABEL]
