"""How does it look in a terminal of any width? Words wrap as they come; a map is drawn in blocks."""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from typing import TextIO

import numpy as np

from configs.text import columns, escape

BLOCKS, ASCII = "·▁▂▃▄▅▆▇█", ".:-=+*%@#"  # of a weight, from 0 to 1; what is still to come is blank
NARROWEST = 20  # columns; a narrower terminal shows what fits


def terminal_width() -> int:
    """Columns that may be written to: the last one stays free, since some terminals begin a new line behind it."""
    return max(NARROWEST, shutil.get_terminal_size((80, 24)).columns - 1)


def prints_blocks(stream: TextIO) -> bool:
    """Whether this stream can show BLOCKS: by its encoding, and by what the terminal calls itself."""
    try:
        BLOCKS.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return os.environ.get("TERM") != "dumb"


class Wrapped:
    """Writes text as it comes, word by word; a word that does not fit begins a new line.

    Chinese may be broken anywhere. Characters that could drive the terminal are shown by their number. Where the
    stream is not a terminal, lines are left as they are.
    """

    def __init__(self, stream: TextIO | None = None):
        self.stream = stream or sys.stdout
        self.wraps = self.stream.isatty()
        self.column, self.word, self.blanks = 0, "", ""

    def write(self, text: str) -> None:
        """Write what is complete of the text; the last word waits for its end."""
        for character in text:
            if character == "\n":
                self._finish_word()
                self._break()
            elif character in " \t":
                self._finish_word()
                self.blanks += " "
            else:
                wide = unicodedata.east_asian_width(character) in "WF"
                if wide:
                    self._finish_word()
                self.word += escape(character)
                if wide:
                    self._finish_word()
        self.stream.flush()

    def line(self, text: str) -> None:
        """Write one line of its own."""
        self.end()
        self.write(text)
        self.end()

    def end(self) -> None:
        """Write the word that waits, and end the line if anything is on it."""
        self._finish_word()
        self.blanks = ""
        if self.column:
            self._break()
        self.stream.flush()

    def _finish_word(self) -> None:
        if not self.word:
            return
        word, self.word = self.word, ""
        width = terminal_width() if self.wraps else sys.maxsize
        if self.column and self.column + columns(self.blanks + word) > width:
            self._break()
        self._put(self.blanks)
        self.blanks = ""
        while columns(word) > width - self.column:  # a word that no line has room for
            fitting = max(1, len(_fitting(word, width - self.column)))
            self._put(word[:fitting])
            word = word[fitting:]
            self._break()
        self._put(word)

    def _put(self, text: str) -> None:
        self.stream.write(text)
        self.column += columns(text)

    def _break(self) -> None:
        self.stream.write("\n")
        self.column, self.blanks = 0, ""


def attention_map(
    weights: np.ndarray, labels: Sequence[str], first: int, width: int, most_rows: int, blocks: bool = True
) -> list[str]:
    """One head in lines of at most `width` columns: a row a token that looks, from left to right what it looks at.

    weights: (query, key), the queries are the last ones of the keys. labels: one a key. first: the first key whose
    row is drawn. Several keys share a column where there are more of them than columns: the largest weight is drawn.
    At the right of a row stands the token that has most, and its weight. most_rows: later rows, and keys that only
    they could see, are left out.
    """
    levels, edge = (BLOCKS, "│") if blocks else (ASCII, "|")
    end = min(len(labels), first + most_rows)
    unread = len(labels) - len(weights)  # keys without a row
    names = [_plain(label, blocks) for label in labels[:end]]
    label_width = min(max(columns(name) for name in names), max(4, width // 6))
    room = max(1, width - 2 * label_width - 8)  # two edges, three blanks and a number such as .71
    pool = -(-len(names) // room)
    lines = []
    for key in range(first, end):
        row = weights[key - unread, : key + 1]
        largest = [row[at : at + pool].max() for at in range(0, len(row), pool)]
        cells = "".join(levels[round(float(weight) * (len(levels) - 1))] for weight in largest)
        cells += " " * (-(-len(names) // pool) - len(cells))
        top = int(row.argmax())
        number = f"{row[top]:.2f}".removeprefix("0")[:3]  # .71, or 1.0
        lines.append(
            f"{_padded(names[key], label_width)} {edge}{cells}{edge} {_padded(names[top], label_width)} {number}"
        )
    return lines


def _plain(label: str, blocks: bool) -> str:
    """A token's label as this terminal can show it."""
    label = escape(label)
    if blocks:
        return label
    return label.translate({ord("␣"): "_", ord("⏎"): "\\n", ord("⇥"): "\\t"}).encode("ascii", "replace").decode()


def _padded(label: str, width: int) -> str:
    short = _fitting(label, width)
    return short + " " * (width - columns(short))


def _fitting(text: str, width: int) -> str:
    """As much of the beginning of a text as this many columns hold."""
    while columns(text) > width:
        text = text[:-1]
    return text
