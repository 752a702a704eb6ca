"""Show foreign text as text: it cannot control the terminal, and no mark-up in it works."""

import difflib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Unicode's categories of control, format and surrogate characters, and its line ends.
# With them a text can hide a part of itself or reverse its order, so that a reader sees another
# text than the program (Boucher & Anderson 2021, arXiv 2111.00169).
INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
# These stay. The last two join letters of Persian words and parts of emoji.
KEPT = "\n\t\u200c\u200d"
# These characters mean something to Markdown within a line, but not the `_` of words_like_this.
MARKS = re.compile(r"[\\`*{}\[\]<>&~#|]|(?<![^\W_])_|_(?![^\W_])")


def escape(text: str) -> str:
    """Return one line, without characters that move the cursor, change colours or are invisible."""
    return plain(text).replace("\n", "⏎").replace("\t", "⟨U+0009⟩")


def plain(text: str) -> str:
    """Return lines without the same characters. Line ends and tabs stay."""
    # nearly every line is, and this test is quick
    if text.isprintable():
        return text
    visible = {}
    for c in set(text):
        is_hidden = c not in KEPT and unicodedata.category(c) in INVISIBLE
        visible[c] = f"⟨U+{ord(c):04X}⟩" if is_hidden else c
    return "".join(visible[c] for c in text)


def did_you_mean(name: str, names: Mapping[str, object]) -> str:
    """Return the end of an error about an unknown name: the most similar name, or "".

    names: name -> its form in the sentence.
    """
    close = difflib.get_close_matches(name, names, 1)
    return f", did you mean {names[close[0]]}?" if close else ""


def markdown(text: str) -> str:
    """Return a line that Markdown shows as it is: no emphasis, link, picture or tag in it works."""
    return MARKS.sub(r"\\\g<0>", escape(text))


def code(text: str) -> str:
    """Return text as code, for a line of Markdown."""
    return f"`{escape(text).replace('`', chr(39))}`"


def fenced(text: str) -> str:
    """Return lines as a block of code, for Markdown. They may have backticks."""
    # a fence ends at one that is as long
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, 1 + longest)
    return f"{fence}\n{plain(text)}\n{fence}"


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table: names in the first column, to the left; figures to the right.

    No cell can break the table. Marks in it still work, so that it reads well on a terminal.
    """
    lines = []
    for cells in (header, *rows):
        texts = [escape(str(cell).replace("\n", " ")) for cell in cells]
        # a bar would begin the next cell, also within code
        lines.append([re.sub(r"(?<!\\)\|", r"\\|", text) for text in texts])
    widths = [max(3, *map(columns, column)) for column in zip(*lines, strict=True)]
    # a colon in the line of dashes moves the figures of a column to the right
    lines.insert(1, ["-" * (width - 1) + (":" if i else "-") for i, width in enumerate(widths)])
    for line in lines:
        for i, width in enumerate(widths):
            gap = " " * (width - columns(line[i]))
            line[i] = gap + line[i] if i else line[i] + gap
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def columns(text: str) -> int:
    """Return the width on a terminal: two columns for a Chinese character, none for an accent."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)
