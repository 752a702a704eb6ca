"""Every head of one snapshot in one picture: rows of a map are the tokens that look, columns the tokens looked at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eval.attention.pictures import drawing
from eval.attention.pictures.drawing import LONGEST_SIDE, wrap, write_values
from eval.attention.pictures.grid import (
    AXES,
    BETWEEN,
    Grid,
    chosen_probe,
    draw_boundaries,
    draw_heads,
    draw_image,
    draw_scale,
    hidden_note,
    kv_heads,
    label_room,
    label_tokens,
    lay_out,
    legend,
    moment,
    scores_of_head,
    tile,
    without_sink,
)
from eval.attention.snapshots import Snapshot


def mosaic(snapshot: Snapshot, path: Path, title: str = "", probe: str | None = None, hide_sink: bool = False) -> Path:
    """Draw every layer x head on one probe (default: the first) as PNG or SVG; one colour scale in all pictures.

    title: what stands before step and tokens; hide_sink: see `without_sink`. Raises ValueError for a probe that the
    snapshot does not have.
    """
    name, shown = chosen_probe(snapshot, probe)
    grid = lay_out(len(snapshot.layers), len(snapshot.heads), len(shown.labels))
    room = label_room(shown, grid)
    width = max(room + grid.width + 95, 560)
    heading = [part for part in (title, moment(snapshot), f"probe: {name}") if part]
    lines = wrap(" · ".join(heading), width, 12), wrap(legend(snapshot, shown, hide_sink), width, 8)
    top = 14 + 20 * len(lines[0]) + 14 * len(lines[1]) + 10
    figure = drawing.new_figure(width, top + grid.height + room + 8)
    drawing.write_text(figure, 12, 10, "\n".join(lines[0]), 12, weight="bold")
    drawing.write_text(figure, 12, 14 + 20 * len(lines[0]), "\n".join(lines[1]), 8, color="#555555")
    axes = drawing.place(figure, room, top, grid.width, grid.height)
    image = draw_heads(axes, grid, snapshot, shown, hide_sink)
    label_tokens(axes, grid, snapshot, shown)
    draw_scale(figure, image, room + grid.width + 30, top, min(grid.height, 420))
    return drawing.save_figure(figure, path)


def side_by_side(
    named: Sequence[tuple[str, Snapshot]], path: Path, probe: str | None = None, hide_sink: bool = False
) -> Path:
    """Draw the mosaics of several models, such as MHA, GQA and MQA, beside each other with cells of one size.

    named: a name and a snapshot each. Raises ValueError for no snapshot, or one without the probe.
    """
    if not named:
        raise ValueError("nothing to draw: give at least one snapshot")
    shown = [chosen_probe(snapshot, probe)[1] for _, snapshot in named]
    sizes = [(len(s.layers), len(s.heads), len(one.labels)) for (_, s), one in zip(named, shown, strict=True)]
    heads, tokens = sum(size[1] for size in sizes), max(size[2] for size in sizes)
    common = lay_out(max(size[0] for size in sizes), heads, tokens, LONGEST_SIDE - 150 - 110 * len(named))
    grids = [Grid(*size, common.pool, common.cell, common.gap) for size in sizes]
    rooms = [label_room(one, grid) for one, grid in zip(shown, grids, strict=True)]
    width = sum(grid.width + room + 16 for grid, room in zip(grids, rooms, strict=True)) + 95
    note = wrap(legend(named[0][1], shown[0], hide_sink), width, 8)
    top = 60 + 14 * len(note)
    figure = drawing.new_figure(width, top + max(grid.height for grid in grids) + max(rooms) + 8)
    drawing.write_text(figure, 12, 8, "\n".join(note), 8, color="#555555")
    left = 0
    for (name, snapshot), one, grid, room in zip(named, shown, grids, rooms, strict=True):
        left += room
        drawing.write_text(figure, left, top - 46, name, 12, weight="bold")
        drawing.write_text(figure, left, top - 26, f"{kv_heads(snapshot)} · {moment(snapshot)}", 8)
        axes = drawing.place(figure, left, top, grid.width, grid.height)
        image = draw_heads(axes, grid, snapshot, one, hide_sink)
        label_tokens(axes, grid, snapshot, one)
        left += grid.width + 16
    draw_scale(figure, image, left + 14, top, min(max(grid.height for grid in grids), 420))
    return drawing.save_figure(figure, path)


def one_head(
    snapshot: Snapshot,
    layer: int,
    head: int,
    path: Path,
    title: str = "",
    probe: str | None = None,
    hide_sink: bool = False,
) -> Path:
    """Draw one head large, by its true numbers; weights are written in the cells where there is room for them.

    Raises ValueError for a layer, head or probe that the snapshot does not have.
    """
    name, shown = chosen_probe(snapshot, probe)
    for what, number, kept in (("layer", layer, snapshot.layers), ("head", head, snapshot.heads)):
        if number not in kept:
            raise ValueError(f"{what} {number} is not in this snapshot: it has {what}s {kept}")
    i, j = snapshot.layers.index(layer), snapshot.heads.index(head)
    tokens = len(shown.labels)
    grid = lay_out(1, 1, tokens, room=1400, largest=max(12, min(34, 900 // tokens)))
    room = label_room(shown, grid)
    width = max(room + grid.width + 95, 560)
    heading = [part for part in (title, f"L{layer} H{head}", moment(snapshot), f"probe: {name}") if part]
    lines = wrap(" · ".join(heading), width, 12)
    top = 44 + 20 * len(lines)
    figure = drawing.new_figure(width, top + grid.height + room + 8)
    drawing.write_text(figure, 12, 10, "\n".join(lines), 12, weight="bold")
    note = AXES + hidden_note(shown, hide_sink)
    drawing.write_text(figure, 12, 16 + 20 * len(lines), note, 8, color="#555555")
    axes = drawing.place(figure, room, top, grid.width, grid.height)
    weights = (without_sink(shown) if hide_sink else shown.weights)[i : i + 1, j : j + 1]
    image = draw_image(axes, tile(weights, grid.gap, grid.pool))
    draw_boundaries(axes, grid, shown)
    label_tokens(axes, grid, snapshot, shown)
    if grid.width >= 400:  # in the empty corner above the diagonal
        text, style = "\n".join(scores_of_head(snapshot, i, j)), {"fontsize": 9, "color": "#444444"}
        axes.text(0.98, 0.98, text, transform=axes.transAxes, ha="right", va="top", **style)
    if grid.cell >= 28:
        write_values(axes, image, tile(weights, grid.gap), smallest=0.05, size=grid.cell / 5)
    draw_scale(figure, image, room + grid.width + 30, top, min(grid.height, 420))
    return drawing.save_figure(figure, path)


def quick_mosaic(weights: np.ndarray, path: Path, num_key_value_heads: int | None = None) -> Path:
    """Draw weights (layer, head, query, key) without any text, in a few milliseconds: for use during training.

    The colours are those of `mosaic`, written as palette indices. num_key_value_heads: frames the heads that share
    one, in its colour; default: as many as there are heads.
    """
    from PIL import Image

    layers, heads, tokens, _ = weights.shape
    grid = lay_out(layers, heads, tokens, room=1200, largest=4, smallest_head=48)
    white, nothing, first_group = drawing.LEVELS, drawing.LEVELS + 1, drawing.LEVELS + 2  # as `palette` has them
    canvas = tile(weights, grid.gap, grid.pool)
    index = drawing.colour_index(np.nan_to_num(canvas))
    index[np.isnan(canvas)] = nothing
    index[canvas == BETWEEN] = white
    index = np.pad(index.repeat(grid.cell, 0).repeat(grid.cell, 1), 4, constant_values=white)
    group_size = heads // (num_key_value_heads or heads)
    for i in range(layers):
        for group in range(heads // group_size):
            top, left = i * grid.step * grid.cell + 1, group * group_size * grid.step * grid.cell + 1
            height = grid.length * grid.cell + 5
            width = ((group_size - 1) * grid.step + grid.length) * grid.cell + 5
            colour = first_group + group % len(drawing.GROUP_COLOURS)
            index[[top, top + 1, top + height - 1, top + height], left : left + width + 1] = colour
            index[top : top + height + 1, [left, left + 1, left + width - 1, left + width]] = colour
    image = Image.fromarray(index, mode="P")
    image.putpalette(drawing.palette_bytes())
    image.save(path, compress_level=1)
    return path
