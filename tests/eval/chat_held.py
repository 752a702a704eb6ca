"""eval.chat whose third token waits for a Ctrl-C, so that a test need not press it in time.

Started with a pseudo-terminal as standard input, in a session of its own.
"""

import fcntl
import signal
import sys
import termios
import threading

from configs.command import exit_on_bad_input
from eval.chat import __main__ as chat
from eval.chat import session as chat_session

streamed = chat_session.stream


def held(*given, **options):
    for place, ids in enumerate(streamed(*given, **options)):
        if place == 2:
            wait_for_interrupt()
        yield ids


def wait_for_interrupt() -> None:
    came, handler = threading.Event(), signal.getsignal(signal.SIGINT)

    def note(number, frame) -> None:
        signal.signal(signal.SIGINT, handler)
        came.set()
        handler(number, frame)  # the program's own

    signal.signal(signal.SIGINT, note)
    print("[held]", file=sys.stderr, flush=True)
    while not came.wait(0.01):
        pass


if __name__ == "__main__":
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # keys that send a signal send it here
    chat_session.stream = held
    exit_on_bad_input(chat.main)
