"""What is known of some runs, and which are seeds of one variant? A difference comes with what chance can do."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, NamedTuple

import numpy as np

from configs.command import InputError
from configs.files import read_checkpoint
from configs.loader import flatten, load_config
from configs.text import code
from data.tokenizer import load_tokenizer
from eval.attention.history import ENOUGH_TO_COPY, best_head, copies_from, like_the_last
from eval.attention.metrics import SCORES
from eval.attention.snapshots import Snapshot, read_all
from eval.lookups import half_at
from eval.run_files import read_metrics, read_result
from model.files.checkpoint import read_config
from model.transformer import on_meta

BITS, GAP = "validation bits per byte", "gap to the entropy floor (bits per byte)"  # rows of the table
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
    lines: those of metrics.jsonl, by split. figures: rows of the table; None where it was not a finite number, or never
    came to be. per_token: rows that mean something only beside runs with the same tokenizer.
    budget: the tokens of its steps, padding included; or its minutes, if these limit it.
    """

    path: Path
    seed: int
    settings: dict[str, Any]
    tokenizer: str
    lines: dict[str, list[dict[str, Any]]]
    snapshots: list[Snapshot]
    figures: dict[str, float | None]
    per_token: dict[str, float | None]
    budget: str
    warnings: list[str]

    @property
    def name(self) -> str:
        return self.path.resolve().name


class Variant(NamedTuple):
    """Runs that differ in nothing but their seed, by seed."""

    name: str
    settings: dict[str, Any]
    runs: list[RunResult]

    def by_seed(self, label: str) -> dict[int, float]:
        """A row of the table: of each run that has it."""
        values = {run.seed: (run.figures | run.per_token).get(label) for run in self.runs}
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
    members = [[by_seed[seed] for seed in sorted(by_seed)] for by_seed in groups.values()]
    names = [re.sub(r"[-_.]?seed\d+$", "", runs[0].name) or runs[0].name for runs in members]
    if len(set(names)) < len(names):  # of the same name in different places
        names = [str(runs[0].path) for runs in members]
    return [Variant(name, runs[0].settings, runs) for name, runs in zip(names, members, strict=True)]


def _read_run(path: Path) -> RunResult:
    if not (path / "config.yaml").is_file():
        raise InputError(f"{path}: is not a run (it has no config.yaml): give a directory that train.pretrain made")
    settings = flatten(load_config(path / "config.yaml").values)
    warnings: list[str] = []
    lines: dict[str, list[dict[str, Any]]] = {"train": [], "val": [], "recall": []}
    for line in read_metrics(path, warnings.append):
        lines.setdefault(line["split"], []).append(line)
    train, val, recall = (lines[split] for split in ("train", "val", "recall"))
    if not val or not (path / "checkpoints").is_dir():
        missing = "evaluation in metrics.jsonl" if not val else "checkpoint"
        raise InputError(f"{path}: has no {missing}: train it until its first one, or leave it out")
    model, tokenizer = read_checkpoint(path, lambda folder: (read_config(folder), load_tokenizer(folder).sha256()))
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
        per_token[f"copies from step (copy gain ≥ {ENOUGH_TO_COPY:g} nat; - = not yet)"] = copies_from(snapshots)
        for name, score in SCORES.items():
            if (values := snapshots[-1].scores.get(name)) is not None:
                choose, which = (np.nanmean, "mean of heads") if name in MEAN_OVER_HEADS else (np.nanmax, "best head")
                label = f"{score.title}, {which}" + f" ({score.unit})" * bool(score.unit)
                per_token[label] = None if np.isnan(values).all() else float(choose(values))
        for name, value in snapshots[-1].scalars.items():
            if not name.endswith(("_max", "_mean")) and name not in SCORES:
                unit = " (nats a token)" if "gain" in name or "ablation" in name else ""
                per_token[name.replace("_", " ") + unit] = value
    tokens, minutes = last_step * settings["train.tokens_per_step"], settings.get("train.max_minutes")
    budget = f"{tokens:,} tokens" if minutes is None else f"{minutes:g} minutes"
    if result.get("step") != last_step:
        warnings.append(f"{path} is not finished: its last step is {last_step:,}")
    if figures[BITS] is None:
        warnings.append(f"{path}: its last loss is non-finite")
    seed = settings["seed"]
    settings = {key: value for key, value in settings.items() if key.partition(".")[0] not in NOT_COMPARED}
    return RunResult(path, seed, settings, tokenizer, lines, snapshots, figures, per_token, budget, warnings)


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
    if len(budgets := {run.budget: None for run in (*other.runs, *baseline.runs)}) > 1:
        reasons.append(f"another budget ({', against '.join(budgets)})")
    return reasons


class Difference(NamedTuple):
    """other - baseline. interval: 95 % (Student's t), None with fewer than two seeds that both have."""

    value: float
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
    quantile = T_QUANTILES[min(len(changes) - 1, len(T_QUANTILES)) - 1]
    reach = quantile * stdev(changes) / math.sqrt(len(changes))
    return Difference(mean(changes), (mean(changes) - reach, mean(changes) + reach))


def spread(values: Collection[float], digits: int = 4) -> str:
    """`mean ± standard deviation`; what does not scatter has no ±, and no value is a dash."""
    if not values:
        return "-"
    shown = f"{mean(values):,.{digits}f}"
    return f"{shown} ± {stdev(values):,.{digits}f}" if len({*values}) > 1 else shown


# ---------------------------------------------------------------------------------------------------------
# the table, and its numbers


def rows_of(variants: Sequence[Variant]) -> list[list[str]]:
    """A row for each figure: its label, and a cell for each variant."""
    seeds = [f"{len(variant.runs)} ({', '.join(str(run.seed) for run in variant.runs)})" for variant in variants]
    rows, per_token = [["runs (seeds)", *seeds]], same_tokenizer(variants)
    for key in differing_keys(variants):
        settings = (json.dumps(variant.settings.get(key, "not set"), ensure_ascii=False) for variant in variants)
        rows.append([code(key), *(text.strip('"')[:40] for text in settings)])
    runs = [run for variant in variants for run in variant.runs]
    for label in dict.fromkeys(label for run in runs for label in run.figures | (run.per_token if per_token else {})):
        by_variant = [variant.by_seed(label) for variant in variants]
        values = [value for by_seed in by_variant for value in by_seed.values()]
        digits = 0 if all(isinstance(value, int) or value > 100 for value in values) else 4
        cells = [spread(by_seed.values(), digits) for by_seed in by_variant]
        for number, (variant, by_seed) in enumerate(zip(variants, by_variant, strict=True)):
            cells[number] += f" (n = {len(by_seed)})" * (0 < len(by_seed) < len(variant.runs))
        rows.append([label, *cells])
        if label == BITS and len(variants) > 1:
            pairs = [_difference_and_verdict(variants[0], other) for other in variants[1:]]
            rows.append(["difference in bits per byte (95 %)", "baseline", *(shown for shown, _ in pairs)])
            rows.append(["difference in bits per byte, verdict", "", *(verdict for _, verdict in pairs)])
    return rows


def _difference_and_verdict(baseline: Variant, other: Variant) -> tuple[str, str]:
    """By how many bits per byte, with its interval; and whether that is more than noise."""
    before, after = baseline.by_seed(BITS), other.by_seed(BITS)
    change = difference(before, after)
    if change is None or len(before) < len(baseline.runs) or len(after) < len(other.runs):
        return "-", "none: not in every seed"
    shown, verdict = f"{change.value:+.4f}", "needs two seeds that both have"
    if change.interval is not None:
        low, high = change.interval
        shown += f" ({low:+.4f} to {high:+.4f})"
        is_clear = low < high and low * high > 0  # seeds that agree to the last digit show nothing
        verdict = f"{'worse' if low > 0 else 'better'}, by more than noise" if is_clear else "within noise"
    return shown, "none: see the warnings" if caveats(baseline, other) else verdict


def histories(variants: Sequence[Variant]) -> list[dict[str, Any]]:
    """What happened in every run, for histories.json: some kB that are read where the runs are not, as in notebook 03.

    A variant: name, settings (the keys in which they differ), query_heads, parameters, kv_bytes, and runs. A run: seed,
    loss (nats a token) and bits_per_byte of its last evaluation, floor_gap (bits per byte above the entropy floor),
    looks: {step, tokens, induction and previous_token: of the head that has most at that step, copy_gain: nats} of the
    heads that were looked at last, and recall: [step, share of right answers]. null: not measured.
    """
    keys, recorded = differing_keys(variants), []
    for variant in variants:
        runs = []
        for run in variant.runs:
            looks = []
            for snapshot in like_the_last(run.snapshots):
                look: dict[str, Any] = {"step": snapshot.step, "tokens": snapshot.tokens}
                for name in ("induction", "previous_token"):
                    place = best_head(snapshot, name)
                    look[name] = float(snapshot.scores[name][place]) if place else None
                looks.append(look | {"copy_gain": snapshot.scalars.get("copy_gain")})
            ends = {
                "loss": run.lines["val"][-1]["loss"],
                "bits_per_byte": run.figures[BITS],
                "floor_gap": run.figures.get(GAP),
            }
            recall = [[line["step"], line["accuracy"]] for line in run.lines["recall"]]
            runs.append({"seed": run.seed, **ends, "looks": looks, "recall": recall})
        figures = variant.runs[0].figures
        sizes = {"parameters": figures["parameters"], "kv_bytes": figures["KV-cache bytes per token"]}
        sizes["query_heads"] = variant.settings["model.num_attention_heads"]
        settings = {key: variant.settings.get(key) for key in keys}
        recorded.append({"name": variant.name, "settings": settings, **sizes, "runs": runs})
    return recorded
