"""A whole run: what happens before the first step, the loop, and what happens at its end."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from signal import Signals

import torch

from train.loop import Attempts, Stopped, train
from train.machine.device import differences, exact_until
from train.machine.distributed import wrap
from train.machine.signals import stop_signals
from train.objective import NextToken
from train.optimizer import lr_factor, set_learning_rate
from train.run.after_step import NonFiniteLoss, evaluate_and_save, save
from train.run.run import Run

EXIT_NON_FINITE = 3


def train_to_the_end(run: Run) -> int:
    """Train from run.state to the end, or to the next of the run's changes.

    Returns the exit code: 0, 3 (non-finite loss), or 128 + the number of a signal.
    """
    state = run.state
    state.started = time.perf_counter() - state.seconds  # max_minutes includes compiling
    with stop_signals() as state.stop_signal:
        try:
            return _train_to_the_end(run)
        except Stopped as stop:
            name = Signals(stop.number).name
            save(run, needed=True)
            run.tracker.say(f"stopped at step {state.step:,}; the same command continues from here")
            show_stop(run, f"Stopped at step {state.step:,}, which is saved, by {name}.")
            return 128 + stop.number
        except NonFiniteLoss as error:
            run.tracker.say(f"stopped: {error}")
            show_stop(run, f"Stopped: {error}")
            return EXIT_NON_FINITE
        except BaseException as error:
            # Any error at all, also SystemExit in a hook: the page always shows why a run is over.
            first_line = (str(error).splitlines() or [""])[0]
            problem = f"{type(error).__name__}: {first_line}"
            show_stop(run, f"Stopped after step {state.step:,} by an error: {problem}")
            raise
        finally:
            torch.use_deterministic_algorithms(False)  # compiling turns them on
            # Drop DDP while the processes are still connected, or its destructor waits forever.
            state.forward = run.lm.outputs


def _train_to_the_end(run: Run) -> int:
    state = run.state
    # A run that was over comes here again only if its last evaluation is missing.
    was_over = run.config.progress(state.step, state.seconds) >= 1
    if run.device.compile:
        from train.machine.compilation import compile_and_try  # takes seconds to import

        compile_and_try(run)
    if run.world.size > 1 and run.world.memory is None:
        state.forward = wrap(run.lm, run.world, run.device.device)
    if state.before and run.config.max_steps:  # under a clock, a resume is never exact
        changes = differences(state.before, state.resolved)
        if changes:
            state.breaks.append({"step": state.step, "what": changes})
            run.tracker.say(exact_until(state.breaks[-1]))
    if state.step == 0:
        report_initial_loss(run)
    if not was_over:
        report_rising_rate(run)
        evaluate_and_save(run)  # at the start, or when a signal came just before it
        train(run)
        # Not yet over: a change begins or ends here, and the next part starts from this checkpoint.
        if state.progress < 1:
            save(run, needed=True)
            # The loop looks for signals before a step. One may have come in its last step.
            signal = max(run.world.gather(state.stop_signal()))
            if signal:
                raise Stopped(signal)
            return 0
    state.is_last = True
    evaluate_and_save(run)
    return 0


def show_stop(run: Run, reason: str) -> None:
    """Let the hooks show why the run stops."""
    with suppress(Exception):  # an error here would hide the one that stopped the run
        run.hooks.on_rank0("stop", run, reason)


def report_rising_rate(run: Run) -> None:
    """Print a line if the learning rate rises again, because the run was made longer."""
    config = run.config
    state = run.state
    if config.changes:  # one of them may have set another rate
        return
    progress = config.progress(state.step, state.seconds)
    # The rate of the next step. (The loop sets it again before that step.)
    lr = set_learning_rate(run.optimizers, lr_factor(config, state.step, progress))
    if state.lr is not None and lr > state.lr and state.step >= config.train.warmup_steps:
        rise = f"it rises again from {state.lr:#.2g} to {lr:#.2g}"
        run.tracker.say(f"the learning rate follows the new length of the run: {rise}")


@torch.no_grad()
def report_initial_loss(run: Run) -> None:
    """Print the loss before the first step."""
    # A check: an untrained model finds every token equally likely, so it must be ln(vocabulary).
    # Another value means a wrong initialisation or wrong labels.
    run.lm.eval()
    for attempt in Attempts(run, agree=False):
        with attempt, run.device.autocast():
            parts = run.source.batch(0, run.lm).split(min(8, run.state.micro_rows))
            batch = next((part for part in parts if run.objective.count(part)), parts[0])
            loss_sum = run.objective.loss(run.lm.outputs, batch.to(run.device.device)).sum
            count = run.objective.count(batch)
    if count:  # in GRPO it is 0 if all answers earn the same
        message = f"step 0: loss {float(loss_sum) / count:.4f}"
        if isinstance(run.objective, NextToken):
            vocabulary = run.tokenizer.vocab_size
            message += f", and ln(vocabulary {vocabulary:,}) = {math.log(vocabulary):.4f}"
        run.tracker.say(message)
