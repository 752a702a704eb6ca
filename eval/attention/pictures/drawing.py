"""What do all pictures of attention share? Colours, fonts, readable labels, and how a figure becomes a file.

matplotlib's Figure and Agg canvas, never pyplot: nothing is shared with a notebook.
"""

from __future__ import annotations

import textwrap
from functools import cache
from pathlib import Path

import numpy as np

from configs.text import columns

GAMMA = 0.4  # colour = weight ** GAMMA: on a linear scale one token that takes 0.9 would leave everything else white
LEVELS = 200  # colours of the map; the 256 of a GIF have room for frames, greys and the edges of letters besides
NOTHING = "#e4e4e8"  # no weight at all: a key after the query, a score that is not defined
GROUP_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8c6bb1", "#555555"]
BOUNDARY = "#1f9bcf"  # where one document of a packed row ends
BADGE = "#8c1d40"
DPI = 100
LONGEST_SIDE = 2400  # pixels of any picture
CJK_FILES = ("cjk", "sourcehan", "wqy", "droidsansfallback", "pingfang", "hiragino", "msyh", "simhei")
CJK_FONTS = ("Noto Sans CJK", "Source Han Sans", "WenQuanYi", "Droid Sans Fallback", "PingFang", "Hiragino Sans",
             "Microsoft YaHei", "SimHei")  # fmt: skip


def colour_map():
    """Light to dark, perceptually even, monotone in grey; NaN is grey, and what is under the scale white."""
    from matplotlib import colormaps

    return colormaps["magma_r"].resampled(LEVELS).with_extremes(bad=NOTHING, under="white")


def weight_norm():
    """The scale of attention weights, the same in every picture: 0 … 1, power law."""
    from matplotlib.colors import PowerNorm

    return PowerNorm(GAMMA, 0, 1)


def palette() -> list[tuple[int, ...]]:
    """At most 256 colours: those of `colour_map`, white, NOTHING, the frames, BOUNDARY, and shades for text."""
    from PIL.ImageColor import getrgb

    weights = [tuple(int(part) for part in colour[:3]) for colour in colour_map()(np.arange(LEVELS), bytes=True)]
    plain = [getrgb(name)[:3] for name in ("#ffffff", NOTHING, *GROUP_COLOURS, BOUNDARY)]
    greys = [(level, level, level) for level in range(20, 252, 8)]
    paper, ink = np.array(getrgb(NOTHING)), np.array(getrgb(BADGE))
    badges = [tuple(int(part) for part in (paper + (ink - paper) * k / 8).round()) for k in range(1, 9)]
    return [*weights, *plain, *greys, *badges]


def drawn(figure):
    """What is on the figure's canvas, as a Pillow image in the colours of `palette`: the same in every frame."""
    from PIL import Image

    wanted = Image.new("P", (1, 1))
    wanted.putpalette([part for colour in palette() for part in colour])
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3]
    return Image.fromarray(np.ascontiguousarray(pixels)).quantize(palette=wanted, dither=Image.Dither.NONE)


def group_colour(group: int) -> str:
    """The frame of a key/value head; after eight the colours repeat."""
    return GROUP_COLOURS[group % len(GROUP_COLOURS)]


def new_figure(width: float, height: float, **layout):
    """A white figure of this size in pixels. layout: what matplotlib's Figure takes, such as layout="constrained"."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white", **layout)
    FigureCanvasAgg(figure)
    return figure


def fit(figure, margin: float = 0.1) -> None:
    """Grow the figure until everything beyond its edges (labels, titles, bars) is inside; axes keep their pixels."""
    box = figure.get_tightbbox().padded(margin)  # inches
    left, bottom, right, top = np.array([np.floor(box.min * DPI), np.ceil(box.max * DPI)]).ravel() / DPI
    old, new = figure.get_size_inches(), np.array([right - left, top - bottom])
    for axes in figure.axes:
        place = axes.get_position()
        axes.set_position([*((place.min * old - (left, bottom)) / new), *(place.size * old / new)])
    figure.set_size_inches(new)


def head_line(axes, title: str, note: str):
    """A bold title and a note under it, both over the axes and as wide as these; the title's text. Never a formula."""
    width, place = axes.bbox.width, "axes fraction"
    for text, size, colour, weight in ((note, 8, "#555555", "normal"), (title, 12, "#222222", "bold")):
        lines = textwrap.fill(readable(text), max(40, int(width / (0.6 * size * DPI / 72))))
        style = {"fontsize": size, "color": colour, "family": fonts(), "weight": weight, "parse_math": False}
        place = axes.annotate(
            lines, (0, 1), xytext=(0, 6), va="bottom", xycoords=place, textcoords="offset points", **style
        )
    return place


def save_figure(figure, path: Path, full_colour: bool = False) -> Path:
    """Write PNG or SVG, by the suffix. full_colour: for a picture with other colours than those of `palette`; maps take
    half as much without."""
    if path.suffix == ".svg":
        figure.savefig(path, metadata={"Date": None})
    elif full_colour:
        figure.savefig(path)
    else:
        figure.canvas.draw()
        drawn(figure).save(path)
    return path


def amount(tokens: int) -> str:
    """A number of tokens as people say it: 532, 41 k, 5.3 M, 1.2 B."""
    for size, unit in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if tokens >= size:
            return f"{tokens / size:.3g}{unit}"
    return str(tokens)


def style_curve(axes, title: str, tokens_log_from: int | None = None) -> None:
    """A quiet frame for a curve over tokens seen; tokens_log_from: the scale is logarithmic from this count on."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    if tokens_log_from:
        axes.set_xscale("symlog", linthresh=tokens_log_from)
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tokens, _: amount(round(tokens))))
    axes.set_title(title, fontsize=9, loc="left", color="#333333", pad=4)
    axes.tick_params(labelsize=8, color="#999999")
    axes.margins(x=0.02, y=0.12)
    axes.grid(color="#eeeeee", lw=0.8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#999999")


def write_values(axes, image, values: np.ndarray, size: float, smallest: float = -np.inf, form=None) -> None:
    """Write values (row, column) into the cells of an image: dark on light cells, light on dark ones; no NaN."""
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value) and value >= smallest:
            red, green, blue, _ = image.cmap(image.norm(value))
            colour = "#222222" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "#ffffff"
            text = form(value) if form else f"{value:.2f}".removeprefix("0")
            axes.text(j, i, text, ha="center", va="center", fontsize=size, color=colour)


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

    known = {font.fname for font in fontManager.ttflist}
    for file in findSystemFonts():
        if file not in known and any(part in Path(file).name.lower() for part in CJK_FILES):
            fontManager.addfont(file)
    return ["DejaVu Sans", *sorted({font.name for font in fontManager.ttflist if font.name.startswith(CJK_FONTS)})]


def shorten(label: str, longest: int = 12) -> str:
    """A label of at most this many columns; a Chinese character takes two."""
    label = readable(label)
    if columns(label) <= longest:
        return label
    while columns(label) > longest - 1:
        label = label[:-1]
    return label + "…"
