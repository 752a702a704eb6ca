"""Head scores as pictures: maps [layer x head] of every score, and curves over training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eval.attention.history import PhaseChange, best_head, copy_gain, of_best_head
from eval.attention.metrics import SCORES, Score
from eval.attention.pictures import drawing
from eval.attention.pictures.drawing import GAMMA, LONGEST_SIDE
from eval.attention.pictures.grid import PATTERNS, kv_heads, moment
from eval.attention.snapshots import Snapshot

BESIDE = 92  # pixels right of a map, for its colour bar
ABOVE = 62  # pixels over a map, for its title
LEFT = 34  # pixels left of a map, for the layers' names
UNDER = 24  # pixels under a map, for the heads' numbers
PANELS = 5  # score maps in a row


def score_maps(snapshot: Snapshot, path: Path, title: str = "") -> Path:
    """Draw every score of a snapshot as a map [layer x head]; the colour bar has a mark at the chance level.

    A head without a value is hatched. Raises ValueError for a snapshot without scores.
    """
    names = [name for name in SCORES if name in snapshot.scores]
    if not names:
        raise ValueError(f"step {snapshot.step} has no head scores to draw")
    cell = _cell([snapshot])
    across = min(PANELS, len(names))
    panel = max(len(snapshot.heads) * cell, 100) + BESIDE + LEFT
    tall = len(snapshot.layers) * cell + ABOVE + UNDER
    heading = [part for part in (title, moment(snapshot), kv_heads(snapshot)) if part]
    width = max(12 + across * panel, 460)
    lines = drawing.wrap(" · ".join(heading), width, 12)
    top = 14 + 20 * len(lines)
    figure = drawing.new_figure(width, top + -(-len(names) // across) * tall)
    drawing.write_text(figure, 12, 10, "\n".join(lines), 12, weight="bold")
    for k, name in enumerate(names):
        left = 12 + LEFT + k % across * panel
        _score_map(figure, left, top + ABOVE + k // across * tall, cell, snapshot, SCORES[name], [snapshot])
    return drawing.save_figure(figure, path, full_colour=True)


def score_maps_side_by_side(
    named: Sequence[tuple[str, Snapshot]], path: Path, scores: Sequence[str] = ("induction", "previous_token", "sink")
) -> Path:
    """Draw the same scores of several models, such as MHA, GQA and MQA: a row a score, a column a model.

    All maps of a row have one scale. Scores that no snapshot has are left out. Raises ValueError where nothing is left.
    """
    snapshots = [snapshot for _, snapshot in named]
    rows = [name for name in scores if any(name in snapshot.scores for snapshot in snapshots)]
    if not rows:
        raise ValueError(f"none of these snapshots has one of the scores {list(scores)}")
    cell = _cell(snapshots, across=len(named))
    panels = [max(len(snapshot.heads) * cell, 130) + BESIDE + LEFT for snapshot in snapshots]
    tall = max(len(snapshot.layers) for snapshot in snapshots) * cell + ABOVE + UNDER
    figure = drawing.new_figure(12 + sum(panels), 50 + len(rows) * tall)
    left = 12 + LEFT
    for (name, snapshot), panel in zip(named, panels, strict=True):
        drawing.write_text(figure, left - LEFT, 8, name, 12, weight="bold")
        drawing.write_text(figure, left - LEFT, 28, kv_heads(snapshot), 8)
        for k, row in enumerate(rows):
            _score_map(figure, left, 50 + ABOVE + k * tall, cell, snapshot, SCORES[row], snapshots)
        left += panel
    return drawing.save_figure(figure, path, full_colour=True)


def curves(
    snapshots: Sequence[Snapshot], path: Path, title: str = "", mark: PhaseChange | None = None, log: bool = False
) -> Path:
    """Draw each pattern score of its best head over the tokens seen, chance dashed, and the copy gain below.

    The best head is the one that is best at the end; all other heads' induction is thin. mark: a vertical line there,
    as `phase_change` gives it. log: a logarithmic axis from the first snapshot after step 0. Raises ValueError for
    no snapshots.
    """
    ordered = sorted(snapshots, key=lambda snapshot: snapshot.step)
    if not ordered:
        raise ValueError("nothing to draw: there is no snapshot")
    gain = copy_gain(ordered)
    log_from = next((s.tokens for s in ordered if s.tokens), None) if log else None
    figure = drawing.new_figure(1000, 620 if gain else 420)
    drawing.write_text(figure, 12, 8, title or "what the heads do, over training", 12, weight="bold")
    upper = drawing.place(figure, 60, 72, 700, 290)
    _draw_patterns(upper, ordered)
    drawing.style_curve(upper, "", log_from)
    drawing.write_text(figure, 60, 36, "share of the attention; dashed: chance", 9)  # the next line is the mark's
    upper.set_ylim(bottom=0)
    panels = [upper]
    if gain:
        panels.append(drawing.place(figure, 60, 410, 700, 150))
        panels[1].plot(gain.tokens, gain.values, color="#222222", lw=1.8, marker=".", ms=5)
        panels[1].axhline(0, color="#222222", lw=0.8, ls=(0, (5, 4)))
        drawing.style_curve(panels[1], gain.title, log_from)
        drawing.write_text(figure, 775, 415, "loss on the first copy\nof random tokens minus\nloss on the second", 8)
    panels[-1].set_xlabel("tokens seen", fontsize=9)
    if mark:
        for axes in panels:
            axes.axvline(mark.tokens, color="#555555", lw=1.2, ls=":")
        words = f"L{mark.layer} H{mark.head} forms: step {mark.step:,}, {drawing.amount(mark.tokens)} tokens"
        share = upper.transAxes.inverted().transform(upper.transData.transform((mark.tokens, 0)))[0]
        style = {"ha": "left" if share < 0.55 else "right", "va": "bottom", "fontsize": 8.5, "color": "#333333"}
        upper.text(mark.tokens, 1.0, words, transform=upper.get_xaxis_transform(), **style)
    return drawing.save_figure(figure, path, full_colour=True)


def _draw_patterns(axes, ordered: list[Snapshot]) -> None:
    """The best head of each pattern, thick; every head's induction, thin."""
    last, tokens = ordered[-1], [snapshot.tokens for snapshot in ordered]
    for k, name in enumerate(name for name in PATTERNS if best_head(last, name)):
        curve, colour = of_best_head(ordered, name), drawing.GROUP_COLOURS[k]
        assert curve
        if name == "induction":
            every = [s.scores[name].ravel() if name in s.scores else np.full(1, np.nan) for s in ordered]
            many = max(map(len, every))
            axes.plot(tokens, [np.resize(e, many) for e in every], color=colour, lw=0.7, alpha=0.4)
        label = f"{SCORES[name].title}, {curve.title}: {curve.values[-1]:.2f}"
        axes.plot(tokens, curve.values, color=colour, lw=2, label=label, marker="os^vDPX"[k], ms=3.5)
        chance = last.chance.get(name)
        if chance is not None:
            axes.axhline(chance, color=colour, lw=1, ls=(0, (5, 4)))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.015, 1), fontsize=8, frameon=False, borderaxespad=0)


def _score_map(figure, left: int, top: int, cell: int, snapshot: Snapshot, score: Score, together: list[Snapshot]):
    """One map at this pixel, on the scale that it shares with the same score of other snapshots."""
    layers, heads = len(snapshot.layers), len(snapshot.heads)
    values = snapshot.scores.get(score.name, np.full((layers, heads), np.nan))
    axes = drawing.place(figure, left, top, heads * cell, layers * cell)
    axes.set_facecolor(drawing.NOTHING)
    axes.patch.set(hatch="////", edgecolor="#bbbbbb")
    norm = _norm(score, together)
    colours = drawing.colour_map().with_extremes(bad=(0, 0, 0, 0))
    image = axes.imshow(values, cmap=colours, norm=norm, aspect="auto", interpolation="none")
    if cell >= 26:
        drawing.write_values(axes, image, values, size=min(8.5, cell * 0.24), form=lambda value: _short(value))
    _mark_groups(axes, snapshot, cell)
    every = max(1, -(-14 // cell))
    axes.set_yticks(range(0, layers, every), [f"L{n}" for n in snapshot.layers[::every]])
    axes.set_xticks(range(0, heads, every), [f"{n}" for n in snapshot.heads[::every]])
    axes.tick_params(length=0, labelsize=7, pad=3)
    for side in axes.spines.values():
        side.set_visible(False)
    drawing.write_text(figure, left, top - 44, score.title, 9.5, weight="bold")
    drawing.write_text(figure, left, top - 26, _most(snapshot, score), 7.5, color="#555555")
    _draw_bar(figure, image, left + heads * cell + 12, top, layers * cell, score, together)


def _draw_bar(figure, image, left: int, top: int, height: int, score: Score, together: list[Snapshot]) -> None:
    """A colour bar with the ends of the scale, and a mark with a number at the chance level."""
    low, high = image.norm.vmin, image.norm.vmax
    chance = next(iter(_chances(score, together)), None)
    bar = figure.colorbar(image, cax=drawing.place(figure, left, top, 10, height))
    bar.outline.set_visible(False)
    ticks = [tick for tick in (low, high) if chance is None or abs(image.norm(tick) - image.norm(chance)) * height > 12]
    bar.set_ticks(ticks, labels=[_short(tick) for tick in ticks])
    bar.ax.tick_params(labelsize=7, length=2)
    bar.ax.minorticks_off()
    if chance is not None:
        bar.ax.axhline(chance, color=drawing.BOUNDARY, lw=2.2)
        where = float(image.norm(chance))
        text = f"chance\n{_short(chance)}"
        va = "bottom" if where * height < 12 else "top" if (1 - where) * height < 12 else "center"
        style = {"fontsize": 7, "color": "#0f6f99", "linespacing": 0.95}
        bar.ax.text(1.5, where, text, transform=bar.ax.transAxes, ha="left", va=va, **style)


def _mark_groups(axes, snapshot: Snapshot, cell: int) -> None:
    """A strip over the heads in the colour of their key/value head, and a white line where the next one begins."""
    from matplotlib.patches import Rectangle

    for j, head in enumerate(snapshot.heads):
        colour = drawing.group_colour(snapshot.group(head))
        axes.add_patch(Rectangle((j - 0.5, -0.5 - 6 / cell), 1, 4 / cell, fc=colour, ec="none", clip_on=False))
        if j and snapshot.group(head) != snapshot.group(snapshot.heads[j - 1]):
            axes.axvline(j - 0.5, color="white", lw=2.5)


def _norm(score: Score, together: list[Snapshot]):
    """The scale of a score: its whole range if it has one; a power law where chance is near the lower end."""
    from matplotlib.colors import Normalize, PowerNorm

    chances = _chances(score, together)
    if score.high is not None and score.low is not None:
        near_zero = any(chance - score.low < 0.25 * (score.high - score.low) for chance in chances)
        return PowerNorm(GAMMA, score.low, score.high) if near_zero else Normalize(score.low, score.high)
    seen = [
        *chances,
        *(s.scores[score.name][np.isfinite(s.scores[score.name])] for s in together if score.name in s.scores),
    ]
    everything = np.concatenate([np.ravel(values) for values in seen]) if seen else np.zeros(1)
    low = min(score.low or 0, everything.min(initial=0))
    return Normalize(low, max(everything.max(initial=0), low + 1e-6))


def _chances(score: Score, together: list[Snapshot]) -> list[float]:
    levels = [snapshot.chance.get(score.name) for snapshot in together]
    return [level for level in levels if level is not None]


def _most(snapshot: Snapshot, score: Score) -> str:
    """The head with most of it, and the unit."""
    place = best_head(snapshot, score.name)
    if place is None:
        return "not defined here"
    value = float(snapshot.scores[score.name][place])
    unit = f" {score.unit}" if score.unit else ""
    return f"most: {_short(value)}{unit}, L{snapshot.layers[place[0]]} H{snapshot.heads[place[1]]}"


def _short(value: float) -> str:
    """Three characters: .07, .53, 1, 12."""
    if value == round(value):
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.0f}"
    if abs(value) >= 0.995:
        return f"{value:.1f}"
    return f"{value:.2f}".replace("0.", ".", 1)


def _cell(snapshots: Sequence[Snapshot], across: int = PANELS) -> int:
    """Pixels of a cell, so that so many maps fit beside each other."""
    heads, layers = max(len(s.heads) for s in snapshots), max(len(s.layers) for s in snapshots)
    room = (LONGEST_SIDE - 12) // across - BESIDE - LEFT
    return max(1, min(44, room // heads, 500 // layers))
