"""How fast does a config train here? Whole steps on random tokens."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.profile import profile_steps
from benchmarks.timing import Clock, peak_bytes, synchronize
from configs.tables import table
from model import LanguageModel
from model.counting import flops_per_token
from train.config import RunConfig
from train.machine.device import Device, resolve_device
from train.machine.hardware import known_peak
from train.optimizer import build_optimizers
from train.run import micro_batch_rows

DOCUMENT = 150  # tokens; about as long as a story, where documents are isolated
COUNTED = 0.25  # share of the time after which steps count
Step = Callable[[], object]
Ours = tuple[Step, LanguageModel, list[torch.optim.Optimizer]]


@dataclass(frozen=True)
class Shape:
    """Random tokens of a config's shape. rows: of a step; at_once: of a forward pass."""

    rows: int
    at_once: int
    length: int
    vocabulary: int
    documents: bool

    def batches(self, device: torch.device) -> list[dict[str, Tensor | None]]:
        """The micro-batches of a step, always the same tokens."""
        torch.manual_seed(0)
        ids = torch.randint(0, self.vocabulary, (self.rows, self.length), device=device)
        begins = torch.rand(self.rows, self.length, device=device) < 1 / DOCUMENT
        documents = begins.cumsum(1) if self.documents else None
        parts: list[dict[str, Tensor | None]] = []
        for first in range(0, self.rows, self.at_once):
            part = slice(first, first + self.at_once)
            ids_of_documents = documents[part] if documents is not None else None
            parts.append({"input_ids": ids[part], "labels": ids[part], "document_ids": ids_of_documents})
        return parts


def make_step(
    model: nn.Module,
    loss_of: Callable[..., Tensor],
    optimizers: list[torch.optim.Optimizer],
    batches: list[dict[str, Tensor | None]],
    autocast: Callable[[], AbstractContextManager],
    grad_clip: float,
) -> Step:
    """Forward and backward of every micro-batch, clipping, and the optimizers' step. loss_of returns a mean."""

    def step() -> None:
        for batch in batches:
            with autocast():
                loss = loss_of(**batch) / len(batches)
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), grad_clip or float("inf"))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step


def our_step(run: RunConfig, device: Device, shape: Shape, compiled: bool, adamw: bool = False) -> Ours:
    """A step as training takes it, the model, its optimizers. adamw: fused AdamW, whatever the config says."""
    torch.manual_seed(run.seed)
    lm = LanguageModel(run.model).to(device.device).train()
    lm.set_attn_implementation(device.attention)
    forward = torch.compile(lm, dynamic=False) if compiled else lm
    optimizers = [fused_adamw(lm)] if adamw else build_optimizers(lm, run.train.optimizer)

    batches = shape.batches(device.device)
    step = make_step(lm, our_loss(forward), optimizers, batches, device.autocast, run.train.grad_clip)
    return step, lm, optimizers


def our_loss(forward: Callable[..., Any]) -> Callable[..., Tensor]:
    """Mean loss of a batch as LanguageModel gives it."""

    def loss(**batch: Tensor | None) -> Tensor:
        loss_sum, count = forward(**batch)
        return loss_sum / count

    return loss


def fused_adamw(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW as one kernel for all parameters alike."""
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def shape_of(run: RunConfig, device: Device, documents: bool) -> Shape:
    """A whole step of the config, in micro-batches as training takes them."""
    assert run.model.vocab_size is not None
    rows, at_once = run.rows_per_step, micro_batch_rows(run, device)
    return Shape(rows, at_once, run.data.sequence_length, run.model.vocab_size, documents)


def measure_training(run: RunConfig, seconds: float, profile: Path | None, clock: Clock) -> None:
    """Print speed, share of the peak, memory and what `auto` chose; with `profile`, where the time goes as well."""
    device = resolve_device(run)
    shape = shape_of(run, device, run.data.isolate_documents)
    compiled = device.device.type == "cuda" if device.compile == "auto" else device.compile
    step, lm, optimizers = our_step(run, device, shape, compiled)
    first = seconds_of(step, device.device, clock)
    times = repeat(step, seconds, device.device, clock)
    if profile is not None:
        print(profile_steps(step, device.device, profile, run.name) + "\n")
    states = [tensor for one in optimizers for state in one.state.values() for tensor in state.values()]
    lasting, peak = sum(tensor.nbytes for tensor in [*lm.parameters(), *states]), peak_bytes(step, device.device)
    tokens, median = shape.rows * shape.length, statistics.median(times)
    flops_per_s = flops_per_token(run.model, shape.length) * tokens / median
    known = known_peak(device)
    share = f"{flops_per_s / known[0] / 1e12:.1%} of {known[0]:g} TFLOPS ({known[1]})" if known else "unknown peak"
    rows = [
        ["tokens/s (median)", f"{tokens / median:,.0f}"],
        [f"ms a step of {tokens:,} tokens (median of {len(times)})", f"{1e3 * median:,.1f}"],
        ["quickest, slowest step, ms", f"{1e3 * min(times):,.1f}, {1e3 * max(times):,.1f}"],
        ["first step, compiling included, s" if compiled else "first step, s", f"{first:.1f}"],
        ["TFLOP/s of matrix products", f"{flops_per_s / 1e12:.3f}"],
        ["MFU", share],
        ["weights and optimizer state, MB", f"{lasting / 1e6:,.1f}"],
        ["a step's fullest moment, beyond them, MB", f"{peak / 1e6:,.1f}"],
        ["parameters", f"{lm.num_parameters():,}"],
        ["vocabulary", f"{shape.vocabulary:,}"],
        ["rows a forward pass × length", f"{shape.at_once} × {shape.length}"],
    ]
    print(table(["", run.name], rows))
    choices = list(device.notes)
    if device.compile == "auto":
        choices.append(f"compile {'on' if compiled else 'off'} (auto; a run decides by its length)")
    print("\n" + "\n".join(f"* {choice}" for choice in choices))


def seconds_of(step: Step, device: torch.device, clock: Clock) -> float:
    """Seconds of one step, the GPU's work included."""
    synchronize(device)
    before = clock()
    step()
    synchronize(device)
    return clock() - before


def repeat(step: Step, seconds: float, device: torch.device, clock: Clock) -> list[float]:
    """Seconds of each step, at least three. The first quarter of the time warms up and does not count."""
    times: list[float] = []
    began = clock()
    while (spent := clock() - began) < seconds or len(times) < 3:
        took = seconds_of(step, device, clock)
        if spent >= COUNTED * seconds or spent + took >= seconds:
            times.append(took)
    return times
