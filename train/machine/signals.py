"""SIGINT and SIGTERM only leave a note while training: the loop finishes its step, saves and stops. A second one ends
the process at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_signals() -> Iterator[Callable[[], int]]:
    """While inside, the first SIGINT or SIGTERM is noted; the function that you get returns it (0: none came).

    The second one ends the process there and then. Nothing is half-written by that: checkpoints take their name when
    they are whole, and the run resumes from the newest one.
    """
    received = 0

    def note(number: int, frame: Any) -> None:
        nonlocal received
        name = signal.Signals(number).name
        if received:
            os.write(
                2, f"\n{name} again: stopped at once; the same command continues from the newest checkpoint\n".encode()
            )
            os._exit(128 + number)
        received = number
        # not print: a signal may come in the middle of one
        os.write(2, f"\n{name}: saving after this step … (once more: stop at once)\n".encode())

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
