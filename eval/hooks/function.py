"""A hook that you wrote as a function of one event. The figures that it returns are logged, shown and reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from configs.text import escape, table
from eval.eval_mode import evaluating
from eval.hooks.event import Alone, EvalEvent, Hook, Outcome

ROWS = 12  # of the table in report.md
TAKEN = {"step", "tokens", "time_s", "split"}  # what every line of metrics.jsonl has


class FunctionHook(Hook):
    """Calls a function of one event, with the model in evaluation mode.

    It may return figures, {name: number}: a line of metrics.jsonl under `hooks/<function>`, a line on the terminal, and
    a table in report.md. Raises ValueError or TypeError for a value that is not a number, and for a name that is taken.
    """

    def __init__(self, function: Callable[[EvalEvent], Any]):
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        self.kept: dict[str, Any] = {}

    def look(self, event: EvalEvent) -> None:
        if not event.world.shares_model:  # then the first process can do it alone
            if not event.writes:
                return
            event = replace(event, world=Alone())
        with evaluating(event.lm):
            found = self.function(replace(event, kept=self.kept))
        if not isinstance(found, Mapping):
            return
        figures = {str(name): _number(value) for name, value in found.items()}
        if taken := TAKEN & figures.keys():
            raise ValueError(f"{min(taken)} is in every line of metrics.jsonl: give the figure another name")
        event.log(f"hooks/{self.name}", figures)
        shown = "   ".join(f"{escape(name)} {value:.4g}" for name, value in figures.items())
        event.say(f"{escape(self.name)}: {shown}")

    def outcome(self, directory: Path, metrics: list[dict[str, Any]]) -> Outcome:
        lines = [line for line in metrics if line["split"] == f"hooks/{self.name}"]
        if not lines:
            return Outcome()
        names = [name for name in dict.fromkeys(name for line in lines for name in line) if name not in TAKEN]
        last = {name: lines[-1].get(name) for name in names}
        chosen = sorted({round(place * (len(lines) - 1) / (ROWS - 1)) for place in range(ROWS)})
        rows = [[f"{lines[i]['step']:,}", *(_shown(lines[i].get(name)) for name in names)] for i in chosen]
        sections = [f"## {escape(self.name)}", "", table(["step", *names], rows), ""]
        return Outcome({f"hooks/{self.name}": last}, sections=sections)


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "none"
