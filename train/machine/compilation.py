"""Compile a layer and a chunk of the loss, not the whole model: all layers are alike, so one compiled serves them all.

On a GPU that takes a quarter of the time that the whole model takes, and steps are as quick (FINDINGS.md#gpu). What is
left runs as it is written: the embedding, the masks, the last norm. Evaluation and generation never see the compiled
calls (model/transformer.py), because their shapes change too often.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils import deterministic

from configs.command import InputError
from model.layer import DecoderLayer
from model.loss import cross_entropy_sum, loss_of_chunk
from model.transformer import LanguageModel
from train.loop import Attempts, losses
from train.machine.device import synchronize
from train.run.run import Run


def compile_layers(lm: LanguageModel, **options: Any) -> None:
    """In training mode, lm runs compiled from its next forward pass on: a graph for each kind of layer and one for a
    chunk of the loss, for each shape of a batch. options: of torch.compile."""
    compiled = partial(torch.compile, dynamic=False, **options)
    lm.model.call_layer = compiled(DecoderLayer.__call__)
    lm.sum_loss = partial(cross_entropy_sum, of_chunk=compiled(loss_of_chunk))


def compile_and_try(run: Run, stopped: Callable[[], int] = lambda: 0) -> None:
    """Compile, and take one micro-batch forward and backward. Where `auto` chose it and it fails, nothing is compiled.

    stopped: the signal that asked the run to stop, or 0. Ctrl-C reaches the compiler too, and that is not its fault.
    """
    if run.device.device.type == "cpu":
        # Compiled kernels then add up in an order that is always the same. The loop turns it off
        torch.use_deterministic_algorithms(True, warn_only=True)
        deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it only takes time
    compile_layers(run.lm)
    gpus = [torch.cuda.current_device()] if run.device.device.type == "cuda" else []

    run.tracker.say("compiling a layer, less than a minute …")
    began = time.perf_counter()
    try:
        with run.tracker.doing("compiling"):
            for attempt in Attempts(run, agree=False):
                with attempt, torch.random.fork_rng(devices=gpus):  # trying changes nothing
                    with run.device.autocast():  # as in training, a source may let the model write
                        batch = run.source.batch(0, run.lm).split(run.state.micro_rows)[0]
                    run.lm.train()
                    loss, _ = losses(run, batch.to(run.device.device))
                    loss.backward()
                    synchronize(run.device.device)  # an error of a GPU is raised when something waits for it
    except Exception as error:
        # asked for: the error is the answer; on a GPU that has failed, whatever this process asks of it fails as well
        is_fatal = run.config.train.compile is True or isinstance(error, InputError | torch.AcceleratorError)
        if is_fatal and not stopped():
            raise
        run.lm.model.call_layer, run.lm.sum_loss = DecoderLayer.__call__, cross_entropy_sum
        if not stopped():
            problem = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
            run.tracker.say(f"compile is off: it failed here ({problem})")
            run.state.resolved["compile"] = False
        return
    finally:
        run.lm.zero_grad()
    run.tracker.say(f"compiled in {time.perf_counter() - began:.0f} s")
