"""On what else do the last bits of a run depend, besides its config? And has that changed since it was saved?

Sums of floating-point numbers depend on their order. Another processor, number of threads or version of PyTorch adds up
in another order, and so does what `auto` stands for. A run that is resumed there continues, and says that it is exact
no longer: its figures may differ by rounding from those of the same run without an interruption.
"""

from __future__ import annotations

from typing import Any

import torch

from train.machine.device import Device, machine
from train.machine.processor import cpu_capabilities, cpu_kernels

NAMES = {"world_size": "processes", "micro_batch_size": "rows at a time", "torch": "PyTorch", "cpu": "processor"}
NAMES |= {"kernels": "PyTorch's kernels for"}


def decided_by(device: Device, rows: int, world_size: int) -> dict[str, Any]:
    """What the last bits depend on, on this machine: what `auto` stands for, and what computes."""
    chosen = {
        "device": device.device.type,
        "precision": device.precision,
        "attention": device.attention,
        "compile": device.compile,
        "micro_batch_size": rows,
        "world_size": world_size,
        "torch": torch.__version__,
    }
    if device.device.type != "cpu":
        return chosen | {"gpu": machine(device.device)}
    instructions = sorted(name for name, there in cpu_capabilities().items() if there is True)
    return chosen | {
        "cpu": cpu_capabilities().get("cpu_name"),
        "kernels": cpu_kernels(),
        "instructions": instructions,
        "threads": torch.get_num_threads(),
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """What is not as it was, in words, "" if all is. A key that only one of them has does not count."""
    found = []
    for key in [key for key in now if key in before and before[key] != now[key]]:
        if key == "instructions" and isinstance(before[key], list):
            gone, new = (sorted(set(a).difference(b)) for a, b in ((before[key], now[key]), (now[key], before[key])))
            found += [f"the processor lacks {', '.join(gone)}"] if gone else []
            found += [f"the processor has {', '.join(new)} too"] if new else []
        else:
            here, there = (_shown(value) for value in (now[key], before[key]))
            found.append(f"{NAMES.get(key, key)} {here} (before: {there})")
    is_elsewhere = before.get("device", now.get("device")) != now.get("device")
    return found[0] if is_elsewhere else "; ".join(found)  # on another kind of device everything is different


def in_words(ended: dict[str, Any]) -> str:
    """A line for the terminal and the report. ended: a member of TrainerState.breaks."""
    return (
        f"exact until step {ended['step']:,}: from there {ended['what']}, so figures may differ by rounding from those "
        "of a run without this interruption"
    )


def _shown(value: Any) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
