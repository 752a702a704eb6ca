"""Several processes as one run: what they agree on, and how DDP, FSDP2 and HSDP share a model.

    torchrun --nproc_per_node=N -m train.pretrain configs/x.yaml train.parallel=fsdp2

starts them on GPUs. On the cores of a CPU a run starts them itself (cpu_processes.py). Each takes
an equal share of the rows of every step. Small numbers travel between the CPUs (gloo), so that no
GPU waits for them.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from configs.command import InputError
from model import LanguageModel
from train.config import RunConfig
from train.machine.cpu_processes import STORE, SharedMemory, check_rows

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Value = TypeVar("Value")
Parallel = Literal["ddp", "fsdp2", "hsdp"]


@dataclass(frozen=True)
class World:
    """The processes of a run, as one of them sees them."""

    rank: int = 0
    size: int = 1  # 1: this process is alone
    local_rank: int = 0  # the rank among the processes of this machine
    parallel: Parallel = "ddp"
    # Processes on the cores of a CPU add up gradients in it; None under torchrun.
    memory: SharedMemory | None = None

    @property
    def shares_model(self) -> bool:
        """True if each process holds a share of every parameter (FSDP2, HSDP)."""
        return self.size > 1 and self.parallel != "ddp"

    def sum(self, *numbers: int) -> list[int]:
        """Add up each number over the processes."""
        if self.size == 1:
            return list(numbers)
        # On the CPU, through gloo: nobody waits for a GPU.
        sums = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(sums)
        return sums.tolist()

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all processes, by rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def on_rank0(self, work: Callable[[], Value]) -> Value:
        """Run on rank 0 and broadcast the result; an InputError is raised on all ranks."""
        if self.size == 1:
            return work()
        answer: list[Any] = [None, None]
        if self.rank == 0:
            try:
                answer[0] = work()
            except InputError as error:
                # If it were raised here, the others would wait for the broadcast forever.
                answer[1] = str(error)
        dist.broadcast_object_list(answer, src=0)
        if answer[1] is not None:
            raise InputError(answer[1])
        return answer[0]


ALONE = World()


@contextmanager
def processes(parallel: Parallel, device: str) -> Iterator[World]:
    """Join the world in the environment, from torchrun or `on_processes`; without, be alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    backend = "gloo"
    memory = None
    store: dist.Store
    if STORE in os.environ:
        store = dist.FileStore(os.environ[STORE], size)
        memory = SharedMemory(rank, size)
    else:
        store, _, _ = next(dist.rendezvous("env://"))
        if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
            torch.cuda.set_device(local_rank)
            backend = "cpu:gloo,cuda:nccl"
    # torchrun --max-restarts keeps its store (PyTorch 2.13), with the addresses of dead processes
    store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    try:
        yield World(rank, size, local_rank, parallel, memory)
    finally:
        # A deadlock: gloo's thread frees the tensors of the last reductions under Python's lock,
        # and closing holds that lock while it waits for the thread. Let the thread finish first.
        gc.collect()
        time.sleep(0.1)
        dist.destroy_process_group()


def check_shares(config: RunConfig, world: World) -> None:
    """Raise InputError if the processes cannot share a step evenly, or cannot train as asked."""
    parallel = world.parallel
    check_rows(config, world.size)
    if world.shares_model and config.train.precision == "fp16":
        unscaled = f"train.parallel: {parallel} does not scale"
        raise InputError(f"train.precision is fp16, which {unscaled}: use bf16")
    if parallel == "hsdp" and world.size % local_size(world.size):
        number = "the same number of processes on every machine"
        raise InputError(f"train.parallel is hsdp, which needs {number}")


def local_size(size: int) -> int:
    """Return how many of `size` processes torchrun has started on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", size))


def shard(lm: LanguageModel, dtype: torch.dtype, world: World) -> None:
    """Leave each process its share of every parameter, gathered layer by layer when needed.

    PyTorch FSDP (Zhao et al. 2023, arXiv 2304.11277). dtype: of matrix products. Call it before the
    optimizers are built, for they hold the shares.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    # fsdp2: all processes share one model. hsdp: those of each machine do, so parameters travel
    # within a machine only, and machines add up their gradients.
    mesh = None
    if world.parallel == "hsdp":
        local = local_size(world.size)
        kind = lm.device.type
        shape = (world.size // local, local)
        mesh = dist.init_device_mesh(kind, shape, mesh_dim_names=("machine", "process"))
    half = dtype if dtype != torch.float32 else None
    # Gradients are added up in float32: in bf16 small ones would vanish in the sum.
    policy = MixedPrecisionPolicy(
        param_dtype=half, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for layer in lm.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(lm, mesh=mesh, mp_policy=policy)  # the rest: embedding, last norm, head


def is_sharded(tensor: Tensor | None) -> TypeGuard[DTensor]:
    """Return True for a DTensor, of which each process holds a share.

    Its module brings sympy, which takes a second to import. `shard` imports it. Before, no tensor
    is a DTensor.
    """
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def full_tensor(tensor: Tensor) -> Tensor:
    """Put the shares of all processes together. A trap: all ranks must call it, or it hangs."""
    return tensor.full_tensor().detach() if is_sharded(tensor) else tensor.detach()


def share(tensor: Tensor, like: Tensor) -> Tensor:
    """Return this process's share of a full tensor, laid out as `like`: under ddp all of it."""
    if not is_sharded(like) or is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate

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
    """Return what training calls, wrapped in DDP if the run uses it."""
    if world.parallel != "ddp":
        return lm.outputs
    ids = [world.local_rank] if device.type == "cuda" else None
    parallel = nn.parallel.DistributedDataParallel
    # a gradient is a view of DDP's own buffer, which saves a second copy of all of them
    return parallel(_Outputs(lm), device_ids=ids, gradient_as_bucket_view=True)


def sync_gradients(forward: Any, lm: LanguageModel, world: World, wanted: bool) -> None:
    """Let the next backward pass exchange gradients, or only add them up."""
    # Neither case: one process, or processes on a CPU, which exchange them after the last pass.
    if world.shares_model:
        # until then FSDP2 holds the sums of whole gradients, not of shares
        lm.set_requires_gradient_sync(wanted)  # type: ignore[operator]
    elif isinstance(forward, nn.parallel.DistributedDataParallel):
        # By default DDP exchanges gradients in every backward pass, one for each micro-batch.
        forward.require_backward_grad_sync = wanted  # as DDP.no_sync() does
