"""What do the heads look at? All heads of a snapshot, one head, or several models, as pictures.

Rows of a map are the tokens that look, columns the tokens looked at. One colour scale in all pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from eval.attention.metrics import PATTERNS, SCORES
from eval.attention.pictures import drawing
from eval.attention.pictures.drawing import LONGEST_SIDE
from eval.attention.pictures.grid import (
    AXES,
    Grid,
    chosen_probe,
    draw_boundaries,
    draw_heads,
    draw_image,
    draw_scale,
    hidden_note,
    kv_heads,
    label_tokens,
    lay_out,
    legend,
    moment,
    score_line,
    tile,
    without_sink,
)
from eval.attention.snapshots import Snapshot


def mosaic(snapshot: Snapshot, path: Path, title: str = "", probe: str | None = None, hide_sink: bool = False) -> Path:
    """Draw every layer x head on one probe (default: the first) as PNG or SVG.

    title: what stands before step and tokens; hide_sink: see `without_sink`. Raises ValueError for a probe that the
    snapshot does not have.
    """
    name, shown = chosen_probe(snapshot, probe)
    grid = lay_out(len(snapshot.layers), len(snapshot.heads), len(shown.labels))
    figure = drawing.new_figure(grid.width, grid.height)
    axes, image = draw_heads(figure, 0, grid, snapshot, name, hide_sink)
    draw_scale(axes, image)
    heading = [part for part in (title, moment(snapshot), f"probe: {name}") if part]
    drawing.head_line(axes, " · ".join(heading), legend(snapshot, name, grid, hide_sink))
    drawing.fit(figure)
    return drawing.save_figure(figure, path)


def side_by_side(
    named: Sequence[tuple[str, Snapshot]], path: Path, probe: str | None = None, hide_sink: bool = False
) -> Path:
    """Draw the mosaics of several models, such as MHA, GQA and MQA, beside each other with cells of one size.

    named: a name and a snapshot each. Raises ValueError for no snapshot, or one without the probe.
    """
    if not named:
        raise ValueError("nothing to draw: give at least one snapshot")
    chosen = [chosen_probe(snapshot, probe) for _, snapshot in named]
    sizes = [(len(s.layers), len(s.heads), len(one.labels)) for (_, s), (_, one) in zip(named, chosen, strict=True)]
    heads, tokens = sum(size[1] for size in sizes), max(size[2] for size in sizes)
    common = lay_out(max(size[0] for size in sizes), heads, tokens, LONGEST_SIDE - 150 - 110 * len(named))
    grids = [Grid(*size, common.pool, common.cell, common.gap) for size in sizes]
    figure = drawing.new_figure(sum(grid.width for grid in grids), max(grid.height for grid in grids))
    left, first = 0.0, None
    for (name, snapshot), (probe, _), grid in zip(named, chosen, grids, strict=True):
        axes, image = draw_heads(figure, left, grid, snapshot, probe, hide_sink)
        texts = drawing.head_line(axes, name, f"{kv_heads(snapshot)} · {moment(snapshot)}")
        first = first or texts[-1]
        left = axes.get_tightbbox().x1 + 60  # room for the labels of the next
    draw_scale(axes, image)
    note = {"fontsize": 8, "color": "#555555", "textcoords": "offset points", "xytext": (0, 10)}
    figure.axes[0].annotate(legend(named[0][1], chosen[0][0], grids[0], hide_sink), (0, 1), xycoords=first, **note)
    drawing.fit(figure)
    return drawing.save_figure(figure, path)


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

    score: by which this head was chosen; it is written first. Raises ValueError for a layer, head or probe that the
    snapshot does not have.
    """
    name, shown = chosen_probe(snapshot, probe)
    for what, number, kept in (("layer", layer, snapshot.layers), ("head", head, snapshot.heads)):
        if number not in kept:
            raise ValueError(f"{what} {number} is not in this snapshot: it has {what}s {kept}")
    i, j = snapshot.layers.index(layer), snapshot.heads.index(head)
    tokens = len(shown.labels)
    grid = lay_out(1, 1, tokens, room=1400, largest=max(12, min(34, 900 // tokens)))
    figure = drawing.new_figure(grid.width, grid.height)
    weights = (without_sink(shown) if hide_sink else shown.weights)[i : i + 1, j : j + 1]
    axes, image = draw_image(figure, 0, grid, weights)
    draw_boundaries(axes, grid, shown)
    label_tokens(axes, grid, snapshot, shown)
    if grid.width >= 400:  # in the empty corner above the diagonal
        size = min(15, grid.width / 46)  # a page shows such a picture at half its size
        style = {"transform": axes.transAxes, "ha": "right", "va": "top", "fontsize": size}
        why = [score_line(snapshot, score, i, j)] if score else []
        why += [f"on probe {SCORES[score].probe}"] if score and SCORES[score].probe != name else []
        here = [n for n in PATTERNS if n in snapshot.scores and SCORES[n].probe == name and n != score]
        others = filter(None, (score_line(snapshot, n, i, j) for n in here))
        axes.text(0.98, 0.98, "\n".join(why), weight="bold", color=drawing.BADGE, **style)
        axes.text(0.98, 0.98, "\n".join([*("" for _ in why), *others]), color="#444444", **style)
    if grid.cell >= 28:
        drawing.write_values(axes, image, tile(weights, grid.gap), smallest=0.05, size=grid.cell / 5)
    draw_scale(axes, image)
    heading = [part for part in (title, f"L{layer} H{head}", moment(snapshot), f"probe: {name}") if part]
    drawing.head_line(axes, " · ".join(heading), AXES + hidden_note(shown, hide_sink))
    drawing.fit(figure)
    return drawing.save_figure(figure, path)


def quick_mosaic(weights: np.ndarray, file: Path | BinaryIO, num_key_value_heads: int | None = None) -> None:
    """Draw weights (layer, head, query, key) without any text, in a few milliseconds: for use during training.

    The colours are those of `mosaic`. num_key_value_heads: frames the heads that share one, in its colour; default: as
    many as there are heads.
    """
    from PIL import Image
    from PIL.ImageColor import getrgb

    layers, heads, tokens, _ = weights.shape
    grid = lay_out(layers, heads, tokens, room=1200, largest=4, smallest_head=48)
    colours = drawing.colour_map()(drawing.weight_norm()(tile(weights, grid.gap, grid.pool)), bytes=True)[..., :3]
    colours = np.pad(colours.repeat(grid.cell, 0).repeat(grid.cell, 1), [(4, 4), (4, 4), (0, 0)], constant_values=255)
    group_size = heads // (num_key_value_heads or heads)
    for i in range(layers):
        for group in range(heads // group_size):
            top, left = i * grid.step * grid.cell + 1, group * group_size * grid.step * grid.cell + 1
            height = grid.length * grid.cell + 5
            width = ((group_size - 1) * grid.step + grid.length) * grid.cell + 5
            colour = getrgb(drawing.group_colour(group))[:3]
            colours[[top, top + 1, top + height - 1, top + height], left : left + width + 1] = colour
            colours[top : top + height + 1, [left, left + 1, left + width - 1, left + width]] = colour
    Image.fromarray(colours).save(file, "PNG", compress_level=1)
