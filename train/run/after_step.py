"""After a step: log, evaluate and save when it is time, and stop a run whose loss is no number any more."""

from __future__ import annotations

import math
import time

from configs.command import InputError
from data.batches import Batch
from train.run.checkpoint import save_checkpoint
from train.run.metrics import StepFigures, append_trace
from train.run.run import Run
from train.run.run_directory import log_sizes

SMALLEST_LOSS_SCALE = 1.0  # An overflow at this scale is a fault of the run, not of the scale.


class NonFiniteLoss(Exception):
    """The loss or the gradient is non-finite; the parameters are as they were before this step."""


def after_step(run: Run, batch: Batch, figures: StepFigures) -> bool:
    """Log, evaluate and save when it is time. Returns whether the run is over.

    Figures stay on the device until they are needed: reading one waits for all that the GPU still has to do.
    """
    state = run.state
    run.tracker.first_step_is_taken()
    run.meter.add(figures)
    if run.config.train.trace:
        append_trace(run.tracker, run.world, run.directory, batch, figures)
    state.step += 1
    state.lr = figures.lr
    state.tokens += figures.counts.tokens
    state.progress = agreed_progress(run)
    is_over = state.progress >= 1
    read_figures(run, is_over)
    if not is_over:
        evaluate_and_save(run)
    return is_over


def read_figures(run: Run, is_last: bool) -> None:
    """Read losses off the device where they are needed now, look at them, show and log them."""
    config, state, meter = run.config, run.state, run.meter
    logs = is_last or state.step % config.train.log_every == 0
    if run.gates_on_device and not logs and not run.hooks.are_due(state.step):
        return
    for figures in meter.read_device():
        examine(run, figures)
    assert meter.last is not None
    loss = f"{meter.last.values['loss']:.3f}" if meter.last.counts.trained else "none"
    lr = f"{meter.last.lr:.1e}"
    run.tracker.progress(state.step, state.seconds, loss=loss, lr=lr, tok_s=f"{meter.tokens / meter.seconds():,.0f}")
    if logs:
        run.tracker.log("train", state.step, state.tokens, state.seconds, meter.line())


def examine(run: Run, figures: StepFigures) -> None:
    """Log a step that was skipped. Raises NonFiniteLoss if it is one too many."""
    state, loss, grad_norm = run.state, figures.values["loss"], figures.values["grad_norm"]
    # nothing is trained on answers that all earned the same, on a row of padding, or of a first token alone
    if not figures.counts.trained or (math.isfinite(loss) and math.isfinite(grad_norm)):
        return
    if math.isfinite(loss) and figures.values.get("loss_scale", 0.0) > SMALLEST_LOSS_SCALE:
        return  # the scale was too large for a gradient of fp16, and the next one is smaller
    state.skipped += 1
    first_row = figures.step * run.source.rows_per_batch
    rows = [first_row, first_row + run.source.rows_per_batch - 1]
    record = {"loss": loss, "grad_norm": grad_norm, "rows": rows}
    run.tracker.log("skipped", figures.step + 1, state.tokens, state.seconds, record)
    what = f"loss {loss}, gradient norm {grad_norm} at step {figures.step:,} (rows {rows[0]} to {rows[1]})"
    if state.skipped > run.config.train.skip_non_finite:
        raise NonFiniteLoss(
            f"{what}; no step was taken. Lower train.optimizer.lr, use train.precision=fp32, look at these rows, or "
            f"skip them with train.skip_non_finite={state.skipped}"
        )
    run.tracker.say(f"skipped: {what}")


def evaluate_and_save(run: Run) -> None:
    """Do what is due after a step, and everything after the last; if a run is resumed, only what was not done yet.

    A validation loss that is better than any before makes this the best step.
    """
    state, config, is_last = run.state, run.config, run.state.is_last
    if is_last:  # before the evaluation, which may take long
        save(run, needed=True)
    if state.evaluated_at != state.step and run.hooks.are_due(state.step, is_last):
        state.saved_at = None  # what the hooks find is not in the checkpoint of this step, if there is one
        what = "the last evaluation" if is_last else "evaluating"
        with run.tracker.doing(what, run.meter, "eval_s"), run.device.autocast():
            loss = run.hooks.run(run)
        best = state.best_loss if state.best_tokens == config.eval.max_tokens else None
        if state.step and loss is not None and math.isfinite(loss) and (best is None or loss < best):
            state.best_loss, state.best_step, state.best_tokens = loss, state.step, config.eval.max_tokens
        state.evaluated_at = state.step
    every = config.train.checkpoint_every
    is_new_best = config.train.keep_best and state.best_step == state.step
    if is_last or (state.step and ((every and state.step % every == 0) or is_new_best)):
        save(run, needed=is_last)


def save(run: Run, needed: bool) -> None:
    """Write a checkpoint, if there is none of this step. If it cannot be written, say so, or raise InputError if it is
    needed."""
    state, config = run.state, run.config.train
    if state.saved_at == state.step:
        return
    for figures in run.meter.read_device():  # nothing is saved before its loss was looked at
        examine(run, figures)
    state.seconds = time.perf_counter() - state.started
    state.logged, state.scaler = log_sizes(run.config.directory), run.scaler.state_dict()
    opened = (run.config.directory / "checkpoints", run.lm, run.optimizers, run.data.tokenizer, state)
    try:
        with run.tracker.doing("saving", run.meter, "save_s"):
            source_state = run.source.state_tensors(state.step)
            save_checkpoint(*opened, config.keep_last, config.keep_best, run.world, source_state)
        state.saved_at = state.step
    except InputError as error:
        if needed:
            raise
        run.tracker.say(f"warning: {error}; training continues")


def agreed_progress(run: Run) -> float:
    """Return the share of the run that is over; under max_minutes by the clock of rank 0."""
    run.state.seconds = time.perf_counter() - run.state.started
    progress = run.config.progress(run.state.step, run.state.seconds)
    return progress if run.config.max_steps is not None else run.world.on_rank0(lambda: progress)
