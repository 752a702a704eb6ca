"""Hooks look at the model during training, and add figures to the report."""

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

ROWS = 12  # A function's table in report.md has at most so many rows.
LINE = ("step", "tokens", "time_s", "split")  # Every line of metrics.jsonl has these keys.


class EvalEvent(Protocol):
    """The run (train/run/run.py) as a hook sees it.

    Every process runs every hook, because each may hold only a share of the model.
    """

    # Of training so far.
    @property
    def step(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    # None if a clock ends the run.
    @property
    def total_steps(self) -> int | None: ...
    # True at the last evaluation.
    @property
    def is_last(self) -> bool: ...
    # Of the last step, in nats a token; None before the first one.
    @property
    def loss(self) -> float | None: ...
    # The uncompiled model.
    @property
    def lm(self) -> LanguageModel: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    # The prepared text, and rows that the model is not trained on.
    @property
    def data(self) -> PreparedData: ...
    @property
    def held_out(self) -> Rows: ...
    @property
    def data_config(self) -> DataConfig: ...
    @property
    def eval_config(self) -> EvalConfig: ...
    # Rows that fit into memory in one forward pass.
    @property
    def rows_per_batch(self) -> int: ...
    # The directory of the run, and the run or model directory that it started from.
    @property
    def directory(self) -> Path: ...
    @property
    def base(self) -> Path | None: ...
    # Continues the run after a stop.
    @property
    def command(self) -> str: ...
    # A function keeps things here between two events; a Hook keeps them in itself.
    @property
    def memory(self) -> dict[str, Any]: ...
    # A train.run.metrics.Tracker: metrics.jsonl, the terminal, wandb.
    @property
    def tracker(self) -> Any: ...
    # A train.machine.distributed.World.
    @property
    def world(self) -> Any: ...
    # True on rank 0, which writes all files.
    @property
    def writes(self) -> bool: ...

    def autocast(self) -> AbstractContextManager:
        """Return the context of every forward pass of training."""
        ...

    def alone(self) -> Self:
        """Return the event for rank 0 alone, without other processes to wait for."""
        ...

    def with_memory(self, memory: dict[str, Any]) -> Self:
        """Return the event with the memory of another hook."""
        ...

    def any_process(self, here: bool) -> bool:
        """Return True if `here` is true in any process. Every process must call it."""
        ...

    def log(self, split: str, values: dict[str, Any]) -> None:
        """Write a line of metrics.jsonl; to wandb as `split/name`."""
        ...

    def say(self, text: str) -> None:
        """Print a line on the terminal, with the step in front."""
        ...


@dataclass(frozen=True)
class Outcome:
    """The part of a hook in the end of a run."""

    # For result.json. "sample" is text that the model wrote, "seen" a sentence that closes the
    # summary on the terminal.
    figures: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)  # of that summary
    sections: list[str] = field(default_factory=list)  # Markdown for report.md


class Hook:
    """Something that looks at the model during training. Only `evaluate` must be written."""

    def check(self, config: EvalConfig, model: ModelConfig) -> None:
        """Check the settings before any text is read. Raises InputError."""

    def evaluate(self, event: EvalEvent) -> float | None:
        """Measure and log. A returned loss decides which checkpoint is the best one."""
        raise NotImplementedError

    def finish(self, event: EvalEvent) -> None:
        """Draw the final pictures, after the last step, when everything is saved. It may raise."""

    def stop(self, event: EvalEvent, why: str) -> None:
        """React to a stop before the last step. why: the reason, one sentence. It may raise."""

    def outcome(self, directory: Path, lines: list[dict[str, Any]]) -> Outcome:
        """Summarise at the end, from the run's files. lines: of metrics.jsonl."""
        return Outcome()


def lines_of(lines: list[dict[str, Any]], split: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["split"] == split]


def figures_in(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line of metrics.jsonl without the keys that every line has."""
    return {name: value for name, value in line.items() if name not in LINE}


class FunctionHook(Hook):
    """Call a function of one event, with the model in evaluation mode.

    The figures that it returns, {name: number}, are logged under `hooks/<function>`, printed, and
    put in a table of report.md.
    """

    def __init__(self, function: Callable[[EvalEvent], Any], name: str):
        self.function = function
        self.name = name
        self.memory: dict[str, Any] = {}

    def evaluate(self, event: EvalEvent) -> None:
        if not event.world.shares_model:
            # rank 0 has the whole model, and can do it alone
            if not event.writes:
                return
            event = event.alone()
        with evaluating(event.lm):
            result = self.function(event.with_memory(self.memory))
        # a hook may also write files of its own, and return nothing
        if not isinstance(result, Mapping):
            return
        figures = {}
        for name, value in result.items():
            # one conversion for numbers, numpy scalars and tensors on a GPU
            figures[str(name)] = torch.as_tensor(value, dtype=torch.float64).item()
        taken = set(LINE) & figures.keys()
        if taken:
            raise ValueError(
                f"{min(taken)} is in every line of metrics.jsonl: give the figure another name"
            )
        event.log(f"hooks/{self.name}", figures)
        values = "   ".join(f"{escape(name)} {value:.4g}" for name, value in figures.items())
        event.say(f"{escape(self.name)}: {values}")

    def outcome(self, directory: Path, lines: list[dict[str, Any]]) -> Outcome:
        lines = lines_of(lines, f"hooks/{self.name}")
        if not lines:
            return Outcome()
        last = figures_in(lines[-1])
        rows = []
        # evenly spaced lines, with the first and the last; a set, as there may be fewer than ROWS
        for i in sorted({round(row * (len(lines) - 1) / (ROWS - 1)) for row in range(ROWS)}):
            row = [f"{lines[i]['step']:,}"]
            for name in last:
                value = lines[i].get(name)  # null if it was not finite
                row.append("none" if value is None else f"{value:.4g}")
            rows.append(row)
        sections = [f"## {escape(self.name)}", "", table(["step", *last], rows), ""]
        return Outcome({f"hooks/{self.name}": last}, sections=sections)
