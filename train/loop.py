"""The training loop: batch -> loss -> gradients -> optimizer step, and what happens every n steps."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress

import torch

from configs.command import InputError
from train import trace
from train.machine.compilation import compiled, in_fixed_order
from train.machine.device import differences, exact_until
from train.machine.distributed import wrap
from train.machine.signals import signal_in_words, stop_signals
from train.meters import Reading, spike_median
from train.objective import NextToken
from train.run import Run
from train.saving.atomic_save import SaveError
from train.saving.checkpoint import save_checkpoint
from train.saving.run_directory import log_sizes
from train.step import count, training_step, within_memory

EXIT_NON_FINITE = 3
Signal = Callable[[], int]  # the signal that this process got, 0 = none


class NonFiniteLoss(Exception):
    """The loss or the gradient is non-finite; the parameters are as they were before this step."""


class Stopped(Exception):
    """A signal that asks to stop came to one of the processes, and all of them know."""

    def __init__(self, number: int):
        self.number = number


def train(run: Run) -> int:
    """Train from run.state to the end of the run. Returns the exit code: 0, 3 (non-finite), 128 + signal."""
    state = run.state
    state.started = time.perf_counter() - state.seconds  # from here, so that compiling counts
    with stop_signals() as stopped, in_fixed_order(run):
        try:
            try:
                forward = compiled(run, stopped) if run.device.compile else run.lm
                state.forward = wrap(forward, run.world, run.device.device) if run.world.size > 1 else forward
                say_if_inexact(run)
                _train(run, stopped)
                return 0
            except Stopped as stop:
                save(run, needed=True, at_stop=True)
                run.tracker.say(f"stopped at step {state.step:,}; the same command continues from here")
                show_stop(run, f"Stopped at step {state.step:,}, which is saved, by {signal_in_words(stop.number)}.")
                return 128 + stop.number
        except NonFiniteLoss as error:
            run.tracker.say(f"stopped: {error}")
            show_stop(run, f"Stopped: {error}")
            return EXIT_NON_FINITE
        except BaseException as error:
            lines = str(error).splitlines() or [""]
            show_stop(run, f"Stopped after step {state.step:,} by an error: {type(error).__name__}: {lines[0]}")
            raise
        finally:
            state.forward = run.lm  # DDP must not outlive the connection of the processes: its end would wait forever


def _train(run: Run, stopped: Signal) -> None:
    config, state = run.config, run.state
    was_over = config.progress(state.step, state.seconds) >= 1
    if state.step == 0:
        report_initial_loss(run)
    if not was_over:
        evaluate_and_save(run, stopped)  # at the start, or when a signal came just before it
    run.lm.train()
    progress = agreed_progress(run)
    upcoming = run.source.upcoming(state.step, config.max_steps or sys.maxsize, run.lm)
    with closing(upcoming), ExitStack() as first_step:
        first_step.enter_context(run.tracker.doing(f"step {state.step + 1:,}"))
        is_last = was_over  # and not progress >= 1: if compiling took all the minutes, one step is still taken
        while not is_last:
            before = time.perf_counter()
            with run.device.autocast():  # a source may let the model write
                batch = next(upcoming)
            waited = time.perf_counter() - before
            counts = count(run, batch, stopped())
            if counts.signal:
                raise Stopped(counts.signal)
            is_logged = _due(state.step + 1, config.train.log_every)
            figures = training_step(run, batch, counts, progress, waited, is_logged)
            first_step.close()
            state.step += 1
            state.hooks_done = []  # of the step before, if a signal cut its hooks short and they are due no more
            state.tokens += counts.tokens
            run.meter.add(figures)
            if config.train.trace:
                trace.append(run, batch, figures)
            progress = agreed_progress(run)
            is_last = progress >= 1
            read_figures(run, is_last)
            if not is_last:
                evaluate_and_save(run, stopped)
    complete(run, stopped)


def say_if_inexact(run: Run) -> None:
    """Say and note that a resumed run computes otherwise from here, if it does. A clock is never exact anyway."""
    state = run.state
    if (what := differences(state.before, state.resolved)) and run.config.max_steps is not None:
        state.breaks.append({"step": state.step, "what": what})
        run.tracker.say(exact_until(state.breaks[-1]))


def show_stop(run: Run, why: str) -> None:
    """The hooks that show the run say why it stops. An error on the way out would hide the one that led here."""
    with suppress(Exception):
        run.owner.check()  # somebody else's folder, or none, is left alone
        run.hooks.stop(run.event(is_last=False), why)


def evaluate_and_save(run: Run, stopped: Signal) -> None:
    """After a step that is not the last: what is due. A resumed run catches up on what a signal cut short."""
    state, train = run.state, run.config.train
    if state.evaluated_at != state.step and run.hooks.are_due(state.step):
        evaluate(run, stopped)
        state.saved_at = None  # of this step there may be a checkpoint that a signal caused; it has no evaluation
    is_new_best = train.keep_best and state.best_step == state.step
    if state.step and (_due(state.step, train.checkpoint_every) or is_new_best):
        save(run, needed=False)


def complete(run: Run, stopped: Signal) -> None:
    """After the last step: save, evaluate, save what that found. A signal may come between any two of these."""
    state = run.state
    save(run, needed=True)
    raise_if_stopped(run, stopped)
    if state.evaluated_at != state.step and run.hooks.are_due(state.step, is_last=True):
        evaluate(run, stopped, is_last=True)
        save(run, needed=True)
    raise_if_stopped(run, stopped)


def read_figures(run: Run, is_last: bool) -> None:
    """Read losses off the device where they are needed now, look at them, show and log them."""
    config, state, meter = run.config, run.state, run.meter
    logs = is_last or _due(state.step, config.train.log_every)
    is_read = logs or run.hooks.are_due(state.step) or _due(state.step, config.train.checkpoint_every)
    if run.gates_on_device and not is_read:
        return
    for reading in meter.read_device():
        examine(run, reading)
    assert meter.last is not None
    loss = f"{meter.last.loss:.3f}" if meter.last.figures.trained else "none"
    lr = f"{meter.last.figures.lr:.1e}"
    run.tracker.progress(state.step, state.seconds, loss=loss, lr=lr, tok_s=f"{meter.tokens_per_s:,.0f}")
    if logs:
        run.check_owner()
        run.tracker.log("train", state.step, state.tokens, state.seconds, meter.line())
    say_how_long(run)


def say_how_long(run: Run) -> None:
    """Once, as soon as a few steps show it: the minutes to expect. train.doctor says them without a run."""
    left = (run.config.max_steps or 0) - run.state.step
    if left <= 0 or run.meter.pace_is_said or (seconds := run.meter.seconds_a_step()) is None:
        return
    run.meter.pace_is_said, minutes = True, left * seconds / 60
    time_left = f"{minutes:.1f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"
    stop = "; Ctrl-C stops and saves" if minutes > 30 else ""
    run.tracker.say(
        f"step {run.state.step:>6,}   about {time_left} of training to go ({seconds:.3g} s a step); evaluations and "
        f"checkpoints come on top{stop}"
    )


def examine(run: Run, reading: Reading) -> None:
    """Log a step that was skipped, or whose loss stands out. Raises NonFiniteLoss if it is one too many."""
    figures, state = reading.figures, run.state
    if not figures.trained:  # answers that all earned the same, a row of padding, or of a first token alone
        return
    rows = f"rows {figures.rows[0]} to {figures.rows[1]}"
    values = {"loss": reading.loss, "grad_norm": reading.grad_norm, "rows": list(figures.rows)}
    if not (math.isfinite(reading.loss) and math.isfinite(reading.grad_norm)):
        state.skipped += 1
        run.tracker.log("skipped", figures.step + 1, state.tokens, state.seconds, values)
        what = f"loss {reading.loss}, gradient norm {reading.grad_norm} at step {figures.step:,} ({rows})"
        if state.skipped > run.config.train.skip_non_finite:
            raise NonFiniteLoss(
                f"{what}; no step was taken. Lower train.optimizer.lr, train with precision fp32, look at these rows, "
                f"or skip them with train.skip_non_finite={state.skipped}"
            )
        run.tracker.say(f"skipped: {what}")
        return
    median = spike_median(state.spikes["losses"], reading.loss)
    if median is not None:
        run.tracker.log("spike", figures.step + 1, state.tokens, state.seconds, values)
        before = f"around {median:.4f} before"
        run.tracker.say(f"step {figures.step + 1:>6,}   loss spike: {reading.loss:.4f}, {before} ({rows})")


def agreed_progress(run: Run) -> float:
    """Share of the run that is over; under max_minutes by the first process's clock."""
    run.state.seconds = time.perf_counter() - run.state.started
    progress = run.config.progress(run.state.step, run.state.seconds)
    if run.config.max_steps is None and run.world.size > 1:
        (parts,) = run.world.sum(int(progress * 2**40) if run.world.is_first else 0)
        return parts / 2**40
    return progress


def raise_if_stopped(run: Run, stopped: Signal) -> None:
    """Raises Stopped in every process if one of them got a signal."""
    if number := max(run.world.gather(stopped())):
        raise Stopped(number)


def evaluate(run: Run, stopped: Signal, is_last: bool = False) -> None:
    """Run the hooks in every process. A validation loss that is better than any before makes this the best step.

    Raises Stopped if a signal came; hooks that ran before it are not run again when the run resumes.
    """
    state, tokens = run.state, run.config.eval.max_tokens
    raise_if_stopped(run, stopped)
    run.check_owner()
    state.saved_at = None  # what the hooks find is not in the checkpoint of this step, if there is one
    what = "the last evaluation" if is_last else "evaluating"
    with run.meter.apart("eval_s"), run.tracker.doing(what), run.device.autocast():
        loss, is_complete = run.hooks.run(run.event(is_last), state.hooks_done, stopped)
    if state.step and loss is not None and math.isfinite(loss):
        best = state.best_loss if state.best_tokens == tokens else None
        if best is None or not math.isfinite(best) or loss < best:
            state.best_loss, state.best_step, state.best_tokens = loss, state.step, tokens
    if not is_complete:
        raise_if_stopped(run, stopped)
    state.evaluated_at, state.hooks_done = state.step, []


@torch.no_grad()
def report_initial_loss(run: Run) -> None:
    """The loss before the first step. An untrained model should find every token equally likely."""

    def measure() -> tuple[torch.Tensor, int]:
        parts = run.first_batch().split(min(8, run.state.micro_rows))
        batch = next((part for part in parts if run.objective.count(part)), parts[0])
        with run.device.autocast():
            loss_sum, _ = run.objective.loss(run.lm, batch.to(run.device.device))
        return loss_sum, run.objective.count(batch)

    run.lm.eval()
    loss_sum, counted = within_memory(run, measure)
    expected, vocabulary = "", run.data.tokenizer.vocab_size
    if isinstance(run.objective, NextToken):
        expected = f", and ln(vocabulary {vocabulary:,}) = {math.log(vocabulary):.4f}"
    loss = float(loss_sum) / counted if counted else math.nan
    run.tracker.say(f"step 0: loss {loss:.4f}{expected}")


def save(run: Run, needed: bool, at_stop: bool = False) -> None:
    """Write a checkpoint. If it cannot be written, say so; if it is the last one, raise InputError.

    at_stop: a signal came; unless it is time for a checkpoint anyway, the next one will replace it.
    """
    state = run.state
    if state.saved_at == state.step:
        return
    for reading in run.meter.read_device():  # nothing is saved before its loss was looked at
        examine(run, reading)
    run.check_owner()
    state.seconds = time.perf_counter() - state.started
    is_between = not _due(state.step, run.config.train.checkpoint_every)
    state.at_stop = at_stop and is_between and run.config.progress(state.step, state.seconds) < 1
    state.logged = log_sizes(run.config.directory)
    state.wandb_id, state.scaler = run.tracker.wandb_id, run.scaler.state_dict()
    try:
        with run.meter.apart("save_s"), run.tracker.doing("saving"):
            checkpoints, train = run.config.directory / "checkpoints", run.config.train
            if not checkpoints.is_dir():
                run.tracker.say(f"warning: {checkpoints} was moved or deleted; it is made again for this checkpoint")
            kept = (train.keep_last, train.keep_best)
            opened = (run.lm, run.optimizers, run.data.tokenizer, state)
            save_checkpoint(checkpoints, *opened, *kept, run.world, run.source.kept(state.step))
        state.saved_at = state.step
    except SaveError as error:
        run.check_owner()
        if needed:
            raise InputError(str(error)) from None
        run.tracker.say(f"warning: {error}; training continues")


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
