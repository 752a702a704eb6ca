"""torch.compile where it pays: a compiled step is quicker, but compiling takes a minute first."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time

import torch
from torch import nn

from configs.loader import InputError
from train.machine.device import resolve_attention
from train.machine.memory import random_state, set_random_state, within_memory
from train.machine.timing import synchronize
from train.run import Run

# minutes of plain training that a run must still have before it, so that compiling pays: it costs about one minute,
# and saves a tenth of the rest on a CPU and a third on a GPU (EXPERIMENTS.md)
PAYS_AFTER_MINUTES = {"cpu": 15.0, "cuda": 4.0}


def compiled(run: Run) -> nn.Module:
    """The model as training calls it, compiled or not; says which, and remembers it for when the run goes on."""
    wanted, why = run.device.compile, ""
    if wanted == "auto":
        wanted, why = _decide(run)
        run.tracker.say(f"compile {'on' if wanted else 'off'} ({why})")
        if not wanted and run.config.model.attn_implementation == "auto":  # chosen for the case that it is compiled
            attention, _ = resolve_attention(run.config, run.device.device.type, run.device.precision, compiled=False)
            run.lm.set_attn_implementation(attention)
            run.state.resolved["attention"] = attention
    model: nn.Module = run.lm
    if wanted:
        model = _compile(run)
    run.state.resolved["compile"] = model is not run.lm
    return model


def _decide(run: Run) -> tuple[bool, str]:
    """Whether compiling pays, and why: from what is left of the run, timed on one micro-batch."""
    kind = run.device.device.type
    if problem := _cannot_compile(kind):
        return False, f"auto: {problem}"
    limit = run.config.train.max_minutes
    if limit is not None:
        minutes = limit - run.state.seconds / 60
    else:
        assert run.config.max_steps is not None
        seconds = _seconds_of_a_step(run)
        minutes = run.world.first(lambda: seconds) * (run.config.max_steps - run.state.step) / 60
    pays_after = PAYS_AFTER_MINUTES[kind]
    pays = minutes > pays_after
    return pays, f"auto: about {minutes:.1f} minutes of training; it pays from about {pays_after:g} on"


def _cannot_compile(kind: str) -> str:
    if kind not in PAYS_AFTER_MINUTES:
        return f"not tried on {kind}"
    if kind == "cpu" and not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))):
        return "it needs a C++ compiler, and there is none"
    if kind == "cuda" and importlib.util.find_spec("triton") is None:
        return "it needs triton, which is not installed"
    return ""


def _seconds_of_a_step(run: Run) -> float:
    """Forward and backward of a step's micro-batches, from the quickest of several; nothing is changed by it.

    The quickest, since a busy moment only ever makes one slower; at most six, or as many as fit into three seconds.
    """
    seconds: list[float] = []
    while len(seconds) < 2 or (len(seconds) < 6 and sum(seconds) < 3):
        synchronize(run.device.device)
        before = time.perf_counter()
        within_memory(run, lambda: _try_out(run, run.lm))
        synchronize(run.device.device)
        seconds.append(time.perf_counter() - before)
    return min(seconds) * run.source.rows_per_batch / run.world.size / run.state.micro_rows


def _compile(run: Run) -> nn.Module:
    """The compiled model, tried out on one micro-batch. Where `auto` chose it and it fails, the plain model."""
    model: nn.Module = torch.compile(run.lm, dynamic=False)  # type: ignore[assignment]
    before = time.perf_counter()
    try:
        within_memory(run, lambda: _try_out(run, model))
    except InputError:
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
        if run.config.train.compile is True:
            raise InputError(
                f"train.compile is true, but torch.compile failed ({problem}): use auto or false"
            ) from None
        run.tracker.say(f"compile is off: it failed here ({problem})")
        return run.lm
    run.tracker.say(f"compiled in {time.perf_counter() - before:.0f} s")
    return model


def _try_out(run: Run, model: nn.Module) -> None:
    """Forward and backward on one micro-batch; the random state and the gradients are left as they were."""
    before = random_state(run)
    batch = run.source.batch(0, run.lm).split(run.state.micro_rows)[0].to(run.device.device)
    try:
        run.lm.train()
        with run.device.autocast():
            loss_sum, _ = run.objective.loss(model, batch)
        loss_sum.backward()
    finally:
        run.forget_gradients()
        set_random_state(before)
