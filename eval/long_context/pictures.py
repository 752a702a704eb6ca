"""Two pictures of long texts: curves of what was measured, and the angles of RoPE."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from eval.attention import drawing
from eval.long_context import angles, ways
from model import LanguageModel

OVER = "distance to where it stood before, in tokens"
PANELS = (  # key of the measurements, title, what the curve is over, and its unit
    ("loss_by_position", "loss on held-out text, nats a token", "position in the text, in tokens"),
    ("recall_by_depth", "recall: share of right tokens", "where the answer stands, in % of the text"),
    ("gain_by_distance", "copy gain, nats a token", OVER),
    ("induction_by_distance", "attention of {head} to the answer", OVER),
)


def draw_curves(measured: dict[str, Any], file: Path) -> None:
    """Of the longest texts, a line for each way to read; a mark where training ended."""
    length, head = measured["lengths"][-1], measured["head"]
    panels = PANELS if head is not None else PANELS[:1]  # random words were too long for these lengths
    figure = drawing.new_figure(1000, 760 if head else 400)
    for place, (key, title, over) in enumerate(panels, start=1):
        axes = figure.add_subplot(2 if head else 1, 2 if head else 1, place)
        end = 100 if key == "recall_by_depth" else length
        for number, (name, by_length) in enumerate(measured[key].items()):
            values = np.array(by_length[-1] or [], dtype=float)
            middles = (np.arange(len(values)) + 0.5) * end / max(1, len(values))
            drawing.draw_curve(axes, middles, values, number, drawing.shorten(name, 40))
        drawing.frame_curves(axes, title.format(head="L{} H{}".format(*head)) if head else title, over)
        axes.set_xlim(0, end)
        if end == length:
            _mark(axes, measured["trained_length"])
    drawing.legend_below(figure, axes)
    drawing.save_figure(figure, file)


def draw_angles(lm: LanguageModel, trained: int, length: int, file: Path) -> None:
    """For each scaling pairs x distance, dark where an angle is new; and how much slower each pair turns."""
    title = f"dark: an angle that no row of {trained:,} tokens gave this pair in training"
    figure, makers = drawing.new_figure(1150, 380, title), ways(lm, trained)
    *panels, slower = figure.subplots(1, 4, sharey=True)
    for number, (axes, name) in enumerate(zip(panels, ("none", "linear", "yarn"), strict=True)):
        shown = angles(lm.config, makers[name](length).config, trained, length)
        pairs = range(len(shown.wavelength))
        every = max(1, len(pairs) // 16)
        waves = pairs[::every], [f"{wave:,.0f}" for wave in shown.wavelength[::every]]
        drawing.draw_map(axes, shown.new.numpy() * 0.7, waves)
        drawing.draw_curve(slower, shown.slowed, pairs, number, name)
        drawing.frame_curves(axes, name, "distance, in tokens")
        axes.grid(visible=False)
        axes.set_xlim(-0.5, length - 0.5)
        _mark(axes, trained)
    panels[0].set_ylabel("pair, by its wavelength in tokens", fontsize=9)
    drawing.frame_curves(slower, "how much slower it turns", "times")
    slower.legend(frameon=False, fontsize=8)
    drawing.save_figure(figure, file)


def _mark(axes, trained: int) -> None:
    axes.axvline(trained, color=drawing.INK, lw=1, ls="--")
    at_top = {"xycoords": ("data", "axes fraction"), "va": "top", "fontsize": 8, "color": drawing.INK}
    axes.annotate(" trained length", (trained, 1), **at_top)
