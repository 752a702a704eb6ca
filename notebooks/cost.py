"""Measure the memory and the time of attention's kernels, for notebook 08."""

from __future__ import annotations

import os
import time
from functools import partial

import torch
from torch import Tensor

from benchmarks.timing import alternate
from model.backends.choice import BACKENDS


def inputs(H: int, T: int, D: int) -> list[Tensor]:
    """Return random q, k and v, (1, H, T, D) each, with gradients."""
    return [torch.randn(1, H, T, D, requires_grad=True) for _ in range(3)]


def bytes_kept(backend: str, H: int, T: int, D: int) -> int:
    """Return the bytes that autograd keeps for one call. Shared memory counts once."""
    kept = {}

    def note(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        kept[memory.data_ptr()] = memory.nbytes()
        return tensor

    q, k, v = inputs(H, T, D)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = BACKENDS[backend].compute(q, k, v, None, 0.0)
    assert out.grad_fn is not None  # the graph keeps the tensors until here
    return sum(kept.values())


def forward_backward(backend: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    out = BACKENDS[backend].compute(q, k, v, None, 0.0)
    torch.autograd.grad(out, (q, k, v), torch.ones_like(out))


def seconds_of_both(H: int, T: int, D: int) -> dict[str, float]:
    """Return the median seconds of "eager" and "sdpa", forward and backward, called in turn."""
    # processor time of this thread, which is too coarse on Windows
    clock = time.perf_counter if os.name == "nt" else time.thread_time
    q, k, v = inputs(H, T, D)
    calls = {name: partial(forward_backward, name, q, k, v) for name in ("eager", "sdpa")}
    return alternate(calls, max(3, 2048 // T), torch.device("cpu"), clock=clock)
