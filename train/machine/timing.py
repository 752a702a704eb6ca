"""How long does a call take here? Both clocks: the one on the wall, and the time that this process computes."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

# wall: what you wait. cpu: what all threads of this process compute; other programs on the cores do not add to it
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


def synchronize(device: torch.device) -> None:
    """Wait until the GPU has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(call: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """(seconds that you wait, seconds that each thread computes) of one call, the GPU's work included.

    The second is the same beside other programs. On a GPU both are what you wait, because the CPU only waits too.
    """
    synchronize(device)
    before = CLOCKS["wall"](), CLOCKS["cpu"]()
    call()
    synchronize(device)
    wall, cpu = CLOCKS["wall"]() - before[0], CLOCKS["cpu"]() - before[1]
    return (wall, wall) if device.type == "cuda" else (wall, cpu / torch.get_num_threads())
