"""The hooks of a run, and when each of them runs."""

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

# Name in YAML -> module and class. A module is imported only when a run names its hook.
BUILT_IN = {
    "validation": "eval.hooks.held_out:Validation",
    "questions": "eval.hooks.held_out:Questions",
    "samples": "eval.hooks.held_out:Samples",
    "attention": "eval.hooks.attention:Attention",
    "experts": "eval.experts:Experts",
    "recall": "eval.hooks.held_out:Recalls",
    "in_context": "eval.hooks.in_context:in_context",
}


def cadences_of(config: EvalConfig) -> dict[str, HookConfig]:
    """Return the hooks that run, by name and in order, with `every` and `early` filled in.

    Raises InputError if one is named twice.
    """
    cadences: dict[str, HookConfig] = {}
    defaults = {
        "questions": (config.every, [0]),  # also before the first step
        "attention": (config.attention.every, config.attention.early),
    }
    for item in config.hooks:
        hook = HookConfig(name=item) if isinstance(item, str) else item
        if hook.name in cadences:
            raise InputError(
                f"eval.hooks: {hook.name} is named twice: name it once, "
                f"and give more steps with `early`"
            )
        every, early = defaults.get(hook.name, (config.every, []))
        if hook.every is not None:
            every = hook.every
        if hook.early is not None:
            early = hook.early
        # eval.attention.every=0 means never; for other hooks 0 means at the end
        if every or hook.early or hook.name != "attention":
            cadences[hook.name] = HookConfig(name=hook.name, every=every, early=early)
    return cadences


class Hooks:
    """The hooks of one run, in the order of the YAML."""

    def __init__(self, config: EvalConfig, model: ModelConfig):
        self.cadences = cadences_of(config)
        self.hooks: dict[str, Hook] = {}
        self.off: set[str] = set()  # hooks that raised
        for name in self.cadences:
            function = import_named("eval.hooks", name, BUILT_IN)
            if inspect.isclass(function) and issubclass(function, Hook):
                self.hooks[name] = function()  # one object for the whole run: it keeps its state
            else:
                self.hooks[name] = FunctionHook(function, name.rpartition(":")[2])
        # before any text is read, so that a mistake costs no time
        for hook in self.hooks.values():
            hook.check(config, model)

    def are_due(self, step: int, is_last: bool = False) -> bool:
        return any(cadence.is_due(step, is_last) for cadence in self.cadences.values())

    def run(self, event: EvalEvent) -> float | None:
        """Run the hooks that are due, and return the last loss that one of them returned."""
        loss = None
        for name, cadence in self.cadences.items():
            if name not in self.off and cadence.is_due(event.step, event.is_last):
                result = self._attempt(name, "evaluate", event, event)
                # validation returns the loss that chooses the best checkpoint
                if isinstance(result, float):
                    loss = result
        return loss

    def on_rank0(self, method: str, event: EvalEvent, *more: Any) -> None:
        """Call `finish` or `stop` of every hook, on rank 0 only."""
        if event.writes:
            for name in self.hooks:
                if name not in self.off:
                    self._attempt(name, method, event.alone(), event.alone(), *more)

    def outcomes(self, event: EvalEvent, lines: list[dict[str, Any]]) -> list[Outcome]:
        """Return each hook's part of the report."""
        results = []
        for name in self.hooks:  # also one that was switched off: it may have lines in the log
            result = self._attempt(name, "outcome", event.alone(), event.directory, lines)
            if result is not None:
                results.append(result)
        return results

    def _attempt(self, name: str, method: str, event: EvalEvent, *arguments: Any) -> Any:
        result = None
        problem = ""
        devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
        try:
            # A hook may draw random numbers: restore PyTorch's state, as training uses no other.
            with torch.random.fork_rng(devices):
                result = getattr(self.hooks[name], method)(*arguments)
        except OutOfStep as error:
            if event.world.rank:
                # rank 0 alone prints the errors that end a run
                print(f"error in process {event.world.rank}: {error}", file=sys.stderr)
            raise
        except Exception as error:
            # name the last line of the hook's own file, where its author can look
            file = sys.modules[BUILT_IN.get(name, name).partition(":")[0]].__file__
            frames = traceback.extract_tb(error.__traceback__)
            own_frames = [frame for frame in frames if frame.filename == file]
            frame = (own_frames or frames)[-1]
            where = f"{frame.filename}, line {frame.lineno}"
            problem = f"{type(error).__name__}: {error} ({where})"
        # if it raises in one process, it is off in all: they must stay in step
        if event.any_process(bool(problem)):
            self.off.add(name)
            # here it went well, so rank 0 may have no reason to print
            problem = problem or "it failed in another process"
            event.tracker.say(f"warning: the {name} hook is off from here: {problem}")
            return None
        return result


def import_named(key: str, name: str, built_in: Mapping[str, str]) -> Any:
    """Import the function that a config key names: a built-in name, or `module:attribute`.

    Raises InputError.
    """
    module, _, attribute = built_in.get(name, name).partition(":")
    if not attribute:
        raise InputError(
            f"{key}: {name!r} is not known: use {', '.join(built_in)}, "
            f"or your own as module:function"
        )
    try:
        function = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        # a user's code may raise anything
        raise InputError(
            f"{key}: {name} cannot be imported: {type(error).__name__}: {error}"
        ) from None
    if not callable(function):
        raise InputError(f"{key}: {name} is {function!r:.40}: it must be a function")
    return function
