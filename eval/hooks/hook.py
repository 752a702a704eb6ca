"""Hooks look at the model during training: what they may read, and what they give to the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import torch

from configs.text import escape, table
from data.config import DataConfig
from data.packing import PreparedData, Rows
from data.tokenizer import Tokenizer
from eval.config import EvalConfig
from eval.language_modeling import evaluating
from model import LanguageModel, ModelConfig

ROWS = 12  # of a function's table in report.md
LINE = ("step", "tokens", "time_s", "split")  # what every line of metrics.jsonl has


class EvalEvent(Protocol):
    """What a hook may read. The event is the run itself (train/run/run.py), at this moment.

    step, tokens, seconds   of training so far
    total_steps             None where a clock ends the run
    is_last                 the last evaluation
    loss                    of the last step, in nats a token; None before the first one
    lm, tokenizer           the uncompiled model
    data, held_out          the prepared text, and rows that the model is not trained on
    rows_per_batch          rows that fit into memory in one forward pass
    directory               of the run
    base                    the run or model directory that it started from
    command                 the command that continues the run after a stop
    memory                  for functions that must remember something between two events; a Hook has itself

    Where a run has several processes, every one runs every hook, because each may hold only a share of the model. Rank
    0, which `writes`, leaves the files.
    """

    @property
    def step(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def total_steps(self) -> int | None: ...
    @property
    def is_last(self) -> bool: ...
    @property
    def loss(self) -> float | None: ...
    @property
    def lm(self) -> LanguageModel: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def data(self) -> PreparedData: ...
    @property
    def held_out(self) -> Rows: ...
    @property
    def data_config(self) -> DataConfig: ...
    @property
    def eval_config(self) -> EvalConfig: ...
    @property
    def rows_per_batch(self) -> int: ...
    @property
    def directory(self) -> Path: ...
    @property
    def base(self) -> Path | None: ...
    @property
    def command(self) -> str: ...
    @property
    def memory(self) -> dict[str, Any]: ...
    @property
    def tracker(self) -> Any: ...  # train.run.metrics.Tracker: metrics.jsonl, the terminal, wandb
    @property
    def world(self) -> Any: ...  # train.machine.distributed.World
    @property
    def writes(self) -> bool: ...

    def autocast(self) -> AbstractContextManager:
        """Return the context of every forward pass of training."""
        ...

    def alone(self) -> Self:
        """Return the event for what only rank 0 does: it knows no others that a hook could ask and wait for."""
        ...

    def with_memory(self, memory: dict[str, Any]) -> Self:
        """Return the event with the memory of another hook."""
        ...

    def any_process(self, here: bool) -> bool:
        """Return whether something is true in one of the processes. Each of them must ask."""
        ...

    def log(self, split: str, values: dict[str, Any]) -> None:
        """Write a line of metrics.jsonl; to wandb as `split/name`."""
        ...

    def say(self, text: str) -> None:
        """Print a line on the terminal, with the step in front."""
        ...


@dataclass(frozen=True)
class Outcome:
    """What a hook adds to the end of a run.

    figures: for result.json. Of these, "sample" is text that the model wrote, and "seen" a sentence that closes the
    summary on the terminal. lines: for the summary. sections: Markdown for report.md.
    """

    figures: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)


class Hook:
    """Something that looks at the model during training. Only `evaluate` must be written."""

    def check(self, config: EvalConfig, model: ModelConfig) -> None:
        """What can be wrong, before any text is read. Raises InputError."""

    def evaluate(self, event: EvalEvent) -> float | None:
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


class FunctionHook(Hook):
    """Calls a function of one event, with the model in evaluation mode.

    It may return figures, {name: number}: a line of metrics.jsonl under `hooks/<function>`, a line on the terminal, and
    a table in report.md. Raises ValueError or TypeError for a value that is not a number, and for a name that is taken.
    """

    def __init__(self, function: Callable[[EvalEvent], Any], name: str):
        self.function, self.name = function, name
        self.memory: dict[str, Any] = {}

    def evaluate(self, event: EvalEvent) -> None:
        if not event.world.shares_model:  # then the first process can do it alone
            if not event.writes:
                return
            event = event.alone()
        with evaluating(event.lm):
            result = self.function(event.with_memory(self.memory))
        if not isinstance(result, Mapping):
            return
        figures = {str(name): torch.as_tensor(value, dtype=torch.float64).item() for name, value in result.items()}
        if taken := set(LINE) & figures.keys():
            raise ValueError(f"{min(taken)} is in every line of metrics.jsonl: give the figure another name")
        event.log(f"hooks/{self.name}", figures)
        shown = "   ".join(f"{escape(name)} {value:.4g}" for name, value in figures.items())
        event.say(f"{escape(self.name)}: {shown}")

    def outcome(self, directory: Path, lines: list[dict[str, Any]]) -> Outcome:
        lines = lines_of(lines, f"hooks/{self.name}")
        if not lines:
            return Outcome()
        last, rows = figures_in(lines[-1]), []
        for i in sorted({round(place * (len(lines) - 1) / (ROWS - 1)) for place in range(ROWS)}):
            values = [lines[i].get(name) for name in last]  # null where one was no finite number
            rows.append([f"{lines[i]['step']:,}", *("none" if value is None else f"{value:.4g}" for value in values)])
        sections = [f"## {escape(self.name)}", "", table(["step", *last], rows), ""]
        return Outcome({f"hooks/{self.name}": last}, sections=sections)
