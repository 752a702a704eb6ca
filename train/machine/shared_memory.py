"""Memory that the processes of a run on the cores of one machine share: they add up gradients there.

Sending the same numbers from process to process took more than twice as long (EXPERIMENTS.md).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from configs.command import InputError

IN_MEMORY = Path("/dev/shm")  # Linux: files here never reach a disk
CHUNK = 2**20


class SharedMemory:
    """`size` processes see the same float32 numbers. Every process makes every call, in the same order.

    Each call has its own places, turn by turn: while one process still reads what a call found, a quicker one may be
    in the next call, but not in the one after it.
    """

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size
        self.length, self.turn = 0, 0
        self.inputs = self.results = torch.empty(0)

    def add_up(self, tensors: list[Tensor]) -> None:
        """Each tensor becomes its sum over the processes, in the order of their ranks: the same bits in all of them."""
        length = sum(tensor.numel() for tensor in tensors)
        result = self._place(length)
        torch.cat([tensor.flatten() for tensor in tensors], out=self.inputs[self.rank, :length])
        self._wait()
        first, end = self.part_of(length)
        torch.sum(self.inputs[:, first:end], dim=0, out=result[first:end])
        self._wait()
        for tensor, total in zip(tensors, result.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor))

    def put_together(self, own: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        """Tensors of these shapes, of which each process has computed its part of the first dimension (`part_of`)."""
        lengths = [shape.numel() for shape in shapes]
        results = self._place(sum(lengths)).split(lengths)
        for result, shape, part in zip(results, shapes, own, strict=True):
            first, end = self.part_of(shape[0])
            result.view(shape)[first:end] = part
        self._wait()
        return [result.view(shape).clone() for result, shape in zip(results, shapes, strict=True)]

    def part_of(self, count: int) -> tuple[int, int]:
        """Of `count` items, those of this process: the first, and the one after the last."""
        return count * self.rank // self.size, count * (self.rank + 1) // self.size

    def _place(self, length: int) -> Tensor:
        """For the result of a call."""
        self._make_room(length)
        self.turn = 1 - self.turn
        return self.results[self.turn, :length]

    def _wait(self) -> None:
        """Until every process is here. Raises RuntimeError if one of them has ended."""
        dist.all_reduce(torch.zeros(1))

    def _make_room(self, length: int) -> None:
        """Rows of at least this many numbers: one a process, and two for results."""
        if length <= self.length:
            return
        self.length, rows = length, self.size + 2
        path: list[str | None] = [_file(rows * length * 4) if self.rank == 0 else None]
        dist.broadcast_object_list(path, src=0)
        if path[0] is None:
            size, folders = f"{rows * length * 4 / 2**20:,.0f} MiB", " or ".join(map(str, _folders()))
            raise InputError(f"no room for {size} that the processes share, in {folders}: set train.processes=1")
        memory = torch.from_file(path[0], shared=True, size=rows * length, dtype=torch.float32).view(rows, length)
        self.inputs, self.results = memory[: self.size], memory[self.size :]
        self._wait()
        if self.rank == 0:
            with suppress(OSError):  # Windows keeps a file that is in use
                Path(path[0]).unlink()


def _folders() -> list[Path]:
    return [folder for folder in (IN_MEMORY, Path(tempfile.gettempdir())) if folder.is_dir()]


def _file(length: int) -> str | None:
    """A new file of this many zeros: written, because a place that is only promised may turn out not to be there."""
    for folder in _folders():
        with suppress(OSError):
            descriptor, name = tempfile.mkstemp(prefix="headlight-", dir=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    for start in range(0, length, CHUNK):
                        file.write(bytes(min(CHUNK, length - start)))
                return name
            except OSError:
                Path(name).unlink()
    return None
