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
    """Return the text without such characters, but with its line ends and tabs."""
    # nearly every text ends here: the test is fast
    if text.isprintable():
        return text
    names = {}
    for c in set(text):
        if c not in KEPT and unicodedata.category(c) in INVISIBLE:
            names[c] = f"⟨U+{ord(c):04X}⟩"
    return "".join(names.get(c, c) for c in text)


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
    # a fence as long as this one would end the block
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
    # "---:" aligns the column to the right
    dashes = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines.insert(1, dashes)
    for line in lines:
        # not str.ljust: it counts characters, and a Chinese one is two columns wide
        gaps = [" " * (width - columns(cell)) for width, cell in zip(widths, line, strict=True)]
        line[0] = line[0] + gaps[0]
        for i in range(1, len(line)):
            line[i] = gaps[i] + line[i]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def columns(text: str) -> int:
    """Return the width on a terminal: two columns for a Chinese character, none for an accent."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)
