"""How do we measure fairly on a noisy machine? What is compared takes turns within one run, and medians are printed."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping

import torch

from train.device import synchronize

__all__ = ["CLOCKS", "Clock", "alternate", "peak_bytes", "synchronize"]

Clock = Callable[[], float]
# wall: what you wait. cpu: what all threads of this process compute; other programs on the cores do not add to it
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}


def alternate(
    candidates: Mapping[str, Callable[[], object]],
    rounds: int,
    device: torch.device,
    patience_s: float = 60.0,
    clock: Clock = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of one call of each, `rounds` times in turn after a first call that does not count.

    Stops after whole rounds once patience_s is spent, so that the slowest one does not take an hour.
    """
    for call in candidates.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    began = clock()
    for _ in range(rounds):
        for name, call in candidates.items():
            synchronize(device)
            before = clock()
            call()
            synchronize(device)
            seconds[name].append(clock() - before)
        if clock() - began > patience_s:
            break
    return {name: statistics.median(found) for name, found in seconds.items()}


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """How many bytes of tensors a call holds at its fullest moment, beyond what is held before it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    changes = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = itertools.accumulate(event.nbytes() for event in sorted(changes, key=lambda event: event.start_ns()))
    return max(held, default=0)
