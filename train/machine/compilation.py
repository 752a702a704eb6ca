"""Compile a layer and a chunk of the loss, not the whole model: one compiled layer serves them all.

On a GPU that takes a quarter of the time that the whole model takes, and steps are as quick
(FINDINGS.md#gpu). The rest runs as it is written: the embedding, the masks, the last norm.
Evaluation and generation never see the compiled calls (model/transformer.py), because their shapes
change too often.
"""

import time
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
    """Compile what lm calls in training mode. options: of torch.compile."""
    # That makes a graph for each kind of layer and one for a chunk of the loss, for each shape.
    compiled = partial(torch.compile, dynamic=False, **options)
    lm.model.call_layer = compiled(DecoderLayer.__call__)
    lm.sum_loss = partial(cross_entropy_sum, chunk_loss=compiled(loss_of_chunk))


def compile_and_try(run: Run) -> None:
    """Compile, and try one micro-batch. If that fails and `auto` chose it, do not compile."""
    stopped = run.state.stop_signal  # Ctrl-C ends the compiler, too, which is no failure
    if run.device.device.type == "cpu":
        # Compiled kernels then add up in an order that is always the same. The loop turns it off.
        torch.use_deterministic_algorithms(True, warn_only=True)
        # This also fills new memory with NaN, which only takes time here.
        deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
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
                    synchronize(run.device.device)  # a GPU's error is raised when something waits
    except Exception as error:
        # A GPU that has failed fails in everything that this process asks of it.
        is_fatal = isinstance(error, InputError | torch.AcceleratorError)
        if (is_fatal or run.config.train.compile is True) and not stopped():
            raise
        run.lm.model.call_layer = DecoderLayer.__call__
        run.lm.sum_loss = cross_entropy_sum
        if not stopped():
            problem = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
            run.tracker.say(f"compile is off: it failed here ({problem})")
            run.state.resolved["compile"] = False
        return
    finally:
        run.lm.zero_grad()
    run.tracker.say(f"compiled in {time.perf_counter() - began:.0f} s")
