"""Training, in order of time: batch, forward, backward, clip, learning rate, step; log, evaluate and save when due.

`train` is the lesson. Below it stand what happens before the first step and after the last (`train_to_the_end`), and
what happens every n steps. What a run holds, and what it does when memory runs out, is in train/run.py.
"""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections import defaultdict
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from configs.command import InputError
from data.batches import Batch
from train.machine.compilation import compiled, in_fixed_order
from train.machine.device import differences, exact_until
from train.machine.distributed import add_up_gradients, sync_gradients, whole, wrap
from train.machine.signals import STOP_SIGNALS, signal_in_words, stop_signals
from train.metrics import StepFigures, copies_of_weights, spike_median, update_ratios
from train.objective import NextToken
from train.optimizer import lr_factor, set_learning_rate
from train.run import Run, losses, within_memory
from train.saving.atomic_save import SaveError
from train.saving.checkpoint import save_checkpoint
from train.saving.run_directory import log_sizes

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
    progress, is_last = agreed_progress(run), False
    upcoming = run.source.upcoming(state.step, run.config.max_steps or sys.maxsize, run.lm)
    with closing(upcoming), ExitStack() as first_step:
        first_step.enter_context(run.tracker.doing(f"step {state.step + 1:,}"))
        while not is_last:
            # A batch. Text is made ready ahead of time by a thread, so this should cost nothing; `waited` is logged
            # because a GPU that waits for data is the most common way to lose half of its speed.
            before = time.perf_counter()
            with run.device.autocast():  # a source may let the model write
                batch = next(upcoming)
            waited = time.perf_counter() - before

            # Each process sees its share of the rows. How many tokens do all of them train on? The loss is divided by
            # that number, so that every token of the step weighs the same, wherever it is computed.
            counts = count(run, batch)
            if counts.signal:
                raise Stopped(counts.signal)
            scalars = {name: torch.tensor(value, device=device) for name, value in batch.figures.items()}
            scalars["loss"] = scalars["grad_norm"] = torch.tensor(math.nan, device=device)  # where nothing is trained

            if counts.trained:
                scale_before = run.scaler.state_dict()
                while True:
                    # Forward and backward: every parameter gets a gradient. If memory runs out, again with fewer rows
                    # at a time.
                    passes = partial(forward_backward, run, batch, counts)
                    sums = within_memory(run, passes, agree=run.world.on_cores)
                    sum_over_processes(run, sums)
                    # Clip: a rare batch with a huge gradient must not throw away what was learned. The direction
                    # stays, the length is at most grad_clip.
                    for optimizer in run.optimizers:
                        run.scaler.unscale_(optimizer)  # does nothing but in fp16
                    longest = config.grad_clip or math.inf  # 0: only measure
                    scalars["grad_norm"] = whole(nn.utils.clip_grad_norm_(run.lm.parameters(), longest))
                    if not overflowed(run, sums["loss"], scalars["grad_norm"], scale_before):
                        break
                    run.zero_grad()
                scalars |= {name: value / counts.trained for name, value in sums.items()}

            # The learning rate is a function of progress alone, so there is nothing to save and nothing to restore.
            lr = set_learning_rate(run.optimizers, lr_factor(run.config, state.step, progress))

            # The step: each optimizer moves its parameters against their gradients. A step that trained on nothing
            # moves nothing, not even by momentum and weight decay, and nor does one whose numbers are not finite.
            is_logged = _due(state.step + 1, config.log_every)
            weights_before = copies_of_weights(run.optimizers) if is_logged else []
            if counts.trained and may_step(run, scalars["loss"], scalars["grad_norm"]):
                for optimizer in run.optimizers:
                    optimizer.step()
            if is_logged:
                scalars |= update_ratios(run.optimizers, weights_before)
            run.zero_grad()  # or the next backward pass would add to these gradients

            # Count, log, evaluate, save.
            first_step.close()
            first_row = state.step * run.source.rows_per_batch
            rows = (first_row, first_row + run.source.rows_per_batch - 1)
            numbers = (counts.trained, counts.tokens, counts.positions, waited)
            figures = StepFigures(state.step, lr, *numbers, rows, scalars)
            run.meter.add(figures)
            if config.trace:
                append_trace(run, batch, figures)
            state.step += 1
            state.tokens += counts.tokens
            state.hooks_done = []  # of the step before, if a signal cut its hooks short and they are due no more
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
    processes = 1 if run.world.on_cores else run.world.size
    for number, micro_batch in enumerate(micro_batches, start=1):
        if run.world.size > 1:  # gradients travel between processes once a step, in the last backward pass
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


@dataclass(frozen=True)
class Counts:
    """Of one step, over all processes: what the objective counts, tokens without padding, positions.

    signal: the signal that asks to stop, if any process got one, else 0.
    """

    trained: int
    tokens: int
    positions: int
    signal: int


def count(run: Run, batch: Batch) -> Counts:
    """What the processes must agree on before a step: counted on the CPU, so that no process waits for a GPU."""
    signal_number = run.state.stop_signal()
    trained, tokens, positions, *received = run.world.sum(
        run.objective.count(batch),
        *batch.token_count(run.data.tokenizer.pad_id),
        *(int(signal_number == number) for number in STOP_SIGNALS),
    )
    stop = next((int(number) for number, got in zip(STOP_SIGNALS, received, strict=True) if got), 0)
    return Counts(trained, tokens, positions, signal=stop)


def sum_over_processes(run: Run, sums: dict[str, Tensor]) -> None:
    """Figures become those of all processes; on the cores of a CPU gradients too. DDP and FSDP2 have averaged theirs."""
    if run.world.memory is not None:
        add_up_gradients(run.lm, run.world.memory, sums.values())
    else:
        for value in sums.values():
            run.world.sum_tensor(value)


def overflowed(run: Run, loss: Tensor, grad_norm: Tensor, scale_before: dict[str, float]) -> bool:
    """Whether a gradient of fp16 overflowed because the loss was scaled too far; the scale is halved then.

    Small gradients would be 0 in fp16, so the loss is multiplied by a large number before the backward pass
    (Micikevicius et al. 2018, arXiv 1710.03740). An overflow costs time here, but no step.
    """
    if not run.scaler.is_enabled():
        return False
    again = bool(loss.isfinite()) and not bool(grad_norm.isfinite())
    run.scaler.update()
    if again and run.scaler.get_scale() < SMALLEST_LOSS_SCALE:  # no scale helps: it is the step, not the scale
        run.scaler.load_state_dict(scale_before)
        return False
    return again


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
    if run.config.max_steps is None and run.world.size > 1:
        (parts,) = run.world.sum(int(progress * 2**40) if run.world.is_first else 0)
        return parts / 2**40
    return progress


def append_trace(run: Run, batch: Batch, figures: StepFigures) -> None:
    """A line of trace.jsonl, which proves two runs equal to the last bit (`train.trace: true`): step, sha256 of the
    whole batch, and loss, gradient norm and learning rate as hexadecimal floats.

    It reads the loss off the device at every step, which is why it is not always on.
    """
    arrays = [tensor.cpu().numpy() for tensor in batch.tensors.values()]
    hashes = [
        hashlib.sha256(str(number).encode() + b"".join(a.tobytes() for a in row)).hexdigest()
        for number, *row in zip(batch.row_ids, *arrays, strict=True)
    ]
    hashes = [row for share in run.world.gather(hashes) for row in share]
    record = {
        "step": figures.step + 1,
        "batch": hashlib.sha256("".join(hashes).encode()).hexdigest(),
        "loss": float(figures.scalars["loss"]).hex(),
        "grad_norm": float(figures.scalars["grad_norm"]).hex(),
        "lr": figures.lr.hex(),
    }
    if run.world.is_first:
        run.tracker.append(run.config.directory / "trace.jsonl", record)


# ---------------------------------------------------------------------------------------------------------
# what happens every n steps


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def read_figures(run: Run, is_last: bool) -> None:
    """Read losses off the device where they are needed now, look at them, show and log them."""
    config, state, meter = run.config, run.state, run.meter
    logs = is_last or _due(state.step, config.train.log_every)
    is_read = logs or run.hooks.are_due(state.step) or _due(state.step, config.train.checkpoint_every)
    if run.gates_on_device and not is_read:
        return
    for figures in meter.read_device():
        examine(run, figures)
    assert meter.last is not None
    loss = f"{meter.last.values['loss']:.3f}" if meter.last.trained else "none"
    lr = f"{meter.last.lr:.1e}"
    run.tracker.progress(state.step, state.seconds, loss=loss, lr=lr, tok_s=f"{meter.tokens_per_s:,.0f}")
    if logs:
        run.check_owner()
        run.tracker.log("train", state.step, state.tokens, state.seconds, meter.line())
    if expected := meter.time_to_go((config.max_steps or 0) - state.step):
        run.tracker.say(f"step {state.step:>6,}   {expected}")


def examine(run: Run, figures: StepFigures) -> None:
    """Log a step that was skipped, or whose loss stands out. Raises NonFiniteLoss if it is one too many."""
    if not figures.trained:  # answers that all earned the same, a row of padding, or of a first token alone
        return
    state, step = run.state, figures.step + 1
    loss, grad_norm = figures.values["loss"], figures.values["grad_norm"]
    rows = f"rows {figures.rows[0]} to {figures.rows[1]}"
    record = {"loss": loss, "grad_norm": grad_norm, "rows": list(figures.rows)}
    if math.isfinite(loss) and math.isfinite(grad_norm):
        if (median := spike_median(state.spikes["losses"], loss)) is not None:
            run.tracker.log("spike", step, state.tokens, state.seconds, record)
            run.tracker.say(f"step {step:>6,}   loss spike: {loss:.4f}, around {median:.4f} before ({rows})")
        return
    state.skipped += 1
    run.tracker.log("skipped", step, state.tokens, state.seconds, record)
    what = f"loss {loss}, gradient norm {grad_norm} at step {figures.step:,} ({rows})"
    if state.skipped > run.config.train.skip_non_finite:
        raise NonFiniteLoss(
            f"{what}; no step was taken. Lower train.optimizer.lr, train with precision fp32, look at these rows, "
            f"or skip them with train.skip_non_finite={state.skipped}"
        )
    run.tracker.say(f"skipped: {what}")


def evaluate_and_save(run: Run, is_last: bool = False) -> None:
    """What is due after a step, and everything after the last. A resumed run catches up on what a signal cut short.

    A validation loss that is better than any before makes this the best step. Raises Stopped if a signal came; hooks
    that ran before it are not run again when the run resumes.
    """
    state, config = run.state, run.config
    if is_last:  # before the evaluation, which may take long
        save(run, needed=True)
        raise_if_stopped(run)
    if state.evaluated_at != state.step and run.hooks.are_due(state.step, is_last):
        raise_if_stopped(run)
        run.check_owner()
        state.saved_at = None  # what the hooks find is not in the checkpoint of this step, if there is one
        what = "the last evaluation" if is_last else "evaluating"
        with run.meter.apart("eval_s"), run.tracker.doing(what), run.device.autocast():
            loss, is_complete = run.hooks.run(run.event(is_last), state.hooks_done, state.stop_signal)
        if state.step and loss is not None and math.isfinite(loss):
            best = state.best_loss if state.best_tokens == config.eval.max_tokens else None
            if best is None or not math.isfinite(best) or loss < best:
                state.best_loss, state.best_step, state.best_tokens = loss, state.step, config.eval.max_tokens
        if not is_complete:
            raise_if_stopped(run)
        state.evaluated_at, state.hooks_done = state.step, []
    is_new_best = config.train.keep_best and state.best_step == state.step
    if is_last or (state.step and (_due(state.step, config.train.checkpoint_every) or is_new_best)):
        save(run, needed=is_last)
    if is_last:
        raise_if_stopped(run)


def save(run: Run, needed: bool, at_stop: bool = False) -> None:
    """Write a checkpoint, if there is none of this step. If it cannot be written, say so, or raise InputError if it is
    needed.

    at_stop: a signal came; unless it is time for a checkpoint anyway, the next one will replace it.
    """
    state, config = run.state, run.config.train
    if state.saved_at == state.step:
        return
    for figures in run.meter.read_device():  # nothing is saved before its loss was looked at
        examine(run, figures)
    run.check_owner()
    state.seconds = time.perf_counter() - state.started
    is_between = not _due(state.step, config.checkpoint_every)
    state.at_stop = at_stop and is_between and run.config.progress(state.step, state.seconds) < 1
    state.logged, state.scaler = log_sizes(run.config.directory), run.scaler.state_dict()
    checkpoints = run.config.directory / "checkpoints"
    if not checkpoints.is_dir():
        run.tracker.say(f"warning: {checkpoints} was moved or deleted; it is made again for this checkpoint")
    opened = (run.lm, run.optimizers, run.data.tokenizer, state)
    try:
        with run.meter.apart("save_s"), run.tracker.doing("saving"):
            kept = run.source.kept(state.step)
            save_checkpoint(checkpoints, *opened, config.keep_last, config.keep_best, run.world, kept)
        state.saved_at = state.step
    except SaveError as error:
        run.check_owner()
        if needed:
            raise InputError(str(error)) from None
        run.tracker.say(f"warning: {error}; training continues")


def raise_if_stopped(run: Run) -> None:
    """Raises Stopped in every process if one of them got a signal."""
    if number := max(run.world.gather(run.state.stop_signal())):
        raise Stopped(number)


# ---------------------------------------------------------------------------------------------------------
# the beginning and the end


def train_to_the_end(run: Run) -> int:
    """Train from run.state to the end of the run. Returns the exit code: 0, 3 (non-finite), 128 + signal."""
    state = run.state
    state.started = time.perf_counter() - state.seconds  # from here, so that compiling counts
    was_over = run.config.progress(state.step, state.seconds) >= 1  # only its last evaluation may be missing
    with stop_signals() as state.stop_signal, in_fixed_order(run):
        try:
            try:
                forward = compiled(run, state.stop_signal) if run.device.compile else run.lm
                state.forward = wrap(forward, run.world, run.device.device)
                if (what := differences(state.before, state.resolved)) and run.config.max_steps is not None:
                    state.breaks.append({"step": state.step, "what": what})
                    run.tracker.say(exact_until(state.breaks[-1]))  # under a clock it never is
                if state.step == 0:
                    report_initial_loss(run)
                if not was_over:
                    evaluate_and_save(run)  # at the start, or when a signal came just before it
                    train(run)  # if compiling took all the minutes, it still takes one step
                evaluate_and_save(run, is_last=True)
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


def show_stop(run: Run, why: str) -> None:
    """The hooks that show the run say why it stops. An error on the way out would hide the one that led here."""
    with suppress(Exception):
        run.owner.check()  # somebody else's folder, or none, is left alone
        run.hooks.stop(run.event(is_last=False), why)


@torch.no_grad()
def report_initial_loss(run: Run) -> None:
    """The loss before the first step. An untrained model should find every token equally likely."""

    def measure() -> tuple[Tensor, int]:
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
    run.tracker.say(f"step 0: loss {float(loss_sum) / counted if counted else math.nan:.4f}{expected}")
