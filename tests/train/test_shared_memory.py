"""What processes add up in the memory that they share: the same bits in all of them, however quick each one is."""

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from configs.command import InputError
from tests.train.worlds import run_world
from train.machine import shared_memory
from train.machine.distributed import in_shares
from train.machine.shared_memory import SharedMemory
from train.optimizer import orthogonalize

SIZE, CALLS = 3, 6


def numbers(rank: int, call: int) -> list[torch.Tensor]:
    """What process `rank` brings to a call: more every time, so that the room has to grow."""
    draw = torch.Generator().manual_seed(100 * call + rank)
    return [torch.randn(3 + call, 5, generator=draw), torch.randn(7 * call + 1, generator=draw)]


def matrices(call: int) -> list[torch.Tensor]:
    """What they share to compute: two stacks, of which one has fewer matrices than there are processes."""
    draw = torch.Generator().manual_seed(call)
    return [torch.randn(5, 4, 6, generator=draw), torch.randn(2, 3, 3, generator=draw)]


def add_up_and_put_together(folder: Path, quickest: int) -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    memory = SharedMemory(rank, size)
    for call in range(CALLS):
        own = numbers(rank, call)
        memory.add_up(own)
        if rank != quickest:
            time.sleep(0.02)  # what it reads now must still be there when the quickest is in the next call
        items = matrices(call)
        torch.save((own, in_shares(orthogonalize, items, memory)), folder / f"{rank}_{call}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("quickest", range(SIZE))
def test_all_processes_find_the_sum_in_the_order_of_their_ranks(tmp_path, quickest):
    left = set(shared_memory.IN_MEMORY.glob("headlight-*"))
    assert run_world(SIZE, add_up_and_put_together, tmp_path, quickest) == [0] * SIZE
    for call in range(CALLS):
        brought = [numbers(rank, call) for rank in range(SIZE)]
        expected = [torch.stack(tensors).sum(dim=0) for tensors in zip(*brought, strict=True)]
        items = matrices(call)
        found = [torch.load(tmp_path / f"{rank}_{call}.pt") for rank in range(SIZE)]
        for own, orthogonal in found:
            torch.testing.assert_close(own, expected)
            torch.testing.assert_close(orthogonal, [orthogonalize(each) for each in items])
            assert all(torch.equal(mine, first) for mine, first in zip(orthogonal, found[0][1], strict=True))
            assert all(torch.equal(mine, first) for mine, first in zip(own, found[0][0], strict=True))
    assert set(shared_memory.IN_MEMORY.glob("headlight-*")) <= left


def test_items_are_divided_without_gap_or_overlap():
    parts = [SharedMemory(rank, SIZE).part_of(5) for rank in range(SIZE)]
    assert parts == [(0, 1), (1, 3), (3, 5)]


def without_room(folder: Path) -> None:
    dist.init_process_group("gloo")
    shared_memory._folders = lambda: [Path("/dev/full"), folder / "missing"]
    with pytest.raises(InputError, match=r"no room for 4 MiB .* /dev/full or .*missing: set train\.processes=1"):
        SharedMemory(dist.get_rank(), 2).add_up([torch.ones(2**18)])
    dist.destroy_process_group()


def test_without_room_every_process_says_so(tmp_path):
    assert run_world(2, without_room, tmp_path) == [0, 0]
