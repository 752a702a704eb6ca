"""Real training commands in processes that can be killed anywhere. Nothing in the product knows of this: a child wraps
the few operating system calls that change a checkpoint before it runs the command."""

import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import model.saving.checkpoint_format
import train.loop
import train.saving.checkpoint
from configs.command import exit_on_bad_input
from tests.processes import print_to
from tests.train.holding import Dice
from train.pretrain import main


def pretrain_child(config: Path, kill_at: str | None = None, trace: Path | None = None) -> None:
    """`python -m train.pretrain config`; what it prints is in config's folder, child.txt."""
    torch.set_num_threads(1)
    print_to(config.with_name("child.txt"))
    watch_operations(kill_at, trace)
    sys.argv = ["pretrain", str(config), "--trust-hooks"]
    exit_on_bad_input(main)


def pretrain_until_killed(config: Path, begin: int | None, seconds: float, last: int) -> None:
    """`python -m train.pretrain config`, killed after so many seconds of work since step `begin` (None: the start),
    wherever it is then; at the latest before step `last`.

    Work, not time: what else the machine does in the meantime moves nothing. SIGPROF has no handler, so it kills as
    SIGKILL does.
    """
    step = train.loop.training_step

    def watched(run, *arguments, **options):
        if run.state.step >= last:
            os.kill(os.getpid(), signal.SIGKILL)
        if run.state.step == begin:
            signal.setitimer(signal.ITIMER_PROF, seconds)
        return step(run, *arguments, **options)

    train.loop.training_step = watched
    if begin is None:
        signal.setitimer(signal.ITIMER_PROF, seconds)
    pretrain_child(config)


def pretrain_signalled(config: Path, step: int, kind: str) -> None:
    """`python -m train.pretrain config`, which gets a signal at this step: KILL, TERM, or TERM in an evaluation."""
    name, _, place = kind.partition(" ")
    owner, attribute = (Dice, "look") if place else (train.loop, "training_step")
    call = getattr(owner, attribute)

    def signalled(*arguments, **options):
        here = arguments[1].step if place else arguments[0].state.step
        if here >= step:
            os.kill(os.getpid(), getattr(signal, f"SIG{name}"))
            setattr(owner, attribute, call)
        return call(*arguments, **options)

    setattr(owner, attribute, signalled)
    pretrain_child(config)


def watch_operations(kill_at: str | int | None, trace: Path | None = None) -> None:
    """From here on: SIGKILL just before the operation of this label, a write being half done; each label to `trace`.

    A label is the call and the name of what it is called on: "rename step_00000006.tmp". A number counts from 0.
    """
    count = itertools.count()

    def watch(owner, name: str, label: Callable[..., str], begin: Callable | None = None) -> None:
        call = getattr(owner, name)

        def watched(*arguments, **options):
            here = f"{name} {label(*arguments)}"
            if trace is not None:
                with trace.open("a") as stream:
                    stream.write(here + "\n")
            if kill_at in (here, next(count)):
                if begin is not None:
                    begin(*arguments)
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        setattr(owner, name, watched)

    for name in ("rename", "replace", "unlink", "rmdir"):
        watch(os, name, lambda path, *rest: Path(path).name)
    watch(os, "fsync", lambda handle: Path(f"/proc/self/fd/{handle}").readlink().name)
    half = lambda file, text, *rest: file.open("w").write(text[: len(text) // 2])  # noqa: E731
    watch(Path, "write_text", lambda file, *rest: file.name, half)
    zeros = lambda tensors, file: file.write_bytes(bytes(10_000))  # noqa: E731
    for module in (model.saving.checkpoint_format, train.saving.checkpoint):
        watch(module, "save_file", lambda tensors, file: file.name, zeros)
