"""Which hooks a run has, and running those that are due.

A hook that raises is reported and switched off; the run continues. Random numbers that a hook draws change nothing in
training: the random state around it is put back.
"""

from __future__ import annotations

import importlib
import inspect
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from configs.command import InputError
from eval.config import EvalConfig
from eval.hooks.event import Alone, EvalEvent, Hook, Outcome
from eval.hooks.function import FunctionHook
from eval.language_modeling import OutOfStep
from model import ModelConfig

BUILT_IN = {  # name in YAML -> module and class; imported when a run names it
    "validation": "eval.hooks.validation:Validation",
    "questions": "eval.hooks.questions:Questions",
    "samples": "eval.hooks.samples:Samples",
    "attention": "eval.hooks.attention:Attention",
    "experts": "eval.hooks.experts:Experts",
    "recall": "eval.hooks.recall:Recalls",
}


class Hooks:
    """The hooks of one run, in the order of the YAML."""

    def __init__(self, config: EvalConfig):
        """Raises InputError for a hook that does not exist."""
        self.cadences = config.cadences()
        self.hooks = {name: _load(name) for name in self.cadences}
        self.off: set[str] = set()

    def check(self, config: EvalConfig, model: ModelConfig) -> None:
        """What can be wrong before any text is read. Raises InputError."""
        for hook in self.hooks.values():
            hook.check(config, model)

    def are_due(self, step: int, is_last: bool = False) -> bool:
        """Whether any hook runs after this step."""
        return any(cadence.is_due(step, is_last) for cadence in self.cadences.values())

    def run(self, event: EvalEvent) -> float | None:
        """Run the hooks that are due. Returns the loss that one of them measured."""
        loss = None
        for name in self.hooks:
            if name not in self.off and self.cadences[name].is_due(event.step, event.is_last):
                found = self._attempt(name, "look", event)
                loss = found if isinstance(found, float) else loss
        return loss

    def finish(self, event: EvalEvent) -> None:
        """After the last step: what is drawn once. Only the first process draws."""
        self._on_first(event, "finish")

    def stop(self, event: EvalEvent, why: str) -> None:
        """Before the last step: what shows the run says that it has stopped. Only the first process does."""
        self._on_first(event, "stop", why)

    def outcomes(
        self, directory: Path, metrics: list[dict[str, Any]], warn: Callable[[str], None]
    ) -> Iterator[Outcome]:
        """What each hook adds to the report. A hook that raises here adds nothing, and `warn` says so."""
        for name, hook in self.hooks.items():
            try:
                yield hook.outcome(directory, metrics)
            except Exception as error:
                problem = f"{type(error).__name__}: {error}{_place(error, hook)}"
                warn(f"warning: the {name} hook adds nothing to the report: {problem}")

    def _on_first(self, event: EvalEvent, method: str, *more: Any) -> None:
        """The other processes do not come here, so the event knows none that a hook could ask and wait for."""
        for name in self.hooks:
            if event.writes and name not in self.off:
                self._attempt(name, method, replace(event, world=Alone()), *more)

    def _attempt(self, name: str, method: str, event: EvalEvent, *more: Any) -> Any:
        found, problem = None, ""
        try:
            with _random_state_kept():
                found = getattr(self.hooks[name], method)(event, *more)
        except OutOfStep as error:
            if event.world.rank:  # only the first process prints the errors that end a run
                print(f"error in process {event.world.rank}: {error}", file=sys.stderr)
            raise
        except Exception as error:
            problem = f"{type(error).__name__}: {error}{_place(error, self.hooks[name])}"
        if event.any_process(bool(problem)):
            self.off.add(name)
            problem = problem or "it failed in another process"
            event.tracker.say(f"warning: the {name} hook is off from here: {problem}")
            return None
        return found


def _load(name: str) -> Hook:
    module, _, attribute = BUILT_IN.get(name, name).partition(":")
    if not attribute:
        known = ", ".join(BUILT_IN)
        raise InputError(f"eval.hooks: no hook is called {name!r}: use {known}, or module:function for one of your own")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise InputError(f"eval.hooks: {name} cannot be imported: {type(error).__name__}: {error}") from None
    if inspect.isclass(found) and issubclass(found, Hook):
        return found()
    if not callable(found):
        raise InputError(f"eval.hooks: {name} is a {type(found).__name__}, not a function of one event")
    return FunctionHook(found)


def _place(error: Exception, hook: Hook) -> str:
    """` (file.py, line 12)`: the last line of the hook's own file that led to the error."""
    function = hook.function if isinstance(hook, FunctionHook) else type(hook)
    frames = traceback.extract_tb(error.__traceback__)
    try:
        own = [frame for frame in frames if frame.filename == inspect.getsourcefile(function)]
    except TypeError:  # written in C, or a callable object
        own = []
    frame = (own or frames)[-1]
    return f" ({frame.filename}, line {frame.lineno})"


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Afterwards Python, NumPy and PyTorch draw what they would have drawn without what ran inside."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    on_mps = torch.backends.mps.is_available()
    mps = torch.mps.get_rng_state() if on_mps else None
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if mps is not None:
            torch.mps.set_rng_state(mps)
