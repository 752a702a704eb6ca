"""Who reads what a command prints? A terminal that must show text as text, a file on a full disk, or nobody.

`guard` puts this file's Stream in the place of sys.stdout and sys.stderr:

    control characters, marks of direction and half characters are shown by their number: ⟨U+001B⟩
    a reader that has ended (`… | head -1`) has what it wanted: the command ends quietly, with code 0
    a full disk (`> /dev/full`) ends it with one line and code 2
    a stream that the shell closed (`>&-`) is /dev/null

A training run continues without its terminal: `survive_lost_output`. A stderr that cannot be written is ignored.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from configs.shown_text import plain

COLOR = r"\x1b\[[\d;]*m"
BAR = r"\r|\x1b\[[AK]"  # a progress bar begins its line again


class Stream:
    """A text stream that shows text as text. passes: a pattern of the control sequences that are written all the same.

    is_needed: without it the command has no purpose, so that it ends.
    """

    def __init__(self, stream: TextIO, is_needed: bool, passes: str = ""):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without some letter still gets the line
            stream.reconfigure(errors="backslashreplace")
        self.stream, self.is_needed, self.passes = stream, is_needed, passes

    def write(self, text: str) -> int:
        """Write the text, and return its length."""
        if not text.isprintable():
            parts = re.split(f"({self.passes})", text) if self.passes else [text]
            shown = "".join(part if i % 2 else plain(part) for i, part in enumerate(parts))
        else:
            shown = text
        try:
            self.stream.write(shown)
        except (OSError, ValueError) as error:
            self._lost(error)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write one after the other."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write what waits."""
        try:
            self.stream.flush()
        except (OSError, ValueError) as error:
            self._lost(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def _lost(self, error: OSError | ValueError) -> None:
        if not isinstance(error, OSError):  # it was closed; what closes it knows why
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.stream.fileno())  # what waits in buffers goes there too
        os.close(nowhere)
        if not self.is_needed:
            return
        if isinstance(error, BrokenPipeError) or (os.name == "nt" and error.errno == 22):
            raise SystemExit(0)
        print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
        raise SystemExit(2)


def guard() -> None:
    """From here on sys.stdout and sys.stderr are Streams."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        _open_if_closed(number, name)
    if not isinstance(sys.stdout, Stream):
        sys.stdout = Stream(sys.stdout, is_needed=True)
    if not isinstance(sys.stderr, Stream):
        sys.stderr = Stream(sys.stderr, is_needed=False, passes=BAR if sys.stderr.isatty() else "")


@contextmanager
def guarded() -> Iterator[None]:
    """While inside."""
    before = sys.stdin, sys.stdout, sys.stderr
    guard()
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


def survive_lost_output() -> None:
    """From here on the command continues when nobody reads its output, or the disk is full."""
    if isinstance(sys.stdout, Stream):
        sys.stdout.is_needed = False


def allow_colors() -> None:
    """From here on colours are written; text of others must have been through `escape` or `visible`."""
    if isinstance(sys.stdout, Stream):
        sys.stdout.passes = COLOR


def _open_if_closed(number: int, name: str) -> None:
    """Where a standard stream is closed, the next file that is opened would get its number, and what is printed."""
    try:
        os.fstat(number)
    except OSError:
        nowhere = os.open(os.devnull, os.O_RDWR)
        if nowhere != number:
            os.dup2(nowhere, number)
            os.close(nowhere)
    if getattr(sys, name) is None:
        setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115
