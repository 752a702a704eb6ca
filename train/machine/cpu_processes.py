"""A run on the CPU is several processes of few threads each, which add up their gradients once a step.

The threads of one process wait for each other inside every operation, thousands of times a step, and compute nothing
while they wait. Beside a busy program that takes ten times as long (EXPERIMENTS.md). Processes wait once a step.

The first process is the one that was started. The others are copies of it; on Windows and macOS they start by
themselves. They read the same config and write nothing; they hear no signals, and end when the first one does. If that
one was killed, they remove the temporary folder that it can no longer remove.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import torch

from configs.command import InputError
from data.batches import JOINED
from train.config import RunConfig
from train.machine.device import resolve_kind
from train.machine.distributed import STORE, largest_divisor
from train.machine.signals import STOP_SIGNALS
from train.saving.atomic_save import STEPS
from train.saving.checkpoint import read_state

LEAST_TOKENS = 512  # of a process in a step: with fewer it would rather wait than compute
CAN_COPY = platform.system() == "Linux"
LOOPBACK = {"Linux": "lo", "Darwin": "lo0"}
Result = TypeVar("Result")


def number_of_processes(config: RunConfig, parts: int | None = None) -> int:
    """What train.processes stands for. A run that is resumed keeps its number, if this machine has as many cores.

    parts: of a step, that may be computed apart; None: its rows.
    """
    if parts == 1 or "WORLD_SIZE" in os.environ or config.train.parallel != "ddp":
        return 1  # torchrun decides
    on_cpu, wanted, cores = resolve_kind(config) == "cpu", config.train.processes, torch.get_num_threads()
    if wanted != "auto":
        if wanted > 1 and not on_cpu:
            raise InputError(
                f"train.processes is {wanted}, which is for CPUs: on GPUs start torchrun (docs/scaling_out.md)"
            )
        return wanted
    if not on_cpu:
        return 1
    before: dict[str, Any] = {}
    with suppress(InputError, OSError):  # what is wrong with a checkpoint is said later
        if newest := max((config.directory / "checkpoints").glob(STEPS), default=None):
            before = dict(read_state(newest).resolved)
    size, threads = before.get("world_size"), before.get("threads")
    if size and threads and size * threads <= cores:
        return size
    most = min(cores, config.train.tokens_per_step // LEAST_TOKENS)
    return max(1, largest_divisor(parts or config.rows_per_step // joined(config), most))


def joined(config: RunConfig) -> int:
    """How many rows may be joined into one, which one process computes."""
    if config.data.rows_joined != "auto":
        return config.data.rows_joined
    is_text = config.data.records == "text" or not config.data.isolate_documents
    return 1 if is_text else max(n for n in JOINED if config.rows_per_step % n == 0)


def processes_in_words(number: int, threads: int) -> str:
    """As a run says it in its opening lines."""
    each = f"{threads} {'thread' if threads == 1 else 'threads'} each"
    return f"{number} processes of {each}, which add up their gradients once a step (train.processes)"


def on_processes(number: int, work: Callable[[], Result]) -> Result:
    """What `work` returns here, when `number` processes call it as one run: this one, and the others.

    Raises InputError if one of the others ended before its time.
    """
    if number == 1:
        return work()
    cores = torch.get_num_threads()
    threads = max(1, cores // number)
    # a copy begins at once; elsewhere than on Linux, and with several threads, a process starts by itself
    context: Any = multiprocessing.get_context("fork" if CAN_COPY and threads == 1 else "spawn")
    with tempfile.TemporaryDirectory(prefix="headlight-processes-") as folder:
        # as torchrun describes it (train/machine/distributed.py), but the processes find each other in a file
        shared = {STORE: str(Path(folder) / "store"), "WORLD_SIZE": str(number), "RANK": "0"}
        if platform.system() in LOOPBACK:
            shared |= {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", LOOPBACK[platform.system()])}
        sys.stdout.flush()  # or each copy prints what is still to be printed
        sys.stderr.flush()
        others: list[BaseProcess] = []
        added = shared.keys() - os.environ.keys()
        try:
            for rank in range(1, number):
                environment = shared | {"RANK": str(rank)}
                other = context.Process(target=_other, args=(work, environment, threads), daemon=True)
                other.start()
                others.append(other)
            os.environ.update(shared)
            torch.set_num_threads(threads)
            return work()
        except RuntimeError as error:  # of gloo, if the connection to a process is lost: which one, and why?
            for rank, other in enumerate(others, start=1):
                other.join(timeout=1)
                if code := other.exitcode:
                    why = f"signal {-code}" if code < 0 else f"exit code {code}"
                    raise InputError(
                        f"process {rank} of {number} ended ({why}); the same command continues from the newest "
                        "checkpoint. If memory is short: train.processes=1"
                    ) from None
            raise error from None
        finally:
            for other in others:
                other.kill()  # it writes nothing, and what is left of it waits for nobody
                other.join()
            torch.set_num_threads(cores)
            for name in added:
                os.environ.pop(name, None)


def _other(work: Callable[[], Any], environment: dict[str, str], threads: int) -> None:
    """What a process does that is not the first."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_first, args=(Path(environment[STORE]).parent,), daemon=True).start()
    os.environ.update(environment)
    torch.set_num_threads(threads)
    try:
        work()
    except InputError:
        sys.exit(2)  # the first process says it
    except RuntimeError as error:
        if "gloo" in str(error):  # another process has ended, and says why
            sys.exit(1)
        raise


def _end_with_the_first(folder: Path) -> None:
    first = multiprocessing.parent_process()
    assert first is not None
    connection.wait([first.sentinel])  # for its end: it ends the others before it goes by itself
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
