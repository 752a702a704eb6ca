"""How much memory is free?"""

from __future__ import annotations

import os
import re
from pathlib import Path


def free_ram() -> tuple[float, str] | None:
    """(bytes, in words what they are): the RAM that is free; all of it on macOS; None where it is unknown."""
    try:  # what Linux could free for us; sysconf does not count the file caches
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
        return (int(found[1]) * 1024.0, "RAM available now") if found else None
    except OSError:
        if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):  # Windows
            return None
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")), "all RAM"
