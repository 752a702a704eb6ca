"""How strong is each pattern in each head? Maps [layer x head] of every score, and curves over training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eval.attention.history import PhaseChange, best_head, copy_gains, of_best_head
from eval.attention.metrics import PATTERNS, SCORES, Score
from eval.attention.pictures import drawing
from eval.attention.pictures.drawing import GAMMA, LONGEST_SIDE
from eval.attention.pictures.plots import Grid, draw_maps, kv_heads, label_tokens, moment, score_line, strongest_pattern
from eval.attention.snapshots import Snapshot

COMPARED = ("induction", "previous_token", "sink")
PANELS = 5  # score maps in a row
LARGE, LARGEST_HEADS = 440, 3  # pixels of a head that is drawn large, with its title; how many are
BESIDE, ABOVE = 120, 84  # pixels of a map's colour bar and labels, and of its title


def score_maps(snapshot: Snapshot, path: Path, title: str = "") -> Path:
    """Draw what the heads that stand out most look at, then every score of a snapshot as a map [layer x head]; its
    colour bar has a mark at the chance level. A head without a value is hatched."""
    names = [name for name in SCORES if name in snapshot.scores]
    heading = " · ".join(part for part in (title, moment(snapshot), kv_heads(snapshot)) if part)
    across, large = min(PANELS, len(names)), standing_out(snapshot)[:LARGEST_HEADS]
    figure, panels = _panels(-(-len(names) // across), across, [snapshot], large)
    figure.suptitle(drawing.readable(heading), x=0.01, ha="left", family=drawing.fonts(), parse_math=False)
    for axes, name in zip(panels.flat, names, strict=False):
        _score_map(axes, snapshot, SCORES[name], [snapshot])
    for axes in panels.flat[len(names) :]:
        axes.remove()
    return drawing.save_figure(figure, path, full_colour=True)


def score_maps_side_by_side(named: Sequence[tuple[str, Snapshot]], path: Path) -> Path:
    """Draw some scores of several models, such as MHA, GQA and MQA: a row a score, a column a model.

    All maps of a row have one scale. Scores that no snapshot has are left out.
    """
    snapshots = [snapshot for _, snapshot in named]
    rows = [name for name in COMPARED if any(name in snapshot.scores for snapshot in snapshots)]
    figure, panels = _panels(len(rows), len(named), snapshots)
    for column, (name, snapshot) in zip(panels.T, named, strict=True):
        for axes, row in zip(column, rows, strict=True):
            _score_map(axes, snapshot, SCORES[row], snapshots, f"{name} ({kv_heads(snapshot)})\n")
    return drawing.save_figure(figure, path, full_colour=True)


def standing_out(snapshot: Snapshot) -> list[tuple[int, int, str]]:
    """The head (by its place in the snapshot) that stands out most by each pattern, and the name of that score; the
    clearest is first. Only on texts whose map is there. Many heads may do the same, so each pattern is there once."""
    best: dict[str, tuple[float, int, int]] = {}
    for i, j in np.ndindex(len(snapshot.layers), len(snapshot.heads)):
        for probe in snapshot.maps:
            name, nats = strongest_pattern(snapshot, probe, i, j)
            if name and nats > best.get(name, (0.0,))[0]:
                best[name] = nats, i, j
    return [(i, j, name) for name, (_, i, j) in sorted(best.items(), key=lambda item: -item[1][0])]


def _panels(rows: int, across: int, snapshots: Sequence[Snapshot], large: Sequence[tuple[int, int, str]] = ()):
    """A figure of rows x across axes, with cells of up to 44 pixels and no side beyond LONGEST_SIDE.

    large: heads of the first snapshot that are drawn large over them, as `standing_out` gives them.
    """
    heads, layers = max(len(s.heads) for s in snapshots), max(len(s.layers) for s in snapshots)
    above = LARGE if large else 0
    room = LONGEST_SIDE - 60 - above
    cell = max(1, min(44, (room // across - BESIDE) // heads, (room // rows - ABOVE) // layers, 500 // layers))
    width, height = across * (max(heads * cell, 90) + BESIDE), 40 + rows * (layers * cell + ABOVE)
    figure = drawing.new_figure(max(width, above * len(large)), height + above, layout="constrained")
    if not large:
        return figure, figure.subplots(rows, across, squeeze=False)
    top, rest = figure.subfigures(2, 1, height_ratios=(above, height))
    snapshot = snapshots[0]
    for axes, (i, j, name) in zip(top.subplots(1, len(large), squeeze=False)[0], large, strict=True):
        score, shown = SCORES[name], snapshot.maps[SCORES[name].probe]
        tokens = len(shown.labels)
        grid = Grid(1, 1, tokens, 1, max(1, (LARGE - 80) // tokens), 0)
        draw_maps(axes, grid, snapshot, shown, shown.weights[i : i + 1, j : j + 1])
        axes.set_aspect("equal")
        label_tokens(axes, grid, snapshot, shown)
        title = f"L{snapshot.layers[i]} H{snapshot.heads[j]}: {score_line(snapshot, name, i, j)}"
        axes.set_title(f"{title}\n{score.meaning}", fontsize=10, loc="left", color=drawing.BADGE)
    return figure, rest.subplots(rows, across, squeeze=False)


def _score_map(axes, snapshot: Snapshot, score: Score, together: Sequence[Snapshot], over: str = "") -> None:
    """One map, on the scale that it shares with the same score of the other snapshots."""
    shape = len(snapshot.layers), len(snapshot.heads)
    values = snapshot.scores.get(score.name, np.full(shape, np.nan))
    axes.set_facecolor(drawing.NOTHING)
    axes.patch.set(hatch="////", edgecolor="#bbbbbb")
    colours = drawing.colour_map().with_extremes(bad=(0, 0, 0, 0))
    image = axes.imshow(values, cmap=colours, norm=_norm(score, together), interpolation="none")
    if max(shape) <= 16:
        drawing.write_values(axes, image, values, size=8 if max(shape) <= 8 else 5, form=_short)
    for j, head in enumerate(snapshot.heads):  # a strip in the colour of its key/value head
        strip = {"colors": drawing.group_colour(snapshot.group(head)), "lw": 3, "clip_on": False}
        axes.hlines(1.02, j - 0.5, j + 0.5, transform=axes.get_xaxis_transform(), **strip)
    for axis, letter, numbers in ((axes.yaxis, "L", snapshot.layers), (axes.xaxis, "H", snapshot.heads)):
        every = -(-len(numbers) // 16)
        axis.set_ticks(range(0, len(numbers), every), [f"{letter}{n}" for n in numbers[::every]])
    axes.tick_params(length=0, labelsize=7)
    axes.spines[:].set_visible(False)
    level = snapshot.chance.get(score.name)
    chance = "" if level is None else f" · chance {_short(level)}"
    most, place = "not defined here", best_head(snapshot, score.name)
    if place:
        unit = f" {score.unit}" if score.unit else ""
        most = f"most: {_short(values[place])}{unit}, L{snapshot.layers[place[0]]} H{snapshot.heads[place[1]]}"
    title = f"{over}{score.title}\n{most}{chance}"
    axes.set_title(title, fontsize=8.5, loc="left", pad=8, family=drawing.fonts(), parse_math=False)
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.9, aspect=12)
    bar.set_ticks([image.norm.vmin, image.norm.vmax], labels=[_short(image.norm.vmin), _short(image.norm.vmax)])
    bar.ax.tick_params(labelsize=7, length=2)
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    if level is not None:
        bar.ax.axhline(level, color=drawing.BOUNDARY, lw=2.2)


def curves(
    snapshots: Sequence[Snapshot], path: Path, title: str = "", mark: PhaseChange | None = None, log: bool = False
) -> Path:
    """Draw each pattern score of its best head over the tokens seen, chance dashed, and the copy gain below.

    The best head is the one that is best at the end; all other heads' induction is thin. mark: a vertical line there,
    as `phase_change` gives it. log: a logarithmic axis from the first snapshot after step 0.
    """
    ordered = sorted(snapshots, key=lambda snapshot: snapshot.step)
    gains, last, tokens = copy_gains(ordered), ordered[-1], [snapshot.tokens for snapshot in ordered]
    log_from = next((s.tokens for s in ordered if s.tokens), None) if log else None
    figure = drawing.new_figure(1000, 620 if gains else 420, layout="constrained")
    panels = figure.subplots(2 if gains else 1, 1, squeeze=False, height_ratios=(2, 1) if gains else None)[:, 0]
    heading = title or "what the heads do, over training"
    figure.suptitle(drawing.readable(heading), x=0.01, ha="left", family=drawing.fonts(), parse_math=False)
    top = panels[0]
    for k, name in enumerate(name for name in PATTERNS if best_head(last, name)):
        (head, values), colour = of_best_head(ordered, name), drawing.GROUP_COLOURS[k]
        if name == "induction":
            every = [s.scores[name].ravel() if name in s.scores else np.full(1, np.nan) for s in ordered]
            many = max(map(len, every))
            top.plot(tokens, [np.resize(e, many) for e in every], color=colour, lw=0.7, alpha=0.4)
        label = f"{SCORES[name].title}, {head}: {values[-1]:.2f}"
        top.plot(tokens, values, color=colour, lw=2, label=label, marker="os^vDPX"[k], ms=3.5)
        if (chance := last.chance.get(name)) is not None:
            top.axhline(chance, color=colour, lw=1, ls=(0, (5, 4)))
    if top.get_legend_handles_labels()[0]:
        top.legend(loc="upper left", bbox_to_anchor=(1.015, 1), fontsize=8, frameon=False, borderaxespad=0)
    drawing.style_curve(top, "share of the attention; dashed: chance", log_from)
    top.set_ylim(bottom=0)
    if gains:
        panels[1].plot(tokens, gains, color="#222222", lw=1.8, marker=".", ms=5)
        panels[1].axhline(0, color="#222222", lw=0.8, ls=(0, (5, 4)))
        meaning = "loss on the first copy of random tokens minus loss on the second"
        drawing.style_curve(panels[1], f"copy gain (nats): {meaning}", log_from)
    panels[-1].set_xlabel("tokens seen", fontsize=9)
    if mark:
        words = f"L{mark.layer} H{mark.head} forms: step {mark.step:,}, {drawing.amount(mark.tokens)} tokens"
        for axes in panels:
            axes.axvline(mark.tokens, color="#555555", lw=1.2, ls=":")
        top.set_title(words, fontsize=8.5, loc="right", color="#333333")
    return drawing.save_figure(figure, path, full_colour=True)


def _norm(score: Score, together: Sequence[Snapshot]):
    """The scale of a score: its whole range if it has one; a power law where chance is near the lower end."""
    from matplotlib.colors import Normalize, PowerNorm

    levels = [snapshot.chance.get(score.name) for snapshot in together]
    chances = [level for level in levels if level is not None]
    if score.high is not None and score.low is not None:
        near_zero = any(chance - score.low < 0.25 * (score.high - score.low) for chance in chances)
        return PowerNorm(GAMMA, score.low, score.high) if near_zero else Normalize(score.low, score.high)
    seen = [s.scores[score.name][np.isfinite(s.scores[score.name])] for s in together if score.name in s.scores]
    everything = np.concatenate([np.ravel(chances), *map(np.ravel, seen), np.zeros(1)])
    low = min(score.low or 0, everything.min())
    return Normalize(low, max(everything.max(), low + 1e-6))


def _short(value: float) -> str:
    """Three characters: .07, .53, 1, 12."""
    if value == round(value) or abs(value) >= 10:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 0.995 else f"{value:.2f}".replace("0.", ".", 1)
