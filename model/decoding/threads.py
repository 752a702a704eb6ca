"""One thread or all of them? Compiled decoding on a CPU takes what is quicker now.

The threads of one operation wait for each other, and spin while they wait. Alone they are quicker than one thread.
Beside a busy program one of them is put aside thousands of times a second, and a token takes fifty times as long
(EXPERIMENTS.md). So a few tokens are timed both ways, again and again, and at once where a token takes far too long.

Both ways run the same compiled code, and no sum is split between threads: the numbers are equal, to the last bit.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch

LIBRARIES = ("libgomp*", "libiomp5*", "libomp*")  # OpenMP, as PyTorch's packages bring it
TRIAL = 8  # tokens of each way
FIRST_PAUSE, LONGEST_PAUSE = 64, 1024  # tokens between two trials
SLOW = 4  # times as long as in the trial: look again now
Result = TypeVar("Result")


@cache
def openmp() -> ctypes.CDLL | None:
    """The library that starts PyTorch's threads; None where it is unknown, and all threads stay."""
    folder = Path(torch.__file__).parent / "lib"
    for file in (file for pattern in LIBRARIES for file in sorted(folder.glob(pattern))):
        with suppress(OSError):
            library = ctypes.CDLL(str(file))
            if hasattr(library, "omp_set_max_active_levels"):
                return library
    return None


@contextmanager
def one_thread(library: ctypes.CDLL) -> Iterator[None]:
    """Parallel loops of this thread run on it alone, compiled ones too. The number of threads stays what it is, because
    compiled code checks it and would be compiled again."""
    before = library.omp_get_max_active_levels()
    library.omp_set_max_active_levels(0)
    try:
        yield
    finally:
        library.omp_set_max_active_levels(before)


class Pace:
    """Calls steps on one thread or on all, whichever was quicker in the newest trial. The first call is not timed."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self.clock = clock
        self.on_one = self.before = True
        self.pause = FIRST_PAUSE
        self.until_trial = 1
        self.times: dict[bool, list[float]] = {}  # of the trial that runs, by on_one
        self.usual = float("inf")  # seconds of a step, as the newest trial found it

    def __call__(self, step: Callable[..., Result], *args: Any, **given: Any) -> Result:
        """What `step` returns, called with the rest."""
        library = openmp()
        before = self.clock()
        with one_thread(library) if self.on_one and library is not None else nullcontext():
            result = step(*args, **given)
        self._took(self.clock() - before)
        return result

    def _took(self, seconds: float) -> None:
        if self.times:
            self._tried(seconds)
            return
        self.until_trial -= 1
        is_slow = not self.on_one and seconds > SLOW * self.usual  # one thread waits for nobody
        if is_slow:
            self.pause = FIRST_PAUSE
        if is_slow or self.until_trial <= 0:
            self.before, self.on_one, self.times = self.on_one, True, {True: [], False: []}

    def _tried(self, seconds: float) -> None:
        """One thread first. All threads are given up as soon as they have taken longer than it."""
        one, everyone = self.times[True], self.times[False]
        self.times[self.on_one].append(seconds)
        if len(one) < TRIAL:
            return
        self.on_one = sum(everyone) >= sum(one)
        if self.on_one or len(everyone) == TRIAL:
            self.usual = sum(self.times[self.on_one]) / len(self.times[self.on_one])
            self.pause = min(2 * self.pause, LONGEST_PAUSE) if self.on_one == self.before else FIRST_PAUSE
            self.until_trial, self.times = self.pause, {}
