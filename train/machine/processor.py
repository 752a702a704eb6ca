"""What is the CPU, and how quick is it? As PyTorch sees it."""

from __future__ import annotations

import os
from typing import Any

import torch

from train.machine.timing import timed

KERNELS = ("MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")  # besides ATEN_CPU_CAPABILITY, which PyTorch itself reads
ROUNDS, MOST = 15, 1024


def cpu_capabilities() -> dict[str, Any]:
    """What PyTorch knows about the processor; empty where that is unknown."""
    return dict(getattr(torch.cpu, "get_capabilities", dict)())


def cpu_kernels() -> str:
    """For which instructions PyTorch's kernels are, and what in the environment limits them."""
    limits = [f"{name}={os.environ[name]}" for name in KERNELS if name in os.environ]
    return " ".join([torch.backends.cpu.get_cpu_capability(), *limits])


def product_tflops(tokens: int, inner: int, outer: int, dtype: torch.dtype) -> float:
    """TFLOP/s of one product of (tokens, inner) with (inner, outer), on all threads: the best of some.

    Each size is MOST at most, beyond which a product gains nothing. A small product is far from what a large one
    reaches, above all in bf16, so give the sizes of your model.
    """
    tokens, inner, outer = (min(MOST, size) for size in (tokens, inner, outer))
    a, b = torch.ones(tokens, inner, dtype=dtype), torch.ones(inner, outer, dtype=dtype)
    flops = 2 * tokens * inner * outer
    a @ b  # the first one prepares
    seconds = min(timed(lambda: a @ b, a.device)[0] for _ in range(ROUNDS))
    return flops / max(seconds, 1e-9) / 1e12
