"""What runs during training? Hooks: each looks at the model now and then, and says what it saw.

Write one of your own as a function of one event, or as a subclass of `Hook`, and name it in YAML (docs/measure.md):

    eval:
      hooks: [validation, {name: "my_package.my_module:my_function", every: 500}]

A hook that raises is reported and switched off; the run continues. Random numbers that a hook draws change nothing in
training: PyTorch's random state is put back after it, and training draws from no other.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from configs.command import InputError
from configs.text import escape, table
from data.config import DataConfig
from data.packing import PreparedData, Rows
from data.tokenizer import Tokenizer
from eval.config import EvalConfig, HookConfig
from eval.language_modeling import OutOfStep, evaluating
from model import LanguageModel, ModelConfig

BUILT_IN = {  # name in YAML -> module and class; imported when a run names it
    "validation": "eval.hooks.held_out:Validation",
    "questions": "eval.hooks.held_out:Questions",
    "samples": "eval.hooks.held_out:Samples",
    "attention": "eval.hooks.attention:Attention",
    "experts": "eval.experts:Experts",
    "recall": "eval.hooks.held_out:Recalls",
}
ROWS = 12  # of a function's table in report.md
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
    tracker: Any  # train.run.metrics.Tracker: metrics.jsonl, the terminal, wandb
    world: Any  # train.machine.processes.World
    total_steps: int | None = None
    loss: float | None = None
    command: str = ""
    base: Path | None = None
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.data.tokenizer

    @property
    def writes(self) -> bool:
        """Whether this is the process that leaves files."""
        return self.world.rank == 0

    def alone(self) -> EvalEvent:
        """The event for what only the first process does: it knows no others that a hook could ask and wait for."""
        return replace(self, world=replace(self.world, size=1))

    def any_process(self, here: bool) -> bool:
        """Whether something is true in one of the processes. Each of them must ask."""
        return self.world.sum(int(here)) != [0]

    def log(self, split: str, values: dict[str, Any]) -> None:
        """A line of metrics.jsonl; to wandb as `split/name`."""
        self.tracker.log(split, self.step, self.tokens, self.seconds, values)

    def say(self, text: str) -> None:
        """A line on the terminal, with the step in front."""
        self.tracker.say(f"step {self.step:>6,}   {text}")


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
        self.state: dict[str, Any] = {}

    def evaluate(self, event: EvalEvent) -> None:
        if not event.world.shares_model:  # then the first process can do it alone
            if not event.writes:
                return
            event = event.alone()
        with evaluating(event.lm):
            result = self.function(replace(event, state=self.state))
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


def cadences_of(config: EvalConfig) -> dict[str, HookConfig]:
    """The hooks that run, by their names, in their order, each with `every` and `early` of its own.

    Raises InputError if one is named twice.
    """
    cadences: dict[str, HookConfig] = {}
    defaults = {  # the questions are also asked before the first step
        "questions": (config.every, [0]),
        "attention": (config.attention.every, config.attention.early),
    }
    for hook in (HookConfig(name=hook) if isinstance(hook, str) else hook for hook in config.hooks):
        if hook.name in cadences:
            raise InputError(f"eval.hooks: {hook.name} is named twice: name it once, and give more steps with `early`")
        every, early = defaults.get(hook.name, (config.every, []))
        every, early = every if hook.every is None else hook.every, early if hook.early is None else hook.early
        if every or hook.early or hook.name != "attention":  # eval.attention.every=0: never
            cadences[hook.name] = HookConfig(name=hook.name, every=every, early=early)
    return cadences


class Hooks:
    """The hooks of one run, in the order of the YAML."""

    def __init__(self, config: EvalConfig, model: ModelConfig):
        """Raises InputError for a hook that does not exist, and for what a hook finds wrong before any text is read."""
        self.cadences = cadences_of(config)
        self.hooks = {name: _load(name) for name in self.cadences}
        self.off: set[str] = set()
        for hook in self.hooks.values():
            hook.check(config, model)

    def are_due(self, step: int, is_last: bool = False) -> bool:
        """Whether any hook runs after this step."""
        return any(cadence.is_due(step, is_last) for cadence in self.cadences.values())

    def run(self, event: EvalEvent) -> float | None:
        """Run the hooks that are due. Returns the loss that one of them measured."""
        due = [name for name, cadence in self.cadences.items() if cadence.is_due(event.step, event.is_last)]
        results = [self._attempt(name, "evaluate", event, event) for name in due if name not in self.off]
        return next((result for result in reversed(results) if isinstance(result, float)), None)

    def on_rank0(self, method: str, event: EvalEvent, *more: Any) -> None:
        """`finish` or `stop` of every hook, which only the first process does."""
        if event.writes:
            for name in [name for name in self.hooks if name not in self.off]:
                self._attempt(name, method, event.alone(), event.alone(), *more)

    def outcomes(self, event: EvalEvent, lines: list[dict[str, Any]]) -> list[Outcome]:
        """What each hook adds to the report, also one that is off by now."""
        results = [self._attempt(name, "outcome", event.alone(), event.directory, lines) for name in self.hooks]
        return [result for result in results if result is not None]

    def _attempt(self, name: str, method: str, event: EvalEvent, *arguments: Any) -> Any:
        """Call a hook's method; if it raises in any process, the hook is off in all of them."""
        result, problem = None, ""
        try:
            with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_initialized() else []):
                result = getattr(self.hooks[name], method)(*arguments)
        except OutOfStep as error:
            if event.world.rank:  # only the first process prints the errors that end a run
                print(f"error in process {event.world.rank}: {error}", file=sys.stderr)
            raise
        except Exception as error:  # and the last line of the hook's own file that led to it
            file = sys.modules[BUILT_IN.get(name, name).partition(":")[0]].__file__
            frames = traceback.extract_tb(error.__traceback__)
            frame = ([frame for frame in frames if frame.filename == file] or frames)[-1]
            problem = f"{type(error).__name__}: {error} ({frame.filename}, line {frame.lineno})"
        if event.any_process(bool(problem)):
            self.off.add(name)
            event.tracker.say(f"warning: the {name} hook is off from here: {problem or 'it failed in another process'}")
            return None
        return result


def _load(name: str) -> Hook:
    function = import_named("eval.hooks", name, BUILT_IN)
    if inspect.isclass(function) and issubclass(function, Hook):
        return function()
    return FunctionHook(function, name.rpartition(":")[2])


def import_named(key: str, name: str, built_in: Mapping[str, str]) -> Any:
    """What a config key names: one of ours, name -> `module:attribute`, or one of your own, written like that.

    Raises InputError.
    """
    module, _, attribute = built_in.get(name, name).partition(":")
    if not attribute:
        raise InputError(f"{key}: {name!r} is not known: use {', '.join(built_in)}, or your own as module:function")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # it is a user's code
        raise InputError(f"{key}: {name} cannot be imported: {type(error).__name__}: {error}") from None
    if not callable(function):
        raise InputError(f"{key}: {name} is {function!r:.40}: it must be a function")
    return function
