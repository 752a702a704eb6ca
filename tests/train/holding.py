"""A hook that holds a run until a signal has come, so that a test need not catch it in time."""

import random
import signal
import threading

from eval.hooks import EvalEvent, Hook


def until_a_signal(event: EvalEvent) -> None:
    """From step 10 on, if the runs' folder has a file `hold`: `held` is written, and the run waits, once."""
    hold = event.directory.parent / "hold"
    if event.step < 10 or not hold.exists():
        return
    hold.unlink()
    came, handlers = threading.Event(), {}

    def note(number, frame) -> None:
        handlers[number](number, frame)  # the run's own
        came.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        handlers[number] = signal.signal(number, note)
    (event.directory.parent / "held").touch()
    while not came.wait(0.01):
        pass
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Dice(Hook):
    """A validation loss that depends on nothing but the step, so that any step may be the best one."""

    def look(self, event: EvalEvent) -> float:
        return 1 + random.Random(event.step).random()
