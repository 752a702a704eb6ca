"""How long does a step of this config take here? Real steps are timed, on random tokens of its shape.

No text is read and no run directory is made. The doctor extends what it times to a run; the benchmarks measure it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn

from configs.command import is_out_of_memory
from configs.text import table
from data.packing import document_starts
from model import LanguageModel
from model.transformer import on_meta
from train.config import RunConfig
from train.fits import micro_batch_rows
from train.machine.compilation import PAYS_AFTER_MINUTES
from train.machine.cpu_processes import number_of_processes, on_processes, processes_in_words, threads_each
from train.machine.device import Device, resolve_device
from train.machine.distributed import ALONE, World, add_up_gradients, check_shares, processes
from train.machine.hardware import busy_in_words, product_tflops, timed
from train.machine.machine_cache import bf16_speed, recall
from train.optimizer import build_optimizers

DOCUMENT = 150  # tokens; about as long as a story, where documents are isolated
DIFFERENT = 4  # steps, before their tokens come again
HOPELESS = 0.5  # bf16 that is slower than this against fp32 is not timed
CLEARLY = 1.1  # times as fast: less is noise
SLOWEST_ROW_S, STEPS_S = 5.0, 5.0  # a row that takes longer is not timed; seconds for timing each setting
Step = Callable[[], object]
MicroBatch = dict[str, Tensor]

# ---------------------------------------------------------------------------------------------------------
# steps on random tokens


def random_steps(run: RunConfig, rows: int, rows_at_once: int, device: torch.device) -> Iterator[list[MicroBatch]]:
    """The micro-batches of one step after the other, rows (rows_at_once, data.sequence_length), without end.

    Each step has other tokens than the one before: a router of experts sends them elsewhere, and groups of other sizes
    can take longer. They are made once, because a GPU waits while documents are found.
    """
    assert run.model.vocab_size is not None
    steps = []
    for seed in range(DIFFERENT):
        torch.manual_seed(seed)
        ids = torch.randint(0, run.model.vocab_size, (rows, run.data.sequence_length), device=device)
        documents = (torch.rand(ids.shape, device=device) < 1 / DOCUMENT).cumsum(1)
        tensors = {"input_ids": ids, "labels": ids}
        if run.data.isolate_documents:
            starts = torch.from_numpy(document_starts(documents.cpu().numpy())).to(device)
            tensors |= {"document_ids": documents, "document_starts": starts}
        parts = range(0, rows, rows_at_once)
        steps.append([{name: x[first : first + rows_at_once] for name, x in tensors.items()} for first in parts])
    return cycle(steps)


def make_step(
    model: nn.Module,
    loss_of: Callable[..., Tensor],
    optimizers: list[torch.optim.Optimizer],
    steps: Iterator[list[MicroBatch]],
    autocast: Callable[[], AbstractContextManager],
    grad_clip: float,
    world: World = ALONE,
) -> Step:
    """Forward and backward of every micro-batch, clipping, and the optimizers' step. loss_of returns a mean.

    world: the processes that take the step together, each with its batches; they add up gradients as a run does.
    """

    def step() -> None:
        batches = next(steps)
        for batch in batches:
            with autocast():
                loss = loss_of(**batch) / (len(batches) * world.size)
            loss.backward()
        if world.memory is not None:
            add_up_gradients(model, world.memory)
        nn.utils.clip_grad_norm_(model.parameters(), grad_clip or float("inf"))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step


def our_step(
    run: RunConfig, device: Device, rows: int, compiled: bool = False, adamw: bool = False, world: World = ALONE
) -> tuple[Step, LanguageModel, list[torch.optim.Optimizer]]:
    """A step of this many rows as training takes it, the model, its optimizers.

    adamw: fused AdamW, whatever the config says. world: the processes that take it together, with these rows each.
    """
    torch.manual_seed(run.seed)
    lm = LanguageModel(run.model).to(device.device).train()
    lm.set_attn_implementation(device.attention)
    lm.set_activation_checkpointing(run.train.activation_checkpointing)
    optimizers = [fused_adamw(lm)] if adamw else build_optimizers(lm, run.train.optimizer, world, device.dtype)
    steps = random_steps(run, rows, min(rows, micro_batch_rows(run, device, world.size)), device.device)
    forward = torch.compile(lm, dynamic=False) if compiled else lm
    step = make_step(lm, our_loss(forward), optimizers, steps, device.autocast, run.train.grad_clip, world)
    return step, lm, optimizers


def our_loss(forward: Callable[..., Any]) -> Callable[..., Tensor]:
    """Mean loss of a batch as LanguageModel gives it."""

    def loss(**batch: Tensor) -> Tensor:
        loss_sum, count = forward(**batch)
        return loss_sum / count

    return loss


def fused_adamw(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW as one kernel for all parameters alike."""
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


# ---------------------------------------------------------------------------------------------------------
# what the doctor times


@dataclass(frozen=True)
class Timing:
    """seconds: of a whole step, of all its processes (train.processes). is_whole: all its rows were timed together;
    else it is extended from fewer."""

    device: Device
    seconds: float
    is_whole: bool
    processes: int = 1

    def minutes(self, run: RunConfig) -> float:
        """Of the training steps; evaluations and checkpoints come on top."""
        return (run.max_steps or 0) * self.seconds / 60


def candidates(run: RunConfig, auto: Device) -> list[Device]:
    """What `auto` takes, and on a CPU the other precision too, unless the config names one."""
    if auto.device.type != "cpu" or run.train.precision != "auto":
        return [auto]
    other = {"bf16": "fp32", "fp32": "bf16"}[auto.precision]
    if recall().fault("precision", "cpu", other) or (other == "bf16" and bf16_speed() < HOPELESS):
        return [auto]
    train = run.train.model_copy(update={"precision": other, "device": "cpu"})
    return [auto, resolve_device(run.model_copy(update={"train": train}))]


def time_step(run: RunConfig, device: Device) -> Timing | None:
    """Seconds of a step, taken by the processes that a run would start; None where one row alone takes far too long."""
    number = number_of_processes(run)
    check_shares(run, World(size=number))
    if device.device.type == "cpu":  # one product says roughly how long a row takes
        length, hidden = run.data.sequence_length, run.model.hidden_size
        tflops = product_tflops(length, hidden, run.model.intermediate_size or hidden, torch.float32)
        if on_meta(run.model).flops_per_token(length) * length / tflops / 1e12 > SLOWEST_ROW_S:
            return None
    return on_processes(number, partial(_time_step, run, device))


def _time_step(run: RunConfig, device: Device) -> Timing:
    """What each process does. First one row; then all that it has of a step, or as many as the time is enough for."""
    with processes(run.train.parallel, run.train.device) as world:

        def seconds(rows: int) -> float:
            step, *_ = our_step(run, device, rows, world=world)
            first = timed(step, device.device)[0]  # warms up; where it is slow, that hardly matters
            if world.first(lambda: first > STEPS_S):
                return first
            return min(timed(step, device.device)[0] for _ in range(2))

        whole, one = run.rows_per_step // world.size, seconds(1)
        rows = world.first(lambda: min(whole, max(1, int(STEPS_S / (3 * one)))))
        try:
            many = seconds(rows) if rows > 1 else one
        except RuntimeError as error:  # a run would take fewer rows at a time
            if not is_out_of_memory(error):
                raise
            rows, many = 1, one
        a_row = (many - one) / (rows - 1) if rows > 1 else one
        return Timing(device, many + (whole - rows) * max(0.0, a_row), rows == whole, world.size)


def recommendation(run: RunConfig, timings: list[Timing], can_compile: bool, others: float) -> str:
    """A table of what was timed, and the settings to take, with the minutes to expect. timings: auto's first.

    others: share of the CPU that other programs use.
    """
    if not timings:
        return f"{run.name}: one row of {run.data.sequence_length:,} tokens takes too long here to be timed: use a GPU"
    steps, limit = run.max_steps, run.train.max_minutes or 0.0
    best = min(timings, key=lambda timing: timing.seconds)
    if timings[0].seconds < CLEARLY * best.seconds:
        best = timings[0]
    device, minutes = best.device, best.minutes(run) if steps else limit
    compiled = run.train.compile  # auto: as train.machine.compilation decides it in a run
    if compiled == "auto":
        compiled = can_compile and minutes > PAYS_AFTER_MINUTES.get(device.device.type, float("inf"))

    rows = []
    for timing in timings:
        name = f"{timing.device.precision}, attention {timing.device.attention}"
        last = f"{timing.minutes(run):,.1f}" if steps else f"{limit * 60 / timing.seconds:,.0f}"
        rows.append((name, f"{timing.seconds:.3f}", f"{run.train.tokens_per_step / timing.seconds:,.0f}", last))
    size = f"{run.train.tokens_per_step:,} tokens"
    heading = f"{run.name}: {steps:,} steps of {size}" if steps else f"{run.name}: steps of {size}"
    columns = (heading, "s a step", "tokens/s", "minutes" if steps else f"steps in {limit:g} minutes")

    notes = ["auto takes these by itself" if best is timings[0] else "auto does not: name them on the command line"]
    expected = f"about {minutes:,.1f} minutes" if steps else f"{limit:g} minutes, as it says"
    notes.append(f"expect {expected} of training; evaluations and checkpoints come on top")
    if busy := busy_in_words(others):
        notes.append(f"{busy}: without them it is quicker")
    if best.processes > 1:
        notes.append(processes_in_words(best.processes, threads_each(best.processes)))
    if compiled:
        notes.append("compiled steps, which were not timed, are quicker still")
    if not best.is_whole:
        notes.append("a step is too long to be timed here: it is extended from fewer rows")
    chosen = f"train.device={device.device.type} train.precision={device.precision} "
    chosen += f"model.attn_implementation={device.attention} train.compile={str(compiled).lower()}"
    return "\n".join([table(columns, rows), "", f"recommended: {chosen}", *(f"  {note}" for note in notes)])
