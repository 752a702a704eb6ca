"""Training, in order of time: batch, forward, backward, clip, learning rate, step; log, evaluate and save when due.

`train` is the lesson. Below it stand its parts, what happens every n steps, and what happens before the first step and
after the last (`train_to_the_end`). What a run holds, and what it does when memory runs out, is in train/run/run.py.
"""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from contextlib import ExitStack, closing, suppress
from functools import partial
from hashlib import sha256
from signal import Signals

import torch
import torch.distributed as dist
from torch import Tensor, nn

from configs.command import InputError
from data.batches import Batch
from train.machine.device import differences, exact_until
from train.machine.processes import add_up_gradients, full_tensor, stop_signals, sync_gradients, wrap
from train.objective import NextToken
from train.optimizer import lr_factor, set_learning_rate
from train.run.checkpoint import save_checkpoint
from train.run.metrics import Counts, StepFigures
from train.run.run import Run, losses, within_memory
from train.run.run_directory import log_sizes

EXIT_NON_FINITE = 3
SMALLEST_LOSS_SCALE = 1.0


class NonFiniteLoss(Exception):
    """The loss or the gradient is non-finite; the parameters are as they were before this step."""


class Stopped(Exception):
    """A signal that asks to stop came to one of the processes, and all of them know."""

    def __init__(self, number: int):
        self.number = number


def train(run: Run) -> None:
    """Take the steps that are left of the run. Raises Stopped or NonFiniteLoss between two of them."""
    config, state, device = run.config.train, run.state, run.device.device
    run.lm.train()  # as opposed to eval(): dropout is on
    run.meter.start()
    progress, is_last = agreed_progress(run), False
    upcoming = run.source.upcoming(state.step, run.config.max_steps or sys.maxsize, run.lm)
    with closing(upcoming), ExitStack() as first_step:
        first_step.enter_context(run.tracker.doing(f"step {state.step + 1:,}"))  # it warms up, and may take long
        while not is_last:
            # A batch: this process's share of the step's rows. A thread makes text ready ahead of time, so there is
            # nothing to wait for. Whether that is so is logged: a GPU that waits for data is half a GPU.
            before = time.perf_counter()
            with run.device.autocast():  # a source may let the model write
                batch = next(upcoming)
            waited = time.perf_counter() - before

            # How many tokens do all processes train on in this step? Its loss is divided by their number once, so that
            # every token weighs the same, whatever row, micro-batch or process it is in.
            counts = count(run, batch)
            scalars = {name: torch.tensor(value, device=device) for name, value in batch.figures.items()}
            scalars["loss"] = scalars["grad_norm"] = torch.tensor(math.nan, device=device)  # where nothing is trained

            if counts.trained:
                # Forward and backward: every parameter gets its gradient; again with fewer rows at a time where memory
                # runs out.
                passes = partial(forward_backward, run, batch, counts)
                sums = within_memory(run, passes, agree=run.world.memory is not None)
                sum_over_processes(run, sums)
                scalars |= {name: value / counts.trained for name, value in sums.items()}

                # Clip: one strange batch must not throw the weights far away. A gradient that is longer than
                # grad_clip keeps its direction and gets this length.
                for optimizer in run.optimizers:
                    run.scaler.unscale_(optimizer)  # does nothing but in fp16
                longest = config.grad_clip or math.inf  # 0: only measure
                scalars["grad_norm"] = full_tensor(nn.utils.clip_grad_norm_(run.lm.parameters(), longest))

            # The learning rate is a function of progress alone, so there is nothing to save and nothing to restore.
            lr = set_learning_rate(run.optimizers, lr_factor(run.config, state.step, progress))

            # The step: optimizers move the parameters against their gradients. If there was nothing to learn, nothing
            # moves, not even by momentum and weight decay; nor if loss or gradient is NaN, which would spread to all.
            if counts.trained and may_step(run, scalars["loss"], scalars["grad_norm"]):
                for optimizer in run.optimizers:
                    optimizer.step()
            # Small gradients would be 0 in fp16, so the loss is multiplied by a large number before the backward pass
            # (Micikevicius et al. 2018, arXiv 1710.03740). Where a gradient overflowed, no step was taken, and the
            # number is halved for the next one.
            if counts.trained and run.scaler.is_enabled():
                scalars["loss_scale"] = torch.tensor(run.scaler.get_scale(), device=device)
                run.scaler.update()
            run.lm.zero_grad()  # or the next backward pass would add to these gradients

            # Log, evaluate and save when it is time. Figures stay on the device until they are needed: reading one
            # makes the CPU wait for all that the GPU still has to do.
            first_step.close()
            figures = StepFigures(state.step, lr, counts, waited, scalars)
            run.meter.add(figures)
            if config.trace:
                append_trace(run, batch, figures)
            state.step += 1
            state.lr = lr
            state.tokens += counts.tokens
            progress = agreed_progress(run)
            is_last = progress >= 1
            read_figures(run, is_last)
            if not is_last:
                evaluate_and_save(run)


def forward_backward(run: Run, batch: Batch, counts: Counts) -> dict[str, Tensor]:
    """Forward and backward, one micro-batch after the other, because not all rows of a step fit into memory at once.

    Gradients add up in each parameter's `.grad`. Returns the sums of the loss and of the other figures, scalars on the
    device.
    """
    sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=run.device.device))
    micro_batches = batch.to(run.device.device).split(run.state.micro_rows)
    # The loss of a step is its sum / its count, whatever micro-batches and processes there are. DDP and FSDP2 divide
    # gradients by the number of processes, so the loss is multiplied by it.
    processes = 1 if run.world.memory is not None else run.world.size
    for number, micro_batch in enumerate(micro_batches, start=1):
        if processes > 1:  # DDP's and FSDP2's gradients travel once a step, in the last backward pass
            sync_gradients(run.state.forward, run.lm, run.world, wanted=number == len(micro_batches))
        # auxiliary losses are means over real tokens, the loss is one over what is trained: both are divided by that
        share = counts.trained / max(1, counts.tokens)
        minimised, figures = losses(run, run.state.forward, micro_batch, share)
        run.scaler.scale(minimised * (processes / counts.trained)).backward()
        for name, value in figures.items():
            sums[name] += value.detach()
    return sums


# ---------------------------------------------------------------------------------------------------------
# parts of a step


def count(run: Run, batch: Batch) -> Counts:
    """What the processes must agree on before a step: counted on the CPU, so that none waits for its GPU.

    Raises Stopped in all of them if a signal came to one.
    """
    signal = run.state.stop_signal()
    *counts, stopping = run.world.sum(
        run.objective.count(batch), *batch.token_count(run.data.tokenizer.pad_id), int(signal > 0)
    )
    if stopping:
        raise Stopped(max(run.world.gather(signal)))
    return Counts(*counts)


def sum_over_processes(run: Run, sums: dict[str, Tensor]) -> None:
    """Figures become those of all processes. On the cores of a CPU gradients do too; DDP and FSDP2 do it themselves."""
    if run.world.memory is not None:
        add_up_gradients(run.lm, run.world.memory, sums.values())
    elif run.world.size > 1:
        for value in sums.values():
            dist.all_reduce(value)


def may_step(run: Run, loss: Tensor, grad_norm: Tensor) -> bool:
    """Whether optimizers may move the parameters: loss and gradient are finite.

    On a GPU nobody waits for the answer. Optimizers get it as `found_inf` and do nothing at 1; the loop reads the
    number of these steps later, and one too many stops all that follow.
    """
    is_finite = loss.isfinite() & grad_norm.isfinite()
    if not run.gates_on_device:
        return bool(is_finite)
    run.state.non_finite += ~is_finite
    stay = ~is_finite | (run.state.non_finite > run.config.train.skip_non_finite)
    for optimizer in run.optimizers:
        optimizer.found_inf = stay.float()  # type: ignore[attr-defined]
    return True


def agreed_progress(run: Run) -> float:
    """Share of the run that is over; under max_minutes by the first process's clock."""
    run.state.seconds = time.perf_counter() - run.state.started
    progress = run.config.progress(run.state.step, run.state.seconds)
    return progress if run.config.max_steps is not None else run.world.on_rank0(lambda: progress)


def append_trace(run: Run, batch: Batch, figures: StepFigures) -> None:
    """A line of trace.jsonl, which proves two runs equal to the last bit (`train.trace: true`): sha256 of the whole
    batch, and the figures as hexadecimal floats. It waits for the device at every step, so it is not always on."""
    rows = zip(batch.row_ids, *(tensor.cpu().numpy() for tensor in batch.tensors.values()), strict=True)
    hashes = [sha256(str(number).encode() + b"".join(a.tobytes() for a in row)).hexdigest() for number, *row in rows]
    everywhere = "".join(row_hash for share in run.world.gather(hashes) for row_hash in share)
    exact = {name: float(figures.scalars[name]).hex() for name in ("loss", "grad_norm")} | {"lr": figures.lr.hex()}
    record = {"step": figures.step + 1, "batch": sha256(everywhere.encode()).hexdigest(), **exact}
    run.tracker.append(run.config.directory / "trace.jsonl", record)


# ---------------------------------------------------------------------------------------------------------
# what happens every n steps


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


def evaluate_and_save(run: Run, is_last: bool = False) -> None:
    """What is due after a step, and everything after the last; if a run is resumed, only what was not done yet.

    A validation loss that is better than any before makes this the best step.
    """
    state, config = run.state, run.config
    if is_last:  # before the evaluation, which may take long
        save(run, needed=True)
    if state.evaluated_at != state.step and run.hooks.are_due(state.step, is_last):
        state.saved_at = None  # what the hooks find is not in the checkpoint of this step, if there is one
        what = "the last evaluation" if is_last else "evaluating"
        with run.tracker.doing(what, run.meter, "eval_s"), run.device.autocast():
            loss = run.hooks.run(run.event(is_last))
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


# ---------------------------------------------------------------------------------------------------------
# the beginning and the end


def train_to_the_end(run: Run) -> int:
    """Train from run.state to the end of the run. Returns the exit code: 0, 3 (non-finite), 128 + signal."""
    state = run.state
    state.started = time.perf_counter() - state.seconds  # from here, so that compiling counts
    was_over = run.config.progress(state.step, state.seconds) >= 1  # only its last evaluation may be missing
    with stop_signals() as state.stop_signal:
        try:
            try:
                if run.device.compile:
                    from train.machine.compilation import (
                        compile_and_try,  # an optional subject: it takes long to import
                    )

                    compile_and_try(run, state.stop_signal)
                if run.world.size > 1 and run.world.memory is None:
                    state.forward = wrap(state.forward, run.world, run.device.device)
                if state.before and run.config.max_steps and (what := differences(state.before, state.resolved)):
                    state.breaks.append({"step": state.step, "what": what})
                    run.tracker.say(exact_until(state.breaks[-1]))  # under a clock it never is
                if state.step == 0:
                    report_initial_loss(run)
                if not was_over:
                    report_rising_rate(run)
                    evaluate_and_save(run)  # at the start, or when a signal came just before it
                    train(run)  # if compiling took all the minutes, it still takes one step
                evaluate_and_save(run, is_last=True)
                return 0
            except Stopped as stop:
                save(run, needed=True)
                run.tracker.say(f"stopped at step {state.step:,}; the same command continues from here")
                show_stop(run, f"Stopped at step {state.step:,}, which is saved, by {Signals(stop.number).name}.")
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
            torch.use_deterministic_algorithms(False)  # compiling asks for them
            state.forward = run.lm  # DDP must not outlive the connection of the processes: its end would wait forever


def show_stop(run: Run, why: str) -> None:
    """The hooks that show the run say why it stops. An error on the way out would hide the one that led here."""
    with suppress(Exception):
        run.hooks.on_rank0("stop", run.event(is_last=False), why)


def report_rising_rate(run: Run) -> None:
    """Say so where a run that was made longer goes back to a higher learning rate than it had."""
    config, state = run.config, run.state
    progress = config.progress(state.step, state.seconds)
    # the rate of the next step, which the loop sets again before it takes the step
    lr = set_learning_rate(run.optimizers, lr_factor(config, state.step, progress))
    if state.lr is not None and lr > state.lr and state.step >= config.train.warmup_steps:
        rise = f"rises again from {state.lr:#.2g} to {lr:#.2g}"
        run.tracker.say(f"the learning rate follows the new length of the run: it {rise}")


@torch.no_grad()
def report_initial_loss(run: Run) -> None:
    """The loss before the first step. An untrained model should find every token equally likely."""

    def measure() -> tuple[Tensor, int]:
        with run.device.autocast():
            parts = run.source.batch(0, run.lm).split(min(8, run.state.micro_rows))
            batch = next((part for part in parts if run.objective.count(part)), parts[0])
            loss_sum, _ = run.objective.loss(run.lm, batch.to(run.device.device))
        return loss_sum, run.objective.count(batch)

    run.lm.eval()
    loss_sum, counted = within_memory(run, measure)
    if counted:  # where all answers to a question earn the same, there is nothing to learn
        vocabulary, is_plain = run.data.tokenizer.vocab_size, isinstance(run.objective, NextToken)
        expected = f", and ln(vocabulary {vocabulary:,}) = {math.log(vocabulary):.4f}" if is_plain else ""
        run.tracker.say(f"step 0: loss {float(loss_sum) / counted:.4f}{expected}")
