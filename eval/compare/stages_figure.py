"""What the stages of one life look like: answers right, the heads that answers need, and the matrices that moved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.storyworld.questions import KINDS
from eval.attention.pictures.drawing import new_figure, save_figure
from eval.compare.stages import Stage

MATRICES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
WIDTH, HEIGHT = 230, 190  # pixels of a panel


def draw(life: Sequence[Stage], file: Path) -> bool:
    """A column for each stage; its rows: answers right by class, needed heads, moved matrices. False without stages."""
    if not life:
        return False
    figure = new_figure(90 + WIDTH * len(life), 3.3 * HEIGHT, layout="constrained")
    panels = figure.subplots(3, len(life), squeeze=False)
    kinds = [kind for kind in KINDS if any(f"exact_match_{kind}" in one.right for one in life)]
    needed = max(float(one.needed.max()) for one in life)
    names = [name for name in MATRICES if any(name in at for one in life for at in one.moved)]
    names += sorted({name for one in life for _, name in one.moved} - {*names})
    most = max((value for one in life for value in one.moved.values()), default=1.0)
    for column, one in enumerate(life):
        _classes(panels[0, column], one, kinds, column == 0)
        heads = panels[1, column].imshow(
            one.needed.clamp_min(0).numpy(), cmap="magma_r", vmin=0, vmax=max(needed, 1e-6)
        )
        panels[1, column].set(xlabel="head", xticks=range(one.needed.shape[1]), yticks=range(one.needed.shape[0]))
        changes = _moved(panels[2, column], one, names, most)
    for row, title in enumerate(("answers right", "needed by right answers", "weights moved")):
        panels[row, 0].set_ylabel(title if row == 0 else f"{title}\nlayer")
    figure.align_ylabels(panels[:, 0])
    bar = figure.colorbar(heads, ax=panels[1].tolist(), shrink=0.9)
    bar.set_label("rise in loss without it,\nnats a token", fontsize=8)
    if changes is not None:
        figure.colorbar(changes, ax=panels[2].tolist(), shrink=0.9).set_label("share of its norm", fontsize=8)
    save_figure(figure, file, full_colour=True)
    return True


def _classes(axes: Any, stage: Stage, kinds: Sequence[str], labelled: bool) -> None:
    """Bars by class, and a mark where the best rule is that does not read."""
    places = np.arange(len(kinds))
    axes.barh(places, [stage.right.get(f"exact_match_{kind}", 0) for kind in kinds], color="#0072B2", height=0.7)
    axes.plot([stage.right.get(f"guess_{kind}", np.nan) for kind in kinds], places, "|", color="black", markersize=9)
    axes.set(yticks=places, xlim=(0, 1), xticks=[0, 0.5, 1], xticklabels=["0", "50 %", "100 %"])
    axes.set_yticklabels(kinds if labelled else [], fontsize=8)
    axes.invert_yaxis()
    axes.set_title(f"{stage.name}\n{stage.right['exact_match']:.0%} right", fontsize=10, parse_math=False)


def _moved(axes: Any, stage: Stage, names: Sequence[str], most: float) -> Any:
    """A map [layer x matrix]; the first stage started from random weights, so nothing is shown."""
    if not stage.moved:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "the first stage", ha="center", va="center", transform=axes.transAxes, fontsize=9)
        return None
    layers = 1 + max(layer for layer, _ in stage.moved)
    values = np.array([[stage.moved.get((layer, name), np.nan) for name in names] for layer in range(layers)])
    shown = axes.imshow(values, cmap="magma_r", vmin=0, vmax=most, aspect="auto")
    axes.set(yticks=range(layers), xticks=range(len(names)))
    axes.set_xticklabels([name.removesuffix("_proj") for name in names], rotation=90, fontsize=8)
    axes.set_title(f"from {stage.started_from}", fontsize=8, parse_math=False)
    return shown
