"""Stop signals: the run ends after its step, with everything saved."""

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
    """Only note the first stop signal; a second SIGINT or SIGTERM ends the process at once.

    Yields a function that returns the signal, 0 if none came.
    """
    received = 0

    def note(number: int, frame: Any) -> None:
        nonlocal received
        name = signal.Signals(number).name
        # SIGHUP: the terminal is gone. It often comes twice, from kernel and shell.
        is_second = received and name != "SIGHUP"
        if is_second or not received:
            text = "saving after this step … (once more: stop at once)"
            if is_second:
                text = "stopped at once; the same command continues from the newest checkpoint"
                name += " again"
            with suppress(OSError):  # the terminal may be gone
                # not print: a signal may come in the middle of one
                os.write(2, f"\n{name}: {text}\n".encode())
        if is_second:  # no harm: a checkpoint takes its name only when it is complete
            os._exit(128 + number)
        received = received or number

    before = {}
    for stop in STOP_SIGNALS:  # nohup ignores SIGHUP, and it stays ignored
        if stop.name != "SIGHUP" or signal.getsignal(stop) is not signal.SIG_IGN:
            before[stop] = signal.signal(stop, note)
    try:
        yield lambda: received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
