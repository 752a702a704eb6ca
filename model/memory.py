"""Did memory run out?"""

from __future__ import annotations

import torch


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether PyTorch says so, on a GPU or on the CPU (where it raises a plain RuntimeError)."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
