"""Four pictures: loss by position, copying by distance, recall by depth, and the angles of RoPE."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from eval.attention.pictures import drawing

if TYPE_CHECKING:
    from eval.long_context.study import Study

GREY = "#777777"


def draw(found: Study, out: Path) -> list[tuple[str, str]]:
    """Draw what was measured into `out`: (title, file). A picture that has nothing to show is left out."""
    figures = [("loss by position", loss_by_position(found, out / "loss_by_position.png"))]
    if found.numbers["head"] is not None:
        figures += [("copying by distance", copying(found, out / "copying.png"))]
        figures += [("recall by depth", recall(found, out / "recall.png"))]
    if found.pairs:
        figures += [("angles of RoPE", angles(found, out / "frequencies.png"))]
    return [(title, file.name) for title, file in figures]


def loss_by_position(found: Study, path: Path) -> Path:
    """A line for each way to read: mean loss of the tokens at a position of the longest texts."""
    figure = drawing.new_figure(760, 400, layout="constrained")
    axes = figure.subplots()
    for number, (name, (*_, losses)) in enumerate(found.numbers["loss_by_position"].items()):
        axes.plot(_middles(len(losses), found.lengths[-1]), losses, label=name, **_line(number))
    _frame(axes, found, "position in the text, in tokens", "loss, nats a token")
    axes.set_title("loss by position on held-out text", loc="left", fontsize=11)
    _legend(figure, axes)
    return drawing.save_figure(figure, path, full_colour=True)


def copying(found: Study, path: Path) -> Path:
    """Copy gain, and what the best head gives to the answer, over the distance of the answer."""
    figure = drawing.new_figure(1000, 400, layout="constrained")
    layer, head = found.numbers["head"]
    panels = [
        ("gain_by_distance", "copy gain, nats a token", "how much easier a word is when it comes again"),
        ("induction_by_distance", f"attention of L{layer} H{head} to the answer", "the induction head"),
    ]
    all_axes = figure.subplots(1, 2)
    for axes, (key, label, title) in zip(all_axes, panels, strict=True):
        for number, (name, (*_, at_longest)) in enumerate(found.numbers[key].items()):
            values = at_longest or []  # None where the text is too short for the questions
            shown = np.array([np.nan if value is None else value for value in values])
            axes.plot(_middles(len(values), found.lengths[-1]), shown, label=name, **_line(number))
        axes.axhline(0, color=GREY, lw=0.8)
        _frame(axes, found, "distance to where it stood before, in tokens", label)
        axes.set_title(title, loc="left", fontsize=11)
    _legend(figure, all_axes[0])
    return drawing.save_figure(figure, path, full_colour=True)


def recall(found: Study, path: Path) -> Path:
    """A map for each way to read: share of right tokens by length of the text and by depth of the answer."""
    shown = found.numbers["recall_by_depth"]
    across = len(shown) if len(shown) <= 4 else 3
    down = -(-len(shown) // across)
    figure = drawing.new_figure(across * 270 + 90, down * 260 + 70, layout="constrained")
    panels = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axes in panels.flat[len(shown) :]:
        axes.remove()
    image: Any = None
    for axes, (name, columns) in zip(panels.flat, shown.items(), strict=False):
        depths = next(len(column) for column in columns if column is not None)
        values = np.array([column or [None] * depths for column in columns], dtype=float).T  # (depth, length)
        image = axes.imshow(values, cmap=drawing.colour_map(), vmin=0, vmax=1, aspect="auto")
        drawing.write_values(axes, image, values, size=7)
        axes.set_title(name, loc="left", fontsize=10)
        axes.set_xticks(range(len(columns)), [f"{length:,}" for length in found.lengths], fontsize=8)
        axes.set_yticks([-0.5, depths - 0.5], ["beginning", "end"], fontsize=8)
        axes.tick_params(length=0)
    figure.colorbar(image, ax=list(panels.flat[: len(shown)]), shrink=0.7, label="share of right tokens")
    figure.supxlabel("length of the text, in tokens", fontsize=9)
    figure.supylabel("where the answer stands", fontsize=9)
    figure.suptitle(f"recall (trained on {found.trained:,} tokens)", x=0.01, ha="left", fontsize=11)
    return drawing.save_figure(figure, path, full_colour=True)


def angles(found: Study, path: Path) -> Path:
    """For each scaling pairs x distance, dark where an angle is new; and how much slower each pair turns."""
    from matplotlib.colors import ListedColormap

    figure = drawing.new_figure(1150, 380, layout="constrained")
    panels = figure.subplots(1, len(found.pairs) + 1, sharey=True)
    plain = found.pairs["none"]
    count = len(plain.wavelength)
    for axes, (name, each) in zip(panels, found.pairs.items(), strict=False):
        axes.imshow(
            each.new.numpy(),
            cmap=ListedColormap(["#dbe9f6", "#8c1d40"]),
            vmin=0,
            vmax=1,
            aspect="auto",
            interpolation="nearest",
            extent=(0, found.lengths[-1], count - 0.5, -0.5),
        )
        axes.axvline(found.trained, color="#222222", lw=1, ls="--")
        axes.set_title(name, loc="left", fontsize=10)
        axes.set_xlabel("distance, in tokens", fontsize=9)
        axes.tick_params(labelsize=8)
    every = max(1, count // 16)
    marks = range(0, count, every)
    panels[0].set_yticks(marks, [f"{plain.wavelength[mark]:,.0f}" for mark in marks], fontsize=7)
    panels[0].set_ylabel("pair, by its wavelength in tokens", fontsize=9)
    for number, (name, each) in enumerate(found.pairs.items()):
        panels[-1].plot(each.slowed, range(count), label=name, **_line(number))
    panels[-1].set_title("how much slower it turns", loc="left", fontsize=10)
    panels[-1].set_xlabel("times", fontsize=9)
    panels[-1].tick_params(labelsize=8)
    panels[-1].legend(frameon=False, fontsize=8)
    title = f"dark: an angle that no row of {found.trained:,} tokens gave this pair in training"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return drawing.save_figure(figure, path, full_colour=True)


def _middles(bins: int, length: int) -> np.ndarray:
    return (np.arange(bins) + 0.5) * length / bins


def _line(number: int) -> dict[str, Any]:
    return {"color": drawing.group_colour(number), "lw": 1.8, "marker": "os^Dv*PX"[number % 8], "ms": 4}


def _frame(axes: Any, found: Study, x: str, y: str) -> None:
    """The axes' names, and a line where training ended."""
    axes.axvline(found.trained, color="#222222", lw=1, ls="--")
    axes.annotate(
        " trained length",
        (found.trained, 1),
        xycoords=("data", "axes fraction"),
        va="top",
        fontsize=8,
        color="#222222",
    )
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.set_xlim(0, found.lengths[-1])
    axes.margins(y=0.12)
    axes.tick_params(labelsize=8)
    axes.grid(color="#eeeeee", lw=0.8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    shown = [drawing.shorten(label, 40) for label in labels]
    figure.legend(handles, shown, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
