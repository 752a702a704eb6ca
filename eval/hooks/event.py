"""A hook and what it is given: one moment of a training run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data.config import DataConfig
from data.packing import Rows
from data.prepare import PreparedData
from data.tokenizer import Tokenizer
from eval.config import EvalConfig
from model import LanguageModel, ModelConfig

LINE = ("step", "tokens", "time_s", "split")  # what every line of metrics.jsonl has


@dataclass(frozen=True)
class EvalEvent:
    """What a hook may read: the moment, the uncompiled model, the data; and where it writes.

    step, tokens, seconds: of training so far. total_steps: None where a clock ends the run. loss: of the last step, in
    nats a token; None before the first one. rows_per_batch: rows that fit into memory in one forward pass. directory:
    of the run. command: what continues the run after a stop, as one types it. base: the run or model directory that it
    started from. kept: for functions that must remember something between two events; a Hook has itself.
    Where a run has several processes, every one runs every hook, because each may hold only a share of the model;
    the first process, which `writes`, leaves the files.
    """

    step: int
    tokens: int
    seconds: float
    is_last: bool
    lm: LanguageModel
    data: PreparedData
    held_out: Rows
    data_config: DataConfig
    config: EvalConfig
    rows_per_batch: int
    directory: Path
    autocast: Callable[[], AbstractContextManager]
    tracker: Any  # train.metrics.Tracker: metrics.jsonl, the terminal, wandb
    world: Any  # train.processes.World
    total_steps: int | None = None
    loss: float | None = None
    command: str = ""
    base: Path | None = None
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.data.tokenizer

    @property
    def writes(self) -> bool:
        """Whether this is the process that leaves files."""
        return self.world.rank == 0

    def any_process(self, here: bool) -> bool:
        """Whether something is true in one of the processes. Each of them must ask."""
        return self.world.sum(int(here)) != [0]

    def log(self, split: str, values: dict[str, Any]) -> None:
        """A line of metrics.jsonl; to wandb as `split/name`."""
        self.tracker.log(split, self.step, self.tokens, self.seconds, values)

    def log_image(self, name: str, path: Path) -> None:
        """A picture on disk, to wandb."""
        self.tracker.show(name, path, self.step)

    def say(self, text: str) -> None:
        """A line on the terminal, with the step in front."""
        self.tracker.say(f"step {self.step:>6,}   {text}")


@dataclass(frozen=True)
class Outcome:
    """What a hook adds to the end of a run.

    figures: for result.json. lines: for the summary on the terminal and in report.md. sample: text that the model
    wrote. sections: Markdown for report.md. pictures: (path, title), relative to the run directory. seen: one sentence
    that closes the summary on the terminal.
    """

    figures: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    sample: str = ""
    sections: list[str] = field(default_factory=list)
    pictures: list[tuple[str, str]] = field(default_factory=list)
    seen: str = ""


class Hook:
    """Something that looks at the model during training. Only `look` must be written."""

    def check(self, config: EvalConfig, model: ModelConfig) -> None:
        """What can be wrong, before any text is read. Raises InputError."""

    def look(self, event: EvalEvent) -> float | None:
        """Look, log, say. A hook that returns a loss decides with it which checkpoint is the best one."""
        raise NotImplementedError

    def finish(self, event: EvalEvent) -> None:
        """After the last step, when everything is saved: draw what is drawn once. It may raise."""

    def stop(self, event: EvalEvent, why: str) -> None:
        """The run stops before its last step. why: what happened, in one sentence. It may raise."""

    def outcome(self, directory: Path, lines: list[dict[str, Any]]) -> Outcome:
        """What the run's files say about this hook, at the end. lines: of metrics.jsonl."""
        return Outcome()


def lines_of(lines: list[dict[str, Any]], split: str) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl that a hook logged under this split."""
    return [line for line in lines if line["split"] == split]


def figures_in(line: dict[str, Any]) -> dict[str, Any]:
    """What a hook logged, of a line of metrics.jsonl."""
    return {name: value for name, value in line.items() if name not in LINE}
