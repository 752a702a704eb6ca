"""Two pictures of long texts: curves of what was measured, and the angles of RoPE."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from eval.attention import drawing
from eval.long_context import angles, ways
from model import LanguageModel


def draw_curves(measured: dict[str, Any], file: Path) -> None:
    """The loss over the position in the longest texts, a line for each way to read; a mark where training ended."""
    length = measured["lengths"][-1]
    figure = drawing.new_figure(760, 400)
    axes = figure.subplots()
    for number, (name, by_length) in enumerate(measured["loss_by_position"].items()):
        middles = (np.arange(len(by_length[-1])) + 0.5) * length / len(by_length[-1])
        drawing.draw_curve(axes, middles, by_length[-1], number, drawing.shorten(name, 40))
    drawing.frame_curves(axes, "loss on held-out text, nats a token", "position in the text, in tokens")
    axes.set_xlim(0, length)
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
