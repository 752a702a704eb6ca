"""Is the machine busy with something else? A run beside other programs takes longer than the machine needs."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil

WORTH_SAYING = 0.1
SAMPLE_S = 0.4


def share_of_others() -> float:
    """Share of this process's cores that other programs used within SAMPLE_S; what this process does is left out."""
    cores: list[int] = []
    with suppress(AttributeError, psutil.Error):  # macOS does not say
        cores = psutil.Process().cpu_affinity() or []

    def busy() -> float:
        each = psutil.cpu_times(percpu=True)
        chosen = [each[core] for core in cores if core < len(each)] or each
        # user has guest in it; iowait is idle
        return sum(one.user + one.system + getattr(one, "nice", 0.0) for one in chosen)

    count = len(cores) or psutil.cpu_count() or 1
    before = busy(), time.process_time(), time.perf_counter()
    time.sleep(SAMPLE_S)
    used, own, wall = busy() - before[0], time.process_time() - before[1], time.perf_counter() - before[2]
    return min(1.0, max(0.0, (used - own) / (count * wall)))


def in_words(share: float) -> str:
    """ "other programs use 40 % of the CPU", or "" if it is not worth saying."""
    return f"other programs use {100 * share:.0f} % of the CPU" if share >= WORTH_SAYING else ""
