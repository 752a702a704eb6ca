"""Pictures of scores: of every head, over training, and of all subsets of the heads."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eval.attention import history
from eval.attention.history import PhaseChange, best_head, copy_gains
from eval.attention.metrics import PATTERNS, SCORES
from eval.attention.snapshots import Snapshot
from eval.attention.subsets import Subsets, sizes_of
from eval.band import Band, draw_band
from eval.pictures import drawing
from eval.pictures.heads import moment


def score_maps(snapshot: Snapshot, path: Path, title: str = "") -> Path:
    """Draw every score as a map (layer x head), with chance marked on its colour bar."""
    from matplotlib.colors import Normalize, PowerNorm

    names = [name for name in SCORES if name in snapshot.scores]
    layers = len(snapshot.layers)
    heads = len(snapshot.heads)
    cell = max(4, min(44, 300 // max(layers, heads)))  # pixels
    left, right, above, below = 28, 52, 40, 24  # pixels for labels, colour bar, title, labels
    map_width = max(heads * cell, 130) + 40  # a title needs as much
    map_height = layers * cell + 20
    width = left + map_width + right
    height = above + map_height + below
    across = min(len(names), max(1, 960 // width))  # a page shrinks wider pictures
    down = math.ceil(len(names) / across)
    counts = f"{snapshot.num_attention_heads} heads, {snapshot.num_key_value_heads} key/value heads"
    heading = " · ".join(filter(None, [title, moment(snapshot), counts]))
    page = np.array([across * width, 36 + down * height])  # with the heading
    figure = drawing.new_figure(*page)
    # every place is known, and a layout would take as long as drawing
    figure.set_layout_engine(None)
    corner = np.array([8, page[1] - 6]) / page
    style = drawing.text_style() | {"fontsize": 12, "va": "top"}
    figure.text(*corner, drawing.readable(heading), **style)
    every = math.ceil(22 / cell)  # a name needs 22 pixels
    rows = range(0, layers, every), [f"L{layer}" for layer in snapshot.layers[::every]]
    columns = range(0, heads, every), [f"H{head}" for head in snapshot.heads[::every]]
    for number, name in enumerate(names):
        row, column = divmod(number, across)
        corner = np.array([column * width + left, (down - 1 - row) * height + below])  # from below
        axes = figure.add_axes((*corner / page, *[map_width, map_height] / page))
        score = SCORES[name]
        values = snapshot.scores[name]  # (layer, head)
        chance = snapshot.chance.get(name)
        norm: Normalize
        if score.low is None or score.high is None:
            # 1e-6: the two ends must differ
            limits = [0.0, 1e-6, chance or 0, *values[np.isfinite(values)]]
            norm = Normalize(min(limits), max(limits))
        else:
            # a power law, because chance is near the lower end
            norm = PowerNorm(drawing.GAMMA, score.low, score.high)
        image = drawing.draw_map(axes, values, rows, columns, norm, size=7)
        if cell >= 18:  # room for numbers
            for i, j in np.argwhere(np.isfinite(values)):
                text = drawing.short(values[i, j])
                drawing.write_number(axes, image, values[i, j], (j, i), text, min(8, cell / 4))
        text = f"{score.title}\nnot defined here"
        head, (most,) = history.of_best_head([snapshot], name)
        if head:
            text = f"{score.title}\nmost: {drawing.short(most)} {score.unit}".rstrip() + f", {head}"
        if chance is not None:
            text += f" · chance {drawing.short(chance)}"
        axes.set_title(text, fontsize=8.5, loc="left", pad=8)
        drawing.draw_scale(axes, image, (norm.vmin or 0, norm.vmax or 1), mark=chance)
    return drawing.save_figure(figure, path)


def curves(
    snapshots: Sequence[Snapshot],
    path: Path,
    title: str = "",
    mark: PhaseChange | None = None,
    healthy: Band | None = None,
) -> Path:
    """Draw the pattern scores of the heads that are best at the end, and the copy gain below.

    snapshots: ordered by step
    mark:      the phase change, a vertical line
    healthy:   the band of recorded runs, in grey
    """
    gains = copy_gains(snapshots)
    last = snapshots[-1]
    tokens = [snapshot.tokens for snapshot in snapshots]
    figure = drawing.new_figure(1000, 620 if gains else 420, title or "what the heads do")
    if gains:
        top, *below = figure.subplots(2, height_ratios=(2, 1))
    else:
        top, *below = [figure.subplots()]
    names = [name for name in PATTERNS if best_head(last, name)]
    for number, name in enumerate(names):
        head, values = history.of_best_head(snapshots, name)
        label = f"{SCORES[name].title}, {head}: {values[-1]:.2f}"
        drawing.draw_curve(top, tokens, values, number, label)
        chance = last.chance.get(name)
        if chance is not None:
            colour = drawing.group_colour(number)
            top.axhline(chance, color=colour, lw=1, ls=(0, (5, 4)))
    if "induction" in names:
        draw_band(top, healthy, "induction", "induction")
    top.legend(
        loc="upper left", bbox_to_anchor=(1.015, 1), borderaxespad=0, fontsize=8, frameon=False
    )
    over = "" if gains else "tokens seen"
    drawing.frame_curves(top, "share of the attention; dashed: chance", over)
    # from 0: a curve that fills the picture would look like a head that works
    top.set_ylim(bottom=0)
    for axes in below:
        drawing.draw_curve(axes, tokens, gains, color=drawing.INK, marker=".")
        axes.axhline(0, color=drawing.INK, lw=0.8, ls=(0, (5, 4)))
        draw_band(axes, healthy, "copy_gain", "copy gain")
        meaning = "loss on the first copy of random tokens minus loss on the second"
        drawing.frame_curves(axes, f"copy gain (nats): {meaning}")
    if mark:
        for axes in (top, *below):
            axes.axvline(mark.tokens, color=drawing.GREY, lw=1.2, ls=":")
        amount = drawing.amount(mark.tokens)
        text = f"L{mark.layer} H{mark.head} forms: step {mark.step:,}, {amount} tokens"
        top.set_title(text, fontsize=8.5, loc="right", color="#333333")
    return drawing.save_figure(figure, path)


def draw_subsets(subsets: Subsets, path: Path, title: str) -> Path:
    """Draw Shapley values, and the most that k heads reach, for each k."""
    figure = drawing.new_figure(1000, 380, title)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    names = [f"L{layer} H{head}" for layer, head in subsets.heads]
    width = 0.8 / len(subsets.values)
    sizes = sizes_of(len(names))
    for number, (ablation, values) in enumerate(subsets.values.items()):
        colour = drawing.group_colour(number)
        places = np.arange(len(names)) + (number - (len(subsets.values) - 1) / 2) * width
        left.bar(places, subsets.shapley(ablation), width, color=colour, label=f"off = {ablation}")
        most = [values[sizes == size].max() for size in range(len(names) + 1)]
        drawing.draw_curve(right, range(len(most)), most, number)
    left.axhline(0, color=drawing.INK, lw=0.8)
    left.legend(fontsize=8, frameon=False)
    drawing.frame_curves(left, "Shapley value of each head (nats)", "")
    left.set_axisbelow(True)
    left.set_xticks(range(len(names)), names)
    drawing.frame_curves(right, "the best that k heads reach (nats)", "heads that are on")
    return drawing.save_figure(figure, path)
