"""How does a command end? Done (exit code 0), bad input (2), or stopped by Ctrl-C (130); never with a traceback.

`InputError` is the one exception for bad input: a command prints its message, one line, and exits with code 2.
`warnings.warn(message, InputWarning)` is for input that a command goes on with: it prints one line, `warning: …`.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable


class InputError(Exception):
    """Something that the user gave is wrong. The message says what, where, and what to do."""


class InputWarning(UserWarning):
    """Something that the user gave is suspicious, and the command goes on. The message says what and where."""


def exit_on_bad_input(command: Callable[[], int | None]) -> None:
    """Run a command: exit code 0 when it is done, one clear line and exit code 2 for bad input."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without some letter still gets the line
            stream.reconfigure(errors="backslashreplace")
    warnings.showwarning = _shown(warnings.showwarning)
    try:
        code = command()
    except InputError as error:
        if os.environ.get("RANK", "0") == "0":  # under torchrun every process finds the same error
            print(f"error: {_harmless(str(error))}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print("stopped; run the same command again to continue", file=sys.stderr)
        code = 130
    sys.exit(code or 0)


def _shown(others: Callable[..., None]) -> Callable[..., None]:
    """Show an InputWarning as one line; all `others` as before."""

    def show(message: Warning | str, category: type[Warning], *where: object) -> None:
        if not issubclass(category, InputWarning):
            others(message, category, *where)
        elif os.environ.get("RANK", "0") == "0":
            print(f"warning: {_harmless(str(message))}", file=sys.stderr)

    return show


def _harmless(message: str) -> str:
    """One line without control characters: data and file names may hold any character."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
