"""A run on a CPU starts one process a core, which add up their gradients once a step.

The threads of one process wait for each other inside every operation, thousands of times a step.
Beside a busy program that takes ten times as long (FINDINGS.md#busy).

The first process is the one that was started. The others are copies of it (on Windows and macOS
they start anew). They read the same config, write nothing, ignore signals, and end with the first.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import platform
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from configs.command import InputError
from configs.files import STATE, TRAINING, checkpoint_directory, read_json
from data.batches import JOINED
from train.config import RunConfig
from train.machine.device import resolve_kind
from train.machine.signals import STOP_SIGNALS

Value = TypeVar("Value")
Compute = Callable[[Tensor], Tensor]
# With fewer tokens in a step, a process would wait longer than it computes.
LEAST_TOKENS = 512
# macOS has fork, but its system libraries may crash in a copy.
CAN_COPY = platform.system() == "Linux"
LOOPBACK = {"Linux": "lo", "Darwin": "lo0"}
STORE = "HEADLIGHT_STORE"  # Names the file in which these processes find each other.
IN_MEMORY = Path("/dev/shm")  # On Linux, files here never reach a disk.


def number_of_processes(config: RunConfig, parts: int | None = None) -> int:
    """Return what train.processes stands for. parts: of a step; None: its rows."""
    if parts == 1 or "WORLD_SIZE" in os.environ or config.train.parallel != "ddp":
        return 1  # torchrun decides
    number = config.train.processes
    if resolve_kind(config) != "cpu":
        if number not in ("auto", 1):
            problem = f"train.processes is {number}, which is for CPUs: on GPUs start torchrun"
            raise InputError(problem)
        return 1
    if number != "auto":
        check_rows(config, number)  # before any is started
        return number
    cores = torch.get_num_threads()
    # A resumed run keeps its number: other sums would differ in the last bits.
    if (config.directory / "checkpoints" / "latest").is_file():
        with suppress(InputError, KeyError):  # a damaged checkpoint is reported later
            state = read_json(checkpoint_directory(config.directory) / TRAINING / STATE)
            before = state["resolved"]
            if before["world_size"] * before["threads"] <= cores:
                return before["world_size"]
    most = min(cores, config.train.tokens_per_step // LEAST_TOKENS)
    return max(1, largest_divisor(parts or config.rows_per_step // joined(config), most))


def check_rows(config: RunConfig, processes: int) -> None:
    """Raise InputError if so many processes cannot share the rows of a step evenly."""
    rows = config.rows_per_step
    if rows % processes:
        shared = f"{processes} processes cannot share the {rows} rows of a step evenly"
        raise InputError(f"{shared}: start {largest_divisor(rows, processes)}")


def joined(config: RunConfig) -> int:
    """Return how many rows may be joined into one."""
    if config.data.rows_joined != "auto":
        return config.data.rows_joined
    if config.data.records == "text" or not config.data.isolate_documents:
        return 1
    return max(n for n in JOINED if config.rows_per_step % n == 0)


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor that is `most` or less; 0 if there is none."""
    divisors = [n for n in range(1, min(number, most) + 1) if number % n == 0]
    return max(divisors, default=0)


def processes_in_words(number: int, threads: int) -> str:
    """Describe the processes as in the opening lines of a run."""
    each = "1 thread" if threads == 1 else f"{threads} threads"
    return f"{number} processes of {each} each, which add up their gradients once a step"


def on_processes(number: int, work: Callable[[], Value]) -> Value:
    """Call `work` in this process and `number` - 1 others, and return the result of this one.

    Raises InputError if one of the others ended early.
    """
    if number == 1:
        return work()
    cores = torch.get_num_threads()
    threads = max(1, cores // number)
    # A copy begins at once. It is for Linux, and for processes of one thread.
    method = "fork" if CAN_COPY and threads == 1 else "spawn"
    if method == "fork":
        # A copy shares the memory of what was loaded before. An optimizer loads the compiler, used
        # or not, so load it now. And without freeze, collecting garbage would write into all pages.
        import_module("torch._dynamo")
        gc.freeze()
    context: Any = multiprocessing.get_context(method)
    with tempfile.TemporaryDirectory(prefix="headlight-processes-") as folder:
        # the variables of torchrun, but a file instead of a network address: it needs no port
        shared = {STORE: str(Path(folder) / "store"), "WORLD_SIZE": str(number), "RANK": "0"}
        if platform.system() in LOOPBACK and "GLOO_SOCKET_IFNAME" not in os.environ:
            shared["GLOO_SOCKET_IFNAME"] = LOOPBACK[platform.system()]
        sys.stdout.flush()  # or each copy prints what is still to be printed
        sys.stderr.flush()
        others: list[BaseProcess] = []
        try:
            for rank in range(1, number):
                arguments = (work, shared, rank, threads)
                others.append(context.Process(target=_work_on_rank, args=arguments, daemon=True))
                others[-1].start()
            os.environ.update(shared)
            torch.set_num_threads(threads)
            return work()
        except RuntimeError:  # gloo has lost a process: which one?
            for rank, other in enumerate(others, start=1):
                other.join(timeout=1)
                if other.exitcode:
                    ended = f"process {rank} of {number} ended with exit code {other.exitcode}"
                    raise InputError(
                        f"{ended}; the same command continues from the newest checkpoint. If "
                        "memory is short: train.processes=1"
                    ) from None
            raise
        finally:
            for other in others:
                other.kill()  # it writes nothing, so it has nothing to finish
                other.join()
            gc.unfreeze()
            torch.set_num_threads(cores)
            for name in shared:
                os.environ.pop(name, None)


def _work_on_rank(work: Callable[[], Any], shared: dict[str, str], rank: int, threads: int) -> None:
    """Do the work of a process that is not the first."""

    def end_with_the_first() -> None:
        first = multiprocessing.parent_process()
        assert first is not None
        connection.wait([first.sentinel])
        # The first ends the others before it ends. So it was killed, and its folder is left.
        shutil.rmtree(Path(shared[STORE]).parent, ignore_errors=True)
        os._exit(1)

    # The first process gets them as well, and shares them with all at the next step.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=end_with_the_first, daemon=True).start()
    os.environ.update(shared | {"RANK": str(rank)})
    torch.set_num_threads(threads)
    try:
        work()
    except InputError:
        sys.exit(2)  # the first process prints it
    except RuntimeError as error:
        if "gloo" in str(error):  # another process has ended, and prints why
            sys.exit(1)
        raise


# -------------------------------------------------------------------------------------------------
# gradients


def add_up_gradients(lm: nn.Module, memory: SharedMemory, sums: Iterable[Tensor] = ()) -> None:
    """Make each gradient the sum over the processes. sums: more float32 tensors to add up."""
    gradients = []
    for parameter in lm.parameters():
        if parameter.requires_grad and parameter.grad is None:  # no row here reached it
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad is not None:
            gradients.append(parameter.grad)
    memory.add_up([*gradients, *sums])


class SharedMemory:
    """The same float32 numbers for `size` processes, which make the same calls in the same order.

    Sending numbers from process to process took more than twice as long (FINDINGS.md#busy).
    """

    # Results alternate between two rows. While one process still reads the result of a call, a
    # quicker one may be in the next call, but not in the one after it.

    def __init__(self, rank: int, size: int):
        self.rank = rank
        self.size = size
        self.length = 0
        self.turn = 0
        self.inputs = torch.empty(0)  # (size, length), a row of each process
        self.results = torch.empty(0)  # (2, length)

    def add_up(self, tensors: list[Tensor]) -> None:
        """Make each tensor its sum over the processes."""
        # Each process sums one share of the numbers, always in the order of ranks. So all get the
        # same bits, and models do not drift apart.
        lengths = [tensor.numel() for tensor in tensors]
        length = sum(lengths)
        result = self._next_result(length)
        flat = [tensor.flatten() for tensor in tensors]
        torch.cat(flat, out=self.inputs[self.rank, :length])
        self._wait()
        first, end = self._share_of(length)
        torch.sum(self.inputs[:, first:end], dim=0, out=result[first:end])
        self._wait()
        for tensor, total in zip(tensors, result.split(lengths), strict=True):
            tensor.copy_(total.view_as(tensor))

    def in_shares(self, compute: Compute, items: Sequence[Tensor]) -> list[Tensor]:
        """Return compute(item) for each; each process computes a share of its first dimension."""
        lengths = [item.numel() for item in items]
        results = self._next_result(sum(lengths)).split(lengths)
        for result, item in zip(results, items, strict=True):
            first, end = self._share_of(len(item))
            result.view_as(item)[first:end] = compute(item[first:end])
        self._wait()
        return [result.view_as(item).clone() for result, item in zip(results, items, strict=True)]

    def _share_of(self, count: int) -> tuple[int, int]:
        return count * self.rank // self.size, count * (self.rank + 1) // self.size

    def _wait(self) -> None:
        """Wait for every process. Raises RuntimeError if one of them has ended."""
        dist.all_reduce(torch.zeros(1))

    def _next_result(self, length: int) -> Tensor:
        """Return the other row of results. If it is too short, all open a larger file."""
        if length > self.length:
            self.length = length
            # an input of each process, and two rows of results
            rows = self.size + 2
            path = [_file_with_room(rows * length * 4) if self.rank == 0 else None]
            dist.broadcast_object_list(path, src=0)
            if path[0] is None:
                room = f"{rows * length * 4 / 2**20:,.0f} MiB"
                problem = f"no room for {room} that the processes share: set train.processes=1"
                raise InputError(problem)
            flat = torch.from_file(path[0], shared=True, size=rows * length, dtype=torch.float32)
            memory = flat.view(rows, length)
            self.inputs = memory[: self.size]
            self.results = memory[self.size :]
            self._wait()
            if self.rank == 0:
                with suppress(OSError):  # Windows keeps a file that is in use
                    Path(path[0]).unlink()
        self.turn = 1 - self.turn
        return self.results[self.turn, :length]


def _file_with_room(size: int) -> str | None:
    """Make an empty file where so many bytes are free."""
    # Writing to mapped memory without room on its disk kills the process (SIGBUS).
    for folder in (IN_MEMORY, Path(tempfile.gettempdir())):
        if folder.is_dir() and shutil.disk_usage(folder).free > size:
            descriptor, name = tempfile.mkstemp(prefix="headlight-", dir=folder)
            os.close(descriptor)
            return name
    return None
