"""The model, compiled by torch.compile: quicker steps, after a minute of compiling. `auto` is decided in device.py."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn
from torch.utils import deterministic

from configs.command import InputError
from train.device import synchronize
from train.run import Run, losses, within_memory


def compiled(run: Run, stopped: Callable[[], int] = lambda: 0) -> nn.Module:
    """The compiled model, after one micro-batch forward and backward. Where `auto` chose it and it fails: the model.

    stopped: the signal that asked the run to stop, or 0. Ctrl-C reaches the compiler too, and that is not its fault.
    """
    if run.device.device.type == "cpu":
        # Compiled kernels add up the gradient of an embedding in an order that is always the same. By default each
        # thread adds its part when it comes to it, so that no run was ever twice the same. The loop turns it off.
        torch.use_deterministic_algorithms(True, warn_only=True)
        deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it only takes time
    model: nn.Module = torch.compile(run.lm, dynamic=False)  # type: ignore[assignment]

    gpus = [torch.cuda.current_device()] if run.device.device.type == "cuda" else []

    def forward_backward() -> None:
        with torch.random.fork_rng(devices=gpus):  # trying changes nothing
            with run.device.autocast():  # as in training, a source may let the model write
                batch = run.source.batch(0, run.lm).split(run.state.micro_rows)[0]
            run.lm.train()
            minimised, _ = losses(run, model, batch.to(run.device.device))
            minimised.backward()
            synchronize(run.device.device)  # an error of a GPU comes when somebody waits for it

    run.tracker.say("compiling, about a minute …")
    began = time.perf_counter()
    try:
        with run.tracker.doing("compiling"):
            within_memory(run, forward_backward)
    except Exception as error:
        if stopped():
            return run.lm
        # asked for: the error is the answer; on a GPU that has failed, whatever this process asks of it fails as well
        if run.config.train.compile is True or isinstance(error, InputError | torch.AcceleratorError):
            raise
        problem = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
        run.tracker.say(f"compile is off: it failed here ({problem})")
        run.state.resolved["compile"] = False
        return run.lm
    finally:
        run.lm.zero_grad()
    run.tracker.say(f"compiled in {time.perf_counter() - began:.0f} s")
    return model
