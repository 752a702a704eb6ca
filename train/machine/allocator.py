"""Why give memory back after every step? On a CPU, what a step frees is kept for the next one."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Ask glibc not to give freed blocks back to the system; returns whether it agreed. Other C libraries do nothing.

    By default glibc returns large blocks and asks for them again in every step, and the system clears each page first.
    That is 20,000 to 70,000 page faults a step of a 6 x 256 model, 4 to 9 % of its time (EXPERIMENTS.md). In return the
    process holds the most that it ever needed at once. Call it before the first step.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library, for example musl
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, 2**30)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT))
