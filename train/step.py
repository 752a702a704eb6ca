"""One optimizer step: micro-batches forward and backward, clip, and move; or, if anything is no number, nothing."""

from __future__ import annotations

import math
import signal
import sys
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from configs.loader import InputError
from data.batches import Batch
from data.packing import IGNORED
from train.distributed import accumulating
from train.meters import StepFigures, UpdateRatio
from train.optimizer import set_learning_rate
from train.run import Run
from train.schedule import lr_factor

SMALLEST_LOSS_SCALE = 1.0


@dataclass(frozen=True)
class Counts:
    """Of one step, over all processes: tokens trained on, tokens that are no padding, positions.

    signal: SIGINT or SIGTERM if any process got one, else 0.
    """

    trained: int
    tokens: int
    positions: int
    signal: int


def count(run: Run, batch: Batch, signal_number: int) -> Counts:
    """What the processes must agree on before a step: counted on the CPU, so that no GPU is waited for."""
    totals = run.world.sum(
        int((batch.labels[:, 1:] != IGNORED).sum()),
        int((batch.input_ids != run.data.tokenizer.pad_id).sum()),
        batch.input_ids.numel(),
        int(signal_number == signal.SIGINT),
        int(signal_number == signal.SIGTERM),
    )
    trained, tokens, positions, interrupted, terminated = totals
    stop = signal.SIGTERM if terminated else signal.SIGINT if interrupted else 0
    return Counts(trained, tokens, positions, signal=int(stop))


def training_step(
    run: Run, batch: Batch, counts: Counts, progress: float, waited: float = 0.0, is_logged: bool = False
) -> StepFigures:
    """One step on a batch, of which this process holds its share.

    progress: share of the run that is over, which the learning rate follows. is_logged: measure the update.
    A loss or gradient that is not finite moves nothing: on a GPU that is decided there, and the loop reads it later.
    """
    config, state = run.config.train, run.state
    batch = batch.to(run.device.device)
    loss, grad_norm = _loss_and_gradients(run, batch, counts.trained)
    schedule = (config.schedule, config.warmup_steps, config.cooldown, config.final_lr_fraction)
    lr = set_learning_rate(run.optimizers, lr_factor(progress, state.step, *schedule))
    is_finite = loss.isfinite() & grad_norm.isfinite()
    if run.gates_on_device:
        run.non_finite += ~is_finite
        stay = ~is_finite | (run.non_finite > config.skip_non_finite)
        for optimizer in run.optimizers:
            optimizer.found_inf = stay.float()  # type: ignore[attr-defined]
    watched = UpdateRatio(run.optimizers) if is_logged else None
    if run.gates_on_device or is_finite:
        for optimizer in run.optimizers:
            optimizer.step()
    run.forget_gradients()
    first = state.step * run.batches.rows_per_batch
    return StepFigures(
        step=state.step,
        loss=loss,
        grad_norm=grad_norm,
        lr=lr,
        tokens=counts.tokens,
        positions=counts.positions,
        waited=waited,
        rows=(first, first + run.batches.rows_per_batch - 1),
        update_ratios=watched.read() if watched else {},
    )


def _loss_and_gradients(run: Run, batch: Batch, trained: int) -> tuple[Tensor, Tensor]:
    """Mean loss of the step and norm of its gradient, which is clipped; both scalars on the device.

    In fp16 the loss is scaled, and where the scaled gradient overflows, the same batch is computed again with half
    the scale: an overflow costs time, but no step (Micikevicius et al. 2018, arXiv 1710.03740).
    """
    while True:
        loss = _backward_within_memory(run, batch, trained)
        if run.scaler.is_enabled():
            for optimizer in run.optimizers:
                run.scaler.unscale_(optimizer)
        grad_norm = _clip(run.lm, run.config.train.grad_clip)
        if not run.scaler.is_enabled():
            return loss, grad_norm
        overflowed = bool(loss.isfinite()) and not bool(grad_norm.isfinite())
        run.scaler.update()
        if not overflowed or run.scaler.get_scale() < SMALLEST_LOSS_SCALE:
            return loss, grad_norm
        run.forget_gradients()


def _backward_within_memory(run: Run, batch: Batch, trained: int) -> Tensor:
    """The loss of a batch, its gradients left in the parameters; in smaller micro-batches if memory runs out."""
    while True:
        random_state = _random_state(run)
        try:
            return _backward(run, batch, trained)
        except RuntimeError as error:  # torch.OutOfMemoryError is one; on a CPU it is a plain one
            if not is_out_of_memory(error):
                raise
        _halve_micro_batch(run)
        _set_random_state(run, random_state)


def _backward(run: Run, batch: Batch, trained: int) -> Tensor:
    # the loss of a step is its token sum / its number of trained tokens, whatever micro-batches and processes are;
    # DDP and FSDP2 divide gradients by the number of processes, so the loss is multiplied by it
    scale = run.world.size / max(1, trained)
    loss_sum = torch.zeros((), device=run.device.device)
    parts = batch.split(run.micro_rows)
    for number, part in enumerate(parts, start=1):
        with accumulating(run.forward, run.lm, run.world, is_last=number == len(parts)):
            with run.device.autocast():
                part_sum, _ = run.forward(**part.for_model())
            run.scaler.scale(part_sum * scale).backward()
        loss_sum += part_sum.detach()
    return run.world.sum_tensor(loss_sum) / max(1, trained)


def _clip(lm: nn.Module, largest: float) -> Tensor:
    """Scale the gradients down to this norm at most; returns the norm before. 0: only measure."""
    norm = nn.utils.clip_grad_norm_(lm.parameters(), largest or math.inf)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def _halve_micro_batch(run: Run) -> None:
    """Go on with fewer rows at a time. Raises InputError where that is not to be decided here."""
    run.forget_gradients()
    if run.device.device.type == "cuda":
        torch.cuda.empty_cache()
    size, chosen = run.micro_rows, run.config.train.micro_batch_size
    remedy = "train.activation_checkpointing=true, a shorter data.sequence_length or a smaller model"
    if run.world.size > 1 or chosen != "auto":
        now = f"{max(1, size // 2)}" + ("" if run.world.size > 1 else " or auto")
        message = f"out of memory with {size} rows at a time: try train.micro_batch_size={now}, or {remedy}"
        if run.world.rank:  # the others know nothing of it, and the first one alone prints its errors
            print(f"error in process {run.world.rank}: {message}", file=sys.stderr)
        raise InputError(message)
    if size == 1:
        raise InputError(f"out of memory with a single row of {run.batches.rows.length} tokens at a time: try {remedy}")
    run.micro_rows = max(1, size // 2)
    joined = run.batches.rows.length // run.config.data.sequence_length
    run.state.resolved["micro_batch_size"] = run.micro_rows * joined
    run.tracker.say(f"out of memory with {size} rows at a time: {run.micro_rows} from here, in as many more passes")


def _random_state(run: Run) -> tuple[Tensor, Tensor | None]:
    on_cuda = run.device.device.type == "cuda"
    return torch.get_rng_state(), torch.cuda.get_rng_state() if on_cuda else None


def _set_random_state(run: Run, state: tuple[Tensor, Tensor | None]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])
