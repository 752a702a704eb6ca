"""How is a table printed? One function for every command: aligned for the terminal, and Markdown for a page."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from configs.shown_text import Markdown, markdown


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table with aligned columns: the first to the left (names), the others to the right (figures).

    A cell is anything with a `str`, which Markdown will show as it is; or it is of the type Markdown. Raises ValueError
    if a row has more or fewer cells than the header.
    """
    lines = [[_escaped(cell) for cell in line] for line in (header, *rows)]
    widths = [max(3, *map(columns, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * (width - 1) + (":" if i else "-") for i, width in enumerate(widths)])
    return "\n".join("| " + " | ".join(_padded(line, widths)) + " |" for line in lines)


def columns(text: str) -> int:
    """Columns of a terminal that a text takes: two for a Chinese character, none for an accent."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)


def _escaped(cell: Any) -> str:
    if isinstance(cell, Markdown):
        return re.sub(r"(?<!\\)\|", r"\\|", cell)
    return markdown(str(cell).replace("\n", " "))


def _padded(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    spaces = [" " * (width - columns(cell)) for cell, width in zip(cells, widths, strict=True)]
    return [space + cell if i else cell + space for i, (cell, space) in enumerate(zip(cells, spaces, strict=True))]
