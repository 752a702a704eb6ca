"""eval.chat whose third token waits for a Ctrl-C, so that a test need not press it in time.

Started with a pseudo-terminal as standard input, in a session of its own.
"""

import fcntl
import sys
import termios
import time

from configs.command import exit_on_bad_input
from eval.chat import __main__ as chat
from eval.chat import session

streamed = session.stream


def held(*given, **options):
    for place, ids in enumerate(streamed(*given, **options)):
        if place == 2:
            print("[held]", file=sys.stderr, flush=True)
            time.sleep(600)
        yield ids


if __name__ == "__main__":
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # keys that send a signal send it here
    session.stream = held
    exit_on_bad_input(chat.main)
