"""One run on several processes: how they add up gradients, and the few numbers that they exchange.

    torchrun --nproc_per_node=N -m train.pretrain configs/x.yaml train.parallel=fsdp2

starts them on GPUs, with DDP or FSDP2; on a CPU train/machine/cpu_processes.py does, and they share memory.

Each process takes an equal share of the rows of every step. Gradients are averaged by DDP or FSDP2; with the loss of
a step as (own token sum / trained tokens of all) * processes, that average is the gradient of one process alone.
Small numbers travel between the CPUs (gloo), so that no GPU waits for them.
"""

from __future__ import annotations

import gc
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from configs.command import InputError
from model import LanguageModel
from train.config import RunConfig

Value = TypeVar("Value")
STORE = "HEADLIGHT_STORE"  # names the file in which the processes of cpu_processes.py find each other
IN_MEMORY = Path("/dev/shm")  # Linux: files here never reach a disk


@dataclass(frozen=True)
class World:
    """The processes of a run, as one of them sees them. A run of one process has rank 0 of 1.

    memory: of the processes that cpu_processes.py started, on the cores of a CPU; None for all others.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    parallel: Literal["ddp", "fsdp2"] = "ddp"
    memory: SharedMemory | None = None

    @property
    def on_cores(self) -> bool:
        """Whether cpu_processes.py started the processes, on the cores of a CPU."""
        return self.memory is not None

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    @property
    def shares_model(self) -> bool:
        """Whether each process holds only a share of every parameter, so that all of them make each forward pass."""
        return self.size > 1 and self.parallel == "fsdp2"

    def sum(self, *numbers: int) -> list[int]:
        """Each number, added up over the processes."""
        totals = torch.tensor(numbers, dtype=torch.int64)
        return self.sum_tensor(totals).tolist()

    def sum_tensor(self, value: Tensor) -> Tensor:
        """A tensor on the device, added up over the processes."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def on_rank0(self, ask: Callable[[], Value]) -> Value:
        """What the first process finds; an InputError there is raised in every process."""
        if self.size == 1:
            return ask()
        answer: list[Any] = [None, None]
        if self.is_first:
            try:
                answer[0] = ask()
            except InputError as error:
                answer[1] = str(error)
        dist.broadcast_object_list(answer, src=0)
        if answer[1] is not None:
            raise InputError(answer[1])
        return answer[0]

    def say(self, text: str) -> None:
        """Print once, not once a process."""
        if self.is_first:
            print(text)

    def gather(self, value: Value) -> list[Value]:
        """The values of all processes, in the order of their ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values


ALONE = World()


@contextmanager
def processes(parallel: Literal["ddp", "fsdp2"], device: str) -> Iterator[World]:
    """The world that torchrun or cpu_processes.py describes in the environment; without them, one process."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    on_cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    file, rank, local_rank = os.environ.get(STORE), int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    if on_cuda:
        if local_rank >= torch.cuda.device_count():
            problem = f"process {rank} finds {torch.cuda.device_count()} GPUs here: start as many processes"
            if rank:
                print(f"error: {problem}", file=sys.stderr)  # the first process may have found its own
            raise InputError(f"train.device: {problem}, or set train.device=cpu")
        torch.cuda.set_device(local_rank)
    if file is not None:
        dist.init_process_group("gloo", store=dist.FileStore(file, size), rank=rank, world_size=size)
    else:
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_cuda else "gloo")
    try:
        yield World(rank, size, local_rank, parallel, SharedMemory(rank, size) if file is not None else None)
    finally:
        # gloo's thread frees the tensors of the last reductions under Python's lock, which closing the connection
        # holds while it waits for that thread: let the thread go first
        gc.collect()
        time.sleep(0.1)
        dist.destroy_process_group()


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor of a number that is `most` or less; 0 if there is none."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return max((n for n in (*small, *(number // n for n in small)) if n <= most), default=0)


def check_shares(config: RunConfig, world: World) -> None:
    """Raises InputError if the processes cannot share the rows of a step evenly, or cannot train as asked."""
    rows = config.rows_per_step
    if rows % world.size:
        raise InputError(
            f"{world.size} processes cannot share the {rows} rows of a step evenly (train.tokens_per_step / "
            f"data.sequence_length): start {largest_divisor(rows, world.size)}, or make the rows a multiple of "
            f"{world.size}"
        )
    if world.shares_model and config.train.precision == "fp16":
        raise InputError("train.precision is fp16, which train.parallel: fsdp2 does not scale: use bf16, or ddp")


# ---------------------------------------------------------------------------------------------------------
# DDP and FSDP2


def shard(lm: LanguageModel, dtype: torch.dtype) -> None:
    """For fsdp2: leave each process its share of every parameter, gathered block by block when needed.

    Call before the optimizers are built: they hold the shares. dtype: of matrix products; gradients are added up in
    float32. Zhao et al. 2023, PyTorch FSDP (arXiv 2304.11277).
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    half = dtype if dtype != torch.float32 else None
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for layer in lm.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(lm, mp_policy=policy)  # what is left: embedding, last norm, head


def full_tensor(tensor: Tensor) -> Tensor:
    """A tensor with the shares of all processes put together (a DTensor, under fsdp2); every process calls it."""
    return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor.detach()


def share(tensor: Tensor, like: Tensor) -> Tensor:
    """This process's share of a tensor that every process has whole, laid out as `like`: all of it but under fsdp2."""
    if not isinstance(like, DTensor):
        return tensor
    everywhere = [Replicate()] * like.device_mesh.ndim
    replicated = DTensor.from_local(tensor.to(like.device), like.device_mesh, everywhere)
    return replicated.redistribute(placements=like.placements)


def wrap(model: nn.Module, world: World, device: torch.device) -> nn.Module:
    """What training calls: with ddp, the model (compiled or not) whose backward pass averages the gradients."""
    if world.size == 1 or world.parallel != "ddp" or world.on_cores:
        return model
    ids = [world.local_rank] if device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)


def sync_gradients(forward: nn.Module, lm: LanguageModel, world: World, wanted: bool) -> None:
    """Whether the next micro-batch makes the processes talk: of each step, only the last one does."""
    if world.on_cores:
        return
    if world.parallel == "fsdp2":
        lm.set_requires_gradient_sync(wanted)  # type: ignore[operator]
    else:
        assert isinstance(forward, nn.parallel.DistributedDataParallel)
        forward.require_backward_grad_sync = wanted  # what DDP.no_sync() sets


# ---------------------------------------------------------------------------------------------------------
# the cores of one machine


def add_up_gradients(lm: nn.Module, memory: SharedMemory, sums: Iterable[Tensor] = ()) -> None:
    """On the cores of a CPU, after the last micro-batch of a step: each gradient becomes the sum over the processes.

    sums: more float32 tensors that become theirs, so that nobody waits once more.
    """
    trained = [parameter for parameter in lm.parameters() if parameter.requires_grad]
    for parameter in trained:
        if parameter.grad is None:  # no row of this process reached it
            parameter.grad = torch.zeros_like(parameter)
    memory.add_up([*(parameter.grad for parameter in trained if parameter.grad is not None), *sums])


class SharedMemory:
    """`size` processes on one machine see the same float32 numbers. Every process makes every call, in the same order.

    Sending the numbers from process to process took more than twice as long (EXPERIMENTS.md). Each call has its own
    places, turn by turn: while one process still reads what a call found, a quicker one may be in the next call, but
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
            path = World(self.rank, self.size).on_rank0(lambda: _file(rows * length * 4))
            memory = torch.from_file(path, shared=True, size=rows * length, dtype=torch.float32).view(rows, length)
            self.inputs, self.results = memory[: self.size], memory[self.size :]
            self._wait()
            if self.rank == 0:
                with suppress(OSError):  # Windows keeps a file that is in use
                    Path(path).unlink()
        self.turn = 1 - self.turn
        return self.results[self.turn, :length]


def _folders() -> list[Path]:
    return [folder for folder in (IN_MEMORY, Path(tempfile.gettempdir())) if folder.is_dir()]


def _file(length: int) -> str:
    """A new file of this many zeros: written, because a place that is only promised may turn out not to be there."""
    for folder in _folders():
        with suppress(OSError):
            descriptor, name = tempfile.mkstemp(prefix="headlight-", dir=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    for start in range(0, length, 2**20):
                        file.write(bytes(min(2**20, length - start)))
                return name
            except OSError:
                Path(name).unlink()
    size, folders = f"{length / 2**20:,.0f} MiB", " or ".join(map(str, _folders()))
    raise InputError(f"no room for {size} that the processes share, in {folders}: set train.processes=1")
