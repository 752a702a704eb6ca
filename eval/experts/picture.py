"""How many tokens does every expert get while the router learns? A panel a layer, a line an expert."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eval.attention.pictures import drawing
from eval.experts.log import STARVED, ExpertUse

ACROSS, WIDTH, HEIGHT = 4, 330, 250  # panels in a row; pixels of one


def shares_over_steps(lines: Sequence[ExpertUse], path: Path, title: str = "") -> Path:
    """Draw the shares of all experts over training, from at least one line, as PNG or SVG."""
    last = lines[-1]
    across = min(ACROSS, len(last.layers))
    down = -(-len(last.layers) // across)
    figure = drawing.new_figure(max(across * WIDTH, 560), down * HEIGHT + 60, layout="constrained")
    heading = " · ".join(part for part in (title, "share of the tokens of every expert, 1 = fair share") if part)
    figure.suptitle(drawing.readable(heading), x=0.01, ha="left", family=drawing.fonts(heading), parse_math=False)
    panels = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    steps, of_fair = [line.step for line in lines], np.stack([line.of_fair for line in lines])  # (lines, L, E)
    for i, axes in enumerate(panels.flat):
        if i >= len(last.layers):
            axes.remove()
            continue
        axes.axhspan(0, STARVED, color=drawing.NOTHING, lw=0)
        axes.axhline(1, color="#888888", lw=0.8, ls="--")
        for expert in range(last.experts):
            style = {"color": drawing.group_colour(expert), "lw": 1.4, "marker": "o", "ms": 2.5}
            axes.plot(steps, of_fair[:, i, expert], label=f"E{expert}", clip_on=False, **style)
        axes.set(title=f"layer {last.layers[i]}", ylim=(0, max(2.0, 1.05 * float(of_fair.max()))))
        axes.set_xscale("symlog", linthresh=10)
        axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
        axes.grid(alpha=0.25)
        if i // across == down - 1:
            axes.set_xlabel("step")
    if last.experts <= 16:
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=min(16, last.experts), frameon=False, fontsize=8
        )
    return drawing.save_figure(figure, path, full_colour=True)
