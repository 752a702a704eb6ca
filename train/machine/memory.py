"""When memory runs out: the same again, with half as many rows at a time, from the same random state."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from configs.loader import InputError
from model.memory import is_out_of_memory
from train.run import Run

Result = TypeVar("Result")


def within_memory(run: Run, attempt: Callable[[], Result]) -> Result:
    """What `attempt` returns; where memory runs out in it, run.state.micro_rows is halved and it is called again.

    Raises InputError where that is not to be decided here: train.micro_batch_size was given, one row is too much, or
    there are several processes, which would have to agree.
    """
    while True:
        before = random_state(run)
        try:
            return attempt()
        except RuntimeError as error:  # torch.OutOfMemoryError is one; on a CPU it is a plain one
            if not is_out_of_memory(error):
                raise
        _halve_micro_batch(run)
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


def _halve_micro_batch(run: Run) -> None:
    run.forget_gradients()
    if run.device.device.type == "cuda":
        torch.cuda.empty_cache()
    size, chosen = run.state.micro_rows, run.config.train.micro_batch_size
    remedy = "train.activation_checkpointing=true, a shorter data.sequence_length or a smaller model"
    if run.world.size > 1 or chosen != "auto":
        now = f"{max(1, size // 2)}" + ("" if run.world.size > 1 else " or auto")
        message = f"out of memory with {size} rows at a time: try train.micro_batch_size={now}, or {remedy}"
        if run.world.rank:  # the others do not know, and only the first process prints its errors
            print(f"error in process {run.world.rank}: {message}", file=sys.stderr)
        raise InputError(message)
    if size == 1:
        raise InputError(f"out of memory with a single row of {run.source.row_length} tokens at a time: try {remedy}")
    run.state.micro_rows = max(1, size // 2)
    run.state.resolved["micro_batch_size"] = run.state.micro_rows * run.rows_joined
    run.tracker.say(f"out of memory with {size} rows at a time: {run.state.micro_rows} from here, in more passes")
