"""What is known of some runs, and which are seeds of one variant? A difference comes with what chance can do."""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, NamedTuple

from configs.command import InputError
from configs.files import STATE, TRAINING, DamagedFile, read_checkpoint, read_json, read_text
from configs.loader import flatten, load_config
from data.tokenizer import load_tokenizer
from eval.attention.history import copies_from
from eval.attention.snapshots import Snapshot, read_all
from eval.run_files import read_metrics, read_result

# how text becomes tokens and rows, not which text it is
ROWS = "tokenizer sequence_length shuffle isolate_documents restart_positions rows_joined too_long".split()
# 97.5 % quantiles of Student's t by degrees of freedom; beyond the last one they hardly change
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True)
class RunResult:
    """One run.

    settings: config.yaml by dotted key, without those in which equal runs may differ.
    train, val, recall: its lines of metrics.jsonl. snapshots: by step; only the last one has maps.
    contents: a hash of its data and tokenizer; tokenizer: a hash of the tokenizer alone; machine: where it trained.
    is_finished: its result.json is of its last step. floor_gap: bits per byte above the entropy floor.
    """

    path: Path
    name: str
    seed: int
    settings: dict[str, Any]
    train: list[dict[str, Any]]
    val: list[dict[str, Any]]
    recall: list[dict[str, Any]]
    snapshots: list[Snapshot]
    contents: str | None
    tokenizer: str
    machine: str
    is_finished: bool
    floor_gap: float | None

    @property
    def last_step(self) -> int:
        return max(line["step"] for line in (*self.train, *self.val))

    @property
    def budget(self) -> str:
        """The tokens of the steps that it took; or its minutes, if these were what limited it to the end."""
        minutes = self.settings.get("train.max_minutes")
        if minutes is not None and self.is_finished:
            return f"{minutes:g} minutes"
        return f"{self.last_step * int(self.settings['train.tokens_per_step']):,} tokens"

    @property
    def loss(self) -> float | None:
        """Of the last evaluation, nats a token; None where it was not a finite number."""
        return self.val[-1]["loss"]

    @property
    def bits_per_byte(self) -> float | None:
        return self.val[-1]["bits_per_byte"]

    @property
    def tokens_per_s(self) -> float | None:
        """Of training: the median over the lines of metrics.jsonl."""
        speeds = [line["tokens_per_s"] for line in self.train if line.get("tokens_per_s")]
        return median(speeds) if speeds else None

    @property
    def copying_step(self) -> int | None:
        """The first look at the heads at which the copy gain is a nat or more; None where it never was."""
        return copies_from(self.snapshots)


class Cost(NamedTuple):
    """Of a variant's model: trained numbers, and bytes of keys and values that a token leaves in a 16-bit cache."""

    parameters: int
    kv_bytes: int


@dataclass(frozen=True)
class Variant:
    """Runs that differ in nothing but their seed, by seed."""

    name: str
    runs: list[RunResult]

    @property
    def settings(self) -> dict[str, Any]:
        return self.runs[0].settings

    @property
    def budgets(self) -> list[str]:
        """One, if all its runs had the same."""
        return sorted({run.budget for run in self.runs})

    def by_seed(self, figure: Callable[[RunResult], float | None]) -> dict[int, float]:
        """A figure of each run that has it."""
        values = {run.seed: figure(run) for run in self.runs}
        return {seed: value for seed, value in values.items() if value is not None}


# ---------------------------------------------------------------------------------------------------------
# reading


def read_runs(paths: Sequence[Path]) -> tuple[list[Variant], list[str]]:
    """The variants in the order in which their first run was named, and a line for each damaged file of a run.

    Raises InputError for a directory that is not a run, one without checkpoint or evaluation, and one named twice.
    """
    groups: dict[tuple[str, str | None], dict[int, RunResult]] = defaultdict(dict)
    problems = list[str]()
    for path in paths:
        run, damaged = _read_run(path)
        problems += damaged
        by_seed = groups[repr(sorted(run.settings.items())), run.contents]
        if twin := by_seed.get(run.seed):
            raise InputError(f"{twin.path} and {path} are the same run: all settings and seed {run.seed} are equal")
        by_seed[run.seed] = run
    members = [sorted(by_seed.values(), key=lambda run: run.seed) for by_seed in groups.values()]
    # what the names of the runs have in common, without a trailing -seed0
    names = []
    for runs in members:
        common = os.path.commonprefix([run.name for run in runs])  # noqa: RUF071, letters are meant
        names.append(re.sub(r"([-_.]?seed\d*|[-_.]+)$", "", common) or runs[0].name)
    if len(set(names)) < len(names):  # of the same name in different places
        names = [str(runs[0].path) for runs in members]
    return [Variant(name, runs) for name, runs in zip(names, members, strict=True)], problems


def _read_run(path: Path) -> tuple[RunResult, list[str]]:
    if not (path / "config.yaml").is_file():
        raise InputError(f"{path}: is not a run (it has no config.yaml): give a directory that train.pretrain made")
    settings = flatten(load_config(path / "config.yaml").values)
    if not {"seed", "train.tokens_per_step", "model.num_hidden_layers"} <= settings.keys():
        raise InputError(f"{path}/config.yaml: is not the resolved config of a run: give a run's directory")
    problems: list[str] = []
    lines = read_metrics(path, problems.append)
    val = [line for line in lines if line["split"] == "val" and {"loss", "bits_per_byte"} <= line.keys()]
    if not val or not (path / "checkpoints").is_dir():
        missing = "evaluation in metrics.jsonl" if not val else "checkpoint"
        reason = "".join(f" ({problem})" for problem in problems[:1])
        raise InputError(f"{path}: has no {missing}: train it until its first one, or leave it out{reason}")
    contents, tokenizer = read_checkpoint(path, lambda one: (_contents(one), load_tokenizer(one).sha256()))
    result = read_result(path, problems.append) or {}
    floor = result.get("floor", {})
    snapshots, damaged = read_all(path)
    report = read_text(path / "report.md").splitlines() if (path / "report.md").is_file() else []
    not_compared = ("seed", "name", "output_dir", "resume", "allow_mismatch", "rungs", "tracking")
    train = [line for line in lines if line["split"] == "train" and "loss" in line]
    run = RunResult(
        path=path,
        name=path.resolve().name,
        seed=int(settings["seed"]),
        settings={key: value for key, value in settings.items() if not is_in(key, not_compared)},
        train=train,
        val=val,
        recall=[line for line in lines if line["split"] == "recall" and "accuracy" in line],
        snapshots=[replace(one, maps={}) for one in snapshots[:-1]] + snapshots[-1:],
        contents=contents,
        tokenizer=tokenizer,
        machine=next((line.rstrip(";. ") for line in report if line.startswith("torch ")), ""),
        is_finished=result.get("step") == max(line["step"] for line in (*train, *val)),
        floor_gap=floor["model"] - floor["floor"] if None not in (floor.get("model"), floor.get("floor")) else None,
    )
    return run, problems + damaged


def is_in(key: str, sections: Sequence[str]) -> bool:
    """Whether a dotted key is one of these, or in one of them."""
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def _contents(checkpoint: Path) -> str | None:
    """A hash of the data that a checkpoint was trained on; None where only the config says which it was."""
    try:
        return (read_json(checkpoint / TRAINING / STATE).get("identity") or {}).get("data.contents")
    except DamagedFile:
        return None


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
    differing, found = differing_keys([baseline, other]), []
    data = [key for key in differing if key.startswith("data.")]
    if text := [key for key in data if not is_in(key, [f"data.{row}" for row in ROWS])]:
        found.append(f"other data ({', '.join(text)})")
    elif not data and baseline.runs[0].contents != other.runs[0].contents:
        found.append("other data (the text itself, under equal settings)")
    if baseline.budgets != other.budgets:
        found.append(f"another budget ({' and '.join(other.budgets)}, against {' and '.join(baseline.budgets)})")
    elif len(other.budgets) > 1:
        found.append(f"runs of different budgets ({' and '.join(other.budgets)})")
    if "eval.final_max_tokens" in differing:
        found.append("another number of held-out tokens (eval.final_max_tokens)")
    return found


@dataclass(frozen=True)
class Difference:
    """other - baseline. interval: 95 % (Student's t), None with one seed; pairs: seeds that both have, else 0."""

    value: float
    standard_error: float | None = None
    interval: tuple[float, float] | None = None
    pairs: int = 0

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval leaves out 0; seeds that agree to the last digit show nothing, so no."""
        return self.interval is not None and bool(self.standard_error) and self.interval[0] * self.interval[1] > 0


def difference(baseline: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    """The difference of two variants' figures, given by seed; None where one of them has none.

    Paired over the seeds that both have if these are two or more, since data order and initial weights then have
    much in common; else of the means, with Welch's standard error and degrees of freedom (Welch 1947, Biometrika 34).
    """
    if not baseline or not other:
        return None
    common = sorted(baseline.keys() & other.keys())
    if len(common) > 1:
        changes = [other[seed] - baseline[seed] for seed in common]
        value, error, freedom = mean(changes), stdev(changes) / math.sqrt(len(common)), len(common) - 1
    else:
        common, value = [], mean(other.values()) - mean(baseline.values())
        if min(len(baseline), len(other)) < 2:
            return Difference(value)
        shares = [(stdev(group.values()) ** 2 / len(group), len(group) - 1) for group in (baseline, other)]
        variance = sum(share for share, _ in shares)
        below = sum(share**2 / freedom for share, freedom in shares)
        error, freedom = math.sqrt(variance), max(1, math.floor(variance**2 / below)) if below else 1
    reach = T_QUANTILES[min(freedom, len(T_QUANTILES)) - 1] * error
    return Difference(value, error, (value - reach, value + reach), len(common))


def spread(values: Collection[float], digits: int = 4) -> str:
    """`mean ± standard deviation`; one value alone has no ±, and none is a dash."""
    if not values:
        return "-"
    shown = f"{mean(values):,.{digits}f}"
    return f"{shown} ± {stdev(values):,.{digits}f}" if len(values) > 1 else shown
