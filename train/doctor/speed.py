"""How long will this config take here? Real steps are timed, on random tokens of its shape."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import torch

from configs.command import is_out_of_memory
from configs.tables import table
from model import LanguageModel
from model.counting import flops_per_token
from train.config import RunConfig
from train.machine.compilation import PAYS_AFTER_MINUTES
from train.machine.device import Device, resolve_device
from train.machine.distributed import ALONE, World, check_shares, processes
from train.machine.findings import recall
from train.machine.load import WORTH_SAYING, in_words
from train.machine.precision import bf16_speed
from train.machine.processor import product_tflops
from train.machine.timing import timed
from train.machine.together import number_of_processes, processes_in_words, threads_each, together
from train.optimizer import build_optimizers
from train.random_steps import make_step, our_loss, shape_of

HOPELESS = 0.5  # bf16 that is slower than this against fp32 is not timed
CLEARLY = 1.1  # times as fast: less is noise
GROWTH = 4  # from one row of a step to all of them
SLOWEST_ROW_S, SLOW_S = 5.0, 4.0


@dataclass(frozen=True)
class Timing:
    """seconds: of a whole step, if other programs leave the CPU alone. is_whole: all its rows were timed together; else
    it is extended from fewer. processes: that take the step together, as in a run (train.processes).
    """

    device: Device
    seconds: float
    is_whole: bool
    processes: int = 1

    def minutes(self, run: RunConfig) -> float:
        """Of the training steps; evaluations and checkpoints come on top."""
        return (run.max_steps or 0) * self.seconds / 60


def candidates(run: RunConfig, auto: Device) -> list[Device]:
    """What `auto` takes, and on a CPU the other precision too, unless the config names one."""
    kind = auto.device.type
    if kind != "cpu" or run.train.precision != "auto":
        return [auto]
    others = {"bf16": "fp32", "fp32": "bf16"}
    other = others[auto.precision]
    slow = other == "bf16" and bf16_speed() < HOPELESS
    if slow or recall().fault("precision", kind, other):
        return [auto]
    train = run.train.model_copy(update={"precision": other, "device": kind})
    return [auto, resolve_device(run.model_copy(update={"train": train}))]


def time_step(run: RunConfig, device: Device, limit_s: float, others: float) -> Timing | None:
    """Seconds of a step on this device, within about limit_s; None where one row alone takes far too long.

    The processes that a run would start take the step together. From one row each on, more and more, until all rows of
    a step are timed or the time is over. Beside other programs one thread is timed, on its own clock, and shared out.
    """
    cores, number = torch.get_num_threads(), number_of_processes(run)
    check_shares(run, World(size=number))
    if device.device.type == "cpu" and _row_seconds(run) > SLOWEST_ROW_S:
        return None
    if device.device.type != "cpu" or others < WORTH_SAYING:
        return together(number, partial(_shared, run, device, limit_s))
    shares = number * threads_each(number)
    torch.set_num_threads(1)
    try:
        found = _grown(run, device, limit_s, ALONE, wall=False)
    finally:
        torch.set_num_threads(cores)
    return replace(found, seconds=found.seconds / shares, processes=number)


def _shared(run: RunConfig, device: Device, limit_s: float) -> Timing:
    with processes(run.train.parallel, run.train.device) as world:
        return _grown(run, device, limit_s, world, wall=True)


def _grown(run: RunConfig, device: Device, limit_s: float, world: World, wall: bool) -> Timing:
    """What one of these processes finds; the first one's clock decides how long. Its rows are those of one process."""
    whole = shape_of(run, device, run.data.isolate_documents, world.size)
    torch.manual_seed(run.seed)
    lm = LanguageModel(run.model).to(device.device).train()
    lm.set_attn_implementation(device.attention)
    lm.set_activation_checkpointing(run.train.activation_checkpointing)
    optimizers = build_optimizers(lm, run.train.optimizer, world, device.dtype)
    until, times = time.perf_counter() + limit_s, dict[int, float]()
    rows = 1
    while True:
        shape = replace(whole, rows=rows, at_once=min(rows, whole.at_once))
        batches = shape.batches(device.device)
        step = make_step(lm, our_loss(lm), optimizers, batches, device.autocast, run.train.grad_clip, world)
        try:
            times[rows] = _time(step, device.device, until if rows == whole.rows else 0.0, world, wall)
        except RuntimeError as error:
            if not (times and is_out_of_memory(error)):
                raise
            break  # a run would take fewer rows at a time
        if rows == whole.rows:
            return Timing(device, times[rows], True, world.size)
        larger = min(GROWTH * rows, whole.rows)
        is_enough = time.perf_counter() + 2 * times[rows] * larger / rows > until
        if world.sum(int(world.is_first and is_enough))[0]:
            break
        rows = larger
    (few, quick), (many, slow) = [(0, 0.0), *sorted(times.items())][-2:]
    each = max(0.0, slow - quick) / (many - few)
    return Timing(device, slow + (whole.rows - many) * each, False, world.size)


def _time(step: Callable[[], object], device: torch.device, until: float, world: World, wall: bool) -> float:
    """The median of two steps or, until then, of as many as fit. A first one warms up, or counts if it is slow."""

    def all_agree(is_so: bool) -> bool:
        return bool(world.sum(int(world.is_first and is_so))[0])

    first = timed(step, device)
    if all_agree(first[0] > SLOW_S):
        return first[0 if wall else 1]
    found: list[float] = []
    while all_agree(len(found) < 2 or time.perf_counter() + found[-1] < until):
        found.append(timed(step, device)[0 if wall else 1])
    return median(found)


def _row_seconds(run: RunConfig) -> float:
    """Roughly, from one product: only to find out whether a step can be timed at all."""
    length, hidden = run.data.sequence_length, run.model.hidden_size
    tflops = product_tflops(length, hidden, run.model.intermediate_size or hidden, torch.float32)
    return flops_per_token(run.model, length) * length / tflops / 1e12


def recommendation(run: RunConfig, timings: list[Timing], can_compile: bool, others: float) -> str:
    """A table of what was timed, and the settings to take, with the minutes to expect. timings: auto's first."""
    if not timings:
        return f"{run.name}: one row of {run.data.sequence_length:,} tokens takes too long here to be timed: use a GPU"
    steps = run.max_steps
    size = f"{run.train.tokens_per_step:,} tokens"
    heading = f"{run.name}: {steps:,} steps of {size}" if steps else f"{run.name}: steps of {size}"
    best = min(timings, key=lambda one: one.seconds)
    if timings[0].seconds < CLEARLY * best.seconds:
        best = timings[0]
    lines = [_row(run, one) for one in timings]
    columns = (heading, "s a step", "tokens/s", "minutes" if steps else f"steps in {run.train.max_minutes:g} minutes")
    compiled = _compiles(run, best, can_compile)
    device = best.device
    chosen = f"train.device={device.device.type} train.precision={device.precision} "
    chosen += f"model.attn_implementation={device.attention} train.compile={str(compiled).lower()}"
    minutes = f"about {best.minutes(run):,.1f} minutes" if steps else f"{run.train.max_minutes:g} minutes, as it says"
    notes = ["auto takes these by itself" if best is timings[0] else "auto does not: name them on the command line"]
    notes += [f"expect {minutes} of training; evaluations and checkpoints come on top"]
    if busy := in_words(others):
        notes += [f"{busy}: beside them it takes longer; this is the work of one thread, shared out"]
    if best.processes > 1:
        notes += [processes_in_words(best.processes, threads_each(best.processes))]
    if compiled:
        notes += ["compiled steps, which were not timed, are quicker still"]
    if not best.is_whole:
        notes += ["a step is too long to be timed here: it is extended from fewer rows"]
    return "\n".join([table(columns, lines), "", f"recommended: {chosen}", *(f"  {note}" for note in notes)])


def _row(run: RunConfig, one: Timing) -> tuple[str, ...]:
    tokens = run.train.tokens_per_step / one.seconds
    limit = run.train.max_minutes
    last = f"{one.minutes(run):,.1f}" if run.max_steps else f"{(limit or 0) * 60 / one.seconds:,.0f}"
    return (f"{one.device.precision}, attention {one.device.attention}", f"{one.seconds:.3f}", f"{tokens:,.0f}", last)


def _compiles(run: RunConfig, one: Timing, can_compile: bool) -> bool:
    """As train.machine.compilation decides it in a run."""
    if run.train.compile != "auto":
        return run.train.compile
    minutes = one.minutes(run) if run.max_steps else run.train.max_minutes or 0.0
    return can_compile and minutes > PAYS_AFTER_MINUTES.get(one.device.device.type, float("inf"))


def refused(device: Device) -> str:
    """Why a run on it, as the config asks for it, would compute wrong numbers; "" where nothing is known against it."""
    kind, found = device.device.type, recall()
    if fault := found.fault("precision", kind, device.precision):
        return f"train.precision is {device.precision}: {fault}: use auto"
    if fault := found.fault("attention", kind, device.attention, device.precision):
        return f"model.attn_implementation is {device.attention}: {fault}: use auto"
    return ""
