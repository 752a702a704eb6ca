"""One life of a run: the real command in a process of its own, which a signal ends at a random moment.

The kernel's own timer sends the signal, also SIGKILL, wherever the process is then: in Python, in a kernel of PyTorch,
in a write. Nothing in the product knows of it.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# where a life may be ended; each is a function of the product
PHASES = {
    "prepare": "data.prepare:prepare",
    "tidy": "train.saving.run_directory:open_for",
    "compile": "train.loop:compiled",
    "evaluate": "train.loop:evaluate",
    "save": "train.loop:save",
    "complete": "train.loop:complete",
    "draw": "eval.hooks.registry:Hooks.finish",
    "report": "train.report:write",
}
WORK, WALL = 2, 1  # CLOCK_PROCESS_CPUTIME_ID, CLOCK_MONOTONIC


@dataclass(frozen=True)
class End:
    """How a life ends.

    number: of the signal. where: "start": `at` is a share of the work up to the first step, and the signal comes then,
    "train": `at` is a share of the work of `steps` steps, counted from the first one of this life; or a phase: `at` is
    a share of the time that the phase takes (0: when it begins, 1: when it has just ended), and the signal comes in its
    `entry`-th call (0: in the evaluation at the end). again: the signal comes twice. steps: a life that is still going
    on after so many gets the signal then.
    """

    number: int
    where: str
    at: float
    entry: int = 1
    again: bool = False
    steps: int = 8


@dataclass(frozen=True)
class Pace:
    """What the undisturbed run measured: seconds of work up to the first step, of a step, and of each phase."""

    start: float
    step: float
    phases: dict[str, float]


class _SigEvent(ctypes.Structure):
    _fields_ = [
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("pad", ctypes.c_int * 12),
    ]


def signal_after(seconds: float, number: int, clock: int, again: bool = False) -> None:
    """Let the kernel send this process a signal, after so many seconds of the clock; and again soon after."""
    libc, timer = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
    event = _SigEvent(None, number, 0)
    if libc.timer_create(clock, ctypes.byref(event), ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "timer_create")
    first, then = int(max(seconds, 1e-6) * 1e9), int(0.004e9) if again else 0
    times = (ctypes.c_long * 4)(*divmod(then, 10**9), *divmod(first, 10**9))
    if libc.timer_settime(timer, 0, ctypes.byref(times), None):
        raise OSError(ctypes.get_errno(), "timer_settime")


def live(module: str, folder: Path, config: str, threads: int, draws: bool, end: End | None, pace: Pace | None) -> None:
    """`python -m module config` in this folder; what it prints and how far it came are beside it: NAME.out and
    NAME.lives, a line a life."""
    import torch

    import configs.command
    from tests.processes import print_to

    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch.set_num_threads(threads)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup and a shell's background jobs ignore these
    signal.signal(signal.SIGINT, configs.command._on_ctrl_c)  # as `python -m` does
    os.chdir(folder)
    print_to(folder.with_suffix(".out"))
    found = importlib.import_module(module)
    if not draws:
        _draw_nothing()
    note = _Note(folder.with_suffix(".lives"))
    _watch_steps(note, end, pace)
    for name in PHASES:
        _watch_phase(name, note, end, pace)
    if end is not None and pace is not None and end.where == "start":
        signal_after(time.process_time() + end.at * pace.start, end.number, WORK, end.again)
    sys.argv = [module, config]
    configs.command.exit_on_bad_input(found.main)


class _Note:
    """What a life did: where it began, how far it came, and what took how long. Rewritten at each step by the first
    life that is measured, so that a kill loses nothing."""

    def __init__(self, file: Path) -> None:
        self.file, self.began = file, time.process_time()
        self.phases: dict[str, list[float]] = {}
        self.start: float | None = None

    def append(self, **values: Any) -> None:
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(values) + "\n")


def _watch_steps(note: _Note, end: End | None, pace: Pace | None) -> None:
    import train.loop

    step, begin, first = train.loop.training_step, -1, 0.0

    def watched(run: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal begin, first
        if _is_copy():
            return step(run, *arguments, **options)
        now = run.state.step
        if begin < 0:
            begin, first = now, time.process_time()
            note.start = time.process_time() - note.began
            note.append(begin=now, start=note.start)
            if end is not None and pace is not None and end.where == "train":
                after = end.at * end.steps * pace.step
                signal_after(time.process_time() + after, end.number, WORK, end.again)
        elif now == begin + 1:
            note.append(trained=begin)  # at least one step is done
        if end is None and now == begin + 10:
            note.append(work_of_a_step=(time.process_time() - first) / 10)
        if end is not None and now >= begin + end.steps:
            os.kill(os.getpid(), end.number if now < begin + end.steps + 2 else signal.SIGKILL)
        return step(run, *arguments, **options)

    train.loop.training_step = watched


def _watch_phase(name: str, note: _Note, end: End | None, pace: Pace | None) -> None:
    module, _, attribute = PHASES[name].partition(":")
    owner: Any = importlib.import_module(module)
    *outer, attribute = attribute.split(".")
    for each in outer:
        owner = getattr(owner, each)
    function: Callable[..., Any] = getattr(owner, attribute)
    calls = [0]

    def watched(*arguments: Any, **options: Any) -> Any:
        if _is_copy():
            return function(*arguments, **options)
        calls[0] += 1
        is_here = (
            end is not None
            and end.where == name
            and (options.get("is_last", False) if end.entry == 0 else calls[0] == end.entry)
        )
        if end is not None and pace is not None and is_here and end.at < 1:
            seconds = end.at * pace.phases.get(name, 0.01)
            signal_after(seconds, end.number, WALL, end.again) if seconds else os.kill(os.getpid(), end.number)
        before = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            if end is None:
                note.append(phase=name, seconds=time.perf_counter() - before, **_step_of(arguments))
            elif is_here and end.at == 1:
                os.kill(os.getpid(), end.number)
            elif name == "report":  # nothing comes after it
                os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, attribute, watched)


def _is_copy() -> bool:
    """Whether this is one of the other processes of a run (train.processes): copies, which end with the first."""
    return os.environ.get("RANK", "0") != "0"


def _step_of(arguments: tuple[Any, ...]) -> dict[str, int]:
    state = getattr(arguments[0], "state", None) if arguments else None
    return {"step": state.step} if state is not None and hasattr(state, "step") else {}


def _draw_nothing() -> None:
    from eval.attention import render

    def write_viewer(run_directory: Path, snapshots: Any) -> list[Path]:
        return [render.write_viewer([(run_directory.name, list(snapshots))], run_directory / "attention/viewer.html")]

    render.render = write_viewer  # type: ignore[assignment]
