"""timelapse.gif: the heads while they learn, one frame a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eval.attention.history import Curve, choose, copy_gain, of_best_head
from eval.attention.pictures import drawing
from eval.attention.pictures.grid import (
    SMALLEST_NAMED,
    chosen_probe,
    draw_heads,
    label_room,
    label_tokens,
    lay_out,
    moment,
    strongest_text,
    tile,
    without_sink,
)
from eval.attention.snapshots import Snapshot

MOST_FRAMES = 24
WIDEST, WIDEST_OF_MANY = 720, 840  # pixels of the grid of an animation, up to 4 x 4 heads and beyond: 2 or 3 MB


def timelapse(
    snapshots: Sequence[Snapshot],
    path: Path,
    title: str = "",
    probe: str | None = None,
    hide_sink: bool = False,
    most: int = MOST_FRAMES,
) -> Path:
    """Write an animated GIF of the mosaic, one frame a snapshot, with a curve of what the heads are good for.

    The colours are the same in every frame. Raises ValueError for no snapshots, or one without the probe.
    """
    chosen = choose(snapshots, most)
    if not chosen:
        raise ValueError("nothing to draw: there is no snapshot")
    stage = _Stage(chosen, sorted(snapshots, key=lambda s: s.step), title, chosen_probe(chosen[0], probe)[0], hide_sink)
    frames = [stage.frame(snapshot) for snapshot in chosen]
    durations = [700, *[350] * (len(frames) - 2), 2500] if len(frames) > 1 else [2500]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=False)
    return path


class _Stage:
    """One figure for all frames: what does not move is drawn once, and the rest over it."""

    def __init__(
        self, chosen: list[Snapshot], snapshots: list[Snapshot], title: str, probe: str, hide_sink: bool
    ) -> None:
        first, shown = chosen[0], chosen[0].maps[probe]
        layers, heads = len(first.layers), len(first.heads)
        self.probe, self.hide_sink = probe, hide_sink
        room = WIDEST if max(layers, heads) <= 4 else WIDEST_OF_MANY
        self.grid = lay_out(layers, heads, len(shown.labels), room, largest=8, smallest_head=SMALLEST_NAMED)
        self.curve = copy_gain(snapshots) or _induction(snapshots)
        room, top, width = label_room(shown, self.grid), 58, self.grid.width
        below = top + self.grid.height + room + 26
        self.figure = drawing.new_figure(max(room + width + 16, 420), below + (120 if self.curve else -16))
        drawing.write_text(self.figure, 12, 8, " · ".join(filter(None, [title, f"probe: {probe}"])), 11)
        drawing.write_text(self.figure, 12, 29, moment(first), 12, weight="bold")
        self.heading = self.figure.texts[-1]
        axes = drawing.place(self.figure, room, top, width, self.grid.height)
        self.image = draw_heads(axes, self.grid, first, shown)
        label_tokens(axes, self.grid, first, shown)
        self.badges = axes.texts[1::2]  # after each head's name
        self.marker = _draw_curve(drawing.place(self.figure, room, below, width, 80), self.curve) if self.curve else []
        self.moving = [self.image, *axes.patches, *axes.collections, *axes.texts, self.heading, *self.marker]
        for artist in self.moving:
            artist.set_animated(True)
        self.figure.canvas.draw()
        self.still = self.figure.canvas.copy_from_bbox(self.figure.bbox)

    def frame(self, snapshot: Snapshot):
        """A Pillow image of one snapshot."""
        _, shown = chosen_probe(snapshot, self.probe)
        self.figure.canvas.restore_region(self.still)
        weights = without_sink(shown) if self.hide_sink else shown.weights
        self.image.set_data(tile(weights, self.grid.gap, self.grid.pool))
        self.heading.set_text(moment(snapshot))
        for k, badge in enumerate(self.badges):
            badge.set_text(strongest_text(snapshot, *divmod(k, self.grid.heads)))
        for line in self.marker:
            line.set_data(*self._until(snapshot))
        for artist in self.moving:
            self.figure.draw_artist(artist)
        return drawing.drawn(self.figure)

    def _until(self, snapshot: Snapshot) -> tuple[list[int], list[float]]:
        """The curve so far; the marker is at its end."""
        assert self.curve
        seen = sum(tokens <= snapshot.tokens for tokens in self.curve.tokens)
        return self.curve.tokens[:seen], self.curve.values[:seen]


def _induction(snapshots: Sequence[Snapshot]) -> Curve | None:
    curve = of_best_head(snapshots, "induction")
    return curve and curve._replace(title=f"induction of {curve.title}")


def _draw_curve(axes, curve: Curve) -> list:
    """The whole curve in grey; the line over it, with a dot at its end, is what each frame moves."""
    axes.plot(curve.tokens, curve.values, color="#bbbbbb", lw=1.2)
    drawing.style_curve(axes, curve.title)
    return axes.plot([], [], color=drawing.GROUP_COLOURS[0], lw=1.8, marker="o", markevery=[-1], markersize=6)
