"""One optimizer step: micro-batches forward and backward, clip, and move; or, if anything is non-finite, nothing.

Where memory runs out, the same again with half as many rows at a time, from the same random state.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from configs.command import InputError, is_out_of_memory
from data.batches import Batch
from train.machine.distributed import add_up_gradients, sync_gradients, whole
from train.machine.signals import STOP_SIGNALS
from train.meters import StepFigures, UpdateRatio
from train.objective import Figures, Forward
from train.optimizer import lr_factor, set_learning_rate
from train.run import Run

SMALLEST_LOSS_SCALE = 1.0
Result = TypeVar("Result")


@dataclass(frozen=True)
class Counts:
    """Of one step, over all processes: what the objective counts, tokens without padding, positions.

    signal: the signal that asks to stop, if any process got one, else 0.
    """

    trained: int
    tokens: int
    positions: int
    signal: int


def count(run: Run, batch: Batch, signal_number: int) -> Counts:
    """What the processes must agree on before a step: counted on the CPU, so that no process waits for a GPU."""
    trained, tokens, positions, *received = run.world.sum(
        run.objective.count(batch),
        *batch.token_count(run.data.tokenizer.pad_id),
        *(int(signal_number == number) for number in STOP_SIGNALS),
    )
    stop = next((int(number) for number, count in zip(STOP_SIGNALS, received, strict=True) if count), 0)
    return Counts(trained, tokens, positions, signal=stop)


def training_step(
    run: Run, batch: Batch, counts: Counts, progress: float, waited: float = 0.0, is_logged: bool = False
) -> StepFigures:
    """One step on a batch; this process holds its share of it.

    progress: share of the minutes that are over, which the learning rate follows if they are the run's limit. The last
    step begins before they are over, with a rate just above the final one. is_logged: measure the update.
    A loss or gradient that is non-finite moves nothing: on a GPU that is decided there, and the loop reads it later.
    """
    config, state = run.config.train, run.state
    schedule = (config.schedule, config.warmup_steps, config.cooldown, config.final_lr_fraction)
    if (steps := run.config.max_steps) is not None:  # 0 at the first step, 1 at the last, which has the final rate
        progress = state.step / (steps - 1) if steps > 1 else 1.0
    lr = set_learning_rate(run.optimizers, lr_factor(progress, state.step, *schedule))
    loss = grad_norm = torch.tensor(math.nan, device=run.device.device)  # of a step that counts nothing: no loss at all
    figures = {name: torch.tensor(value, device=run.device.device) for name, value in batch.figures.items()}
    if counts.trained:  # else not even momentum and weight decay may move it
        loss, of_loss, grad_norm = _loss_and_gradients(run, batch.to(run.device.device), counts)
        figures |= of_loss
    is_finite = loss.isfinite() & grad_norm.isfinite()
    if run.gates_on_device and counts.trained:
        state.non_finite += ~is_finite
        stay = ~is_finite | (state.non_finite > config.skip_non_finite)
        for optimizer in run.optimizers:
            optimizer.found_inf = stay.float()  # type: ignore[attr-defined]
    watched = UpdateRatio(run.optimizers) if is_logged else None
    if counts.trained and (run.gates_on_device or is_finite):
        for optimizer in run.optimizers:
            optimizer.step()
    run.forget_gradients()
    first = state.step * run.source.rows_per_batch
    return StepFigures(
        step=state.step,
        loss=loss,
        grad_norm=grad_norm,
        lr=lr,
        trained=counts.trained,
        tokens=counts.tokens,
        positions=counts.positions,
        waited=waited,
        rows=(first, first + run.source.rows_per_batch - 1),
        figures=figures,
        update_ratios=watched.read() if watched else {},
    )


def _loss_and_gradients(run: Run, batch: Batch, counts: Counts) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Mean loss of the step, the objective's other figures, and the norm of the gradient, which is clipped; all of
    them scalars on the device.

    In fp16 the loss is scaled, and where the scaled gradient overflows, the same batch is computed again with half
    the scale: an overflow costs time, but no step (Micikevicius et al. 2018, arXiv 1710.03740).
    """
    scale_before = run.scaler.state_dict()
    while True:
        loss, figures = _backward(run, batch, counts)
        if run.scaler.is_enabled():
            for optimizer in run.optimizers:
                run.scaler.unscale_(optimizer)
        longest = run.config.train.grad_clip or math.inf  # 0: only measure
        grad_norm = whole(nn.utils.clip_grad_norm_(run.lm.parameters(), longest))
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


def _backward(run: Run, batch: Batch, counts: Counts) -> tuple[Tensor, dict[str, Tensor]]:
    # the loss of a step is its sum / its count, whatever micro-batches and processes there are; DDP and FSDP2 divide
    # gradients by the number of processes, so the loss is multiplied by it
    memory = run.world.memory
    factor = run.world.size if memory is None else 1
    sums = within_memory(run, lambda: _passes(run, batch, factor / counts.trained, counts), agree=memory is not None)
    if memory is not None:
        add_up_gradients(run.lm, memory, sums.values())
    else:
        sums = {name: run.world.sum_tensor(value) for name, value in sums.items()}
    means = {name: value / counts.trained for name, value in sums.items()}
    return means.pop("loss"), means


def _passes(run: Run, batch: Batch, factor: float, counts: Counts) -> dict[str, Tensor]:
    """Forward and backward, one micro-batch after the other: the gradients of factor * loss, and sums of figures."""
    forward = run.state.forward
    sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=run.device.device))
    parts = batch.split(run.state.micro_rows)
    for number, part in enumerate(parts, start=1):
        if run.world.size > 1:
            sync_gradients(forward, run.lm, run.world, wanted=number == len(parts))
        # auxiliary losses are means over real tokens, the loss is one over what is trained: both are divided by that
        minimised, figures = losses(run, forward, part, counts.trained / max(1, counts.tokens))
        run.scaler.scale(minimised * factor).backward()
        for name, value in figures.items():
            sums[name] += value.detach()
    return sums


def losses(run: Run, forward: Forward, batch: Batch, share: float = 1.0) -> tuple[Tensor, Figures]:
    """-> what is minimised, and its parts by name: the objective's `loss`, the auxiliary losses of the model's own
    layers, times share, and the objective's figures. All are sums.

    Whatever an objective asks the model for, the model is asked for its auxiliary losses too: no objective can forget
    them, and `loss` is comparable with that of an evaluation.
    """
    auxiliary: Figures = {}

    def asking(*inputs: Tensor, **options: Any) -> Any:
        found, more = forward(*inputs, **options, with_auxiliary=True)
        for name, loss in more.items():
            auxiliary[name] = auxiliary.get(name, 0) + share * loss
        return found

    with run.device.autocast():
        loss_sum, figures = run.objective.loss(asking, batch)
    return sum(auxiliary.values(), loss_sum), {"loss": loss_sum, **figures, **auxiliary}


def within_memory(run: Run, attempt: Callable[[], Result], agree: bool = False) -> Result:
    """What `attempt` returns; where memory runs out in it, run.state.micro_rows is halved and it is called again.

    agree: all processes call this, and if memory runs out in one of them, all try again. Raises InputError where that
    is not to be decided here: train.micro_batch_size was given, one row is too much, or processes cannot agree.
    """
    while True:
        before, found = random_state(run), []
        try:
            found.append(attempt())
        except RuntimeError as error:  # torch.OutOfMemoryError is one; on a CPU it is a plain one
            if not is_out_of_memory(error):
                raise
        missing = int(not found)
        if agree:
            (missing,) = run.world.sum(missing)
        if not missing:
            return found[0]
        _halve_micro_batch(run, agree)
        set_random_state(before)


def random_state(run: Run) -> tuple[Tensor, Tensor | None]:
    """Of the CPU, and of the GPU if the run has one."""
    on_cuda = run.device.device.type == "cuda"
    return torch.get_rng_state(), torch.cuda.get_rng_state() if on_cuda else None


def set_random_state(state: tuple[Tensor, Tensor | None]) -> None:
    """Go back to what `random_state` returned."""
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])


def _halve_micro_batch(run: Run, agreed: bool) -> None:
    run.forget_gradients()
    if run.device.device.type == "cuda":
        torch.cuda.empty_cache()
    size, chosen = run.state.micro_rows, run.config.train.micro_batch_size
    remedy = "train.activation_checkpointing=true, a shorter data.sequence_length or a smaller model"
    is_apart = run.world.size > 1 and not agreed
    if is_apart or chosen != "auto":
        now = f"{max(1, size // 2)}" + ("" if is_apart else " or auto")
        message = f"out of memory with {size} rows at a time: try train.micro_batch_size={now}, or {remedy}"
        if run.world.rank and is_apart:  # the others do not know, and only the first process prints its errors
            print(f"error in process {run.world.rank}: {message}", file=sys.stderr)
        raise InputError(message)
    if size == 1:
        raise InputError(f"out of memory with a single row of {run.source.row_length} tokens at a time: try {remedy}")
    run.state.micro_rows = max(1, size // 2)
    run.state.resolved["micro_batch_size"] = run.state.micro_rows * run.rows_joined
    run.tracker.say(f"out of memory with {size} rows at a time: {run.state.micro_rows} from here, in more passes")
