"""SIGINT and SIGTERM only note themselves while training; the loop finishes its step, saves and stops."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_signals() -> Iterator[Callable[[], int]]:
    """While inside, SIGINT and SIGTERM only note themselves; the function given tells which came first (0: none)."""
    received = 0

    def note(number: int, frame: Any) -> None:
        nonlocal received
        if not received:  # a second one changes nothing: saving takes a moment
            received = number
            # not print: a signal may come in the middle of one
            os.write(2, f"\n{signal.Signals(number).name}: saving after this step …\n".encode())

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
