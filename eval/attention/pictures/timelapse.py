"""How do the heads change while they learn? timelapse.gif: every head, one frame a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eval.attention.history import Curve, choose, copy_gain, of_best_head
from eval.attention.pictures import drawing
from eval.attention.pictures.grid import (
    SMALLEST_NAMED,
    badge,
    chosen_probe,
    draw_boundaries,
    draw_frames,
    draw_image,
    label_heads,
    lay_out,
    moment,
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
        first = chosen[0]
        self.probe, self.hide_sink = probe, hide_sink
        layers, heads = len(first.layers), len(first.heads)
        room = WIDEST if max(layers, heads) <= 4 else WIDEST_OF_MANY
        tokens = len(first.maps[probe].labels)
        self.grid = lay_out(layers, heads, tokens, room, largest=8, smallest_head=SMALLEST_NAMED)
        self.curve = copy_gain(snapshots) or _induction(snapshots)
        self.figure = drawing.new_figure(self.grid.width, self.grid.height)
        axes, self.image = draw_image(self.figure, 0, self.grid, first.maps[probe].weights)
        draw_boundaries(axes, self.grid, first.maps[probe])
        draw_frames(axes, self.grid, first)
        label_heads(axes, self.grid, first, size=self.grid.width / 60)
        self.badges = self._draw_badges(axes) if self.grid.has_names else []
        over_maps = [*axes.patches, *axes.collections, *axes.texts]
        _, self.heading = drawing.head_line(
            axes, moment(chosen[-1]), " · ".join(filter(None, [title, f"probe: {probe}"]))
        )
        self.marker = _draw_curve(self.figure, self.curve) if self.curve else []
        drawing.fit(self.figure)
        self.moving = [self.image, *over_maps, self.heading, *self.marker]
        for artist in self.moving:
            artist.set_animated(True)
        self.figure.canvas.draw()
        self.still = self.figure.canvas.copy_from_bbox(self.figure.bbox)

    def _draw_badges(self, axes) -> list:
        """A text for each head, empty as yet, as large as fits above the diagonal: README shows the GIF smaller."""
        grid = self.grid
        style = {"ha": "right", "va": "top", "weight": "bold", "color": drawing.BADGE, "linespacing": 1.0}
        return [
            axes.text(
                j * grid.step + grid.length - 0.5 - 3 / grid.cell,
                i * grid.step - 0.5 + 3 / grid.cell,
                "",
                fontsize=min(14, 0.1 * grid.length * grid.cell),
                **style,
            )
            for i in range(grid.layers)
            for j in range(grid.heads)
        ]

    def frame(self, snapshot: Snapshot):
        """A Pillow image of one snapshot."""
        _, shown = chosen_probe(snapshot, self.probe)
        self.figure.canvas.restore_region(self.still)
        weights = without_sink(shown) if self.hide_sink else shown.weights
        self.image.set_data(tile(weights, self.grid.gap, self.grid.pool))
        self.heading.set_text(moment(snapshot))
        for k, text in enumerate(self.badges):
            text.set_text(badge(snapshot, self.probe, *divmod(k, self.grid.heads)).replace(" ", "\n"))
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


def _draw_curve(figure, curve: Curve) -> list:
    """Under the maps the whole curve in grey; the line over it, with a dot at its end, is what each frame moves."""
    below, height = figure.get_tightbbox().y0, figure.get_size_inches()[1]  # inches
    axes = figure.add_axes((0, (below - 1.1) / height, 1, 0.8 / height))
    axes.plot(curve.tokens, curve.values, color="#bbbbbb", lw=1.2)
    drawing.style_curve(axes, curve.title)
    return axes.plot([], [], color=drawing.GROUP_COLOURS[0], lw=1.8, marker="o", markevery=[-1], markersize=6)
