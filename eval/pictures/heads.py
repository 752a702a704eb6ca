"""Maps of heads: every head of a snapshot, one head, and a time-lapse of all.

A row of a map is a query (the token that looks), a column is a key (the token looked at).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from eval.attention.history import choose, copy_gains
from eval.attention.metrics import PATTERNS, SCORES
from eval.attention.snapshots import Snapshot
from eval.pictures import drawing

MOST_FRAMES = 24  # The time-lapse has at most so many pictures.
GAP = 8  # Heads are so many pixels apart.
BETWEEN = -1.0  # Gaps have this value; it is below the colour scale, so they are white.


def cell_size(weights: np.ndarray, room: int, largest: int) -> int:
    """Return the pixels of a token, at most `largest`, so that all heads fit into `room` pixels."""
    layers, heads, tokens, _ = weights.shape  # (layer, head, query, key)
    side = room // max(layers, heads) - GAP
    # a head of few tokens may be 150 pixels large
    return max(1, min(side // tokens, max(largest, 150 // tokens)))


def tile(weights: np.ndarray, cell: int) -> np.ndarray:
    """Return all heads as one array of pixels: layers down, heads to the right.

    A token has cell x cell pixels.
    """
    layers, heads, tokens, _ = weights.shape  # (layer, head, query, key)
    side = tokens * cell
    # Keys after the query are NaN, which has its own colour: they are not a weight of 0.
    causal = np.where(np.tril(np.ones((tokens, tokens), bool)), weights, np.nan)
    pixels = causal.repeat(cell, axis=2).repeat(cell, axis=3)  # (layer, head, side, side)
    canvas = np.full((layers, side + GAP, heads, side + GAP), BETWEEN, np.float32)
    canvas[:, :side, :, :side] = pixels.transpose(0, 2, 1, 3)
    # without the gap behind the last row and column
    return canvas.reshape(layers * (side + GAP), heads * (side + GAP))[:-GAP, :-GAP]


def draw_heads(snapshot: Snapshot, probe: str, cell: int) -> Any:
    """Draw every head on one probe, with its pattern; the frame's colour is its key/value head."""
    # Pillow needs some milliseconds for a picture, matplotlib a second; a run draws many.
    from matplotlib.font_manager import findfont
    from PIL import Image, ImageDraw, ImageFont

    weights = snapshot.maps[probe].weights
    layers, heads, tokens, _ = weights.shape
    side = tokens * cell
    pitch = side + GAP
    left, top = 38, 46  # pixels for labels
    title = f"{moment(snapshot)} · probe: {probe}"
    # at least as wide as the title
    size = max(left + heads * pitch, 9 * len(title)), top + layers * pitch
    picture = Image.new("RGB", size, "white")
    colour_map = drawing.colour_map()
    norm = drawing.weight_norm()
    pen = ImageDraw.Draw(picture)
    pen.font = ImageFont.truetype(findfont("DejaVu Sans"), 13)
    bold = ImageFont.truetype(findfont("DejaVu Sans:bold"), min(16, side // 8))
    pen.text((left, 4), title, fill=drawing.INK)
    for i, j in np.ndindex(layers, heads):
        x = left + j * pitch
        y = top + i * pitch
        # one pixel a token, enlarged below: so each token is coloured once
        cells = norm(tile(weights[i : i + 1, j : j + 1], cell=1))
        head = Image.fromarray(colour_map(cells, bytes=True)[..., :3])
        picture.paste(head.resize((side, side), Image.Resampling.NEAREST), (x, y))
        if j == 0:
            pen.text((4, y), f"L{snapshot.layers[i]}", fill=drawing.INK)
        if i == 0:
            pen.text((x, 25), f"H{snapshot.heads[j]}", fill=drawing.INK)
        # heads that share a key/value head have one colour
        frame = drawing.group_colour(snapshot.group(snapshot.heads[j]))
        pen.rectangle((x - 4, y - 4, x + side + 3, y + side + 3), outline=frame, width=2)
        if side >= 90:  # room for text
            # one word a line, in the corner without weights
            lines = badge(snapshot, probe, i, j).replace(" ", "\n")
            corner = x + side - 3, y + 2
            pen.text(corner, lines, drawing.BADGE, bold, anchor="ra", align="right")
    return picture


def quick_mosaic(snapshot: Snapshot, file: Path, probe: str = "") -> None:
    """Write `draw_heads` as a PNG. probe: default, `shown_probe`."""
    probe = probe or shown_probe(snapshot)
    cell = cell_size(snapshot.maps[probe].weights, 1200, 4)
    draw_heads(snapshot, probe, cell).save(file, "PNG", compress_level=1)


def timelapse(snapshots: Sequence[Snapshot], path: Path, probe: str | None = None) -> Path:
    """Write an animated GIF of all heads over a curve of the copy gain.

    snapshots: ordered by step; MOST_FRAMES of them become frames
    """
    from PIL import Image

    chosen = choose(snapshots, MOST_FRAMES)
    probe = probe or next(iter(chosen[0].maps))
    cell = cell_size(chosen[0].maps[probe].weights, 760, 8)  # gives a file of 2 to 3 MB
    tokens = [snapshot.tokens for snapshot in snapshots]
    gains = copy_gains(snapshots)
    frames = [draw_heads(snapshot, probe, cell) for snapshot in chosen]
    if gains:
        # the whole curve in grey; the part up to a frame in colour
        width, height = frames[0].size
        figure = drawing.new_figure(width, 150)
        axes = figure.subplots()
        drawing.draw_curve(axes, tokens, gains, color="#bbbbbb", lw=1.2, marker="")
        drawing.draw_curve(axes, tokens, gains, markevery=[-1], ms=6)
        drawing.frame_curves(axes, "copy gain (nats)")
        figure.canvas.draw()
        # All frames have one layout: it is not computed again.
        figure.set_layout_engine(None)
        for number, snapshot in enumerate(chosen):
            end = tokens.index(snapshot.tokens) + 1
            axes.lines[-1].set_data(tokens[:end], gains[:end])
            figure.canvas.draw()
            frame = Image.new("RGB", (width, height + 150))
            frame.paste(frames[number])
            curve = Image.fromarray(np.asarray(figure.canvas.buffer_rgba()))
            frame.paste(curve, (0, height))
            frames[number] = frame
    # milliseconds; the last frame stays longer
    durations = [350] * (len(frames) - 1) + [2500]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0)
    return path


def mosaic(snapshot: Snapshot, path: Path, title: str = "", probe: str | None = None) -> Path:
    """Draw every head on one probe (default: the first) with its tokens, as PNG or SVG.

    A single head is large, with its weights as numbers if a token has 28 pixels.
    """
    probe = probe or next(iter(snapshot.maps))
    probe_map = snapshot.maps[probe]
    weights = probe_map.weights
    layers, heads, tokens, _ = weights.shape
    is_alone = layers * heads == 1
    cell = cell_size(weights, 900, 34) if is_alone else cell_size(weights, 2100, 11)
    side = tokens * cell
    pitch = side + GAP
    canvas = tile(weights, cell)
    figure = drawing.new_figure(canvas.shape[1], canvas.shape[0])
    # A layout would rescale the axes, so that a token would no longer have whole pixels.
    figure.set_layout_engine(None)
    axes = figure.add_axes((0, 0, 1, 1))
    every = math.ceil(9 / cell)  # a label needs nine pixels
    labels = [drawing.shorten(label) for label in probe_map.labels[::every]]
    middles = (np.arange(0, tokens, every) + 0.5) * cell
    rows = np.add.outer(np.arange(layers) * pitch, middles).ravel(), labels * layers
    columns = np.add.outer(np.arange(heads) * pitch, middles).ravel(), labels * heads
    size = min(9.0, max(6.0, 0.65 * cell))  # points
    image = drawing.draw_map(axes, canvas, rows, columns, size=size)
    axes.tick_params(axis="x", rotation=90)

    shares = snapshot.num_key_value_heads < snapshot.num_attention_heads
    style = {"ha": "right", "va": "top", "weight": "bold", "linespacing": 1.0}
    style |= {"fontsize": min(14, 0.08 * side), "color": drawing.BADGE}
    for i, j in np.ndindex(layers, heads):
        lines = [f"L{snapshot.layers[i]} H{snapshot.heads[j]}"]
        if shares:
            lines[0] += f" · KV {snapshot.group(snapshot.heads[j])}"
        lines += badge(snapshot, probe, i, j).split()
        axes.text(j * pitch + side - 3, i * pitch + 3, "\n".join(lines), **style)
    if is_alone and cell >= 28:
        for row, column in np.argwhere(weights[0, 0] >= 0.05):
            value = weights[0, 0, row, column]
            middle = (column + 0.5) * cell, (row + 0.5) * cell
            drawing.write_number(axes, image, value, middle, drawing.short(value), 9)

    ticks = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1)
    drawing.draw_scale(axes, image, ticks, "attention weight")
    when = " · ".join(filter(None, [moment(snapshot), f"probe: {probe}"]))
    heading = drawing.readable("\n".join(filter(None, [title, when])))
    axes.set_title(heading, loc="left", weight="bold", pad=9, **drawing.text_style())
    note = "row: the token that looks\ncolumn: the token looked at"
    if probe_map.left_out:
        note += f"\nnot shown: {probe_map.left_out}"
    axes.set_xlabel(note, loc="left", fontsize=8, color=drawing.GREY, **drawing.text_style())
    # its labels lie outside the figure
    return drawing.save_figure(figure, path, "tight")


def one_head(snapshot: Snapshot, layer: int, head: int, path: Path, **options: Any) -> Path:
    """Draw one head, by its numbers in the model. options: of `mosaic`."""
    i = snapshot.layers.index(layer)
    j = snapshot.heads.index(head)
    maps = {}
    for name, probe_map in snapshot.maps.items():
        weights = probe_map.weights[i : i + 1, j : j + 1]
        maps[name] = replace(probe_map, weights=weights)
    scores = {name: values[i : i + 1, j : j + 1] for name, values in snapshot.scores.items()}
    alone = replace(snapshot, layers=[layer], heads=[head], maps=maps, scores=scores)
    return mosaic(alone, path, **options)


def badge(snapshot: Snapshot, probe: str, layer: int, head: int) -> str:
    """Return a head's clearest pattern on this probe, such as "induction 0.53", or "".

    layer, head: index in the snapshot
    """
    best = ""
    best_excess = 0.0
    for name in PATTERNS:
        chance = snapshot.chance.get(name)
        if name not in snapshot.scores or SCORES[name].probe != probe or chance is None:
            continue
        value = float(snapshot.scores[name][layer, head])
        # A sink counts half: most heads rest on the first token (Xiao et al. 2023, 2309.17453).
        excess = (value - chance) * (0.5 if name == "sink" else 1)
        # twice chance alone would name a head for 0.002 instead of 0.001
        if value >= 2 * chance and value >= chance + 0.05 and excess > best_excess:
            best = f"{SCORES[name].title} {value:.2f}"
            best_excess = excess
    return best


def shown_probe(snapshot: Snapshot) -> str:
    """Return the probe of a run's pictures."""
    # on repeated tokens a head that copies draws a stripe
    return "repeated_2" if "repeated_2" in snapshot.maps else next(iter(snapshot.maps))


def moment(snapshot: Snapshot) -> str:
    """Return step and tokens seen, for titles; "" without a step (-1)."""
    if snapshot.step < 0:
        return ""
    if snapshot.step and not snapshot.tokens:  # a checkpoint counts no tokens
        return f"step {snapshot.step:,}"
    return f"step {snapshot.step:,} · {drawing.amount(snapshot.tokens)} tokens seen"
