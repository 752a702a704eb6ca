"""What does the machine have, and is it busy? Its processor, its memory, its GPU, and how long a call takes on it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch

# ---------------------------------------------------------------------------------------------------------
# the processor


def cpu_capabilities() -> dict[str, Any]:
    """What PyTorch knows about the processor; empty where that is unknown."""
    return dict(getattr(torch.cpu, "get_capabilities", dict)())


def cpu_instructions() -> list[str]:
    """avx2, amx_bf16, …: the instructions that the processor has."""
    return sorted(name for name, there in cpu_capabilities().items() if there is True)


def cpu_kernels() -> str:
    """For which instructions PyTorch's kernels are, and what in the environment limits them."""
    names = ("MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")  # besides ATEN_CPU_CAPABILITY, which PyTorch itself reads
    limits = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return " ".join([torch.backends.cpu.get_cpu_capability(), *limits])


def machine(device: torch.device) -> str:
    """The GPU, or the processor and the number of threads, in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name()
    name = cpu_capabilities().get("cpu_name") or platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} threads"


def share_of_others() -> float:
    """Share of this process's cores that other programs use now. It sleeps while it looks, so it does not count."""
    each = psutil.cpu_percent(interval=0.4, percpu=True)
    with suppress(AttributeError, psutil.Error):  # macOS does not say which cores are ours
        each = [each[core] for core in psutil.Process().cpu_affinity() or [] if core < len(each)] or each
    return sum(each) / len(each) / 100


def busy_in_words(share: float) -> str:
    """ "other programs use 40 % of the CPU", or "" if it is not worth saying."""
    return f"other programs use {100 * share:.0f} % of the CPU" if share >= 0.1 else ""


# ---------------------------------------------------------------------------------------------------------
# memory


def device_memory(kind: str) -> tuple[float, str] | None:
    """(bytes, in words where that is from): all that the GPU has, or the RAM that is free; None where it is unknown."""
    if kind == "cuda":
        here = torch.cuda.is_available()
        return (float(torch.cuda.get_device_properties(0).total_memory), "the GPU's") if here else None
    return float(psutil.virtual_memory().available), "RAM available now"


def all_memory(kind: str) -> tuple[float, str] | None:
    """(bytes, in words whose) that this process can ever have: the GPU's, or RAM within its container's limit."""
    if kind == "cuda":
        return device_memory(kind)
    ram = float(psutil.virtual_memory().total)
    limit = min(container_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")), default=ram)
    return (limit, "the limit of its container") if limit < ram else (ram, "all RAM")


def container_limits(groups: Path, root: Path) -> list[float]:
    """Bytes that the control groups of this process allow: of its own and those above, in cgroup v2 and v1."""
    limits = []
    with suppress(OSError):  # only Linux has them
        for line in groups.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            v2 = controllers == ""
            own = (root if v2 else root / "memory") / path.lstrip("/")
            for folder in (own, *own.parents):
                with suppress(OSError, ValueError):  # no such file, or "max"
                    text = (folder / ("memory.max" if v2 else "memory.limit_in_bytes")).read_text(encoding="ascii")
                    limits.append(float(int(text)))
    return limits


# ---------------------------------------------------------------------------------------------------------
# speed

# Dense bf16 peaks of tensor cores in TFLOPS, without sparsity, as NVIDIA's data sheets are quoted (fp32 accumulation
# for the RTX 4090; the T4 has no bf16, so fp16); none was measured here. Each key is how a device's name ends, so that
# NVL, PCIe and laptop versions and MIG slices, which have other peaks, are not mistaken for these.
PEAK_TFLOPS = {
    "H200": 989,
    "H100 80GB HBM3": 989,
    "A100-SXM4-40GB": 312,
    "A100-SXM4-80GB": 312,
    "RTX 4090": 165,
    "L4": 121,
    "T4": 65,
}
# wall: what you wait. cpu: what all threads of this process compute; other programs on the cores do not add to it
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
LARGEST = 1024  # beyond it, a product on a CPU gains nothing


def peak_tflops(device_name: str) -> float | None:
    """The dense 16-bit peak of a GPU, by the name that torch.cuda.get_device_name gives; None if it is unknown."""
    return next((peak for key, peak in PEAK_TFLOPS.items() if f" {device_name}".endswith(f" {key}")), None)


def known_peak(device: torch.device, dtype: torch.dtype) -> tuple[float, str] | None:
    """(TFLOPS, whose) of the GPU that is here; None without one, for one not in the table, and for float32 and tf32."""
    if device.type != "cuda" or dtype.itemsize > 2 or not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name()
    peak = peak_tflops(name)
    return (peak, name) if peak else None


def product_tflops(tokens: int, inner: int, outer: int, dtype: torch.dtype) -> float:
    """TFLOP/s of one product of (tokens, inner) with (inner, outer) on this CPU, on all threads: the best of some.

    A small product is far from what a large one reaches, above all in bf16, so give the sizes of your model.
    """
    tokens, inner, outer = (min(LARGEST, size) for size in (tokens, inner, outer))
    a, b = torch.ones(tokens, inner, dtype=dtype), torch.ones(inner, outer, dtype=dtype)
    a @ b  # the first one prepares
    seconds = min(timed(lambda: a @ b, a.device)[0] for _ in range(15))
    return 2 * tokens * inner * outer / max(seconds, 1e-9) / 1e12


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
