"""Should this run use torch.compile? A compiled step is quicker, but compiling takes a minute first."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch import nn

from configs.command import InputError
from data.batches import Batch
from train.machine.device import FEW_STEPS, resolve_attention
from train.machine.hardware import busy_in_words, share_of_others, synchronize, timed
from train.machine.machine_cache import recall
from train.run import Run, losses, random_state, set_random_state, within_memory

# minutes of plain training that a run must still have before it, so that compiling pays: it costs about one minute,
# and saves a tenth of the rest on a CPU and a third on a GPU (EXPERIMENTS.md)
PAYS_AFTER_MINUTES = {"cpu": 15.0, "cuda": 4.0}
TRIALS, TRIAL_S = 6, 3.0  # at most this many trial steps, or as many as fit into this time
BUSY = 0.6  # share of the time that the threads compute; below it, other programs have the cores


def compiled(run: Run, stopped: Callable[[], int] = lambda: 0) -> nn.Module:
    """The model as training calls it, compiled or not; says which, and remembers it for when the run resumes.

    stopped: the signal that asked the run to stop, or 0. Ctrl-C reaches the compiler too, and that is not its fault.
    """
    wanted, why = run.device.compile, ""
    if wanted == "auto":
        wanted, why = _decide(run)
        run.tracker.say(f"compile {'on' if wanted else 'off'} ({why})")
        if not wanted and run.config.model.attn_implementation == "auto":  # chosen for the case that it is compiled
            attention, _ = resolve_attention(run.config, run.device.device.type, run.device.precision, compiled=False)
            run.lm.set_attn_implementation(attention)
            run.state.resolved["attention"] = attention
    model: nn.Module = _compile(run, stopped) if wanted else run.lm
    run.state.resolved["compile"] = bool(wanted) if stopped() else model is not run.lm
    return model


def _decide(run: Run) -> tuple[bool, str]:
    """Whether compiling pays, and why: from what is left of the run, after a few trial steps."""
    kind = run.device.device.type
    if problem := run.world.first(lambda: _cannot_compile(kind)):
        return False, f"auto: {problem}"
    pays_after = PAYS_AFTER_MINUTES[kind]
    limit = run.config.train.max_minutes
    if limit is not None:
        minutes = quiet = run.world.first(lambda: limit - run.state.seconds / 60)
        shown = f"{minutes:.1f} minutes are left"
    else:
        assert run.config.max_steps is not None
        steps = run.config.max_steps - run.state.step
        if steps < FEW_STEPS:
            return False, f"auto: {steps} steps are too few for it"
        minutes, quiet = (steps * seconds / 60 for seconds in seconds_of_a_step(run, steps))
        shown = f"about {minutes:.1f} minutes of training steps, evaluations and checkpoints not counted"
        if quiet < BUSY * minutes:
            shown += f"; {quiet:.1f} if other programs leave the cores alone"
            shown += f" ({busy})" if (busy := busy_in_words(share_of_others())) else ""
    return quiet > pays_after, f"auto: {shown}; compiling pays from about {pays_after:g} minutes on"


def _cannot_compile(kind: str) -> str:
    return compiler_problem(kind) or recall().fault("compile", kind) or ""


def compiler_problem(kind: str) -> str:
    """Why torch.compile is not even tried on this kind of device; "" if it is."""
    if kind not in PAYS_AFTER_MINUTES:
        return f"not tried on {kind}"
    if kind == "cpu" and not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))):
        return "it needs a C++ compiler, and there is none"
    if kind == "cuda" and importlib.util.find_spec("triton") is None:
        return "it needs triton, which is not installed"
    return ""


def seconds_of_a_step(run: Run, steps: int) -> tuple[float, float]:
    """(as long as you wait now, as long as it takes on a quiet machine) of a training step; nothing is changed by it.

    Medians of a few trials, the first of which does not count. One is enough if it shows that `steps` steps are far too
    few for compiling to pay. The first process's clock decides how many there are, because all must take part.
    """
    found: list[tuple[float, float]] = []
    while len(found) < 3 or (len(found) < TRIALS and sum(wall for wall, _ in found) < TRIAL_S):
        wall, quiet = _agreed_trial(run)
        if wall * steps / 60 < PAYS_AFTER_MINUTES[run.device.device.type] / 10:
            return wall, quiet
        if quiet < BUSY * wall:
            return wall, _alone(run)
        found.append((wall, quiet))
    walls, quiets = zip(*found[1:], strict=True)
    return median(walls), median(quiets)


def _alone(run: Run) -> float:
    """Seconds of a step from the work of one thread. On a busy machine threads that wait for each other compute too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _agreed_trial(run)[1] / threads
    finally:
        torch.set_num_threads(threads)


def _agreed_trial(run: Run) -> tuple[float, float]:
    took = within_memory(run, lambda: _trial(run))
    return run.world.first(lambda: took)


def _trial(run: Run) -> tuple[float, float]:
    """A step that computes only its first micro-batch, which counts for all. The update moves nothing.

    Answers that the model draws count too, as a share of what several steps learn from.
    """
    number, device = run.source.rows_per_batch / run.world.size / run.state.micro_rows, run.device.device
    try:
        made: list[Batch] = []
        batch = timed(lambda: made.append(run.first_batch()), device)
        micro_batch = _micro_batch(run, made[0])
        passes = timed(lambda: _forward_backward(run, run.lm, micro_batch), device)
        update = timed(lambda: _update_nothing(run), device)
    finally:
        run.zero_grad()
    share = 1 / run.source.steps_per_batch
    wall, quiet = (share * b + number * p + u for b, p, u in zip(batch, passes, update, strict=True))
    return wall, quiet


def _update_nothing(run: Run) -> None:
    """Clip, and take a step that `found_inf` gates off: the optimizers compute it and leave everything as it is."""
    nn.utils.clip_grad_norm_(run.lm.parameters(), run.config.train.grad_clip or float("inf"))
    for optimizer in run.optimizers:
        optimizer.found_inf = torch.ones((), device=run.device.device)  # type: ignore[attr-defined]
        optimizer.step()
        del optimizer.found_inf  # type: ignore[attr-defined]


@contextmanager
def in_fixed_order(run: Run) -> Iterator[None]:
    """Where a CPU may train with compiled kernels: they add up the gradient of an embedding in an order that is always
    the same. By default each thread adds its part when it comes to it, so that no run was ever twice the same."""
    if run.device.compile is False or run.device.device.type != "cpu":
        yield
        return
    debug: Any = torch.utils.deterministic  # fills memory that nobody has written yet, which takes time
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fills, debug.fill_uninitialized_memory = debug.fill_uninitialized_memory, False
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        debug.fill_uninitialized_memory = fills


def _compile(run: Run, stopped: Callable[[], int]) -> nn.Module:
    """The compiled model, tried on one micro-batch. Where `auto` chose it and it fails, the plain model."""
    model: nn.Module = torch.compile(run.lm, dynamic=False)  # type: ignore[assignment]
    run.tracker.say("compiling, about a minute …")
    before = time.perf_counter()
    try:
        with run.tracker.doing("compiling"):
            within_memory(run, lambda: _forward_backward(run, model, _micro_batch(run, run.first_batch())))
            synchronize(run.device.device)  # an error of a GPU comes when somebody waits for it
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
        return run.lm
    finally:
        run.zero_grad()
    run.tracker.say(f"compiled in {time.perf_counter() - before:.0f} s")
    return model


def _micro_batch(run: Run, batch: Batch) -> Batch:
    return batch.split(run.state.micro_rows)[0].to(run.device.device)


def _forward_backward(run: Run, model: nn.Module, batch: Batch) -> None:
    """Forward and backward on one micro-batch; the random state is left as it was, the gradients are there."""
    before = random_state(run)
    try:
        run.lm.train()
        minimised, _ = losses(run, model, batch)
        minimised.backward()
    finally:
        set_random_state(before)
