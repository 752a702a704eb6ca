"""The training loop: batch, forward, backward, clip, learning rate, step.

`train` is the lesson; the parts of a step are below it. train/run/after_step.py logs, evaluates and
saves. train/run/begin_and_end.py does what comes before the first step and after the last.
"""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from types import TracebackType

import torch
import torch.distributed as dist
from torch import Tensor, nn

from configs.command import InputError, is_out_of_memory
from data.batches import Batch
from train.machine.cpu_processes import add_up_gradients
from train.machine.distributed import full_tensor, sync_gradients
from train.objective import Figures
from train.optimizer import lr_factor, set_learning_rate
from train.run.after_step import after_step, agreed_progress
from train.run.metrics import Counts, StepFigures
from train.run.run import Run


class Stopped(Exception):
    """A process received a stop signal; raised on all ranks."""

    def __init__(self, number: int):
        self.number = number


def train(run: Run) -> None:
    """Take the steps that are left. Raises Stopped or NonFiniteLoss between two of them."""
    state = run.state
    device = run.device.device
    run.lm.train()  # the mode, as opposed to eval(): dropout is on
    run.meter.start()
    state.progress = agreed_progress(run)
    # Gradients must be summed over the processes. DDP and FSDP2 average them, so the loss is
    # multiplied by the number of processes. On the cores of a CPU they really are summed.
    divisor = 1 if run.world.memory is not None else run.world.size
    # sys.maxsize: if a clock ends the run, nobody knows the number of its steps.
    upcoming = run.source.upcoming(state.step, run.config.max_steps or sys.maxsize, run.lm)
    with closing(upcoming) as batches, run.tracker.first_step(state.step + 1) as waiting:
        is_over = False  # take one step at least, even if compiling used up max_minutes
        while not is_over:
            # A batch: this process's share of the rows of the step, input_ids and labels (B, T).
            # A thread prepares text ahead of time. We log the wait all the same: a GPU that waits
            # for data is half a GPU.
            began = time.perf_counter()
            with run.device.autocast():  # some sources let the model write here (GRPO)
                batch = next(batches)
            waited = time.perf_counter() - began

            # Count what all processes train on in this step: tokens, in DPO pairs. The loss is
            # divided once, by this number. So every token weighs the same, whatever row,
            # micro-batch or process it is in. A mean of means would favour short rows.
            counts = agree_on_counts(run, batch)
            scalars = first_scalars(run, batch)

            if counts.trained:
                # Forward and backward, one micro-batch after the other, because the rows of a step
                # may not fit into memory at once. backward() adds to each parameter's `.grad`, so
                # the result is that of one large batch (gradient accumulation). If memory runs
                # out, the next attempt starts again with half the rows.
                for attempt in Attempts(run):
                    with attempt:
                        sums: Figures = defaultdict(lambda: torch.zeros((), device=device))
                        micro_batches = batch.to(device).split(state.micro_rows)
                        for micro_batch in micro_batches:
                            # Processes exchange gradients once a step, in the last backward pass.
                            is_last = micro_batch is micro_batches[-1]
                            sync_gradients(state.forward, run.lm, run.world, wanted=is_last)
                            loss, figures = losses(run, micro_batch, counts)  # sums, not means
                            run.scaler.scale(loss * (divisor / counts.trained)).backward()
                            # No .item() here: it would make the CPU wait for the GPU. And without
                            # detach() the graph of every micro-batch would stay in memory.
                            for name, value in figures.items():
                                sums[name] += value.detach()
                sum_over_processes(run, sums)
                scalars |= {name: value / counts.trained for name, value in sums.items()}

                # Clip: one strange batch must not throw the weights far away. All gradients
                # together are one long vector. If it is longer than grad_clip, it keeps its
                # direction and gets this length (Pascanu et al. 2013, arXiv 1211.5063).
                scalars["grad_norm"] = clip_gradients(run)

            # The learning rate is a function of progress alone, so no checkpoint has to keep it.
            factor = lr_factor(run.config, state.step, state.progress)
            lr = set_learning_rate(run.optimizers, factor)

            # The step: optimizers move the parameters against their gradients. Not if there was
            # nothing to learn: momentum and weight decay would move weights even so. Not if the
            # loss or the gradient is NaN: one NaN would spread to all weights.
            if counts.trained and may_step(run, scalars["loss"], scalars["grad_norm"]):
                for optimizer in run.optimizers:
                    run.scaler.step(optimizer)
            if counts.trained:
                # fp16 rounds small gradients to 0, so the loss is multiplied by a large number
                # before the backward pass (Micikevicius et al. 2018, arXiv 1710.03740). After an
                # overflow may_step has refused the step, and this halves the number. In other
                # precisions the scaler does nothing.
                run.scaler.update()
            run.lm.zero_grad()  # or the next backward pass would add to these gradients

            # Log, evaluate and save when due. From the second step on, the bar shows that we train.
            waiting.close()
            step_figures = StepFigures(state.step, lr, counts, waited, scalars)
            is_over = after_step(run, batch, step_figures)


# ------------------------------------------------------------------------------------------------
# parts of a step


def agree_on_counts(run: Run, batch: Batch) -> Counts:
    """Add up the counts of a step over the processes. Raises Stopped in all if one got a signal."""
    # All of it happens on the CPU, so nobody waits for a GPU. The signal travels along: if one
    # process left the loop alone, the others would wait for it forever.
    signal = run.state.stop_signal()
    trained = run.objective.count(batch)
    tokens, positions = batch.token_count(run.data.tokenizer.pad_id)
    # One exchange for all four numbers. Each exchange waits for the slowest process.
    *counts, stopping = run.world.sum(trained, tokens, positions, int(signal > 0))
    if stopping:
        # The same number everywhere: processes may have received different signals.
        raise Stopped(max(run.world.gather(signal)))
    return Counts(*counts)


def first_scalars(run: Run, batch: Batch) -> Figures:
    """Return the figures of a step that has not trained yet: loss and gradient norm are NaN."""
    device = run.device.device  # figures stay there until they are logged
    scalars = {name: torch.tensor(value, device=device) for name, value in batch.figures.items()}
    # NaN, not 0: a step in which nothing is trained must not look like a perfect one.
    scalars["loss"] = scalars["grad_norm"] = torch.tensor(math.nan, device=device)
    if run.scaler.is_enabled():
        scalars["loss_scale"] = torch.tensor(run.scaler.get_scale(), device=device)
    return scalars


class Attempts:
    """Repeat the passes of a step with fewer rows until memory suffices.

        for attempt in Attempts(run):
            with attempt:
                …

    Raises InputError where fewer rows do not help or are not allowed: one row is too much,
    train.micro_batch_size was set, or the processes of torchrun cannot agree. agree: all processes
    make these passes together, as in a step.
    """

    def __init__(self, run: Run, agree: bool = True):
        self.run = run
        # On the cores of a CPU all processes try again if memory runs out in one of them.
        self.agree = agree and run.world.memory is not None
        self.succeeded = False

    def __iter__(self) -> Iterator[Attempts]:
        while not self.succeeded:
            yield self

    def __enter__(self) -> None:
        # The next attempt starts from this state: dropout must not depend on free memory.
        self.random = torch.get_rng_state()
        on_cuda = self.run.device.device.type == "cuda"
        self.random_on_gpu = torch.cuda.get_rng_state() if on_cuda else None

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        # torch.OutOfMemoryError is a RuntimeError. On a CPU PyTorch raises a plain RuntimeError.
        ran_out = isinstance(error, RuntimeError) and is_out_of_memory(error)
        if error is not None and not ran_out:
            return False
        if self.agree:
            ran_out = self.run.world.sum(int(ran_out)) != [0]
        self.succeeded = not ran_out
        if ran_out:
            self.take_fewer_rows()
        return True  # the error is handled

    def take_fewer_rows(self) -> None:
        """Halve the rows of a forward pass, and go back to the random state before it."""
        run = self.run
        rows = run.state.micro_rows
        run.lm.zero_grad()  # some micro-batches have already added to the gradients
        if self.random_on_gpu is not None:
            torch.cuda.empty_cache()  # blocks of the old size would stay reserved
        # Under torchrun a process cannot go back alone: the others wait in its backward pass.
        cannot_agree = run.world.size > 1 and not self.agree
        if rows == 1 or cannot_agree or run.config.train.micro_batch_size != "auto":
            fewer = f"train.micro_batch_size={rows // 2} or auto, " if rows > 1 else ""
            message = (
                f"out of memory with {rows} rows of {run.source.row_length} tokens at a time: try "
                f"{fewer}train.activation_checkpointing=true, a shorter data.sequence_length or a "
                "smaller model"
            )
            if run.world.rank and cannot_agree:
                # Usually rank 0 alone prints errors, but here rank 0 has none.
                print(f"error in process {run.world.rank}: {message}", file=sys.stderr)
            raise InputError(message) from None
        run.state.micro_rows = rows // 2
        run.state.resolved["micro_batch_size"] = run.state.micro_rows * run.rows_joined
        run.tracker.say(
            f"out of memory with {rows} rows at a time: {rows // 2} from here, in more passes"
        )
        torch.set_rng_state(self.random)
        if self.random_on_gpu is not None:
            torch.cuda.set_rng_state(self.random_on_gpu)


def losses(run: Run, batch: Batch, counts: Counts | None = None) -> tuple[Tensor, Figures]:
    """Return the loss that is minimised, and its parts by name. All are sums.

    counts: of the step. None = as if all tokens were trained.
    """
    with run.device.autocast():
        loss = run.objective.loss(run.state.forward, batch)
    # The loop divides everything by the trained count. Auxiliary losses (of experts) are sums over
    # all real tokens, so they are multiplied by trained / tokens first.
    share = 1.0 if counts is None else counts.trained / max(1, counts.tokens)
    auxiliary = {name: share * value for name, value in loss.auxiliary.items()}
    minimised = sum(auxiliary.values(), loss.sum)
    return minimised, {"loss": loss.sum, **loss.figures, **auxiliary}


def sum_over_processes(run: Run, sums: Figures) -> None:
    """Add up figures over all processes, and gradients on the cores of a CPU."""
    # Figures travel with the gradients, so the processes wait for each other once, not twice.
    if run.world.memory is not None:
        add_up_gradients(run.lm, run.world.memory, sums.values())
    elif run.world.size > 1:  # DDP and FSDP2 have added up the gradients in the backward pass
        # Names come in the same order in all processes, so every all_reduce meets its partners.
        for value in sums.values():
            dist.all_reduce(value)


def clip_gradients(run: Run) -> Tensor:
    """Shorten the gradient to train.grad_clip, and return its length before."""
    for optimizer in run.optimizers:
        # fp16 only: gradients are too long by the loss scale. Divide before they are measured.
        run.scaler.unscale_(optimizer)
    # With grad_clip 0 the length is only measured.
    longest = run.config.train.grad_clip or math.inf
    # Under FSDP2 each process holds a share of the gradient: full_tensor makes one norm of them.
    return full_tensor(nn.utils.clip_grad_norm_(run.lm.parameters(), longest))


def may_step(run: Run, loss: Tensor, grad_norm: Tensor) -> bool:
    """Return True if optimizers may move the parameters: loss and gradient are finite."""
    is_finite = loss.isfinite() & grad_norm.isfinite()
    if not run.gates_on_device:
        return bool(is_finite)
    # bool() would make the CPU wait for the GPU, at every step. So we always say yes here, and the
    # optimizers get the answer as `found_inf`, a tensor: at 1 they do nothing. After more than
    # skip_non_finite such steps nothing moves until the CPU reads their number and stops the run.
    run.state.non_finite += ~is_finite
    stay = ~is_finite | (run.state.non_finite > run.config.train.skip_non_finite)
    for optimizer in run.optimizers:
        optimizer.found_inf = stay.float()  # type: ignore[attr-defined]
    return True
