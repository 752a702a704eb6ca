"""Text that is safe and readable in a terminal: nothing is hidden, and nothing can drive it."""

from __future__ import annotations

import re
import unicodedata

MARKS = {"\n": "⏎\n", "\t": "⇥", "\r": "␍"} | {mark: f"⟨U+{ord(mark):04X}⟩" for mark in "⟦⟧⟨⟩⏎⇥␍"}
INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # Unicode categories
JOINERS = "\u200c\u200d"  # invisible too, but parts of Persian words and of emoji


def escape(text: str) -> str:
    """One line without a character that moves the cursor, changes colours or does not show."""
    return "".join("⏎" if c == "\n" else _by_number(c) if _is_hidden(c) else c for c in text)


def visible(text: str, specials: re.Pattern) -> str:
    """A text with visible line ends, tabs and control characters. What only looks like a special token is marked."""
    parts = specials.split(text)
    shown = ["".join(MARKS.get(c) or (_by_number(c) if _is_hidden(c) else c) for c in part) for part in parts]
    return "".join(f"⟨text: {part}⟩" if i % 2 else part for i, part in enumerate(shown))


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in INVISIBLE and character not in JOINERS


def _by_number(character: str) -> str:
    return f"⟨U+{ord(character):04X}⟩"
