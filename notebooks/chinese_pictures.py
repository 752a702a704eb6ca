"""Draw each picture of a notebook a second time, with Chinese words, for notebooks/zh.

The words are lines of configs/sentences.zh.txt. Names of ticks, and files that a cell opens as an
image, stay English.
"""

from __future__ import annotations

from typing import Any

from IPython.core.formatters import BaseFormatter
from IPython.core.getipython import get_ipython
from IPython.core.pylabtools import print_figure
from matplotlib.figure import Figure
from matplotlib.text import Text
from traitlets import ObjectName, Unicode

from configs.language import in_chinese
from eval.pictures.drawing import fonts
from notebooks.execute import MIME


class ChinesePicture(BaseFormatter):
    """A formatter of IPython. %matplotlib removes those that are registered for Figure."""

    format_type = Unicode(MIME)
    print_method = ObjectName("_no_such_method")

    def __call__(self, shown: Any) -> str | None:
        return drawn_in_chinese(shown) if isinstance(shown, Figure) else None


def begin() -> None:
    """Let this kernel draw every figure in both languages."""
    formatter = get_ipython().display_formatter
    formatter.formatters[MIME] = ChinesePicture(parent=formatter)


def drawn_in_chinese(figure: Figure) -> str | None:
    """Return a PNG in base64; None if no word of the figure has a translation."""
    before = []
    for text in figure.findobj(Text):
        english = text.get_text()
        chinese = "\n".join(map(in_chinese, english.split("\n")))
        if chinese != english:
            before.append((text, english, text.get_fontfamily()))
            text.set(text=chinese, fontfamily=fonts())
    picture = print_figure(figure, base64=True) if before else None
    for text, english, family in before:
        text.set(text=english, fontfamily=family)
    return picture
