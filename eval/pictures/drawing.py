"""Parts of all pictures: colours, maps, curves, colour bars, and text in any language."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from configs.text import columns

# The colour is weight ** GAMMA. On a linear scale, one weight of 0.9 leaves all others white.
GAMMA = 0.4
NOTHING = "#e4e4e8"  # The colour of NaN: a key after the query, an undefined score.
GROUP_COLOURS = "#0072B2 #D55E00 #009E73 #CC79A7 #56B4E9 #E69F00 #8c6bb1 #555555".split()
MARKERS = "os^Dv*PX"  # Curves differ by these in greyscale.
BADGE = "#8c1d40"
CHANCE = "#1f9bcf"
INK = "#222222"
GREY = "#555555"
DPI = 100
# Fonts with Chinese characters have one of these in their file names.
CJK = "cjk sourcehan wqy droidsansfallback pingfang hiragino msyh simhei".split()


def colour_map():
    """Perceptually even colours from light to dark; white below the scale."""
    from matplotlib import colormaps

    return colormaps["magma_r"].with_extremes(bad=NOTHING, under="white")


def weight_norm():
    """Scale of attention weights in every picture: a power law from 0 to 1."""
    from matplotlib.colors import PowerNorm

    return PowerNorm(GAMMA, 0, 1)


def group_colour(number: int) -> str:
    """Colour of a key/value head or a curve; they repeat after eight."""
    return GROUP_COLOURS[number % len(GROUP_COLOURS)]


def new_figure(width: float, height: float, title: str = ""):
    """Return a white figure of this size in pixels."""
    # not pyplot, whose global state a notebook shares
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")
    # it makes room for labels by itself, whatever their language
    figure.set_layout_engine("constrained")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(readable(title), x=0.01, ha="left", fontsize=12, **text_style())
    return figure


def save_figure(figure, path: Path, box: str | None = None) -> Path:
    """Write PNG or SVG, by the suffix. box: "tight" = as large as what is drawn."""
    # without a date, the same picture is the same file
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, metadata=metadata, bbox_inches=box)
    return path


def draw_map(
    axes,
    values: np.ndarray,
    rows: tuple[Sequence[float], Sequence[str]],
    columns: tuple[Sequence[float], Sequence[str]],
    norm: Any = None,
    size: float = 8,
):
    """Draw values (row, column) as colours and return the image.

    rows, columns: positions and texts of the labels
    norm:          default, the scale of attention weights
    """
    norm = norm or weight_norm()
    # "none": a blurred map would show weights that are not there
    image = axes.imshow(values, colour_map(), norm, interpolation="none", aspect="auto")
    axes.set_yticks(*rows, fontsize=size, **text_style())
    axes.set_xticks(*columns, fontsize=size, **text_style())
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return image


def write_number(axes, image, value: float, point, text: str, size: float) -> None:
    """Write a value into its cell, dark on light or white on dark."""
    red, green, blue, _ = image.cmap(image.norm(value))
    # The eye sees green as brighter than red, and red as brighter than blue.
    colour = INK if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "white"
    axes.text(*point, text, ha="center", va="center", fontsize=size, color=colour)


def draw_scale(axes, image, ticks, label: str = "", mark: float | None = None) -> None:
    """Draw the colour bar of a map. mark: a line across it, such as chance."""
    width, height = axes.bbox.size
    share = min(1, 420 / height)  # at most 420 pixels high
    # 14 pixels to the right of the map, 12 wide
    bar_axes = axes.inset_axes((1 + 14 / width, 1 - share, 12 / width, share))
    bar = axes.figure.colorbar(image, cax=bar_axes)
    bar.set_ticks(list(ticks), labels=[short(tick) for tick in ticks])
    bar.minorticks_off()
    bar.ax.tick_params(labelsize=7, length=2)
    bar.set_label(label, fontsize=8)
    bar.outline.set_visible(False)
    if mark is not None:
        bar.ax.axhline(mark, color=CHANCE, lw=2.2)


def draw_curve(axes, x: Any, y: Any, number: int = 0, label: str = "", **style: Any) -> None:
    # the colour and marker of this number, unless the style says otherwise
    usual = {"color": group_colour(number), "marker": MARKERS[number % len(MARKERS)]}
    axes.plot(x, y, **{"ms": 4, "lw": 1.6} | usual | style, label=label)


def frame_curves(axes, title: str, over: str = "tokens seen") -> None:
    """Draw a quiet frame around curves. over: label of the horizontal axis."""
    axes.xaxis.set_major_formatter(lambda count, _: amount(count))
    axes.set_title(title, fontsize=9, loc="left", color="#333333", pad=4, **text_style())
    axes.set_xlabel(over, fontsize=9)
    axes.tick_params(labelsize=8, color="#999999")
    axes.margins(x=0.02, y=0.12)
    axes.grid(color="#eeeeee", lw=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")


def legend_below(figure, axes, title: str | None = None) -> None:
    # of one panel: the others have the same curves
    handles, labels = axes.get_legend_handles_labels()
    style = {"loc": "outside lower center", "frameon": False, "title_fontsize": 9}
    font = {"family": fonts(), "size": 9}
    figure.legend(handles, labels, ncols=min(8, len(labels)), title=title, prop=font, **style)


# Text.


def text_style() -> dict[str, Any]:
    """Style of text from a user: it may be Chinese, and `$x_1$` is no formula."""
    return {"family": fonts(), "parse_math": False}


def amount(count: float) -> str:
    """Format a number of tokens: 532, 41 k, 5.3 M, 1.2 B."""
    for size, unit in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:g}"


def short(value: float) -> str:
    """Format a number in three characters: .07, .53, 1, 12."""
    if value == round(value) or abs(value) >= 10:
        return f"{value:.0f}"
    # .2f rounds 0.995 to 1.00
    return f"{value:.1f}" if abs(value) >= 0.995 else f"{value:.2f}".replace("0.", ".", 1)


def shorten(label: str, longest: int = 12) -> str:
    """Cut a label to so many columns; a Chinese character has two."""
    text = readable(label)
    if columns(text) <= longest:
        return text
    while columns(text) > longest - 1:
        text = text[:-1]
    return f"{text}…"


def readable(text: str) -> str:
    """Replace characters that no installed font has by their number, such as U+597D."""
    return "".join(c if c == "\n" or ord(c) in _drawable() else f"U+{ord(c):04X}" for c in text)


@cache
def _drawable() -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont
    from matplotlib.ft2font import FT2Font

    files = {findfont(FontProperties(family=family)) for family in fonts()}
    return frozenset().union(*(FT2Font(file).get_charmap() for file in files))


@cache
def fonts() -> list[str]:
    """Return matplotlib's own font, then those with Chinese characters."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    def is_cjk(file: str) -> bool:
        return any(part in Path(file).name.lower() for part in CJK)

    # matplotlib caches its list of fonts on disk, without newly installed ones
    for file in {*filter(is_cjk, findSystemFonts())} - {font.fname for font in fontManager.ttflist}:
        fontManager.addfont(file)
    return [
        "DejaVu Sans",
        *sorted({font.name for font in fontManager.ttflist if is_cjk(font.fname)}),
    ]
