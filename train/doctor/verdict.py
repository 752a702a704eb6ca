"""One line of the doctor, and what it means for `auto`."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import Literal

WIDTH, INDENT = 118, 32


@dataclass(frozen=True)
class Verdict:
    """said: in words. faults: what `auto` must not take from here on, as train.machine.findings keeps it.

    state: ok | "--": not for this machine, or not tried | note: training works, but look at it | FAIL.
    is_fatal: training will not work.
    """

    state: Literal["ok", "--", "note", "FAIL"]
    what: str
    said: str
    faults: dict[str, str] = field(default_factory=dict)
    is_fatal: bool = False

    def line(self) -> str:
        """For the terminal; what is too long continues below."""
        text = f"{self.state:<6}{self.what:<{INDENT - 6}}{self.said}"
        return textwrap.fill(text, WIDTH, subsequent_indent=" " * INDENT, break_long_words=False)


def in_short(error: Exception) -> str:
    """An exception in a few words: its kind, and the first line of what it says."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}"
