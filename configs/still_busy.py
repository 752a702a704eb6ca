"""Is it still working? A line on stderr every few seconds while something takes long, where no progress bar does it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS = 8.0  # between two lines


@contextmanager
def still_busy(doing: str | Callable[[], str]) -> Iterator[None]:
    """Say what is being done, every SECONDS until it is done. doing: what, or a function that says how far it is."""
    done = threading.Event()

    def say() -> None:
        seconds = 0.0
        while not done.wait(SECONDS):
            seconds += SECONDS
            what = doing if isinstance(doing, str) else doing()
            print(f"… {what}, for {seconds:.0f} s now", file=sys.stderr, flush=True)

    thread = threading.Thread(target=say, name="still busy", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
