"""How fast a config trains here: real steps on random tokens, a profile of them, and transformers beside them."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from model import LanguageModel
from train.budget import flops_per_token
from train.config import RunConfig
from train.device import Device, resolve_device
from train.hardware import known_peak
from train.optimizer import build_optimizers
from train.run import micro_batch_rows
from train.throughput_transformers import in_transformers
from train.timing import Clock, alternate, peak_bytes, synchronize, table

DOCUMENT = 150  # tokens; about as long as a story, where documents are isolated
COUNTED = 0.25  # share of the time after which steps count
# classes of operators for --profile: the first pattern that is found in an operator's name is its class
CLASSES = {
    "matrix products": r"aten::(mm|addmm|linear)|mkldnn_(_)?linear|gemm|cutlass|nvjet|cublas",
    "batched matrix products (attention, Muon)": r"aten::(bmm|baddbmm)",
    "attention kernels": r"attention|flash|fmha|cudnn_generated|flex",
    "optimizer": r"_fused_adam|_foreach|multi_tensor|Optimizer",
    "compiled loops": r"cpp_fused|triton_",
    "softmax and loss": r"softmax|logsumexp|cross_entropy|nll|gather|scatter",
    "copies and casts": r"aten::(copy_|_to_copy|cat|clone|contiguous|fill_|zero_|stack)|[Mm]em(cpy|set)|CatArray",
    "embedding": r"embedding|index",
}
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
        """One step's micro-batches, always the same tokens."""
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
    """Forward and backward of every micro-batch, clipping, and the optimizers' step. loss_of gives a mean."""

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
    """A step as training takes it, the model, its optimizers. adamw: that alone, fused, whatever the config says."""
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
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def shape_of(run: RunConfig, device: Device, documents: bool) -> Shape:
    assert run.model.vocab_size is not None
    rows, at_once = run.rows_per_step, micro_batch_rows(run, device)
    return Shape(rows, at_once, run.data.sequence_length, run.model.vocab_size, documents)


# ---------------------------------------------------------------------------------------------------------
# the config alone


def measure_training(run: RunConfig, seconds: float, profile: Path | None, clock: Clock) -> None:
    """Print speed, share of the peak, memory and the choices of `auto`; or a profile of three steps."""
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
        ["rows a forward pass × length", f"{shape.at_once} × {shape.length}"],
    ]
    print(table(["", run.name], rows))
    choices = [*device.notes, *(["compile " + ("on" if compiled else "off") + " (auto; a run decides by its length)"]
                                if device.compile == "auto" else [])]  # fmt: skip
    print("\n" + "\n".join(f"* {choice}" for choice in choices))


def seconds_of(step: Step, device: torch.device, clock: Clock) -> float:
    synchronize(device)
    before = clock()
    step()
    synchronize(device)
    return clock() - before


def repeat(step: Step, seconds: float, device: torch.device, clock: Clock) -> list[float]:
    """Seconds of each step; the first quarter of the time is for warming up. At least three steps."""
    times: list[float] = []
    began = clock()
    while (spent := clock() - began) < seconds or len(times) < 3:
        took = seconds_of(step, device, clock)
        if spent >= COUNTED * seconds or spent + took >= seconds:
            times.append(took)
    return times


def profile_steps(step: Step, device: torch.device, folder: Path, name: str) -> str:
    """Write a Chrome trace of three steps; the shares of each class of operators as a table."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(3):
            step()
        synchronize(device)
    folder.mkdir(parents=True, exist_ok=True)
    trace = folder / f"{name or 'step'}.trace.json"
    profiler.export_chrome_trace(str(trace))
    attribute = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    spent: dict[str, float] = defaultdict(float)
    largest: dict[str, tuple[float, str]] = {}
    for event in profiler.key_averages():
        took, kind = getattr(event, attribute) / 3e3, class_of(event.key)
        spent[kind] += took
        largest[kind] = max(largest.get(kind, (0.0, "")), (took, event.key))
    total = sum(spent.values())
    rows = [
        [kind, f"{spent[kind]:,.1f}", f"{spent[kind] / total:.0%}", f"{largest[kind][1][:50]}"]
        for kind in sorted(spent, key=lambda kind: -spent[kind])
        if spent[kind] > 0.001 * total
    ]
    return f"{trace}: open it in chrome://tracing or ui.perfetto.dev\n\n" + table(
        ["operators", "ms a step", "share", "the largest of them"], rows
    )


def class_of(operator: str) -> str:
    return next((name for name, pattern in CLASSES.items() if re.search(pattern, operator)), "element by element, rest")


# ---------------------------------------------------------------------------------------------------------
# beside transformers


def compare_training(run: RunConfig, rounds: int, skip: list[str], clock: Clock) -> None:
    """Print ours and theirs, compiled and not, alternating: the same architecture, rows, AdamW and precision."""
    device = resolve_device(run.model_copy(update={"data": run.data.model_copy(update={"isolate_documents": False})}))
    rows = micro_batch_rows(run, device)
    shape = Shape(rows, rows, run.data.sequence_length, run.model.vocab_size or 0, documents=False)
    steps: dict[str, Step] = {}
    for compiled in (False, True):
        name = ", compiled" if compiled else ""
        if compiled and "compile" in skip:
            continue
        steps[f"Headlight{name}"], lm, _ = our_step(run, device, shape, compiled, adamw=True)
        steps[f"transformers{name}"] = their_step(lm, run, device, shape, compiled)
    first = {name: seconds_of(step, device.device, clock) for name, step in steps.items()}
    seconds = alternate(steps, rounds, device.device, patience_s=60.0 * rounds, clock=clock)
    measure = list(steps)[-1]
    tokens = shape.rows * shape.length
    lines = [
        [name, f"{tokens / took:,.0f}", f"{1e3 * took:,.1f}", f"{seconds[measure] / took:.2f}", f"{first[name]:.1f}"]
        for name, took in seconds.items()
    ]
    print(f"{tokens:,} tokens a step, rows of {shape.length}, {device.precision}, attention {device.attention}, "
          f"forward + backward + clip + fused AdamW, medians of {rounds} alternating steps")  # fmt: skip
    print(table(["", "tokens/s", "ms a step", f"ratio to {measure}", "first step, s"], lines))


def their_step(lm: LanguageModel, run: RunConfig, device: Device, shape: Shape, compiled: bool) -> Step:
    """The same step with transformers' model of the same weights, fused AdamW and its own loss."""
    other = in_transformers(lm, attn_implementation="sdpa").to(device.device).train()
    other.config.use_cache = False
    forward = torch.compile(other, dynamic=False) if compiled else other
    batches = shape.batches(device.device)
    return make_step(other, their_loss(forward), [fused_adamw(other)], batches, device.autocast, run.train.grad_clip)


def their_loss(forward: Callable[..., Any]) -> Callable[..., Tensor]:
    """Mean loss of a batch as transformers gives it."""

    def loss(input_ids: Tensor, labels: Tensor, document_ids: None) -> Tensor:
        return forward(input_ids=input_ids, labels=labels).loss

    return loss
