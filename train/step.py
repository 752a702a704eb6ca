"""One optimizer step: micro-batches forward and backward, clip, and move; or, if anything is non-finite, nothing."""

from __future__ import annotations

import math
import signal
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from data.batches import Batch
from train.machine.distributed import accumulating, whole
from train.machine.memory import within_memory
from train.meters import StepFigures, UpdateRatio
from train.optimizer import set_learning_rate
from train.run import Run
from train.schedule import lr_factor

SMALLEST_LOSS_SCALE = 1.0


@dataclass(frozen=True)
class Counts:
    """Of one step, over all processes: what the objective counts, tokens without padding, positions.

    signal: SIGINT or SIGTERM if any process got one, else 0.
    """

    trained: int
    tokens: int
    positions: int
    signal: int


def count(run: Run, batch: Batch, signal_number: int) -> Counts:
    """What the processes must agree on before a step: counted on the CPU, so that nobody waits for a GPU."""
    trained, tokens, positions, interrupted, terminated = run.world.sum(
        run.objective.count(batch),
        *batch.token_count(run.data.tokenizer.pad_id),
        int(signal_number == signal.SIGINT),
        int(signal_number == signal.SIGTERM),
    )
    stop = signal.SIGTERM if terminated else signal.SIGINT if interrupted else 0
    return Counts(trained, tokens, positions, signal=int(stop))


def training_step(
    run: Run, batch: Batch, counts: Counts, progress: float, waited: float = 0.0, is_logged: bool = False
) -> StepFigures:
    """One step on a batch, of which this process holds its share.

    progress: share of the run that is over, which the learning rate follows. is_logged: measure the update.
    A loss or gradient that is non-finite moves nothing: on a GPU that is decided there, and the loop reads it later.
    """
    config, state = run.config.train, run.state
    loss, figures, grad_norm = _loss_and_gradients(run, batch.to(run.device.device), counts.trained)
    schedule = (config.schedule, config.warmup_steps, config.cooldown, config.final_lr_fraction)
    lr = set_learning_rate(run.optimizers, lr_factor(progress, state.step, *schedule))
    is_finite = loss.isfinite() & grad_norm.isfinite()
    if run.gates_on_device:
        state.non_finite += ~is_finite
        stay = ~is_finite | (state.non_finite > config.skip_non_finite)
        for optimizer in run.optimizers:
            optimizer.found_inf = stay.float()  # type: ignore[attr-defined]
    watched = UpdateRatio(run.optimizers) if is_logged else None
    if run.gates_on_device or is_finite:
        for optimizer in run.optimizers:
            optimizer.step()
    run.forget_gradients()
    first = state.step * run.source.rows_per_batch
    return StepFigures(
        step=state.step,
        loss=loss,
        grad_norm=grad_norm,
        lr=lr,
        tokens=counts.tokens,
        positions=counts.positions,
        waited=waited,
        rows=(first, first + run.source.rows_per_batch - 1),
        figures=figures,
        update_ratios=watched.read() if watched else {},
    )


def _loss_and_gradients(run: Run, batch: Batch, trained: int) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Mean loss of the step, the objective's other figures, and the norm of the gradient, which is clipped; all of
    them scalars on the device.

    In fp16 the loss is scaled, and where the scaled gradient overflows, the same batch is computed again with half
    the scale: an overflow costs time, but no step (Micikevicius et al. 2018, arXiv 1710.03740).
    """
    scale_before = run.scaler.state_dict()
    while True:
        loss, figures = within_memory(run, lambda: _backward(run, batch, trained))
        if run.scaler.is_enabled():
            for optimizer in run.optimizers:
                run.scaler.unscale_(optimizer)
        grad_norm = _clip(run.lm, run.config.train.grad_clip)
        if not run.scaler.is_enabled():
            return loss, figures, grad_norm
        overflowed = bool(loss.isfinite()) and not bool(grad_norm.isfinite())
        run.scaler.update()
        if not overflowed:
            return loss, figures, grad_norm
        if run.scaler.get_scale() < SMALLEST_LOSS_SCALE:  # no scale helps: it is the step, not the scale
            run.scaler.load_state_dict(scale_before)
            return loss, figures, grad_norm
        run.forget_gradients()


def _backward(run: Run, batch: Batch, trained: int) -> tuple[Tensor, dict[str, Tensor]]:
    # the loss of a step is its sum / its count, whatever micro-batches and processes there are; DDP and FSDP2 divide
    # gradients by the number of processes, so the loss is multiplied by it
    forward, count = run.state.forward, max(1, trained)
    sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=run.device.device))
    parts = batch.split(run.state.micro_rows)
    for number, part in enumerate(parts, start=1):
        with accumulating(forward, run.lm, run.world, is_last=number == len(parts)):
            with run.device.autocast():
                loss_sum, figures = run.objective.loss(forward, part)
            run.scaler.scale(loss_sum * (run.world.size / count)).backward()
        for name, value in {"loss": loss_sum, **figures}.items():
            sums[name] += value.detach()
    means = {name: run.world.sum_tensor(value) / count for name, value in sums.items()}
    return means.pop("loss"), means


def _clip(lm: nn.Module, largest: float) -> Tensor:
    """Scale the gradients down to this norm at most; returns the norm before. 0: only measure."""
    return whole(nn.utils.clip_grad_norm_(lm.parameters(), largest or math.inf))
