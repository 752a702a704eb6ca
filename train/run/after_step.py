"""After a step: log, evaluate and save when it is time, and stop a run whose loss is not finite."""

from __future__ import annotations

import math
import time

from configs.command import InputError
from data.batches import Batch
from train.run.checkpoint import save_checkpoint
from train.run.metrics import StepFigures, append_trace
from train.run.run import Run
from train.run.run_directory import log_sizes

# An overflow at this scale or a smaller one is the fault of the run.
SMALLEST_LOSS_SCALE = 1.0


class NonFiniteLoss(Exception):
    """The loss or the gradient is non-finite; the parameters are as they were before this step."""


def after_step(run: Run, batch: Batch, figures: StepFigures) -> bool:
    """Log, evaluate and save when due. Returns True if the run is over."""
    state = run.state
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
    return is_over or state.step == state.until


def agreed_progress(run: Run) -> float:
    """Return the share of the run that is over, the same in all processes."""
    run.state.seconds = time.perf_counter() - run.state.started
    progress = run.config.progress(run.state.step, run.state.seconds)
    if run.config.max_steps is not None:
        return progress
    # Clocks differ. If one process went on and another stopped, the first would wait forever.
    return run.world.on_rank0(lambda: progress)


def read_figures(run: Run, is_last: bool) -> None:
    """Read losses off the device if they are needed now, and check, show and log them."""
    config = run.config
    state = run.state
    meter = run.meter
    logs = is_last or state.step % config.train.log_every == 0
    # Reading a figure waits for the GPU, which then waits for the CPU to queue the next step.
    if run.gates_on_device and not logs and not run.hooks.are_due(state.step):
        return
    for figures in meter.read_device():
        check_finite(run, figures)
    last = meter.last
    assert last is not None
    run.tracker.progress(
        state.step,
        state.seconds,
        loss=f"{last.values['loss']:.3f}" if last.counts.trained else "none",
        lr=f"{last.lr:.1e}",
        tok_s=f"{meter.tokens / meter.seconds():,.0f}",
    )
    if logs:
        run.tracker.log("train", state.step, state.tokens, state.seconds, meter.line())


def check_finite(run: Run, figures: StepFigures) -> None:
    """Log a step that was skipped. Raises NonFiniteLoss if it is one too many."""
    if not figures.counts.trained:  # in GRPO all answers earned the same, or a row is padding
        return
    loss = figures.values["loss"]
    grad_norm = figures.values["grad_norm"]
    if math.isfinite(loss) and math.isfinite(grad_norm):
        return
    if math.isfinite(loss) and figures.values.get("loss_scale", 0.0) > SMALLEST_LOSS_SCALE:
        return  # fp16's scale was too large for a gradient; this is normal, and it gets smaller
    state = run.state
    state.skipped += 1
    first = figures.step * run.source.rows_per_batch
    last = first + run.source.rows_per_batch - 1
    record = {"loss": loss, "grad_norm": grad_norm, "rows": [first, last]}
    run.tracker.log("skipped", figures.step + 1, state.tokens, state.seconds, record)
    problem = f"loss {loss}, gradient norm {grad_norm} at step {figures.step:,}"
    problem += f" (rows {first} to {last})"
    if state.skipped > run.config.train.skip_non_finite:
        raise NonFiniteLoss(
            f"{problem}; no step was taken. Lower train.optimizer.lr, use train.precision=fp32, "
            f"look at these rows, or skip them with train.skip_non_finite={state.skipped}"
        )
    run.tracker.say(f"skipped: {problem}")


def evaluate_and_save(run: Run) -> None:
    """Do what is due after a step, and everything after the last one, unless it is done already."""
    state = run.state
    config = run.config
    is_last = state.is_last
    if is_last:  # first, because the evaluation may take long, or fail
        save(run, needed=True)
    if state.evaluated_at != state.step and run.hooks.are_due(state.step, is_last):
        state.saved_at = None  # a checkpoint of this step has no results of these hooks
        name = "the last evaluation" if is_last else "evaluating"
        with run.tracker.doing(name, run.meter, "eval_s"), run.device.autocast():
            loss = run.hooks.run(run)
        # Losses on another number of held-out tokens cannot be compared.
        comparable = state.best_tokens == config.eval.max_tokens
        best = state.best_loss if comparable and state.best_loss is not None else math.inf
        if state.step and loss is not None and loss < best:
            state.best_loss = loss
            state.best_step = state.step
            state.best_tokens = config.eval.max_tokens
        state.evaluated_at = state.step
    every = config.train.checkpoint_every
    is_due = every and state.step % every == 0
    is_new_best = config.train.keep_best and state.best_step == state.step
    if is_last or (state.step and (is_due or is_new_best)):
        save(run, needed=is_last)


def save(run: Run, needed: bool) -> None:
    """Write a checkpoint, unless this step has one. needed: raise InputError if that fails."""
    state = run.state
    config = run.config.train
    if state.saved_at == state.step:
        return
    for figures in run.meter.read_device():  # save no weights whose loss was not checked
        check_finite(run, figures)
    state.seconds = time.perf_counter() - state.started
    # A resume cuts the logs back to these sizes, and writes the later lines again.
    state.logged = log_sizes(run.directory)
    state.scaler = run.scaler.state_dict()
    try:
        with run.tracker.doing("saving", run.meter, "save_s"):
            save_checkpoint(
                run.directory / "checkpoints",
                run.lm,
                run.optimizers,
                run.tokenizer,
                state,
                config.keep_last,
                config.keep_best,
                run.world,
                run.source.state_tensors(state.step),
            )
        state.saved_at = state.step
    except InputError as error:
        # A full disk may have room again at the next save. The last one has no next.
        if needed:
            raise
        run.tracker.say(f"warning: {error}; training continues")
