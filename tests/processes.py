"""Processes for tests. They are forked from a server that has imported everything already, so that one starts in
a tenth of a second instead of four."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    "torch torch._dynamo torch.distributed.fsdp matplotlib.pyplot pytest train.pretrain train.loop train.report "
    "tests.train.helpers tests.train.killing tests.train.worlds".split()
)


def start(function: Callable, *arguments) -> BaseProcess:
    """Start function(*arguments) in a process of its own. The function must be importable by its name."""
    process = _server.Process(target=function, args=arguments)
    process.start()
    return process


def exit_code(function: Callable, *arguments) -> int | None:
    """Run function(*arguments) to its end in a process of its own; minus the signal that killed it."""
    process = start(function, *arguments)
    process.join(timeout=300)
    return process.exitcode


def print_to(file: Path) -> None:
    """From here on this process prints into `file`, its errors included."""
    output = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
