"""How is something drawn? One function draws a map, one a curve; their colours, fonts, labels and files are here.

matplotlib's Figure and Agg canvas, never pyplot: nothing is shared with a notebook.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from configs.text import columns

GAMMA = 0.4  # colour = weight ** GAMMA: on a linear scale one token that takes 0.9 would leave everything else white
NOTHING = "#e4e4e8"  # no weight at all: a key after the query, a score that is not defined
GROUP_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8c6bb1", "#555555"]
MARKERS = "os^Dv*PX"  # in greyscale the colours of curves look alike, so their markers differ
BADGE, CHANCE, INK, GREY = "#8c1d40", "#1f9bcf", "#222222", "#555555"
DPI = 100
CJK = "cjk sourcehan wqy droidsansfallback pingfang hiragino msyh simhei".split()  # in the names of files of fonts


def colour_map():
    """Light to dark, perceptually even, monotone in grey; NaN is grey, and what is under the scale white."""
    from matplotlib import colormaps

    return colormaps["magma_r"].with_extremes(bad=NOTHING, under="white")


def weight_norm():
    """The scale of attention weights, the same in every picture: 0 … 1, power law."""
    from matplotlib.colors import PowerNorm

    return PowerNorm(GAMMA, 0, 1)


def group_colour(number: int) -> str:
    """The frame of a key/value head, or a curve; after eight the colours repeat."""
    return GROUP_COLOURS[number % len(GROUP_COLOURS)]


def new_figure(width: float, height: float, title: str = "", fitted: bool = True):
    """A white figure of this size in pixels. fitted: its axes are made to fit; else they are placed by hand."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")
    figure.set_layout_engine("constrained" if fitted else None)
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(readable(title), x=0.01, ha="left", fontsize=12, **words())
    return figure


def caption(axes, title: str, note: str = ""):
    """A bold title over the axes and a note below them, both as wide as these; the title's text."""

    def wrapped(text: str, size: int) -> str:
        return textwrap.fill(readable(text), max(40, int(axes.bbox.width / (0.6 * size * DPI / 72))))

    axes.set_xlabel(wrapped(note, 8), loc="left", fontsize=8, color=GREY, **words())
    return axes.set_title(wrapped(title, 12), loc="left", fontsize=12, weight="bold", color=INK, pad=9, **words())


def save_figure(figure, path: Path) -> Path:
    """Write PNG or SVG, by the suffix. Axes that were placed by hand keep their pixels, and the picture gets room for
    all that extends beyond the figure: labels, titles, bars."""
    grows = {"bbox_inches": "tight"} if figure.get_layout_engine() is None else {}
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, **grows)
    return path


def draw_map(
    axes,
    values: np.ndarray,
    rows: tuple[Sequence[float], Sequence[str]],
    columns: tuple[Sequence[float], Sequence[str]] | None = None,
    norm: Any = None,
    numbers_from: float | None = None,
    size: float = 8,
):
    """Draw values (row, column) on the scale `norm`, default that of attention weights; the image. NaN is NOTHING.

    rows, columns: where labels stand, and the labels; without them, places. numbers_from: values from here on stand in
    their cells, dark on light ones and light on dark ones.
    """
    image = axes.imshow(values, cmap=colour_map(), norm=norm or weight_norm(), interpolation="none", aspect="auto")
    axes.set_yticks(*rows, fontsize=size, **words())
    if columns:
        axes.set_xticks(*columns, fontsize=size, **words())
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for i, j in np.argwhere(values >= numbers_from) if numbers_from is not None else ():
        write_number(axes, image, values[i, j], (j, i), short(values[i, j]), size)
    return image


def write_number(axes, image, value: float, place: tuple[float, float], text: str, size: float) -> None:
    """A value's text in its cell: dark on a light cell, white on a dark one."""
    red, green, blue, _ = image.cmap(image.norm(value))
    colour = INK if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "white"
    axes.text(*place, text, ha="center", va="center", fontsize=size, color=colour)


def draw_scale(axes, image, ticks: Sequence[float], label: str = "", mark: float | None = None) -> None:
    """The colour bar of a map, right of its axes. mark: a line across it, such as what chance gives."""
    width, height = axes.bbox.size
    tall = min(1, 420 / height)
    bar = axes.figure.colorbar(image, cax=axes.inset_axes((1 + 14 / width, 1 - tall, 12 / width, tall)))
    bar.set_ticks(list(ticks), labels=[short(tick) for tick in ticks])
    bar.minorticks_off()
    bar.ax.tick_params(labelsize=7, length=2)
    bar.set_label(label, fontsize=8)
    bar.outline.set_visible(False)
    if mark is not None:
        bar.ax.axhline(mark, color=CHANCE, lw=2.2)


def draw_curve(axes, x: Any, y: Any, number: int = 0, label: str = "", **style: Any) -> None:
    """Draw a curve in the colour and with the marker of this number."""
    usual = {"color": group_colour(number), "marker": MARKERS[number % len(MARKERS)], "ms": 4, "lw": 1.6}
    axes.plot(x, y, **usual | style, label=label)


def frame_curves(axes, title: str, over: str = "tokens seen") -> None:
    """A quiet frame around curves. over: what the horizontal axis counts."""
    axes.xaxis.set_major_formatter(lambda count, _: amount(count))
    axes.set_title(title, fontsize=9, loc="left", color="#333333", pad=4, **words())
    axes.set_xlabel(over, fontsize=9)
    axes.tick_params(labelsize=8, color="#999999")
    axes.margins(x=0.02, y=0.12)
    axes.grid(color="#eeeeee", lw=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")


def legend_below(figure, axes, title: str | None = None) -> None:
    """What the curves of these axes are, in a row below all."""
    handles, labels = axes.get_legend_handles_labels()
    style = {"loc": "outside lower center", "frameon": False, "prop": {"family": fonts(), "size": 9}}
    figure.legend(handles, labels, ncols=min(8, len(labels)), title=title, title_fontsize=9, **style)


def words() -> dict[str, Any]:
    """How text is set: a name from outside may be Chinese, and `$x_1$` in it is no formula."""
    return {"family": fonts(), "parse_math": False}


def amount(count: float) -> str:
    """A number of tokens as people say it: 532, 41 k, 5.3 M, 1.2 B."""
    for size, unit in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:g}"


def short(value: float) -> str:
    """Three characters: .07, .53, 1, 12."""
    if value == round(value) or abs(value) >= 10:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 0.995 else f"{value:.2f}".replace("0.", ".", 1)


def shorten(label: str, longest: int = 12) -> str:
    """A label of at most this many columns; a Chinese character takes two."""
    label = full = readable(label)
    while columns(label) > longest - (label != full):
        label = label[:-1]
    return label + "…" * (label != full)


def readable(text: str) -> str:
    """The text with every character that no installed font draws replaced by its number, such as U+597D."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char == "\n" or ord(char) in _drawable() else f"U+{ord(char):04X}" for char in text)


@cache
def _drawable() -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont
    from matplotlib.ft2font import FT2Font

    files = {findfont(FontProperties(family=family)) for family in fonts()}
    return frozenset().union(*(FT2Font(file).get_charmap() for file in files))


@cache
def fonts() -> list[str]:
    """matplotlib's own font, and behind it those with Chinese characters; each letter is drawn in the first that has
    it. matplotlib keeps a list of fonts, and does not notice one that was installed later."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    def is_cjk(file: str) -> bool:
        return any(part in Path(file).name.lower() for part in CJK)

    for file in {*filter(is_cjk, findSystemFonts())} - {font.fname for font in fontManager.ttflist}:
        fontManager.addfont(file)
    return ["DejaVu Sans", *sorted({font.name for font in fontManager.ttflist if is_cjk(font.fname)})]
