"""A signal that asks a run to stop ends it after its step, with everything saved."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

# The first one that reaches any process decides the exit code. Windows has no SIGHUP.
_NAMES = ("SIGTERM", "SIGHUP", "SIGINT")
STOP_SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]


@contextmanager
def stop_signals() -> Iterator[Callable[[], int]]:
    """Only note the first stop signal: the loop finishes its step, saves and stops.

    Yields a function that returns this signal (0: none came). A second SIGINT or SIGTERM ends the
    process at once. Nothing is half-written by that: a checkpoint takes its name when it is
    complete, and the run resumes from the newest one. SIGHUP means that the terminal is gone. It
    often comes twice (kernel and shell), so it never counts as a second one. Behind `nohup` it is
    ignored, and stays ignored.
    """
    received = 0

    def note(number: int, frame: Any) -> None:
        nonlocal received
        name = signal.Signals(number).name
        is_second = received and name != "SIGHUP"
        if is_second or not received:
            text = "saving after this step … (once more: stop at once)"
            if is_second:
                text = "stopped at once; the same command continues from the newest checkpoint"
                name += " again"
            with suppress(OSError):  # the terminal may be gone
                # not print: a signal may come in the middle of one
                os.write(2, f"\n{name}: {text}\n".encode())
        if is_second:
            os._exit(128 + number)
        received = received or number

    before = {}
    for stop in STOP_SIGNALS:
        if stop.name != "SIGHUP" or signal.getsignal(stop) is not signal.SIG_IGN:
            before[stop] = signal.signal(stop, note)
    try:
        yield lambda: received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
