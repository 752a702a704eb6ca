"""Memory of a CPU step is kept for the next one."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Ask glibc not to give freed blocks back to the system; returns whether it agreed. Elsewhere nothing happens.

    By default it hands large blocks back and gets them anew in every step, and the system clears each page of them
    first: 20,000 to 70,000 page faults a step of a 6 x 256 model, 4 to 9 % of its time (EXPERIMENTS.md). The process
    then holds the most it ever needed at once. Call it before the first step, in any order with everything else.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library, for example musl
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, 2**30)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT))
