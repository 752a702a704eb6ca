"""Which hooks does a run have, and when does each of them run?"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Mapping
from typing import Any

import torch

from configs.command import InputError
from eval.config import EvalConfig, HookConfig
from eval.hooks.hook import EvalEvent, FunctionHook, Hook, Outcome
from eval.language_modeling import OutOfStep
from model import ModelConfig

BUILT_IN = {  # name in YAML -> module and class; imported when a run names it
    "validation": "eval.hooks.held_out:Validation",
    "questions": "eval.hooks.held_out:Questions",
    "samples": "eval.hooks.held_out:Samples",
    "attention": "eval.hooks.attention:Attention",
    "experts": "eval.experts:Experts",
    "recall": "eval.hooks.held_out:Recalls",
}


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
