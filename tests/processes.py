"""Commands run in this process; and processes, forked from a server that has imported everything
already, so that one starts in a tenth of a second instead of four.
"""

from __future__ import annotations

import importlib
import io
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest import mock

import pytest

from configs.command import exit_on_bad_input

# Windows has only spawn; what is preloaded matters to a forkserver alone
_methods = multiprocessing.get_all_start_methods()
_server = multiprocessing.get_context("forkserver" if "forkserver" in _methods else "spawn")
_server.set_forkserver_preload(
    "torch torch._dynamo torch.distributed.fsdp matplotlib.pyplot pytest train.pretrain train.loop train.run.report "
    "tests.train.helpers".split()
)


def run_module(module: str, *arguments, stdin: str = "") -> subprocess.CompletedProcess:
    """Return the output and exit code of `python -m module arguments…`.

    It runs in this process, which has imported torch.
    """
    found = importlib.import_module(module)
    if hasattr(found, "__path__"):
        found = importlib.import_module(f"{module}.__main__")
    return run_main(found.main, *arguments, stdin=stdin)


def run_main(main: Callable[[], int | None], *arguments, stdin: str = "") -> subprocess.CompletedProcess:
    """The same of a function that reads the command line itself."""
    out = io.StringIO()
    err = io.StringIO()
    with (
        mock.patch.object(sys, "argv", [main.__module__, *map(str, arguments)]),
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as stopped,
    ):
        exit_on_bad_input(main)
    return subprocess.CompletedProcess(sys.argv, stopped.value.code, out.getvalue(), err.getvalue())


def start(function: Callable, *arguments, **options) -> BaseProcess:
    """Start function(*arguments, **options) in a process of its own.

    It must be importable by its name.
    """
    process = _server.Process(target=function, args=arguments, kwargs=options)
    with chdir(Path(__file__).parents[1]):  # the server imports from where it is started, this tree
        process.start()
    return process


def exit_code(function: Callable, *arguments, **options) -> int | None:
    """Run function(*arguments, **options) to its end in a process of its own; minus the signal that
    killed it.
    """
    process = start(function, *arguments, **options)
    process.join(timeout=300)
    return process.exitcode


def print_to(file: Path) -> None:
    """From here on this process prints into `file`, its errors included."""
    output = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


@contextmanager
def little_room(limit: int) -> Iterator[None]:
    """While inside, no file may grow beyond `limit` bytes: the kernel refuses, as on a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
