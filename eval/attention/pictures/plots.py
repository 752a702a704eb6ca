"""What do the heads look at? All heads of a snapshot, one head, or several models, as pictures.

All heads are one image; frames, names, badges and labels stand over it. Rows of a map are the tokens that look, columns
the tokens looked at. One colour scale in all pictures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from eval.attention.metrics import PATTERNS, SCORES
from eval.attention.pictures import drawing
from eval.attention.pictures.drawing import DPI, LONGEST_SIDE
from eval.attention.snapshots import ProbeMap, Snapshot

SMALLEST_HEAD = 150  # pixels: room for a name and a badge above the diagonal
SMALLEST_NAMED = 90  # pixels: below, a head has no text of its own
LABEL_PIXELS = 9  # a token label needs this many to stand apart from the next
BETWEEN = -1.0  # in the array of all heads, where no head is: under the scale, so white
AXES = "row: the token that looks · column: the token looked at"


@dataclass(frozen=True)
class Grid:
    """Where every head is. A cell is `cell` pixels wide and stands for `pool` tokens; `gap` cells between heads."""

    layers: int
    heads: int
    tokens: int
    pool: int
    cell: int
    gap: int

    @property
    def length(self) -> int:
        """Cells of a head's side."""
        return math.ceil(self.tokens / self.pool)

    @property
    def step(self) -> int:
        """Cells from one head to the next."""
        return self.length + self.gap

    @property
    def has_names(self) -> bool:
        """Whether a head is large enough for a name and a badge of its own."""
        return self.length * self.cell >= SMALLEST_NAMED

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of all heads together, in pixels."""
        return (self.heads * self.step - self.gap) * self.cell, (self.layers * self.step - self.gap) * self.cell

    def corner(self, layer: int, head: int) -> tuple[float, float]:
        """The empty corner above the diagonal of a head, in cells."""
        return head * self.step + self.length - 0.5 - 3 / self.cell, layer * self.step - 0.5 + 3 / self.cell


def lay_out(
    layers: int,
    heads: int,
    tokens: int,
    room: int = LONGEST_SIDE - 300,
    largest: int = 11,
    smallest_head: int = SMALLEST_HEAD,
) -> Grid:
    """The largest whole number of pixels a token with which the grid is no wider than `room`.

    At most `largest`, or what few heads need to fill a picture. Where not even one pixel is left for a token,
    several share a cell.
    """
    most = max(layers, heads)
    pool = math.ceil(tokens / max(1, room // most - 8))
    length = math.ceil(tokens / pool)
    largest = max(largest, math.ceil(smallest_head / length), min(2 * largest, room // (2 * most * (length + 1))))
    for cell in range(largest, 0, -1):
        gap = max(1, math.ceil(8 / cell))
        if most * (length + gap) * cell <= room:
            break
    return Grid(layers, heads, tokens, pool, cell, gap)


def mosaic(snapshot: Snapshot, path: Path, title: str = "", probe: str | None = None, hide_sink: bool = False) -> Path:
    """Draw every layer x head on one probe (default: the first) as PNG or SVG.

    title: what stands before step and tokens; hide_sink: see `without_sink`.
    """
    probe = probe or next(iter(snapshot.maps))
    shown = snapshot.maps[probe]
    grid = lay_out(len(snapshot.layers), len(snapshot.heads), len(shown.labels))
    figure = drawing.new_figure(*grid.size)
    axes = _mosaic_axes(figure, 0, grid, snapshot, probe, hide_sink)
    draw_scale(axes)
    heading = [part for part in (title, moment(snapshot), f"probe: {probe}") if part]
    drawing.head_line(axes, " · ".join(heading), legend(snapshot, probe, grid, hide_sink))
    drawing.fit(figure)
    return drawing.save_figure(figure, path)


def side_by_side(named: Sequence[tuple[str, Snapshot]], path: Path, probe: str) -> Path:
    """Draw the mosaics of several models, such as MHA, GQA and MQA, beside each other with cells of one size.

    named: a name and a snapshot each."""
    sizes = [(len(s.layers), len(s.heads), len(s.maps[probe].labels)) for _, s in named]
    layers, _, tokens = np.max(sizes, axis=0).tolist()
    common = lay_out(layers, sum(size[1] for size in sizes), tokens, LONGEST_SIDE - 150 - 110 * len(named))
    grids = [Grid(*size, common.pool, common.cell, common.gap) for size in sizes]
    figure = drawing.new_figure(sum(grid.size[0] for grid in grids), max(grid.size[1] for grid in grids))
    left, titles = 0.0, []
    for (name, snapshot), grid in zip(named, grids, strict=True):
        axes = _mosaic_axes(figure, left, grid, snapshot, probe)
        titles.append(drawing.head_line(axes, name, f"{kv_heads(snapshot)} · {moment(snapshot)}"))
        left = axes.get_tightbbox().x1 + 60  # room for the labels of the next
    draw_scale(axes)
    note = {"fontsize": 8, "color": "#555555", "textcoords": "offset points", "xytext": (0, 10)}
    figure.axes[0].annotate(legend(named[0][1], probe, grids[0]), (0, 1), xycoords=titles[0], **note)
    drawing.fit(figure)
    return drawing.save_figure(figure, path)


def _mosaic_axes(figure, left: float, grid: Grid, snapshot: Snapshot, probe: str, hide_sink: bool = False):
    """Axes with all maps of one probe, their names and labels, the left edge at this pixel of the figure."""
    shown, axes = snapshot.maps[probe], axes_at(figure, left, grid)
    draw_maps(axes, grid, snapshot, shown, without_sink(shown) if hide_sink else shown.weights)
    label_tokens(axes, grid, snapshot, shown)
    if not grid.has_names:
        return axes
    shares, pixels = snapshot.num_key_value_heads < snapshot.num_attention_heads, grid.length * grid.cell
    size, style = min(9.0, 0.06 * pixels), {"ha": "right", "va": "top", "parse_math": False}
    small = min(0.95 * size, 0.045 * pixels)  # of the badge, since the diagonal comes nearer
    for i, j in np.ndindex(grid.layers, grid.heads):
        layer, head = snapshot.layers[i], snapshot.heads[j]
        name, (x, y) = f"L{layer} H{head}" + (f" · KV {snapshot.group(head)}" if shares else ""), grid.corner(i, j)
        axes.text(x, y, name, fontsize=size, weight="bold", color="#444444", **style)
        below = y + 1.7 * size * DPI / 72 / grid.cell
        axes.text(x, below, badge(snapshot, probe, i, j), fontsize=small, color=drawing.BADGE, **style)
    return axes


def one_head(
    snapshot: Snapshot,
    layer: int,
    head: int,
    path: Path,
    title: str = "",
    probe: str | None = None,
    hide_sink: bool = False,
    score: str | None = None,
) -> Path:
    """Draw one head large, by its true numbers; weights are written in the cells where there is room for them.

    score: by which this head was chosen; it is written first.
    """
    probe = probe or next(iter(snapshot.maps))
    shown, i, j = snapshot.maps[probe], snapshot.layers.index(layer), snapshot.heads.index(head)
    tokens = len(shown.labels)
    grid = lay_out(1, 1, tokens, room=1400, largest=max(12, min(34, 900 // tokens)))
    figure = drawing.new_figure(*grid.size)
    axes = axes_at(figure, 0, grid)
    weights = (without_sink(shown) if hide_sink else shown.weights)[i : i + 1, j : j + 1]
    image = draw_maps(axes, grid, snapshot, shown, weights)
    label_tokens(axes, grid, snapshot, shown)
    if grid.size[0] >= 400:  # in the empty corner above the diagonal
        size = min(15, grid.size[0] / 46)  # a page shows such a picture at half its size
        style = {"transform": axes.transAxes, "ha": "right", "va": "top", "fontsize": size}
        why = [score_line(snapshot, score, i, j)] if score else []
        why += [f"on probe {SCORES[score].probe}"] if score and SCORES[score].probe != probe else []
        here = [n for n in PATTERNS if n in snapshot.scores and SCORES[n].probe == probe and n != score]
        others = filter(None, (score_line(snapshot, n, i, j) for n in here))
        axes.text(0.98, 0.98, "\n".join(why), weight="bold", color=drawing.BADGE, **style)
        axes.text(0.98, 0.98, "\n".join([*("" for _ in why), *others]), color="#444444", **style)
    if grid.cell >= 28:
        drawing.write_values(axes, image, tile(weights, grid.gap), smallest=0.05, size=grid.cell / 5)
    draw_scale(axes)
    heading = [part for part in (title, f"L{layer} H{head}", moment(snapshot), f"probe: {probe}") if part]
    drawing.head_line(axes, " · ".join(heading), AXES + left_out(shown, hide_sink))
    drawing.fit(figure)
    return drawing.save_figure(figure, path)


def quick_mosaic(weights: np.ndarray, file: Path | BinaryIO, num_key_value_heads: int | None = None) -> None:
    """Draw weights (layer, head, query, key) without any text, in a few milliseconds: for use during training.

    The colours are those of `mosaic`. num_key_value_heads: frames the heads that share one, in its colour; default: as
    many as there are heads.
    """
    from PIL import Image, ImageDraw

    layers, heads, tokens, _ = weights.shape
    grid = lay_out(layers, heads, tokens, room=1200, largest=4, smallest_head=48)
    colours = drawing.colour_map()(drawing.weight_norm()(tile(weights, grid.gap, grid.pool)), bytes=True)[..., :3]
    colours = np.pad(colours.repeat(grid.cell, 0).repeat(grid.cell, 1), [(4, 4), (4, 4), (0, 0)], constant_values=255)
    picture = Image.fromarray(colours)
    group_size, head = heads // (num_key_value_heads or heads), grid.length * grid.cell
    for i, j in np.ndindex(layers, heads // group_size):
        left, top = j * group_size * grid.step * grid.cell + 1, i * grid.step * grid.cell + 1
        corners = left, top, left + (group_size - 1) * grid.step * grid.cell + head + 5, top + head + 5
        ImageDraw.Draw(picture).rectangle(corners, outline=drawing.group_colour(j), width=2)
    picture.save(file, "PNG", compress_level=1)


# ---------------------------------------------------------------------------------------------------------
# the maps


def tile(weights: np.ndarray, gap: int, pool: int = 1) -> np.ndarray:
    """All heads of weights (layer, head, query, key) in one array, layers downwards, heads to the right.

    The gaps between them are BETWEEN. Keys after the query are NaN: they are not small weights, they do not exist.
    pool: the largest of this many queries x keys is kept, since a thin diagonal must not vanish between two pixels.
    """
    layers, heads, tokens, _ = weights.shape
    weights = np.where(np.tril(np.ones((tokens, tokens), dtype=bool)), weights, np.nan).astype(np.float32)
    if pool > 1:
        short = -tokens % pool
        padded = np.pad(weights, [(0, 0), (0, 0), (0, short), (0, short)], constant_values=np.nan)
        blocks = padded.reshape(layers, heads, padded.shape[2] // pool, pool, -1, pool)
        weights = np.fmax.reduce(np.fmax.reduce(blocks, axis=5), axis=3)
    length = weights.shape[-1]
    canvas = np.full((layers, length + gap, heads, length + gap), BETWEEN, dtype=np.float32)
    canvas[:, :length, :, :length] = weights.transpose(0, 2, 1, 3)
    return canvas.reshape(layers * (length + gap), heads * (length + gap))[: -gap or None, : -gap or None]


def without_sink(probe: ProbeMap) -> np.ndarray:
    """The weights without the first token of each document (NaN), the rest of each row sums to 1 again.

    A row with less than 0.001 left is NaN as a whole: it would be noise made large.
    """
    documents = probe.documents or [0] * len(probe.labels)
    first = [t for t, document in enumerate(documents) if t == 0 or document != documents[t - 1]]
    weights = probe.weights.astype(np.float32)
    weights[..., first] = 0
    rest = weights.sum(-1, keepdims=True)
    weights = np.divide(weights, rest, out=np.full_like(weights, np.nan), where=rest >= 1e-3)
    weights[..., first] = np.nan
    return weights


def axes_at(figure, left: float, grid: Grid):
    """Axes for the grid at this pixel of the figure. A cell is a whole number of pixels, so they are placed by hand;
    what extends beyond the figure is for `drawing.fit`."""
    width, height = figure.get_size_inches() * DPI
    return figure.add_axes((left / width, 1 - grid.size[1] / height, grid.size[0] / width, grid.size[1] / height))


def draw_maps(axes, grid: Grid, snapshot: Snapshot, shown: ProbeMap, weights: np.ndarray):
    """One image of all heads in weights (layer, head, query, key), of one probe; the image.

    Where a document of a packed row ends, every head's triangle has a step. One frame stands around the heads of a
    layer that share a key/value head; the colour says which.
    """
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Rectangle

    style = {"cmap": drawing.colour_map(), "norm": drawing.weight_norm(), "interpolation": "none", "aspect": "auto"}
    image = axes.imshow(tile(weights, grid.gap, grid.pool), **style)
    axes.tick_params(length=0, pad=6)
    axes.spines[:].set_visible(False)
    documents = shown.documents or []
    ends = [t / grid.pool for t in range(1, len(documents)) if documents[t] != documents[t - 1]]
    lines = []
    for i, j in np.ndindex(grid.layers, grid.heads):
        left, top = j * grid.step - 0.5, i * grid.step - 0.5
        lines += [[(left, top + t), (left + t, top + t), (left + t, top + grid.length)] for t in ends]
    axes.add_collection(LineCollection(lines, colors=drawing.BOUNDARY, linewidths=0.8), autolim=False)
    if grid.layers * grid.heads == 1:
        return image
    groups = [snapshot.group(head) for head in snapshot.heads]
    starts = [j for j in range(len(groups)) if j == 0 or groups[j] != groups[j - 1]]
    around = min(0.45 * grid.gap, 4 / grid.cell)
    height = grid.length + 2 * around
    for i in range(grid.layers):
        for start, end in zip(starts, [*starts[1:], len(groups)], strict=True):
            corner = (start * grid.step - 0.5 - around, i * grid.step - 0.5 - around)
            colour, width = drawing.group_colour(groups[start]), (end - start - 1) * grid.step + height
            axes.add_patch(Rectangle(corner, width, height, fill=False, lw=1.6, ec=colour, clip_on=False))
    return image


def label_tokens(axes, grid: Grid, snapshot: Snapshot, shown: ProbeMap) -> None:
    """Token names beside each row of heads (queries) and under each column (keys).

    Every second to fourth one where they would touch; only positions where even those would.
    """
    apart = math.ceil(LABEL_PIXELS * grid.pool / grid.cell)
    if not grid.has_names:
        return label_heads(axes, grid, snapshot)
    if apart <= 4:
        places = list(range(0, grid.tokens, apart))
        names = [drawing.shorten(shown.labels[t]) for t in places]
    else:
        every = next(n for n in (10, 20, 50, 100, 200, 500, 1000, 10000) if n * grid.cell / grid.pool >= 24)
        places = list(range(0, grid.tokens, every))
        names = [str(t) for t in places]
    size = min(9.0, max(6.0, 0.65 * grid.cell / grid.pool))
    style = {"fontsize": size, "family": drawing.fonts(), "parse_math": False}
    cells = [(t + 0.5) / grid.pool - 0.5 for t in places]
    axes.set_yticks([i * grid.step + t for i in range(grid.layers) for t in cells], names * grid.layers, **style)
    axes.set_xticks(
        [j * grid.step + t for j in range(grid.heads) for t in cells], names * grid.heads, rotation=90, **style
    )


def label_heads(axes, grid: Grid, snapshot: Snapshot, size: float = 7) -> None:
    """Layers and heads at the edges, where a head has no name of its own."""
    middle = (grid.length - 1) / 2
    axes.set_yticks([i * grid.step + middle for i in range(grid.layers)], [f"L{n}" for n in snapshot.layers])
    axes.set_xticks([j * grid.step + middle for j in range(grid.heads)], [f"H{n}" for n in snapshot.heads])
    axes.tick_params(labelsize=size)


def draw_scale(axes) -> None:
    """The colour bar of attention weights, right of the axes."""
    width, height = axes.bbox.size
    tall = min(1, 420 / height)
    ticks = [0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1]
    inset = axes.inset_axes((1 + 30 / width, 1 - tall, 14 / width, tall))
    bar = axes.figure.colorbar(axes.images[0], cax=inset, ticks=ticks)
    bar.ax.set_yticklabels([f"{tick:g}".lstrip("0") or "0" for tick in ticks], fontsize=8)
    bar.ax.set_ylabel("attention weight", fontsize=8)
    bar.outline.set_visible(False)


# ---------------------------------------------------------------------------------------------------------
# the words


def badge(snapshot: Snapshot, probe: str, layer: int, head: int) -> str:
    """What a head (by its place in the snapshot) does on this probe: "induction 0.53"; nothing near chance."""
    name, _ = strongest_pattern(snapshot, probe, layer, head)
    return f"{SCORES[name].title} {snapshot.scores[name][layer, head]:.2f}" if name else ""


def strongest_pattern(snapshot: Snapshot, probe: str, layer: int, head: int) -> tuple[str, float]:
    """The score by which a head (by its place in the snapshot) stands out on this probe, and how far, in nats; "" and 0
    near chance.

    Only scores that are measured on the probe count, so that the number belongs to the map below it. Of several, that
    with the largest Kullback-Leibler divergence from its chance level, both read as the share of attention on the
    pattern's targets. A score counts from twice and 0.05 above chance; a sink counts half, because heads rest on the
    first token whatever else they do (Xiao et al. 2023, arXiv 2309.17453).
    """
    best, most = "", 0.0
    for name in PATTERNS:
        chance = snapshot.chance.get(name)
        if SCORES[name].probe != probe or name not in snapshot.scores or chance is None:
            continue
        value = float(snapshot.scores[name][layer, head])
        if not (value >= 2 * chance and value >= chance + 0.05):  # NaN as well
            continue
        p, q = np.clip([value, chance], 1e-6, 1 - 1e-6)
        nats = float(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))) * (0.5 if name == "sink" else 1)
        if nats > most:
            best, most = name, nats
    return best, most


def score_line(snapshot: Snapshot, name: str, layer: int, head: int) -> str:
    """A score of a head (by its place in the snapshot): "induction 0.53 (chance 0.03)"; "" where it is undefined."""
    value, chance = float(snapshot.scores[name][layer, head]), snapshot.chance.get(name)
    if not math.isfinite(value):
        return ""
    return f"{SCORES[name].title} {value:.2f}" + (f" (chance {chance:.2f})" if chance is not None else "")


def moment(snapshot: Snapshot) -> str:
    """Step and tokens seen, for titles; nothing for maps that belong to no step (-1)."""
    if snapshot.step < 0:
        return ""
    tokens = "" if snapshot.step and not snapshot.tokens else f" · {drawing.amount(snapshot.tokens)} tokens seen"
    return f"step {snapshot.step:,}{tokens}"


def kv_heads(snapshot: Snapshot) -> str:
    """The toggle in words: "MHA, 8 heads", "GQA, 8 heads on 2 KV heads", "MLA, 8 heads on one latent"."""
    heads, kv = snapshot.num_attention_heads, snapshot.num_key_value_heads
    if snapshot.attention == "mla":
        return f"MLA, {heads} heads on one latent"
    name = "MHA" if heads == kv else "MQA" if kv == 1 else "GQA"
    return f"{name}, {heads} heads" + ("" if heads == kv else f" on {kv} KV head{'s' if kv > 1 else ''}")


def legend(snapshot: Snapshot, probe: str, grid: Grid, hide_sink: bool = False) -> str:
    """How a mosaic is read, in one line."""
    shown = snapshot.maps[probe]
    shared = "frame: heads that read one key/value head" if snapshot.num_key_value_heads > 1 else "one key/value head"
    parts = [AXES, "every head makes its keys and values from one latent" if snapshot.attention == "mla" else shared]
    if grid.has_names and any(SCORES[name].probe == probe for name in PATTERNS if name in snapshot.scores):
        parts += ["badge: the strongest pattern on this text, as a share of the attention"]
    if len(set(shown.documents or ())) > 1:
        parts += ["blue: where a document ends"]
    return " · ".join(parts) + left_out(shown, hide_sink)


def left_out(shown: ProbeMap, hide_sink: bool) -> str:
    """What is not in the picture."""
    whose = "first token of each document" if len(set(shown.documents or ())) > 1 else "first token"
    note = f" · {whose} hidden, the rest of a row sums to 1 again" if hide_sink else ""
    return note + (f" · not shown: {shown.left_out}" if shown.left_out else "")
