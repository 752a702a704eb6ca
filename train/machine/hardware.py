"""What does this machine have? Its processor, its memory, its GPU, and what train.doctor found wrong with them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import torch

from configs.command import InputError, cache_folder
from configs.files import read_json

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


def bf16_on_cpu() -> tuple[bool, str]:
    """Whether this processor trains faster in bf16 than in fp32, and why.

    The flag avx512_bf16 does not say it alone: with it an AMD EPYC trained 2.2 times as fast in bf16, and an Intel Xeon
    0.75 times. With AMX the Xeon trained 1.4 to 2.3 times as fast. Without any of them bf16 is emulated, and takes
    eight times as long (EXPERIMENTS.md).
    """
    has = cpu_capabilities()
    if limit := os.environ.get("ONEDNN_MAX_CPU_ISA"):  # the library that multiplies bf16 is told to use less
        return False, f"ONEDNN_MAX_CPU_ISA={limit}"
    if has.get("amx_bf16"):
        return True, "this CPU has AMX"
    if not has.get("avx512_bf16"):
        return False, "this CPU does not compute in bf16"
    is_amd = "AMD" in str(has.get("cpu_name"))
    return is_amd, "this CPU computes in bf16" if is_amd else "without AMX this CPU is no faster in bf16"


def machine(device: torch.device) -> str:
    """The GPU, or the processor and the number of threads, in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name()
    name = cpu_capabilities().get("cpu_name") or platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} threads"


def known_peak(device: torch.device, dtype: torch.dtype) -> tuple[float, str] | None:
    """(TFLOPS, whose): the dense 16-bit peak of the GPU that is here; None if it is not in the table."""
    if device.type != "cuda" or dtype.itemsize > 2 or not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name()
    return next(((peak, name) for key, peak in PEAK_TFLOPS.items() if f" {name}".endswith(f" {key}")), None)


def compiler_problem(kind: str) -> str:
    """Why torch.compile is not even tried on this kind of device; "" if it is."""
    if kind == "cpu":
        compilers = (os.environ.get("CXX", "c++"), "g++", "clang++")
        return "" if any(map(shutil.which, compilers)) else "it needs a C++ compiler, and there is none"
    if kind == "cuda":
        return "" if find_spec("triton") else "it needs triton, which is not installed"
    return f"not tried on {kind}"


def memory_of(kind: str) -> tuple[float, str] | None:
    """(bytes, in words whose) that this process can ever have: the GPU's, or RAM within its container's limit."""
    if kind == "cuda":
        here = torch.cuda.is_available()
        return (float(torch.cuda.get_device_properties(0).total_memory), "the GPU's") if here else None
    ram = float(psutil.virtual_memory().total)
    limit = container_limit(Path("/sys/fs/cgroup"))
    return (limit, "the limit of its container") if limit < ram else (ram, "all RAM")


def container_limit(root: Path) -> float:
    """Bytes that a container on Linux may use (cgroup v2 or v1); infinity where there is no limit."""
    limits = [float("inf")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such file, or "max"
            limits.append(float((root / name).read_text(encoding="ascii")))
    return min(limits)


def synchronize(device: torch.device) -> None:
    """Wait until the GPU has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def known_faults() -> dict[str, str]:
    """What train.doctor found wrong on this machine, and `auto` leaves out: {"attention cpu blocked bf16": why}.

    The keys are "device KIND", "precision KIND NAME", "attention KIND BACKEND PRECISION" and "compile KIND".
    """
    try:
        return read_json(_faults_file(), dict[str, str])
    except InputError:  # not there yet, or damaged
        return {}


def remember_faults(faults: dict[str, str]) -> None:
    """Keep them for later runs. A folder that cannot be written stops nothing."""
    file, dated = _faults_file(), f"(train.doctor, {time.strftime('%Y-%m-%d')})"
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({key: f"{fault} {dated}" for key, fault in faults.items()}), encoding="utf-8")


def _faults_file() -> Path:
    """In your cache folder (HEADLIGHT_CACHE names another one): each processor, GPU and PyTorch is another machine."""
    gpu = ""
    with suppress(AssertionError, RuntimeError):  # a GPU that is there and does not answer
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    key = (torch.__version__, cpu_capabilities().get("cpu_name"), cpu_instructions(), cpu_kernels(), gpu)
    return cache_folder() / f"machine-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.json"
