"""Measuring fairly on a noisy machine: alternate what is compared within one run, and take medians."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}  # cpu: of one thread, what others do beside it or not
Clock = Callable[[], float]


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


def synchronize(device: torch.device) -> None:
    """Wait until the GPU has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are aligned: names left, figures right."""
    widths = [max(len(str(row[i])) for row in (header, *rows)) for i in range(len(header))]
    lines = [_line(header, widths), "|" + "|".join("-" * (w + 2) for w in widths) + "|"]
    return "\n".join(lines + [_line(row, widths) for row in rows])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = [str(cell) for cell in cells]
    padded = [first.ljust(widths[0]), *[cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]]
    return "| " + " | ".join(padded) + " |"
