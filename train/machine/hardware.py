"""What does the machine have? Its memory, and the peak of its GPU."""

from __future__ import annotations

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
