"""What does the machine have? Its memory, and the peak of its GPU."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from train.machine.device import Device

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


def device_memory(kind: str) -> tuple[float, str] | None:
    """(bytes, in words where that is from): all that the GPU has, or the RAM that is free; None where it is unknown."""
    import torch

    from model.memory import free_ram

    if kind == "cuda":
        here = torch.cuda.is_available()
        return (float(torch.cuda.get_device_properties(0).total_memory), "the GPU's") if here else None
    return free_ram()


def all_memory(kind: str) -> tuple[float, str] | None:
    """(bytes, in words whose) that this process can ever have: the GPU's, or RAM within its container's limit."""
    if kind == "cuda":
        return device_memory(kind)
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" not in names:  # Windows
        return None
    ram = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    limit = min(container_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")), default=ram)
    return (limit, "the limit of its container") if limit < ram else (ram, "all RAM")


def container_limits(groups: Path, root: Path) -> list[float]:
    """Bytes that the control groups of this process allow: of its own and those above, in cgroup v2 and v1."""
    try:
        lines = groups.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "-", "")
        place, name = {
            "": (root, "memory.max"),
            "memory": (root / "memory", "memory.limit_in_bytes"),
        }.get(controllers, (None, ""))
        if place is None:
            continue
        own = place / path.lstrip("/")
        for folder in (own, *(above for above in own.parents if above.is_relative_to(place))):
            with suppress(OSError, ValueError):  # no such file, or "max"
                found.append(float(int((folder / name).read_text(encoding="ascii"))))
    return found


def peak_tflops(device_name: str) -> float | None:
    """The dense 16-bit peak of a GPU, by the name that torch.cuda.get_device_name gives; None if it is unknown."""
    return next((peak for key, peak in PEAK_TFLOPS.items() if f" {device_name}".endswith(f" {key}")), None)


def known_peak(device: Device) -> tuple[float, str] | None:
    """(TFLOPS, whose) of the GPU that is here; None without one, for one not in the table, and for float32 and tf32."""
    import torch

    if device.device.type != "cuda" or device.dtype.itemsize > 2 or not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name()
    peak = peak_tflops(name)
    return (peak, name) if peak else None
