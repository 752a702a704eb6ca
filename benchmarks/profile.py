"""Where does the time of a training step go? A trace to look into, and the share of each class of operators."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.timing import synchronize
from configs.text import table

# an operator belongs to the first class whose pattern is in its name
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

PROFILED = 3  # steps


def take(step: Callable[[], object], count: int) -> None:
    """Take this many steps."""
    for _ in range(count):
        step()


def profile_steps(step: Callable[[], object], device: torch.device, folder: Path, name: str) -> str:
    """Write a Chrome trace of PROFILED steps. Returns a table: the share of each class of operators."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        take(step, PROFILED)
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
    """The class of an operator, by PyTorch's name for it."""
    return next((name for name, pattern in CLASSES.items() if re.search(pattern, operator)), "element by element, rest")
