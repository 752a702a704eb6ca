"""What is known of some runs, and which are seeds of one variant? A difference comes with what chance can do."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, NamedTuple

import numpy as np

from configs.command import InputError
from configs.files import read_checkpoint
from configs.loader import flatten, load_config
from data.tokenizer import load_tokenizer
from eval.attention.history import ENOUGH_TO_COPY, copies_from
from eval.attention.metrics import SCORES
from eval.attention.snapshots import Snapshot, read_all
from eval.lookups import half_at
from eval.run_files import read_metrics, read_result
from model.checkpoint import read_config
from model.transformer import on_meta

# rows of the table, with what is compared
BITS, GAP = "validation bits per byte", "gap to the entropy floor (bits per byte)"
COPIES = f"copies from step (copy gain ≥ {ENOUGH_TO_COPY:g} nat; - = not yet)"
# parts of a config in which equal runs may differ
NOT_COMPARED = {"seed", "name", "output_dir", "resume", "allow_mismatch", "rungs", "tracking"}
# of these the mean over all heads counts; of every other score, the head that has most of it
MEAN_OVER_HEADS = {"sink", "entropy", "entropy_normalised", "entropy_sink_free", "distance", "saturated_rows"}
# 97.5 % quantiles of Student's t by degrees of freedom, 1 to 10; beyond the last one they hardly change
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True)
class RunResult:
    """One run.

    settings: config.yaml by dotted key, without those in which equal runs may differ. tokenizer: a hash of it.
    train, val, recall: its lines of metrics.jsonl. snapshots: by step; only the last one has maps.
    figures: rows of the table; None where it was not a finite number, or never came to be. per_token: those of them
    that mean something only beside runs with the same tokenizer.
    budget: the tokens of its steps; or its minutes, if these were what limited it to the end.
    """

    path: Path
    seed: int
    settings: dict[str, Any]
    tokenizer: str
    train: list[dict[str, Any]]
    val: list[dict[str, Any]]
    recall: list[dict[str, Any]]
    snapshots: list[Snapshot]
    figures: dict[str, float | None]
    per_token: dict[str, float | None]
    budget: str
    warnings: list[str]

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def bits_per_byte(self) -> float | None:
        return self.figures[BITS]


@dataclass(frozen=True)
class Variant:
    """Runs that differ in nothing but their seed, by seed."""

    name: str
    runs: list[RunResult]

    @property
    def settings(self) -> dict[str, Any]:
        return self.runs[0].settings

    def by_seed(self, figure: Callable[[RunResult], float | None]) -> dict[int, float]:
        """A figure of each run that has it."""
        values = {run.seed: figure(run) for run in self.runs}
        return {seed: value for seed, value in values.items() if value is not None}


def read_runs(paths: Sequence[Path]) -> list[Variant]:
    """The variants in the order in which their first run was named.

    Raises InputError for a directory that is not a run, one without checkpoint or evaluation, and one named twice.
    """
    groups: dict[str, dict[int, RunResult]] = defaultdict(dict)
    for path in paths:
        run = _read_run(path)
        by_seed = groups[repr(sorted(run.settings.items()))]
        if twin := by_seed.get(run.seed):
            raise InputError(f"{twin.path} and {path} are the same run: all settings and seed {run.seed} are equal")
        by_seed[run.seed] = run
    members = [sorted(by_seed.values(), key=lambda run: run.seed) for by_seed in groups.values()]
    names = [re.sub(r"[-_.]?seed\d+$", "", runs[0].name) or runs[0].name for runs in members]
    if len(set(names)) < len(names):  # of the same name in different places
        names = [str(runs[0].path) for runs in members]
    return [Variant(name, runs) for name, runs in zip(names, members, strict=True)]


def _read_run(path: Path) -> RunResult:
    if not (path / "config.yaml").is_file():
        raise InputError(f"{path}: is not a run (it has no config.yaml): give a directory that train.pretrain made")
    settings = flatten(load_config(path / "config.yaml").values)
    warnings: list[str] = []
    lines = read_metrics(path, warnings.append)
    train = [line for line in lines if line["split"] == "train" and "loss" in line]
    val = [line for line in lines if line["split"] == "val" and {"loss", "bits_per_byte"} <= line.keys()]
    recall = [line for line in lines if line["split"] == "recall" and "accuracy" in line]
    if not val or not (path / "checkpoints").is_dir():
        missing = "evaluation in metrics.jsonl" if not val else "checkpoint"
        reason = "".join(f" ({problem})" for problem in warnings[:1])
        raise InputError(f"{path}: has no {missing}: train it until its first one, or leave it out{reason}")
    model, tokenizer = read_checkpoint(path, lambda one: (read_config(one), load_tokenizer(one).sha256()))
    result, last_step = read_result(path, warnings.append) or {}, max(line["step"] for line in (*train, *val))
    snapshots, damaged = read_all(path)
    warnings += damaged
    figures: dict[str, float | None] = {
        "parameters": on_meta(model).num_parameters(),
        "KV-cache bytes per token": 2 * model.num_hidden_layers * model.cache_numbers,  # numbers of 16 bits
    }
    if train:
        figures["tokens trained on"] = train[-1]["tokens"]
    if speeds := [line["tokens_per_s"] for line in train if line.get("tokens_per_s")]:
        figures["train tokens/s"] = median(speeds)
    figures[BITS] = val[-1]["bits_per_byte"]
    floor = result.get("floor", {})
    if None not in (floor.get("model"), floor.get("floor")):
        figures[GAP] = floor["model"] - floor["floor"]
    if recall:
        figures["recall, share of answers right"] = recall[-1]["accuracy"]
        figures["recall, step at which over one half"] = half_at(recall)
    per_token: dict[str, float | None] = {"validation loss (nats per token)": val[-1]["loss"]}
    if snapshots:
        last, per_token[COPIES] = snapshots[-1], copies_from(snapshots)
        for name in [name for name in SCORES if name in last.scores]:
            choose, which = (np.nanmean, "mean of heads") if name in MEAN_OVER_HEADS else (np.nanmax, "best head")
            level, values = last.chance.get(name), last.scores[name]
            about = [SCORES[name].unit, "" if level is None else f"chance {level:.2g}"]
            label = f"{SCORES[name].title}, {which}" + f" ({', '.join(filter(None, about))})" * any(about)
            per_token[label] = None if np.isnan(values).all() else float(choose(values))
        for name in [name for name in last.scalars if not name.endswith(("_max", "_mean")) and name not in SCORES]:
            unit = " (nats a token)" if "gain" in name or "ablation" in name else ""
            per_token[name.replace("_", " ") + unit] = last.scalars[name]
    budget = f"{last_step * settings['train.tokens_per_step']:,} tokens"
    if result.get("step") != last_step:
        warnings.append(f"{path} is not finished: its last step is {last_step:,}")
    elif settings.get("train.max_minutes") is not None:
        budget = f"{settings['train.max_minutes']:g} minutes"
    if figures[BITS] is None:
        warnings.append(f"{path}: its last loss is non-finite")
    seed = settings["seed"]
    settings = {key: value for key, value in settings.items() if key.partition(".")[0] not in NOT_COMPARED}
    snapshots = [replace(snapshot, maps={}) for snapshot in snapshots[:-1]] + snapshots[-1:]
    return RunResult(
        path, seed, settings, tokenizer, train, val, recall, snapshots, figures, per_token, budget, warnings
    )


# ---------------------------------------------------------------------------------------------------------
# what differs


def same_tokenizer(variants: Sequence[Variant]) -> bool:
    """Whether a token is the same to all runs, so that losses a token compare."""
    return len({run.tokenizer for variant in variants for run in variant.runs}) == 1


def differing_keys(variants: Sequence[Variant]) -> list[str]:
    """Dotted keys of the config that are not the same in all of them, in the config's order."""
    keys = dict.fromkeys(key for variant in variants for key in variant.settings)
    return [key for key in keys if len({repr(variant.settings.get(key, "not set")) for variant in variants}) > 1]


def caveats(baseline: Variant, other: Variant) -> list[str]:
    """Why the two are not like for like, besides what was meant to differ: other text, or other numbers of tokens."""
    differing, reasons = differing_keys([baseline, other]), []
    if text := [key for key in differing if key.startswith(("data.source", "data.records"))]:
        reasons.append(f"other data ({', '.join(text)})")
    if len(budgets := {run.budget: None for variant in (other, baseline) for run in variant.runs}) > 1:
        reasons.append(f"another budget ({', against '.join(budgets)})")
    if "eval.final_max_tokens" in differing:
        reasons.append("another number of held-out tokens (eval.final_max_tokens)")
    return reasons


class Difference(NamedTuple):
    """other - baseline. interval: 95 % (Student's t), None with fewer than two seeds that both have."""

    value: float
    standard_error: float = 0.0
    interval: tuple[float, float] | None = None


def difference(baseline: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    """The difference of two variants' figures, given by seed; None where one of them has none.

    Paired over the seeds that both have, since data order and initial weights then have much in common.
    """
    if not baseline or not other:
        return None
    changes = [other[seed] - baseline[seed] for seed in baseline.keys() & other.keys()]
    if len(changes) < 2:
        return Difference(mean(other.values()) - mean(baseline.values()))
    error = stdev(changes) / math.sqrt(len(changes))
    reach = T_QUANTILES[min(len(changes) - 1, len(T_QUANTILES)) - 1] * error
    return Difference(mean(changes), error, (mean(changes) - reach, mean(changes) + reach))


def spread(values: Collection[float], digits: int = 4) -> str:
    """`mean ± standard deviation`; one value alone has no ±, and none is a dash."""
    if not values:
        return "-"
    shown = f"{mean(values):,.{digits}f}"
    return f"{shown} ± {stdev(values):,.{digits}f}" if len(values) > 1 else shown
