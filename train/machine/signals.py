"""SIGINT, SIGTERM and SIGHUP only leave a note while training: the loop finishes its step, saves and stops. A second
SIGINT or SIGTERM ends the process at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

# the first that came to any process decides the exit code; Windows has no SIGHUP
STOP_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGINT") if hasattr(signal, name)]


@contextmanager
def stop_signals() -> Iterator[Callable[[], int]]:
    """While inside, the first of STOP_SIGNALS is noted; the function that you get returns it (0: none came).

    A second SIGINT or SIGTERM ends the process at once. Nothing is half-written by that: checkpoints take their name
    when they are whole, and the run resumes from the newest one. SIGHUP says that the terminal is gone, often twice
    (kernel and shell), so that it never counts as a second one. Behind `nohup` it is ignored, and stays ignored.
    """
    received, was_asked = 0, False

    def note(number: int, frame: Any) -> None:
        nonlocal received, was_asked
        name = signal.Signals(number).name
        if name != "SIGHUP" and was_asked:
            _write(f"\n{name} again: stopped at once; the same command continues from the newest checkpoint\n")
            os._exit(128 + number)
        if name != "SIGHUP" or not received:
            _write(f"\n{name}: saving after this step … (once more: stop at once)\n")
        was_asked = was_asked or name != "SIGHUP"
        received = received or number

    heard = [one for one in STOP_SIGNALS if one.name != "SIGHUP" or signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in heard}
    try:
        yield lambda: received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def signal_in_words(number: int) -> str:
    """SIGINT -> `Ctrl-C (SIGINT)`."""
    name = signal.Signals(number).name
    return {"SIGINT": "Ctrl-C (SIGINT)", "SIGHUP": "a terminal that closed (SIGHUP)"}.get(name, name)


def _write(text: str) -> None:
    """Not print: a signal may come in the middle of one. The terminal may be gone."""
    with suppress(OSError):
        os.write(2, text.encode())
