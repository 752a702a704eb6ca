"""One run on several processes: how they start, what they exchange, and how they stop.

On a CPU a run starts one process a core (`on_processes`), which add up their gradients once a step. The threads of one
process wait for each other inside every operation, thousands of times a step, and compute nothing while they wait.
Beside a busy program that takes ten times as long (FINDINGS.md#busy).

    torchrun --nproc_per_node=N -m train.pretrain configs/x.yaml train.parallel=fsdp2

starts them on GPUs, with DDP, FSDP2 or HSDP. Each process takes an equal share of the rows of every step. DDP and FSDP2
average gradients; with the loss of a step as (own token sum / trained tokens of all) * processes, that average is the
gradient of one process alone. Small numbers travel between the CPUs (gloo), so that no GPU waits for them.
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
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from configs.command import InputError
from configs.files import STATE, TRAINING, checkpoint_directory, read_json
from data.batches import JOINED
from model import LanguageModel
from train.config import RunConfig
from train.machine.device import resolve_kind

Value = TypeVar("Value")
Parallel = Literal["ddp", "fsdp2", "hsdp"]
LEAST_TOKENS = 512  # of a process in a step: with fewer it would rather wait than compute
CAN_COPY = platform.system() == "Linux"
LOOPBACK = {"Linux": "lo", "Darwin": "lo0"}
STORE = "HEADLIGHT_STORE"  # names the file in which the processes on the cores of a CPU find each other
IN_MEMORY = Path("/dev/shm")  # Linux: files here never reach a disk
# the first that came to any process decides the exit code; Windows has no SIGHUP
STOP_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGINT") if hasattr(signal, name)]


@dataclass(frozen=True)
class World:
    """The processes of a run, as one of them sees them. A run of one process has rank 0 of 1.

    memory: of the processes that `on_processes` started, on the cores of a CPU; None for all others.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    parallel: Parallel = "ddp"
    memory: SharedMemory | None = None

    @property
    def shares_model(self) -> bool:
        """Whether each process holds only a share of every parameter, so that all of them make each forward pass."""
        return self.size > 1 and self.parallel != "ddp"

    def sum(self, *numbers: int) -> list[int]:
        """Each number, added up over the processes."""
        if self.size == 1:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(sums)
        return sums.tolist()

    def gather(self, value: Value) -> list[Value]:
        """The values of all processes, in the order of their ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def on_rank0(self, work: Callable[[], Value]) -> Value:
        """Run on rank 0 and broadcast the result; an InputError there is raised in every process."""
        if self.size == 1:
            return work()
        answer: list[Any] = [None, None]
        if self.rank == 0:
            try:
                answer[0] = work()
            except InputError as error:
                answer[1] = str(error)
        dist.broadcast_object_list(answer, src=0)
        if answer[1] is not None:
            raise InputError(answer[1])
        return answer[0]


ALONE = World()

# ---------------------------------------------------------------------------------------------------------
# how they start: one a core of a CPU. The first process is the one that was started; the others are copies of it (on
# Windows and macOS they start anew), read the same config, write nothing, hear no signals, and end when the first does


def number_of_processes(config: RunConfig, parts: int | None = None) -> int:
    """What train.processes stands for. A run that is resumed keeps its number, if this machine has as many cores.

    parts: of a step, that may be computed apart; None: its rows.
    """
    if parts == 1 or "WORLD_SIZE" in os.environ or config.train.parallel != "ddp":
        return 1  # torchrun decides
    wanted, cores = config.train.processes, torch.get_num_threads()
    if resolve_kind(config) != "cpu":
        if wanted not in ("auto", 1):
            raise InputError(f"train.processes is {wanted}, which is for CPUs: on GPUs start torchrun")
        return 1
    if wanted != "auto":
        check_shares(config, World(size=wanted))  # before any is started
        return wanted
    if (config.directory / "checkpoints" / "latest").is_file():
        with suppress(InputError, KeyError):  # what is wrong with a checkpoint is said later
            before = read_json(checkpoint_directory(config.directory) / TRAINING / STATE)["resolved"]
            if before["world_size"] * before["threads"] <= cores:
                return before["world_size"]
    most = min(cores, config.train.tokens_per_step // LEAST_TOKENS)
    return max(1, largest_divisor(parts or config.rows_per_step // joined(config), most))


def joined(config: RunConfig) -> int:
    """How many rows may be joined into one, which one process computes."""
    if config.data.rows_joined != "auto":
        return config.data.rows_joined
    is_text = config.data.records == "text" or not config.data.isolate_documents
    return 1 if is_text else max(n for n in JOINED if config.rows_per_step % n == 0)


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor of a number that is `most` or less; 0 if there is none."""
    return max((n for n in range(1, min(number, most) + 1) if number % n == 0), default=0)


def processes_in_words(number: int, threads: int) -> str:
    """As a run says it in its opening lines."""
    return f"{number} processes of {threads} thread{'s' * (threads > 1)} each, which add up their gradients once a step"


def on_processes(number: int, work: Callable[[], Value]) -> Value:
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
        # as torchrun describes it, but the processes find each other in a file
        shared = {STORE: str(Path(folder) / "store"), "WORLD_SIZE": str(number), "RANK": "0"}
        if (loopback := LOOPBACK.get(platform.system())) and "GLOO_SOCKET_IFNAME" not in os.environ:
            shared["GLOO_SOCKET_IFNAME"] = loopback
        sys.stdout.flush()  # or each copy prints what is still to be printed
        sys.stderr.flush()
        others: list[BaseProcess] = []
        try:
            for rank in range(1, number):
                others.append(context.Process(target=_other, args=(work, shared, rank, threads), daemon=True))
                others[-1].start()
            os.environ.update(shared)
            torch.set_num_threads(threads)
            return work()
        except RuntimeError:  # of gloo, if the connection to a process is lost: which one?
            for rank, other in enumerate(others, start=1):
                other.join(timeout=1)
                if other.exitcode:
                    raise InputError(
                        f"process {rank} of {number} ended with exit code {other.exitcode}; the same command continues "
                        "from the newest checkpoint. If memory is short: train.processes=1"
                    ) from None
            raise
        finally:
            for other in others:
                other.kill()  # it writes nothing, and what is left of it waits for nobody
                other.join()
            torch.set_num_threads(cores)
            for name in shared:
                os.environ.pop(name, None)


def _other(work: Callable[[], Any], shared: dict[str, str], rank: int, threads: int) -> None:
    """What a process does that is not the first."""

    def end_with_the_first() -> None:
        first = multiprocessing.parent_process()
        assert first is not None
        connection.wait([first.sentinel])  # it ends the others before it goes by itself: this one was killed,
        shutil.rmtree(Path(shared[STORE]).parent, ignore_errors=True)  # and can no longer remove its folder
        os._exit(1)

    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=end_with_the_first, daemon=True).start()
    os.environ.update(shared | {"RANK": str(rank)})
    torch.set_num_threads(threads)
    try:
        work()
    except InputError:
        sys.exit(2)  # the first process says it
    except RuntimeError as error:
        if "gloo" in str(error):  # another process has ended, and says why
            sys.exit(1)
        raise


# ---------------------------------------------------------------------------------------------------------
# how they find each other and share a model with DDP or FSDP2


@contextmanager
def processes(parallel: Parallel, device: str) -> Iterator[World]:
    """The world that torchrun or `on_processes` describes in the environment; without them, one process."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    file, rank, local_rank = os.environ.get(STORE), int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    backend, store = "gloo", dist.FileStore(file, size) if file is not None else next(dist.rendezvous("env://"))[0]
    if file is None and (device == "cuda" or (device == "auto" and torch.cuda.is_available())):
        torch.cuda.set_device(local_rank)
        backend = "cpu:gloo,cuda:nccl"
    # torchrun --max-restarts keeps its store (PyTorch 2.13), and with it the addresses of the processes that are dead
    store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    try:
        yield World(rank, size, local_rank, parallel, SharedMemory(rank, size) if file is not None else None)
    finally:
        # gloo's thread frees the tensors of the last reductions under Python's lock, which closing the connection
        # holds while it waits for that thread: let the thread go first
        gc.collect()
        time.sleep(0.1)
        dist.destroy_process_group()


def check_shares(config: RunConfig, world: World) -> None:
    """Raises InputError if the processes cannot share the rows of a step evenly, or cannot train as asked."""
    rows = config.rows_per_step
    if rows % world.size:
        fitting = largest_divisor(rows, world.size)
        raise InputError(f"{world.size} processes cannot share the {rows} rows of a step evenly: start {fitting}")
    if world.shares_model and config.train.precision == "fp16":
        raise InputError(f"train.precision is fp16, which train.parallel: {world.parallel} does not scale: use bf16")
    if world.parallel == "hsdp" and world.size % local_size(world.size):
        raise InputError("train.parallel is hsdp, which needs the same number of processes on every machine")


def local_size(size: int) -> int:
    """How many of `size` processes torchrun has started on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", size))


def shard(lm: LanguageModel, dtype: torch.dtype, world: World) -> None:
    """Leave each process its share of every parameter, gathered block by block when needed.

    fsdp2: all processes share one model. hsdp: those of each machine do, and machines add up their gradients; so
    parameters travel within a machine only. Call before the optimizers are built: they hold the shares. dtype: of
    matrix products; gradients are added up in float32. Zhao et al. 2023, PyTorch FSDP (arXiv 2304.11277).
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh, local = None, local_size(world.size)
    if world.parallel == "hsdp":
        shape, names = (world.size // local, local), ("machine", "process")
        mesh = dist.init_device_mesh(next(lm.parameters()).device.type, shape, mesh_dim_names=names)
    half = dtype if dtype != torch.float32 else None
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for layer in lm.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(lm, mesh=mesh, mp_policy=policy)  # what is left: embedding, last norm, head


def full_tensor(tensor: Tensor) -> Tensor:
    """A tensor with the shares of all processes put together (a DTensor, unless under ddp); every process calls it."""
    return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor.detach()


def share(tensor: Tensor, like: Tensor) -> Tensor:
    """This process's share of a tensor that every process has whole, laid out as `like`: under ddp all of it."""
    if not isinstance(like, DTensor) or isinstance(tensor, DTensor):
        return tensor
    everywhere = [Replicate()] * like.device_mesh.ndim
    replicated = DTensor.from_local(tensor.to(like.device), like.device_mesh, everywhere)
    return replicated.redistribute(placements=like.placements)


class _Outputs(nn.Module):
    """A module for DDP whose forward pass is `LanguageModel.outputs`."""

    def __init__(self, lm: LanguageModel):
        super().__init__()
        self.lm = lm

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self.lm.outputs(*inputs, **options)


def wrap(lm: LanguageModel, world: World, device: torch.device) -> Callable[..., Any]:
    """Return what training calls: with ddp, a module whose backward pass averages the gradients."""
    if world.parallel != "ddp":
        return lm.outputs
    ids = [world.local_rank] if device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(_Outputs(lm), device_ids=ids, gradient_as_bucket_view=True)


def sync_gradients(forward: Callable[..., Any], lm: LanguageModel, world: World, wanted: bool) -> None:
    """Whether the next micro-batch makes the processes talk: of each step, only the last one does."""
    if world.shares_model:
        lm.set_requires_gradient_sync(wanted)  # type: ignore[operator]
    elif isinstance(forward, nn.parallel.DistributedDataParallel):
        forward.require_backward_grad_sync = wanted  # what DDP.no_sync() sets


# ---------------------------------------------------------------------------------------------------------
# what they exchange on the cores of one machine


def add_up_gradients(lm: nn.Module, memory: SharedMemory, sums: Iterable[Tensor] = ()) -> None:
    """On the cores of a CPU, after the last micro-batch of a step: each gradient becomes the sum over the processes.

    sums: more float32 tensors that become theirs, so that nobody waits once more.
    """
    for parameter in lm.parameters():
        if parameter.requires_grad and parameter.grad is None:  # no row of this process reached it
            parameter.grad = torch.zeros_like(parameter)
    memory.add_up([*(parameter.grad for parameter in lm.parameters() if parameter.grad is not None), *sums])


class SharedMemory:
    """`size` processes on one machine see the same float32 numbers. Every process makes every call, in the same order.

    Sending the numbers from process to process took more than twice as long (FINDINGS.md#busy). Each call has its own
    places, turn by turn: while one process still reads the result of a call, a quicker one may be in the next call, but
    not in the one after it.
    """

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size
        self.length, self.turn = 0, 0
        self.inputs = self.results = torch.empty(0)  # (size, length): what each brings; (2, length): by turns

    def add_up(self, tensors: list[Tensor]) -> None:
        """Each tensor becomes its sum over the processes, in the order of their ranks: the same bits in all of them."""
        lengths = [tensor.numel() for tensor in tensors]
        result, length = self._place(sum(lengths)), sum(lengths)
        torch.cat([tensor.flatten() for tensor in tensors], out=self.inputs[self.rank, :length])
        self._wait()
        first, end = self.part_of(length)
        torch.sum(self.inputs[:, first:end], dim=0, out=result[first:end])
        self._wait()
        for tensor, total in zip(tensors, result.split(lengths), strict=True):
            tensor.copy_(total.view_as(tensor))

    def in_shares(self, compute: Callable[[Tensor], Tensor], items: Sequence[Tensor]) -> list[Tensor]:
        """compute(each), whose shape is that of `each`; every process computes its part of each's first dimension."""
        lengths = [item.numel() for item in items]
        results = self._place(sum(lengths)).split(lengths)
        for result, item in zip(results, items, strict=True):
            first, end = self.part_of(len(item))
            result.view_as(item)[first:end] = compute(item[first:end])
        self._wait()
        return [result.view_as(item).clone() for result, item in zip(results, items, strict=True)]

    def part_of(self, count: int) -> tuple[int, int]:
        """Of `count` items, those of this process: the first, and the one after the last."""
        return count * self.rank // self.size, count * (self.rank + 1) // self.size

    def _wait(self) -> None:
        """Until every process is here. Raises RuntimeError if one of them has ended."""
        dist.all_reduce(torch.zeros(1))

    def _place(self, length: int) -> Tensor:
        """For the result of a call; where there is no room for so many numbers, all processes open a larger file."""
        if length > self.length:
            self.length, rows = length, self.size + 2
            path = World(self.rank, self.size).on_rank0(lambda: _file_with_room(rows * length * 4))
            memory = torch.from_file(path, shared=True, size=rows * length, dtype=torch.float32).view(rows, length)
            self.inputs, self.results = memory[: self.size], memory[self.size :]
            self._wait()
            if self.rank == 0:
                with suppress(OSError):  # Windows keeps a file that is in use
                    Path(path).unlink()
        self.turn = 1 - self.turn
        return self.results[self.turn, :length]


def _file_with_room(size: int) -> str:
    """An empty file where it can grow to so many bytes: a process that writes beyond the room there is killed."""
    for folder in (IN_MEMORY, Path(tempfile.gettempdir())):
        if folder.is_dir() and shutil.disk_usage(folder).free > size:
            descriptor, name = tempfile.mkstemp(prefix="headlight-", dir=folder)
            os.close(descriptor)
            return name
    raise InputError(f"no room for {size / 2**20:,.0f} MiB that the processes share: set train.processes=1")


# ---------------------------------------------------------------------------------------------------------
# how they stop


@contextmanager
def stop_signals() -> Iterator[Callable[[], int]]:
    """While inside, the first of STOP_SIGNALS only leaves a note: the loop finishes its step, saves and stops. The
    function that you get returns it (0: none came).

    A second SIGINT or SIGTERM ends the process at once. Nothing is half-written by that: checkpoints take their name
    when they are complete, and the run resumes from the newest one. SIGHUP says that the terminal is gone, often twice
    (kernel and shell), so that it never counts as a second one. Behind `nohup` it is ignored, and stays ignored.
    """
    received = 0

    def note(number: int, frame: Any) -> None:
        nonlocal received
        name = signal.Signals(number).name
        is_second = received and name != "SIGHUP"
        if is_second or not received:
            text = f"{name}: saving after this step … (once more: stop at once)"
            if is_second:
                text = f"{name} again: stopped at once; the same command continues from the newest checkpoint"
            with suppress(OSError):  # the terminal may be gone
                os.write(2, f"\n{text}\n".encode())  # not print: a signal may come in the middle of one
        if is_second:
            os._exit(128 + number)
        received = received or number

    heard = [stop for stop in STOP_SIGNALS if stop.name != "SIGHUP" or signal.getsignal(stop) is not signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in heard}
    try:
        yield lambda: received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
