"""The training loop: batch -> loss -> gradients -> optimizer step, and what happens every n steps."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import torch

from configs.loader import InputError
from eval.hooks import EvalEvent, run_hooks
from train import trace
from train.machine.compilation import compiled
from train.machine.distributed import wrap
from train.machine.memory import within_memory
from train.machine.signals import stop_signals
from train.meters import Meter, Reading
from train.run import Run
from train.saving.checkpoint import save_checkpoint
from train.saving.commit import SaveError
from train.step import count, training_step

EXIT_NON_FINITE = 3


class NonFiniteLoss(Exception):
    """The loss or the gradient is not a number any more; the parameters are as they were before this step."""


def train(run: Run) -> int:
    """Train from run.state to the end of the run. Returns the exit code: 0, 3 (non-finite), 130 / 143 (signal)."""
    run.started = time.perf_counter() - run.state.seconds  # from here, so that compiling counts
    with stop_signals() as stopped:
        run.forward = wrap(compiled(run, stopped), run.world, run.device.device)
        try:
            return _train(run, stopped)
        except NonFiniteLoss as error:
            run.tracker.say(f"stopped: {error}")
            return EXIT_NON_FINITE
        finally:
            run.forward = run.lm  # DDP must not outlive the processes' connection: its end would wait for ever


def _train(run: Run, stopped: Callable[[], int]) -> int:
    config, state, device = run.config, run.state, run.device.device
    meter = Meter(config, run.device, run.world.size)
    was_over = config.progress(state.step, state.seconds) >= 1
    if state.step == 0:
        report_initial_loss(run)
    if not was_over and state.evaluated_at != state.step and (state.step == 0 or _evaluation_is_due(run)):
        evaluate(run, meter, is_last=False)  # at the start, or when a signal came just before it
    run.lm.train()
    progress = agreed_progress(run)
    stop = config.max_steps or sys.maxsize
    upcoming = run.batches.prefetch(state.step, stop, device.type == "cuda", run.world.rank, run.world.size)
    with closing(upcoming):
        is_last = was_over  # and not progress >= 1: if compiling took all the minutes, one step is still taken
        while not is_last:
            before = time.perf_counter()
            batch = next(upcoming)
            waited = time.perf_counter() - before
            counts = count(run, batch, stopped())
            if counts.signal:
                return stop_for(run, meter, counts.signal)
            is_logged = _due(state.step + 1, config.train.log_every)
            figures = training_step(run, batch, counts, progress, waited, is_logged)
            state.step += 1
            state.tokens += counts.tokens
            meter.add(figures)
            if config.train.trace:
                trace.append(run, batch, figures)
            progress = agreed_progress(run)
            is_last = progress >= 1
            read_figures(run, meter, is_last)
            if not is_last:
                if _evaluation_is_due(run):
                    if signal_number := agreed_signal(run, stopped()):
                        return stop_for(run, meter, signal_number)
                    evaluate(run, meter, is_last=False)
                if _due(state.step, config.train.checkpoint_every) or _is_new_best(run):
                    save(run, meter, needed=False)
    return complete(run, meter, stopped)


def complete(run: Run, meter: Meter, stopped: Callable[[], int]) -> int:
    """After the last step: save, evaluate, save what that found. A signal may come between any two of these."""
    save(run, meter, needed=True)
    if signal_number := agreed_signal(run, stopped()):
        return stop_for(run, meter, signal_number)
    if run.state.evaluated_at != run.state.step:
        evaluate(run, meter, is_last=True)
        run.saved_at = None
        save(run, meter, needed=True)
    run.unlogged_s = sum(meter.elsewhere.values())
    if signal_number := agreed_signal(run, stopped()):
        return stop_for(run, meter, signal_number)
    return 0


def stop_for(run: Run, meter: Meter, signal_number: int) -> int:
    """Save, say so, and return the exit code for this signal."""
    save(run, meter, needed=True)
    run.tracker.say(f"stopped at step {run.state.step:,}; the same command goes on from here")
    return 128 + signal_number


def read_figures(run: Run, meter: Meter, is_last: bool) -> None:
    """Read losses off the device where they are needed now, look at them, show and log them."""
    config, state = run.config, run.state
    logs = is_last or _due(state.step, config.train.log_every)
    is_read = logs or _evaluation_is_due(run) or _due(state.step, config.train.checkpoint_every)
    if run.gates_on_device and not is_read:
        return
    for reading in meter.read_device():
        examine(run, reading)
    assert meter.last is not None
    loss, lr = f"{meter.last.loss:.3f}", f"{meter.last.figures.lr:.1e}"
    run.tracker.progress(state.step, state.seconds, loss=loss, lr=lr, tok_s=f"{meter.tokens_per_s:,.0f}")
    if logs:
        run.tracker.log("train", state.step, state.tokens, state.seconds, meter.line())


def examine(run: Run, reading: Reading) -> None:
    """Log a step that was passed over, or whose loss stands out. Raises NonFiniteLoss if it is one too many."""
    figures, state = reading.figures, run.state
    rows = f"rows {figures.rows[0]} to {figures.rows[1]}"
    values = {"loss": reading.loss, "grad_norm": reading.grad_norm, "rows": list(figures.rows)}
    if not reading.is_finite:
        state.skipped += 1
        run.tracker.log("skipped", figures.step + 1, state.tokens, state.seconds, values)
        what = f"loss {reading.loss}, gradient norm {reading.grad_norm} at step {figures.step:,} ({rows})"
        if state.skipped > run.config.train.skip_non_finite:
            raise NonFiniteLoss(
                f"{what}; no step was taken. Lower train.optimizer.lr, train with precision fp32, look at these rows, "
                f"or pass over them with train.skip_non_finite={state.skipped}"
            )
        run.tracker.say(f"passed over: {what}")
    elif run.spikes.is_spike(reading.loss):
        run.tracker.log("spike", figures.step + 1, state.tokens, state.seconds, values)
        before = f"around {run.spikes.median:.4f} before"
        run.tracker.say(f"step {figures.step + 1:>6,}   loss spike: {reading.loss:.4f}, {before} ({rows})")


def agreed_progress(run: Run) -> float:
    """Share of the run that is over; under max_minutes by the first process's clock."""
    run.state.seconds = time.perf_counter() - run.started
    progress = run.config.progress(run.state.step, run.state.seconds)
    if run.config.max_steps is None and run.world.size > 1:
        (parts,) = run.world.sum(int(progress * 2**40) if run.world.is_first else 0)
        return parts / 2**40
    return progress


def agreed_signal(run: Run, signal_number: int) -> int:
    """SIGINT or SIGTERM if any process got one, else 0."""
    everyone = run.world.gather(signal_number)
    return max(everyone)


def evaluate(run: Run, meter: Meter, is_last: bool) -> None:
    """Run the hooks in every process; a better validation loss than at any step before makes this the best one."""
    state, tracker = run.state, run.tracker
    found: dict[str, float] = {}

    def log(split: str, values: dict[str, Any]) -> None:
        tracker.log(split, state.step, state.tokens, state.seconds, values)
        if split == "val":
            shown = f"loss {values['loss']:.4f}   bits per byte {values['bits_per_byte']:.4f}"
            tracker.say(f"step {state.step:>6,}   val {shown}")
            found["loss"] = values.get("loss_comparable", values["loss"])
        elif split in ("questions", "questions_new_names"):
            shown = f"{values['exact_match']:.1%} of {values['asked']} answers right (chance {values['chance']:.1%})"
            tracker.say(f"step {state.step:>6,}   {split.replace('_', ' ')} {shown}")

    event = EvalEvent(
        step=state.step,
        tokens=state.tokens,
        seconds=state.seconds,
        is_last=is_last,
        lm=run.lm,
        data=run.data,
        held_out=run.held_out,
        data_config=run.config.data,
        config=run.config.eval,
        rows_per_batch=run.micro_rows * run.batches.rows.length // run.config.data.sequence_length,
        directory=run.config.directory,
        autocast=run.device.autocast,
        log=log,
        log_image=lambda name, path: tracker.log_image(name, path, state.step),
        writes=run.world.is_first,
        any_process=lambda failed: run.world.sum(int(failed)) != [0],
        kept=run.kept,
    )
    with meter.apart("eval_s"), run.device.autocast():
        run_hooks(event, run.hooks, run.switched_off, tracker.say)
    state.evaluated_at = state.step
    loss, tokens = run.world.first(lambda: found.get("loss")), run.config.eval.max_tokens
    is_comparable = state.best_tokens == tokens
    if state.step and loss is not None and (state.best_loss is None or not is_comparable or loss < state.best_loss):
        state.best_loss, state.best_step, state.best_tokens = loss, state.step, tokens


@torch.no_grad()
def report_initial_loss(run: Run) -> None:
    """An untrained model should find every token equally likely: its loss is ln(vocabulary)."""

    def measure() -> tuple[torch.Tensor, torch.Tensor]:
        batch = run.batches.batch(0).split(min(8, run.micro_rows))[0].to(run.device.device)
        with run.device.autocast():
            return run.lm(**batch.for_model())

    run.lm.eval()
    loss_sum, count = within_memory(run, measure)
    vocabulary = run.data.tokenizer.vocab_size
    run.tracker.say(
        f"step 0: loss {float(loss_sum / count.clamp(min=1)):.4f}, and ln(vocabulary {vocabulary:,}) = "
        f"{math.log(vocabulary):.4f}"
    )


def save(run: Run, meter: Meter, needed: bool) -> None:
    """Write a checkpoint. One that cannot be written is told of; if it is the last one, raises InputError."""
    state = run.state
    if run.saved_at == state.step:
        return
    for reading in meter.read_device():  # nothing is saved that has not been looked at
        examine(run, reading)
    state.seconds = time.perf_counter() - run.started
    state.wandb_id, state.spikes, state.scaler = run.tracker.wandb_id, run.spikes.state(), run.scaler.state_dict()
    try:
        with meter.apart("save_s"):
            save_checkpoint(
                run.config.directory / "checkpoints",
                run.lm,
                run.optimizers,
                run.data.tokenizer,
                state,
                run.config.train.keep_last,
                run.config.train.keep_best,
            )
        run.saved_at = state.step
    except SaveError as error:
        if needed:
            raise InputError(str(error)) from None
        run.tracker.say(f"warning: {error}; training goes on")


def _evaluation_is_due(run: Run) -> bool:
    return run.config.eval.is_due(run.state.step)


def _is_new_best(run: Run) -> bool:
    return run.config.train.keep_best and run.state.best_step == run.state.step


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
