"""Two pictures of long texts: curves of what was measured, and the angles of RoPE."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from eval.attention.pictures import drawing
from eval.long_context import angles, ways
from model import LanguageModel


def draw_curves(measured: dict[str, Any], file: Path) -> None:
    """The loss over the position in the longest texts, a line for each way to read; a mark where training ended."""
    length, trained = measured["lengths"][-1], measured["trained_length"]
    figure = drawing.new_figure(760, 400, layout="constrained")
    axes = figure.subplots()
    for number, (name, by_length) in enumerate(measured["loss_by_position"].items()):
        middles = (np.arange(len(by_length[-1])) + 0.5) * length / len(by_length[-1])
        axes.plot(middles, by_length[-1], label=drawing.shorten(name, 40), **_line(number))
    drawing.style_curve(axes, "loss on held-out text, nats a token")
    axes.axvline(trained, color="#222222", lw=1, ls="--")
    at_top = {"xycoords": ("data", "axes fraction"), "va": "top", "fontsize": 8, "color": "#222222"}
    axes.annotate(" trained length", (trained, 1), **at_top)
    axes.set_xlabel("position in the text, in tokens", fontsize=9)
    axes.set_xlim(0, length)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    drawing.save_figure(figure, file, full_colour=True)


def draw_angles(lm: LanguageModel, trained: int, length: int, file: Path) -> None:
    """For each scaling pairs x distance, dark where an angle is new; and how much slower each pair turns."""
    from matplotlib.colors import ListedColormap

    figure = drawing.new_figure(1150, 380, layout="constrained")
    *panels, slower = figure.subplots(1, 4, sharey=True)
    makers, colours = ways(lm, trained), ListedColormap(["#dbe9f6", "#8c1d40"])
    for number, (axes, name) in enumerate(zip(panels, ("none", "linear", "yarn"), strict=True)):
        shown = angles(lm.config, makers[name](length).config, trained, length)
        count = len(shown.wavelength)
        place = {"aspect": "auto", "interpolation": "nearest", "extent": (0, length, count - 0.5, -0.5)}
        axes.imshow(shown.new.numpy(), cmap=colours, vmin=0, vmax=1, **place)
        axes.axvline(trained, color="#222222", lw=1, ls="--")
        axes.set_title(name, loc="left", fontsize=10)
        axes.set_xlabel("distance, in tokens", fontsize=9)
        slower.plot(shown.slowed, range(count), label=name, **_line(number))
    marks = range(0, count, max(1, count // 16))
    panels[0].set_yticks(marks, [f"{shown.wavelength[mark]:,.0f}" for mark in marks], fontsize=7)
    panels[0].set_ylabel("pair, by its wavelength in tokens", fontsize=9)
    slower.set_title("how much slower it turns", loc="left", fontsize=10)
    slower.set_xlabel("times", fontsize=9)
    slower.legend(frameon=False, fontsize=8)
    for axes in (*panels, slower):
        axes.tick_params(labelsize=8)
    title = f"dark: an angle that no row of {trained:,} tokens gave this pair in training"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    drawing.save_figure(figure, file, full_colour=True)


def _line(number: int) -> dict[str, Any]:
    return {"color": drawing.group_colour(number), "lw": 1.8, "marker": "os^Dv*PX"[number % 8], "ms": 4}
