"""What is drawn at the end of a run? Everything in its attention folder, from the snapshots on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eval.attention.history import choose, copy_gains, like_the_last, of_best_head, phase_change
from eval.attention.metrics import SCORES
from eval.attention.pictures import drawing
from eval.attention.pictures.plots import (
    SMALLEST_NAMED,
    axes_at,
    badge,
    draw_maps,
    label_heads,
    lay_out,
    moment,
    mosaic,
    one_head,
    tile,
)
from eval.attention.pictures.score_plots import curves, score_maps
from eval.attention.snapshots import Snapshot, file_of
from eval.attention.viewer import VIEWER, write_viewer
from eval.experts import for_viewer, read

PICTURES = {  # that bear no step in their name, and what they show
    "timelapse.gif": "every head while it learns",
    "curves.png": "the heads' scores over training",
    "heads.png": "the heads that stand out most, and the scores of every head, at the last look",
    "induction_head.png": "the induction head, on random repeated tokens",
}
MOST_MOSAICS = 8
MOST_FRAMES = 24
WIDEST, WIDEST_OF_MANY = 720, 840  # pixels of the grid of an animation, up to 4 x 4 heads and beyond: 2 or 3 MB


def render(run_directory: Path, snapshots: Sequence[Snapshot], folder: Path | None = None) -> list[Path]:
    """Draw a run's attention folder (or another one, `folder`); the paths of what was drawn.

    step_XXXXXXXX.png   every head on the first probe, of some snapshots: the first, the last, that of the phase change,
                        and others dense early
    heads.png           the three heads that stand out most in the last snapshot, large, and every score of every head
    curves.png          the scores over training
    induction_head.png  the head that made the phase change, if there was one, on repeated tokens
    timelapse.gif       the heads while they learn, on repeated tokens if that probe was recorded
    viewer.html         all of it, to look around in, and the experts of a run that has some

    Nothing is drawn of no snapshots, and no scores where none were measured. Only the viewer has snapshots that looked
    at other heads or texts than the last one.
    """
    if not snapshots:
        return []
    ordered = like_the_last(snapshots)
    folder, name, last = folder or run_directory / "attention", run_directory.name, ordered[-1]
    folder.mkdir(parents=True, exist_ok=True)
    change = phase_change(ordered)
    shown = choose(ordered, MOST_MOSAICS)
    if change and change.step not in [snapshot.step for snapshot in shown]:
        shown += [snapshot for snapshot in ordered if snapshot.step == change.step]
    paths = [mosaic(one, file_of(folder, one.step).with_suffix(".png"), name) for one in shown]
    if any(score in SCORES for score in last.scores):
        paths += [score_maps(last, folder / "heads.png", name)]
        paths += [curves(ordered, folder / "curves.png", f"{name}: what the heads do", change)]
    repeated = "repeated_2" if "repeated_2" in last.maps else None  # where learning to copy shows as a stripe
    (folder / "induction_head.png").unlink(missing_ok=True)  # of an earlier time, when it may have been another head
    if change and repeated:
        file = folder / "induction_head.png"
        paths += [one_head(last, change.layer, change.head, file, name, repeated, score="induction")]
    experts = for_viewer(read(run_directory, lambda problem: None))
    viewer = write_viewer([(name, list(snapshots))], folder / VIEWER, experts=[experts])  # each step with its own texts
    return [*paths, timelapse(ordered, folder / "timelapse.gif", name, repeated), viewer]


def timelapse(snapshots: Sequence[Snapshot], path: Path, title: str = "", probe: str | None = None) -> Path:
    """Write an animated GIF of the mosaic, one frame a snapshot, with a curve of what the heads are good for.

    The colours are the same in every frame: one figure is drawn again with what moves.
    """
    ordered, frames = sorted(snapshots, key=lambda snapshot: snapshot.step), []
    chosen = choose(ordered, MOST_FRAMES)
    first, probe = chosen[0], probe or next(iter(chosen[0].maps))
    shown, layers, heads = first.maps[probe], len(first.layers), len(first.heads)
    room = WIDEST if max(layers, heads) <= 4 else WIDEST_OF_MANY
    grid = lay_out(layers, heads, len(shown.labels), room, largest=8, smallest_head=SMALLEST_NAMED)
    figure = drawing.new_figure(*grid.size)
    axes = axes_at(figure, 0, grid)
    image = draw_maps(axes, grid, first, shown, shown.weights)
    label_heads(axes, grid, first, size=grid.size[0] / 60)
    badges = {}  # as large as fits above the diagonal: README shows the GIF smaller
    if grid.has_names:
        style = {"ha": "right", "va": "top", "weight": "bold", "color": drawing.BADGE, "linespacing": 1.0}
        size = min(14, 0.1 * grid.length * grid.cell)
        places = [(i, j) for i in range(layers) for j in range(heads)]
        badges = {place: axes.text(*grid.corner(*place), "", fontsize=size, **style) for place in places}
    heading = drawing.head_line(axes, moment(chosen[-1]), " · ".join(filter(None, [title, f"probe: {probe}"])))
    tokens, values, line = [snapshot.tokens for snapshot in ordered], copy_gains(ordered), None
    name = "copy gain (nats)"
    if not values:
        head, values = of_best_head(ordered, "induction")
        name = f"induction of {head}"
    if values:  # under the maps the whole curve in grey, and what is over at each frame with a dot at its end
        below, height = figure.get_tightbbox().y0, figure.get_size_inches()[1]  # inches
        under = figure.add_axes((0, (below - 1.1) / height, 1, 0.8 / height))
        under.plot(tokens, values, color="#bbbbbb", lw=1.2)
        drawing.style_curve(under, name)
        style = {"color": drawing.GROUP_COLOURS[0], "lw": 1.8, "marker": "o", "markevery": [-1], "markersize": 6}
        (line,) = under.plot([], [], **style)
    drawing.fit(figure)
    for snapshot in chosen:
        image.set_data(tile(snapshot.maps[probe].weights, grid.gap, grid.pool))
        heading.set_text(moment(snapshot))
        for place, text in badges.items():
            text.set_text(badge(snapshot, probe, *place).replace(" ", "\n"))
        if line:
            seen = sum(count <= snapshot.tokens for count in tokens)
            line.set_data(tokens[:seen], values[:seen])
        figure.canvas.draw()
        frames.append(drawing.drawn(figure))
    durations = [700, *[350] * (len(frames) - 2), 2500] if len(frames) > 1 else [2500]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=False)
    return path
