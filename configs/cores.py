"""How many cores may this process use?"""

from __future__ import annotations

import os
from collections.abc import Callable


def usable_cores() -> int:
    """Cores that this process may use."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1
