"""Compare runs: variants with several seeds, their differences, and the table."""

import json
import math
import re
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
from eval.run_files import first_difference, read_metrics, read_result
from model.files.checkpoint import read_config
from model.transformer import on_meta

BITS = "validation bits per byte"
GAP = "gap to the entropy floor (bits per byte)"
KV_BYTES = "KV-cache bytes per token"
# Rows with these labels are comparable between tokenizers.
ANY_TOKENIZER = ("parameters", KV_BYTES, "tokens trained on", "train tokens/s", BITS, GAP, "recall")
# Runs of one variant may differ in these keys and sections of a config.
NOT_COMPARED = {"seed", "name", "output_dir", "resume", "allow_mismatch", "rungs", "outcome"}
NOT_COMPARED |= {"tracking", "forked_from"}
# The table has the mean of these scores over all heads, and the largest of other scores.
MEAN_OVER_HEADS = {"sink", "entropy", "entropy_normalised", "entropy_sink_free"}
MEAN_OVER_HEADS |= {"distance", "saturated_rows"}
# The 97.5 % quantiles of Student's t for 1 to 10 degrees of freedom; more hardly differ.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True)
class RunResult:
    """One run."""

    path: Path
    seed: int
    settings: dict[str, Any]  # config.yaml by dotted key, without NOT_COMPARED
    tokenizer: str  # a hash
    lines: dict[str, list[dict[str, Any]]]  # of metrics.jsonl, by split
    snapshots: list[Snapshot]
    figures: dict[str, float | None]  # rows of the table; None: not finite, or not reached
    budget: str  # tokens of all steps with padding, or minutes if these limit the run
    warnings: list[str]
    forked_from: tuple[Path, int] | None  # a run, and the last step that both have

    @property
    def name(self) -> str:
        return self.path.resolve().name


class Variant(NamedTuple):
    """Runs that differ only in their seed, ordered by seed."""

    name: str
    settings: dict[str, Any]
    runs: list[RunResult]

    def by_seed(self, label: str) -> dict[int, float]:
        """Return a row of the table, {seed: value}, without missing values."""
        values = {run.seed: run.figures.get(label) for run in self.runs}
        return {seed: value for seed, value in values.items() if value is not None}


# Reading runs.


def read_runs(paths: Sequence[Path]) -> list[Variant]:
    """Return the variants, ordered by their first run.

    Raises InputError for a directory that is not a run, for a run without checkpoint or evaluation,
    and for a run named twice.
    """
    groups: dict[str, dict[int, RunResult]] = {}  # settings -> seed -> run
    for path in paths:
        run = _read_run(path)
        # as text, because a setting may be a list, which has no hash
        by_seed = groups.setdefault(repr(sorted(run.settings.items())), {})
        if run.seed in by_seed:
            raise InputError(
                f"{by_seed[run.seed].path} and {path} are the same run: "
                f"all settings and seed {run.seed} are equal"
            )
        by_seed[run.seed] = run
    variants = []
    for by_seed in groups.values():
        runs = [by_seed[seed] for seed in sorted(by_seed)]
        # mha_seed1 and mha_seed2 are the variant mha
        name = re.sub(r"[-_.]?seed\d+$", "", runs[0].name) or runs[0].name
        variants.append(Variant(name, runs[0].settings, runs))
    if len({variant.name for variant in variants}) < len(variants):
        # runs in different folders may have the same name
        variants = [variant._replace(name=str(variant.runs[0].path)) for variant in variants]
    return variants


def _read_run(path: Path) -> RunResult:
    if not (path / "config.yaml").is_file():
        raise InputError(f"{path}: is not a run (it has no config.yaml): train.pretrain makes one")
    settings = flatten(load_config(path / "config.yaml").values)
    warnings: list[str] = []
    lines: dict[str, list[dict[str, Any]]] = {"train": [], "val": [], "recall": []}
    for line in read_metrics(path, warnings.append):
        # hooks of your own log under other names
        lines.setdefault(line["split"], []).append(line)
    if not lines["val"]:
        raise InputError(f"{path}: has no evaluation: train it to its first one, or leave it out")
    if not (path / "checkpoints").is_dir():
        raise InputError(f"{path}: has no checkpoint: train it to its first one, or leave it out")
    result = read_result(path, warnings.append) or {}
    snapshots, damaged = read_all(path)
    warnings += damaged
    last_step = max(line["step"] for line in lines["train"] + lines["val"])
    if result.get("step") != last_step:
        warnings.append(f"{path} is not finished: its last step is {last_step:,}")
    budget = f"{last_step * settings['train.tokens_per_step']:,} tokens"
    if settings.get("train.max_minutes") is not None:
        budget = f"{settings['train.max_minutes']:g} minutes"

    # The order of the figures is that of the table. A row is missing if nothing was measured.
    model = read_checkpoint(path, read_config)
    tokenizer = read_checkpoint(path, load_tokenizer).sha256()
    figures: dict[str, float | None] = {
        "parameters": on_meta(model).num_parameters(),
        # linear attention keeps a state of fixed size, which no longer text makes larger
        KV_BYTES: 2 * model.is_linear.count(False) * model.cache_numbers,  # numbers of 16 bits
        "tokens trained on": (lines["train"] or lines["val"])[-1]["tokens"],
    }
    speeds = [line["tokens_per_s"] for line in lines["train"] if line.get("tokens_per_s")]
    if speeds:
        # the median: one slow minute beside another program does not count
        figures["train tokens/s"] = median(speeds)
    figures[BITS] = lines["val"][-1]["bits_per_byte"]
    if figures[BITS] is None:
        warnings.append(f"{path}: its last loss is non-finite")
    floor = result.get("floor", {})
    if None not in (floor.get("model"), floor.get("floor")):
        figures[GAP] = floor["model"] - floor["floor"]
    if lines["recall"]:
        figures["recall, share of answers right"] = lines["recall"][-1]["accuracy"]
        figures["recall, step at which over one half"] = half_at(lines["recall"])
    figures["validation loss (nats per token)"] = lines["val"][-1]["loss"]
    if snapshots:
        copying = f"copies from step (copy gain ≥ {ENOUGH_TO_COPY:g} nat; - = not yet)"
        figures[copying] = copies_from(snapshots)
        figures |= _head_figures(snapshots[-1])
    seed = settings["seed"]
    origin = None
    if "forked_from.run" in settings:
        origin = Path(settings["forked_from.run"]).resolve(), settings["forked_from.step"]
    for key in list(settings):
        if key.split(".")[0] in NOT_COMPARED:
            del settings[key]
    return RunResult(
        path, seed, settings, tokenizer, lines, snapshots, figures, budget, warnings, origin
    )


def _head_figures(last: Snapshot) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    # Scores of heads, then figures of the whole model.
    for name, score in SCORES.items():
        if name in last.scores:
            values = last.scores[name]
            is_mean = name in MEAN_OVER_HEADS
            label = f"{score.title}, {'mean of heads' if is_mean else 'best head'}"
            if score.unit:
                label += f" ({score.unit})"
            figures[label] = None
            if not np.isnan(values).all():
                figures[label] = float(np.nanmean(values) if is_mean else np.nanmax(values))
    for name, value in last.scalars.items():
        # "_max" and "_mean" are figures of the scores above
        if not name.endswith(("_max", "_mean")) and name not in SCORES:
            unit = " (nats a token)" if "gain" in name or "ablation" in name else ""
            figures[name.replace("_", " ") + unit] = value
    return figures


# Forks.


class Fork(NamedTuple):
    """A run beside the run that it continues from a step."""

    step: int  # the last one that both have
    tokens: int  # read by then
    sentence: str  # where the two lives part


def forks(variants: Sequence[Variant]) -> list[Fork]:
    """Return the forks among the runs whose origin is among them, too."""
    runs = {run.path.resolve(): run for variant in variants for run in variant.runs}
    pairs = []
    for fork in runs.values():
        if fork.forked_from is None or fork.forked_from[0] not in runs:
            continue
        step = fork.forked_from[1]
        origin = runs[fork.forked_from[0]]
        ours, theirs = (
            sorted(run.lines["train"] + run.lines["val"], key=lambda line: line["step"])
            for run in (fork, origin)
        )
        sentence = f"{fork.name} continues {origin.name} from step {step:,}: "
        difference = first_difference(ours, theirs)
        if difference is None:
            sentence += "no logged step differs."
        else:
            at, figure, here, there = difference
            sentence += f"the first logged step that differs is {at:,}, with {figure} {here:.6g} "
            sentence += f"against {there:.6g}."
        tokens = max((line["tokens"] for line in ours if line["step"] <= step), default=0)
        pairs.append(Fork(step, tokens, sentence))
    return pairs


# Differences.


def same_tokenizer(variants: Sequence[Variant]) -> bool:
    """Return True if losses a token are comparable: all runs have one tokenizer."""
    return len({run.tokenizer for variant in variants for run in variant.runs}) == 1


def differing_keys(variants: Sequence[Variant]) -> list[str]:
    keys: dict[str, set[str]] = {}  # dotted key -> its values, as text: lists have no hash
    for key in dict.fromkeys(key for variant in variants for key in variant.settings):
        keys[key] = {repr(variant.settings.get(key, "not set")) for variant in variants}
    return [key for key, values in keys.items() if len(values) > 1]


def caveats(baseline: Variant, other: Variant) -> list[str]:
    """Return reasons why two variants do not compare: other data, or another budget."""
    reasons = []
    differing = differing_keys([baseline, other])
    data = [key for key in differing if key.startswith(("data.source", "data.records"))]
    if data:
        reasons.append(f"other data ({', '.join(data)})")
    budgets = dict.fromkeys(run.budget for run in other.runs + baseline.runs)
    if len(budgets) > 1:
        reasons.append(f"another budget ({', against '.join(budgets)})")
    return reasons


class Difference(NamedTuple):
    """other - baseline, and its 95 % interval (Student's t) for two or more common seeds."""

    value: float
    interval: tuple[float, float] | None = None


def difference(baseline: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    """Return the difference of two variants' figures, {seed: value}; None if one is empty."""
    if not baseline or not other:
        return None
    # Common seeds are paired, because their data order and first weights are alike.
    changes = [other[seed] - baseline[seed] for seed in baseline.keys() & other.keys()]
    if len(changes) < 2:
        return Difference(mean(other.values()) - mean(baseline.values()))
    # with two or three seeds the normal distribution's 1.96 would promise far too much
    quantile = T_QUANTILES[min(len(changes) - 1, len(T_QUANTILES)) - 1]
    reach = quantile * stdev(changes) / math.sqrt(len(changes))
    return Difference(mean(changes), (mean(changes) - reach, mean(changes) + reach))


def spread(values: Collection[float], digits: int = 4) -> str:
    """Write `mean ± standard deviation`; without ± for equal values, "-" for none."""
    if not values:
        return "-"
    text = f"{mean(values):,.{digits}f}"
    return f"{text} ± {stdev(values):,.{digits}f}" if len({*values}) > 1 else text


# The table, and its numbers.


def rows_of(variants: Sequence[Variant]) -> list[list[str]]:
    """Return a row for each figure: label, and a cell for each variant."""
    rows = [["runs (seeds)"]]
    for variant in variants:
        rows[0].append(f"{len(variant.runs)} ({', '.join(str(run.seed) for run in variant.runs)})")
    for key in differing_keys(variants):
        row = [code(key)]
        for variant in variants:
            setting = json.dumps(variant.settings.get(key, "not set"), ensure_ascii=False)
            row.append(setting.strip('"')[:40])
        rows.append(row)
    runs = [run for variant in variants for run in variant.runs]
    for label in dict.fromkeys(label for run in runs for label in run.figures):
        if not same_tokenizer(variants) and not label.startswith(ANY_TOKENIZER):
            continue
        by_variant = [variant.by_seed(label) for variant in variants]
        values = [value for by_seed in by_variant for value in by_seed.values()]
        # counts, steps and speeds need no decimals
        digits = 0 if all(isinstance(value, int) or value > 100 for value in values) else 4
        row = [label]
        for variant, by_seed in zip(variants, by_variant, strict=True):
            cell = spread(by_seed.values(), digits)
            if 0 < len(by_seed) < len(variant.runs):
                cell += f" (n = {len(by_seed)})"
            row.append(cell)
        rows.append(row)
        if label == BITS and len(variants) > 1:
            pairs = [_difference_and_verdict(variants[0], other) for other in variants[1:]]
            changes, verdicts = zip(*pairs, strict=True)
            rows.append(["difference in bits per byte (95 %)", "baseline", *changes])
            rows.append(["difference in bits per byte, verdict", "", *verdicts])
    return rows


def _difference_and_verdict(baseline: Variant, other: Variant) -> tuple[str, str]:
    before = baseline.by_seed(BITS)
    after = other.by_seed(BITS)
    change = difference(before, after)
    # a loss that is non-finite counts for no seed
    if change is None or len(before) < len(baseline.runs) or len(after) < len(other.runs):
        return "-", "none: not in every seed"
    text = f"{change.value:+.4f}"
    verdict = "needs two seeds that both have"
    if change.interval is not None:
        low, high = change.interval
        text += f" ({low:+.4f} to {high:+.4f})"
        verdict = "within noise"
        # zero is outside the interval; equal values in all seeds show nothing
        if low < high and low * high > 0:
            verdict = f"{'worse' if low > 0 else 'better'}, by more than noise"
    return text, "none: see the warnings" if caveats(baseline, other) else verdict


def histories(variants: Sequence[Variant]) -> list[dict[str, Any]]:
    """Return the curves of all runs, for histories.json; notebooks 03 and 04 draw from it.

    None: not measured.
    """
    keys = differing_keys(variants)
    recorded = []
    for variant in variants:
        figures = variant.runs[0].figures
        recorded.append(
            {
                "name": variant.name,
                # the keys in which the variants differ
                "settings": {key: variant.settings.get(key) for key in keys},
                "parameters": figures["parameters"],
                "kv_bytes": figures[KV_BYTES],
                "query_heads": variant.settings["model.num_attention_heads"],
                "runs": [_history(run) for run in variant.runs],
            }
        )
    return recorded


def _history(run: RunResult) -> dict[str, Any]:
    looks = []
    for snapshot in like_the_last(run.snapshots):
        look: dict[str, Any] = {"step": snapshot.step, "tokens": snapshot.tokens}
        # the largest of a head
        for name in ("induction", "previous_token"):
            head = best_head(snapshot, name)
            look[name] = float(snapshot.scores[name][head]) if head else None
        look["copy_gain"] = snapshot.scalars.get("copy_gain")  # nats
        looks.append(look)
    return {
        "seed": run.seed,
        "loss": run.lines["val"][-1]["loss"],  # nats a token
        "bits_per_byte": run.figures[BITS],
        "floor_gap": run.figures.get(GAP),  # bits per byte above the entropy floor
        "looks": looks,
        # [step, share of right answers]
        "recall": [[line["step"], line["accuracy"]] for line in run.lines["recall"]],
    }
