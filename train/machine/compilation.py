"""The model, compiled by torch.compile: quicker steps, after a minute of compiling. `auto` is decided in device.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from configs.command import InputError
from train.machine.hardware import synchronize
from train.run import Run, losses, random_state, set_random_state, within_memory


def compiled(run: Run, stopped: Callable[[], int] = lambda: 0) -> nn.Module:
    """The compiled model, after one micro-batch forward and backward. Where `auto` chose it and it fails: the model.

    stopped: the signal that asked the run to stop, or 0. Ctrl-C reaches the compiler too, and that is not its fault.
    """
    model: nn.Module = torch.compile(run.lm, dynamic=False)  # type: ignore[assignment]

    def forward_backward() -> None:
        before = random_state(run)  # trying changes nothing
        try:
            batch = run.first_batch().split(run.state.micro_rows)[0].to(run.device.device)
            run.lm.train()
            minimised, _ = losses(run, model, batch)
            minimised.backward()
            synchronize(run.device.device)  # an error of a GPU comes when somebody waits for it
        finally:
            set_random_state(before)

    run.tracker.say("compiling, about a minute …")
    began = time.perf_counter()
    try:
        with run.tracker.doing("compiling"):
            within_memory(run, forward_backward)
    except InputError:
        raise
    except torch.AcceleratorError as error:  # from here on, whatever this process asks of the GPU fails
        raise InputError(
            f"the GPU failed in a compiled step ({str(error).splitlines()[0]}): train with train.compile=false, or "
            f"with another model.attn_implementation than {run.device.attention}"
        ) from None
    except Exception as error:
        if stopped():
            return run.lm
        problem = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
        if run.config.train.compile is True:
            raise InputError(
                f"train.compile is true, but torch.compile failed ({problem}): use auto or false"
            ) from None
        run.tracker.say(f"compile is off: it failed here ({problem})")
        run.state.resolved["compile"] = False
        return run.lm
    finally:
        run.zero_grad()
    run.tracker.say(f"compiled in {time.perf_counter() - began:.0f} s")
    return model


@contextmanager
def in_fixed_order(run: Run) -> Iterator[None]:
    """On a CPU, compiled kernels add up the gradient of an embedding in an order that is always the same. By default
    each thread adds its part when it comes to it, so that no run was ever twice the same."""
    if not run.device.compile or run.device.device.type != "cpu":
        yield
        return
    debug: Any = torch.utils.deterministic
    fills, debug.fill_uninitialized_memory = debug.fill_uninitialized_memory, False  # it only takes time
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        debug.fill_uninitialized_memory = fills
