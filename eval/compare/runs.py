"""What is known of a run? What was trained, what the result was, and which runs are seeds of one variant."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BaseModel, Field

from configs.command import InputError
from configs.files import (
    STATE,
    TRAINING,
    DamagedFile,
    checked,
    read_checkpoint,
    read_json,
    read_text,
)
from configs.loader import flatten, load_config
from eval.run_files import read_metrics, read_result

if TYPE_CHECKING:
    from eval.attention.snapshots import Snapshot

ROWS = tuple(  # how text becomes tokens and rows, not which text it is
    f"data.{key}"
    for key in (
        "tokenizer",
        "sequence_length",
        "shuffle",
        "isolate_documents",
        "restart_positions",
        "rows_joined",
        "too_long",
    )
)
MOST_PROBLEMS = 3  # lines of warning about one run


@dataclass(frozen=True)
class RunResult:
    """One run.

    settings: config.yaml by dotted key, without those in which equal runs may differ.
    train, val, recall: its lines of metrics.jsonl.
    contents: a hash of its data and tokenizer; tokenizer: a hash of the tokenizer alone; machine: where it trained.
    is_finished: its result.json is of its last step. snapshots: by step; only the last one has maps.
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
    is_finished: bool
    machine: str
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
        found = {run.seed: figure(run) for run in self.runs}
        return {seed: value for seed, value in found.items() if value is not None}


class Needed(BaseModel):
    """Settings that every comparison reads."""

    seed: int
    tokens_per_step: Annotated[int, Field(alias="train.tokens_per_step")]
    num_hidden_layers: Annotated[int, Field(alias="model.num_hidden_layers")]
    max_minutes: Annotated[float | None, Field(alias="train.max_minutes")] = None


class State(BaseModel):
    """What is read here of trainer_state.json."""

    identity: dict[str, Any] | None = None


class Cost(NamedTuple):
    """Of a variant's model: trained numbers, and bytes of keys and values that a token leaves in a 16-bit cache."""

    parameters: int
    kv_bytes: int


# ---------------------------------------------------------------------------------------------------------
# reading


def read_runs(paths: Sequence[Path]) -> tuple[list[RunResult], list[str]]:
    """Every run, and a line for each that has files which cannot be read: without these it is compared still.

    Raises InputError for a directory that is not a run, one without checkpoint or evaluation, and one named twice.
    """
    known: dict[Path, Path] = {}
    for path in paths:
        if path.resolve() in known:
            raise InputError(f"{path} and {known[path.resolve()]} are the same run: name it once")
        known[path.resolve()] = path
    results, problems = [], []
    for path in paths:
        result, broken = read_run(path)
        results.append(result)
        problems += broken[:MOST_PROBLEMS]
        if len(broken) > MOST_PROBLEMS:
            problems.append(f"{path}: {len(broken) - MOST_PROBLEMS} more lines or files of this run are damaged")
    return results, problems


def read_run(path: Path) -> tuple[RunResult, list[str]]:
    """One run, and a line for each of its snapshots and log lines that cannot be read. Raises InputError."""
    from data.tokenizer import load_tokenizer
    from eval.attention.snapshots import read_all

    problems: list[str] = []
    if not (path / "config.yaml").is_file():
        raise InputError(f"{path}: is not a run (it has no config.yaml): give a directory that train.pretrain made")
    settings = flatten(load_config(path / "config.yaml").values)
    if not {"seed", "train.tokens_per_step", "model.num_hidden_layers"} <= settings.keys():
        raise InputError(f"{path}/config.yaml: is not the resolved config of a run: give a run's directory")
    checked(settings, f"{path}/config.yaml", Needed)
    not_compared = ("seed", "name", "output_dir", "resume", "allow_mismatch", "rungs", "tracking")
    lines = read_metrics(path, problems.append)
    train = [line for line in lines if line["split"] == "train" and "loss" in line]
    val = [line for line in lines if line["split"] == "val" and {"loss", "bits_per_byte"} <= line.keys()]
    if not val:
        raise InputError(
            f"{path}: has no evaluation in metrics.jsonl: train it until its first one, or leave it out"
            + "".join(f" ({problem})" for problem in problems[:1])
        )
    if not (path / "checkpoints").is_dir():
        raise InputError(f"{path}: has no checkpoint: train it until its first one, or leave it out")
    contents, tokenizer = read_checkpoint(path, lambda one: (_contents(one), load_tokenizer(one).sha256()))
    last_step = max(line["step"] for line in (*train, *val))
    final = read_result(path, problems.append) or {}
    floor = final.get("floor", {})
    snapshots, broken = read_all(path)
    problems += broken
    result = RunResult(
        path=path,
        name=path.resolve().name,
        seed=int(settings["seed"]),
        settings={key: value for key, value in settings.items() if not _is_in(key, not_compared)},
        train=train,
        val=val,
        recall=[line for line in lines if line["split"] == "recall" and "accuracy" in line],
        snapshots=[replace(one, maps={}) for one in snapshots[:-1]] + snapshots[-1:],
        contents=contents,
        tokenizer=tokenizer,
        is_finished=final.get("step") == last_step,
        machine=_machine(path / "report.md", problems),
        floor_gap=floor["model"] - floor["floor"] if None not in (floor.get("model"), floor.get("floor")) else None,
    )
    return result, problems


def _is_in(key: str, sections: Sequence[str]) -> bool:
    """Whether a dotted key is one of these, or in one of them."""
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def _machine(report: Path, problems: list[str]) -> str:
    """The line of report.md that says where the run trained; "" without one."""
    try:
        text = read_text(report) if os.path.lexists(report) else ""
    except DamagedFile as error:
        problems.append(str(error))
        return ""
    found = re.search(r"^torch [^\n]{,200}(?<!\.)", text, re.MULTILINE)
    return found.group().rstrip("; ") if found else ""


def _contents(checkpoint: Path) -> str | None:
    """A hash of the data that a checkpoint was trained on; None where only the config says which it was."""
    try:
        return (read_json((checkpoint / TRAINING) / STATE, State).identity or {}).get("data.contents")
    except DamagedFile:
        return None


# ---------------------------------------------------------------------------------------------------------
# grouping


def group(runs: Sequence[RunResult]) -> list[Variant]:
    """Variants in the order in which their first run was named. Raises InputError for one seed twice."""
    groups: list[list[RunResult]] = []
    for run in runs:
        like = next((g for g in groups if g[0].settings == run.settings and g[0].contents == run.contents), None)
        if like is None:
            groups.append([run])
            continue
        if twin := next((other for other in like if other.seed == run.seed), None):
            raise InputError(f"{twin.path} and {run.path} are the same run: all settings and seed {run.seed} are equal")
        like.append(run)
    names = [_name(g) for g in groups]
    if len(set(names)) < len(names):  # of the same name in different places
        names = [str(g[0].path) for g in groups]
    return [Variant(name, sorted(g, key=lambda run: run.seed)) for name, g in zip(names, groups, strict=True)]


def _name(runs: list[RunResult]) -> str:
    """What the names of the runs have in common, without a trailing -seed0."""
    names = [run.name for run in runs]
    common = (letters[0] for letters in takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False)))
    return re.sub(r"([-_.]?seed\d*|[-_.]+)$", "", "".join(common)) or names[0]


def differing_keys(variants: Sequence[Variant]) -> list[str]:
    """Dotted keys of the config that are not the same in all of them, in the config's order."""
    keys = dict.fromkeys(key for variant in variants for key in variant.settings)
    return [key for key in keys if len({_frozen(variant.settings.get(key, "not set")) for variant in variants}) > 1]


def _frozen(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def caveats(baseline: Variant, other: Variant) -> list[str]:
    """Why the two are not like for like, besides what was meant to differ: other text, or other numbers of tokens."""
    keys = [key for key in differing_keys([baseline, other]) if key.startswith("data.")]
    text = [key for key in keys if not key.startswith(ROWS)]
    found = []
    if text:
        found.append(f"other data ({', '.join(text)})")
    elif not keys and baseline.runs[0].contents != other.runs[0].contents:
        found.append("other data (the text itself, under equal settings)")
    if baseline.budgets != other.budgets:
        found.append(f"another budget ({' and '.join(other.budgets)}, against {' and '.join(baseline.budgets)})")
    if "eval.final_max_tokens" in differing_keys([baseline, other]):
        found.append("another number of held-out tokens (eval.final_max_tokens)")
    return found
