"""How is text shown that somebody else wrote? As text: it cannot control the terminal, and no mark in it works."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # Unicode categories
KEPT = "\n\t\u200c\u200d"  # of these; the last two join letters of Persian words and parts of emoji
# what may mean something to Markdown within a line: not the `_` of words_like_this
MARKS = re.compile(r"[\\`*{}\[\]<>&~#|]|(?<![^\W_])_|_(?![^\W_])")


def escape(text: str) -> str:
    """One line, with every character replaced that moves the cursor, changes colours or is invisible."""
    return plain(text).replace("\n", "⏎").replace("\t", "⟨U+0009⟩")


def plain(text: str) -> str:
    """Lines, with the same characters replaced. Line ends and tabs stay."""
    if text.isprintable():
        return text
    is_hidden = {c: c not in KEPT and unicodedata.category(c) in INVISIBLE for c in set(text)}
    return "".join(f"⟨U+{ord(c):04X}⟩" if is_hidden[c] else c for c in text)


def did_you_mean(name: str, names: Mapping[str, object]) -> str:
    """The end of a sentence about a name that does not exist: the most similar one that does, or "".

    names: name -> how it is written in the sentence.
    """
    close = difflib.get_close_matches(name, names, 1)
    return f", did you mean {names[close[0]]}?" if close else ""


# ---------------------------------------------------------------------------------------------------------
# Markdown


def markdown(text: str) -> str:
    """Within a line: text that Markdown shows as it is. No emphasis, link, picture or tag in it works."""
    return MARKS.sub(r"\\\g<0>", escape(text))


def code(text: str) -> str:
    """Within a line: text in the type of code."""
    return f"`{escape(text).replace('`', chr(39))}`"


def fenced(text: str) -> str:
    """A block of lines in the type of code, whatever backticks are in them."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{plain(text)}\n{fence}"


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table with aligned columns: the first to the left (names), the others to the right (figures).

    A cell cannot break the table; marks in it work, so that it reads well on a terminal.
    """
    cells = [[escape(str(cell).replace("\n", " ")) for cell in line] for line in (header, *rows)]
    lines = [[re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in line] for line in cells]
    widths = [max(3, *map(columns, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * (width - 1) + (":" if i else "-") for i, width in enumerate(widths)])
    for line in lines:
        for i, width in enumerate(widths):
            gap = " " * (width - columns(line[i]))
            line[i] = gap + line[i] if i else line[i] + gap
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def columns(text: str) -> int:
    """Columns of a terminal that a text takes: two for a Chinese character, none for an accent."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)
