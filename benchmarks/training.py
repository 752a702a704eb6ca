"""How fast does a config train here? Whole steps on random tokens, in as many processes as a run of it."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path

import torch

from benchmarks.profile import PROFILED, profile_steps, take
from benchmarks.step import Step, our_step
from benchmarks.timing import Clock, peak_bytes, synchronize
from configs.text import table
from train.budget import micro_batch_rows
from train.config import RunConfig
from train.machine.cpu_processes import number_of_processes, on_processes, processes_in_words
from train.machine.device import Device, resolve_device
from train.machine.distributed import ALONE, World, check_shares, processes
from train.machine.hardware import known_peak

COUNTED = 0.25  # share of the time after which steps count


def measure_training(run: RunConfig, seconds: float, profile: Path | None, clock: Clock) -> None:
    """Print speed, share of the peak, memory and what `auto` chose; with `profile`, where the time goes as well."""
    device = resolve_device(run)  # before the processes start: it may ask the machine
    on_processes(number_of_processes(run), partial(_measure, run, device, seconds, profile, clock))


def _measure(run: RunConfig, device: Device, seconds: float, profile: Path | None, clock: Clock) -> None:
    """What each process does; the first one prints."""
    with processes(run.train.parallel, run.train.device) as world:
        check_shares(run, world)
        own_rows, length = run.rows_per_step // world.size, run.data.sequence_length
        step, lm, optimizers = our_step(run, device, own_rows, device.compile, world=world)
        first = seconds_of(step, device.device, clock)
        times = repeat(step, seconds, device.device, clock, world)
        if profile is not None:
            if world.is_first:
                print(profile_steps(step, device.device, profile, run.name) + "\n")
            else:
                take(step, PROFILED)
        peak = peak_bytes(step, device.device)
        if not world.is_first:
            return
    states = [tensor for one in optimizers for state in one.state.values() for tensor in state.values()]
    lasting = sum(tensor.nbytes for tensor in [*lm.parameters(), *states])
    tokens, median = run.rows_per_step * length, statistics.median(times)
    flops_per_s = lm.flops_per_token(length) * tokens / median
    known = known_peak(device.device, device.dtype)
    share = f"{flops_per_s / known[0] / 1e12:.1%} of {known[0]:g} TFLOPS ({known[1]})" if known else "unknown peak"
    each = " of each process" if world.size > 1 else ""
    rows = [
        ["tokens/s (median)", f"{tokens / median:,.0f}"],
        [f"ms a step of {tokens:,} tokens (median of {len(times)})", f"{1e3 * median:,.1f}"],
        ["quickest, slowest step, ms", f"{1e3 * min(times):,.1f}, {1e3 * max(times):,.1f}"],
        ["first step, compiling included, s" if device.compile else "first step, s", f"{first:.1f}"],
        ["TFLOP/s of matrix products", f"{flops_per_s / 1e12:.3f}"],
        ["MFU", share],
        [f"weights and optimizer state{each}, MB", f"{lasting / 1e6:,.1f}"],
        [f"a step's fullest moment{each}, beyond them, MB", f"{peak / 1e6:,.1f}"],
        ["parameters", f"{lm.num_parameters():,}"],
        ["vocabulary", f"{run.model.vocab_size:,}"],
        ["rows a forward pass × length", f"{micro_batch_rows(run, device, world.size)} × {length}"],
    ]
    print(table(["", run.name], rows))
    choices = list(device.notes)
    if world.on_cores:
        choices.append(processes_in_words(world.size, torch.get_num_threads()))
    print("\n" + "\n".join(f"* {choice}" for choice in choices))


def seconds_of(step: Step, device: torch.device, clock: Clock) -> float:
    """Seconds of one step, the GPU's work included."""
    synchronize(device)
    before = clock()
    step()
    synchronize(device)
    return clock() - before


def repeat(step: Step, seconds: float, device: torch.device, clock: Clock, world: World = ALONE) -> list[float]:
    """Seconds of each step, at least three. The first quarter of the time warms up and does not count.

    world: who takes the step together; the first process's clock decides how many there are.
    """
    times: list[float] = []
    began = clock()
    while True:
        spent = clock() - began
        goes_on = spent < seconds or len(times) < 3
        if not world.sum(int(world.is_first and goes_on))[0]:
            return times
        took = seconds_of(step, device, clock)
        if spent >= COUNTED * seconds or spent + took >= seconds:
            times.append(took)
