"""Which attention backend is quick here? Time and memory of each, forward and backward, for MHA, GQA and MQA.

The number of tokens is the same in every row of the tables (batch x length = the longest length). So what grows with
the length is the square in attention. Time is the median of several rounds in which the backends take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.timing import Clock, alternate, peak_bytes
from configs.text import table
from model.backends.choice import BACKENDS, Situation, why_not
from model.backends.kernels import flex_kernel_compiled
from model.config import ModelConfig
from model.masks import MaskSpec
from train.device import resolve_precision


def compare_backends(config: ModelConfig, device: torch.device, lengths: list[int], rounds: int, clock: Clock) -> None:
    """Print two tables: milliseconds and megabytes, one row for a length and a number of key/value heads."""
    dtype = torch.bfloat16 if resolve_precision("auto", device.type)[0] == "bf16" else torch.float32
    trained = Situation(device.type, dtype, config.head_size, gradients=True)
    problems = {name: why_not(name, replace(trained, gradients=_has_gradients(name, device))) for name in BACKENDS}
    names = [name for name, problem in problems.items() if problem is None]
    heads, tokens = config.num_attention_heads, max(lengths)
    print(f"{heads} query heads of {config.head_size}, {tokens:,} tokens a call, causal, {str(dtype)[6:]}")
    for name, problem in problems.items():
        if problem:
            print(f"  left out: {name} {problem}")
    kinds = {"MHA": heads, "GQA": max(1, heads // 4), "MQA": 1}
    times, memory = [], []
    for length in lengths:
        for kind, kv_heads in kinds.items():
            torch.compiler.reset()  # each shape is compiled again, and PyTorch stops compiling after eight
            label = [f"{length} {kind} ({kv_heads})"]
            calls = candidates(names, (tokens // length, heads, kv_heads, length, config.head_size), dtype, device)
            seconds = alternate(calls, rounds, device, clock=clock)
            times.append(label + [f"{1e3 * seconds[name]:,.1f}" for name in calls])
            peaks = [peak_bytes(call, device) for call in calls.values()]
            memory.append(label + [f"{peak / 1e6:,.0f}" for peak in peaks])
            print(f"  {label[0]} done", flush=True)
    header = ["length, key/value heads", *names]
    print("\nmilliseconds, forward + backward (flex on a CPU: forward only)\n" + table(header, times))
    print("\npeak memory, MB, beyond the inputs\n" + table(header, memory))


def candidates(
    names: list[str], shape: tuple[int, int, int, int, int], dtype: torch.dtype, device: torch.device
) -> dict[str, Callable[[], object]]:
    """One call a backend: attention over random inputs (B, H, T, D), and its gradients where there are any."""
    batch, heads, kv_heads, length, head_dim = shape
    q = torch.randn(batch, heads, length, head_dim, dtype=dtype, device=device)
    k, v = torch.randn(2, batch, kv_heads, length, head_dim, dtype=dtype, device=device)
    places = torch.arange(length, device=device)
    calls: dict[str, Callable[[], object]] = {}
    for name in names:
        mask = BACKENDS[name].mask(MaskSpec(places, places, batch, all_visible=True))
        if not _has_gradients(name, device):  # compiled by itself, as it would be used; no gradients there
            calls[name] = partial(_flex_forward, q, k, v, mask)
        else:
            calls[name] = partial(_forward_backward, BACKENDS[name].compute, q, k, v, mask)
    return calls


def _has_gradients(name: str, device: torch.device) -> bool:
    return not (name == "flex" and device.type == "cpu")


def _forward_backward(compute: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, mask: object) -> None:
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = compute(*leaves, mask, 0.0)
    torch.autograd.grad(out, leaves, torch.ones_like(out))


@torch.no_grad()
def _flex_forward(q: Tensor, k: Tensor, v: Tensor, mask: object) -> None:
    flex_kernel_compiled()(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
