"""What do the heads look at, and how strong is each pattern in them? Pictures of snapshots.

All heads are one image; frames, names, badges and labels stand over it. Rows of a map are the tokens that look, columns
the tokens looked at. One colour scale in all pictures.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eval.attention.history import PhaseChange, best_head, choose, copy_gains, like_the_last, of_best_head, phase_change
from eval.attention.metrics import PATTERNS, SCORES
from eval.attention.snapshots import Snapshot, file_of
from eval.page.viewer import VIEWER, experts_of, write_viewer
from eval.pictures import drawing

PICTURES = {  # that bear no step in their name, and what they show
    "timelapse.gif": "every head while it learns",
    "curves.png": "the heads' scores over training",
    "heads.png": "the scores of every head, at the last look",
    "induction_head.png": "the strongest induction head, on random repeated tokens",
}
MOST_MOSAICS, MOST_FRAMES = 8, 24
WIDEST = 2100  # pixels of all maps beside each other, or below
SMALLEST_NAMED = 90  # pixels: below, a head has no text of its own
LABEL_PIXELS = 9  # a token label needs this many to stand apart from the next
BETWEEN = -1.0  # in the array of all heads, where no head is: under the scale, so white
TICKS = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1)  # of attention weights
PAGE = 960  # pixels: a wider row of score maps would be shrunk on a page, and its numbers with it
BESIDE, ABOVE = 120, 84  # pixels of a score map's labels and colour bar, and of its title


def render(run_directory: Path, snapshots: Sequence[Snapshot], folder: Path | None = None) -> list[Path]:
    """Draw a run's attention folder (or another one, `folder`) at its end; the paths of what was drawn.

    PICTURES, viewer.html, and step_XXXXXXXX.png: every head on `shown_probe`, of the first and last snapshot, that of
    the phase change, and others dense early. Nothing is drawn of no snapshots, and no scores where none were measured.
    Only the viewer has snapshots that looked at other heads or texts than the last one.
    """
    if not snapshots:
        return []
    ordered = like_the_last(snapshots)
    last, folder, name = ordered[-1], folder or run_directory / "attention", run_directory.name
    change, probe = phase_change(ordered), shown_probe(last)
    steps = {snapshot.step for snapshot in choose(ordered, MOST_MOSAICS)} | {change.step if change else -1}
    chosen = [snapshot for snapshot in ordered if snapshot.step in steps]
    paths = [mosaic(snapshot, file_of(folder, snapshot.step).with_suffix(".png"), name, probe) for snapshot in chosen]
    if last.scores:
        paths.append(score_maps(last, folder / "heads.png", name))
        paths.append(curves(ordered, folder / "curves.png", f"{name}: what the heads do", change))
    best = best_head(last, "induction")
    if probe == "repeated_2" and best is not None:
        head, file = (last.layers[best[0]], last.heads[best[1]]), folder / "induction_head.png"
        paths.append(one_head(last, *head, file, title=name, probe=probe))
    paths.append(timelapse(ordered, folder / "timelapse.gif", name, probe))
    return [*paths, write_viewer([(name, snapshots)], folder / VIEWER, experts={name: experts_of(run_directory)})]


class Grid(NamedTuple):
    """Where every head is, in cells. A cell is `cell` pixels wide and stands for `pool` tokens; a head is `length`
    cells wide, and the next one begins `step` cells after it does."""

    layers: int
    heads: int
    pool: int
    cell: int
    length: int
    step: int

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of all heads together, in pixels."""
        gap = self.step - self.length
        return (self.heads * self.step - gap) * self.cell, (self.layers * self.step - gap) * self.cell

    @property
    def has_names(self) -> bool:
        """Whether a head is large enough for text of its own."""
        return self.length * self.cell >= SMALLEST_NAMED

    def corner(self, layer: int, head: int) -> tuple[float, float]:
        """The empty corner above the diagonal of a head, in cells."""
        return head * self.step + self.length - 0.5 - 3 / self.cell, layer * self.step - 0.5 + 3 / self.cell


def lay_out(layers: int, heads: int, tokens: int, room: int = WIDEST, largest: int = 11) -> Grid:
    """The grid with the largest whole number of pixels a token, at most `largest`, that is no wider and no higher than
    `room`. A head of few tokens is as large as one of 14. Where not even one pixel is left for a token, several share a
    cell. At least eight pixels are between two heads."""
    side = max(room // max(layers, heads), 16)
    pool = math.ceil(tokens / (side - 8))
    length = math.ceil(tokens / pool)
    cell = max(1, min(max(largest, 14 * largest // length), (side - 8) // (length + 1)))
    return Grid(layers, heads, pool, cell, length, length + math.ceil(8 / cell))


def tile(weights: np.ndarray, gap: int, pool: int = 1) -> np.ndarray:
    """All heads of weights (layer, head, query, key) in one array, layers downwards, heads to the right.

    The gaps between them are BETWEEN. Keys after the query are NaN: they are not small weights, they do not exist.
    pool: the largest of this many queries x keys is taken, since a thin diagonal must not vanish between two pixels.
    """
    layers, heads, tokens, _ = weights.shape
    weights = np.where(np.tril(np.ones((tokens, tokens), dtype=bool)), weights, np.nan)
    starts = range(0, tokens, pool)
    weights = np.fmax.reduceat(np.fmax.reduceat(weights, starts, axis=3), starts, axis=2)
    length = len(starts)
    canvas = np.full((layers, length + gap, heads, length + gap), BETWEEN, dtype=np.float32)
    canvas[:, :length, :, :length] = weights.transpose(0, 2, 1, 3)
    return canvas.reshape(layers * (length + gap), heads * (length + gap))[: -gap or None, : -gap or None]


def draw_heads(axes, grid: Grid, snapshot: Snapshot, probe: str, names_tokens: bool = True, **numbers: Any):
    """Draw every head of a snapshot on one probe as one image; the image. numbers: see `draw_map`.

    One frame stands around the heads of a layer that share a key/value head; its colour says which. names_tokens: where
    there is room, tokens (or some of them, or positions) stand at the edges; else layers and heads.
    """
    from matplotlib.patches import Rectangle

    shown, gap = snapshot.maps[probe], grid.step - grid.length
    if names_tokens and grid.has_names:
        every = math.ceil(LABEL_PIXELS * grid.pool / grid.cell)
        places = range(0, len(shown.labels), every if every <= 4 else 4 * every)
        tokens = [drawing.shorten(shown.labels[t]) if every <= 4 else str(t) for t in places]
        cells = [(t + 0.5) / grid.pool - 0.5 for t in places]
        rows = [i * grid.step + at for i in range(grid.layers) for at in cells], tokens * grid.layers
        columns = [j * grid.step + at for j in range(grid.heads) for at in cells], tokens * grid.heads
        size, rotation = min(9.0, max(6.0, 0.65 * grid.cell / grid.pool)), 90
    else:
        middle, size, rotation = (grid.length - 1) / 2, max(7, grid.size[0] / 70), 0
        rows = [i * grid.step + middle for i in range(grid.layers)], [f"L{n}" for n in snapshot.layers]
        columns = [j * grid.step + middle for j in range(grid.heads)], [f"H{n}" for n in snapshot.heads]
    image = drawing.draw_map(axes, tile(shown.weights, gap, grid.pool), rows, columns, size=size, **numbers)
    axes.tick_params(pad=6)
    axes.tick_params(axis="x", rotation=rotation)
    groups, around = [snapshot.group(head) for head in snapshot.heads], min(0.45 * gap, 4 / grid.cell)
    for i, j in np.ndindex(grid.layers, grid.heads):
        if len(groups) > 1 and groups.index(groups[j]) == j:
            corner = j * grid.step - 0.5 - around, i * grid.step - 0.5 - around
            height = grid.length + 2 * around
            width = (groups.count(groups[j]) - 1) * grid.step + height
            colour = drawing.group_colour(groups[j])
            axes.add_patch(Rectangle(corner, width, height, fill=False, lw=1.6, ec=colour, clip_on=False))
    return image


def mosaic(snapshot: Snapshot, path: Path, title: str = "", probe: str | None = None) -> Path:
    """Draw every layer x head on one probe (default: the first) as PNG or SVG. title: stands before step and tokens.

    A head that is alone is drawn large, with its weights in the cells where there is room for them.
    """
    probe = probe or next(iter(snapshot.maps))
    tokens, is_alone = len(snapshot.maps[probe].labels), len(snapshot.layers) * len(snapshot.heads) == 1
    room, largest = (1400, max(12, min(34, 900 // tokens))) if is_alone else (WIDEST, 11)
    grid = lay_out(len(snapshot.layers), len(snapshot.heads), tokens, room, largest)
    axes = drawing.new_figure(*grid.size, fitted=False).add_axes((0, 0, 1, 1))
    image = draw_heads(axes, grid, snapshot, probe, numbers_from=0.05 if is_alone and grid.cell >= 28 else None)
    shares, pixels = snapshot.num_key_value_heads < snapshot.num_attention_heads, grid.length * grid.cell
    size = min(15, pixels / 46) if is_alone else min(9.0, 0.06 * pixels)
    style = {"fontsize": size, "ha": "right", "va": "top"}
    for i, j in np.ndindex(grid.layers, grid.heads) if grid.has_names else ():
        name = f"L{snapshot.layers[i]} H{snapshot.heads[j]}"
        name += f" · KV {snapshot.group(snapshot.heads[j])}" if shares else ""
        x, y = grid.corner(i, j)
        axes.text(x, y, name, weight="bold", color="#444444", **style)
        axes.text(x, y + 2.4 * size / grid.cell, badge(snapshot, probe, i, j), color=drawing.BADGE, **style)
    drawing.draw_scale(axes, image, TICKS, "attention weight")
    heading = " · ".join(filter(None, [title, moment(snapshot), f"probe: {probe}"]))
    notes = ["row: the token that looks · column: the token looked at"]
    notes += ["frame: heads that read one key/value head"] * shares
    notes += ["red: patterns on this text, as a share of the attention"] * (grid.has_names and bool(snapshot.scores))
    notes += [f"not shown: {snapshot.maps[probe].left_out}"] * bool(snapshot.maps[probe].left_out)
    drawing.caption(axes, heading, " · ".join(notes))
    return drawing.save_figure(axes.figure, path)


def one_head(snapshot: Snapshot, layer: int, head: int, path: Path, **more: Any) -> Path:
    """`mosaic` of one head, by its true numbers. more: what `mosaic` takes."""
    i, j = snapshot.layers.index(layer), snapshot.heads.index(head)
    maps = {name: replace(m, weights=m.weights[i : i + 1, j : j + 1]) for name, m in snapshot.maps.items()}
    scores = {name: values[i : i + 1, j : j + 1] for name, values in snapshot.scores.items()}
    return mosaic(replace(snapshot, layers=[layer], heads=[head], maps=maps, scores=scores), path, **more)


def timelapse(snapshots: Sequence[Snapshot], path: Path, title: str = "", probe: str | None = None) -> Path:
    """Write an animated GIF of all heads, one frame a snapshot, with a curve of what the heads are good for.

    snapshots: by step. One figure is drawn again with what moves.
    """
    from PIL import Image

    chosen, frames = choose(snapshots, MOST_FRAMES), []
    first, probe = chosen[0], probe or next(iter(chosen[0].maps))
    layers, heads = len(first.layers), len(first.heads)
    room = 720 if max(layers, heads) <= 4 else 840  # pixels: the file has 2 or 3 MB
    grid = lay_out(layers, heads, len(first.maps[probe].labels), room, largest=8)
    figure = drawing.new_figure(*grid.size, fitted=False)
    axes = figure.add_axes((0, 0, 1, 1))
    image = draw_heads(axes, grid, first, probe, names_tokens=False)
    heading = drawing.caption(axes, moment(chosen[-1]), " · ".join(filter(None, [title, f"probe: {probe}"])))
    style = {"ha": "right", "va": "top", "weight": "bold", "color": drawing.BADGE, "linespacing": 1.0}
    size = min(14, 0.1 * grid.length * grid.cell)  # as large as fits above the diagonal: README shows the GIF smaller
    places = [*np.ndindex(layers, heads)] if grid.has_names else []
    badges = {place: axes.text(*grid.corner(*place), "", fontsize=size, **style) for place in places}
    tokens, gains = [snapshot.tokens for snapshot in snapshots], copy_gains(snapshots)
    if gains:  # under the maps the whole curve in grey, and what is over at each frame with a dot at its end
        below = drawing.DPI * (figure.get_tightbbox().y0 - 1.1)
        under = axes.inset_axes((0, below / grid.size[1], 1, 80 / grid.size[1]))
        drawing.draw_curve(under, tokens, gains, color="#bbbbbb", lw=1.2, marker="")
        drawing.draw_curve(under, [], [], marker="o", markevery=[-1], ms=6)
        drawing.frame_curves(under, "copy gain (nats)")
    everything = figure.get_tightbbox().padded(0.1)  # inches; the same for each frame
    for snapshot in chosen:
        image.set_data(tile(snapshot.maps[probe].weights, grid.step - grid.length, grid.pool))
        heading.set_text(moment(snapshot))
        for place, text in badges.items():
            text.set_text(badge(snapshot, probe, *place).replace(" ", "\n"))
        if gains:
            seen = tokens.index(snapshot.tokens) + 1
            under.lines[1].set_data(tokens[:seen], gains[:seen])
        file = io.BytesIO()
        figure.savefig(file, bbox_inches=everything, pil_kwargs={"compress_level": 1})
        frames.append(Image.open(file).convert("RGB"))
    durations = [700, *[350] * (len(frames) - 2), 2500] if len(frames) > 1 else [2500]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=False)
    return path


def quick_mosaic(snapshot: Snapshot, file: Path, probe: str = "") -> None:
    """Draw every head on one text (default: `shown_probe`) in the colours of `mosaic`, with its name and the step, in
    some milliseconds: for use during training, and for trackers."""
    from matplotlib.font_manager import findfont
    from PIL import Image, ImageDraw, ImageFont

    probe = probe or shown_probe(snapshot)
    layers, heads, tokens, _ = snapshot.maps[probe].weights.shape
    grid = lay_out(layers, heads, tokens, room=1200, largest=4)
    maps = tile(snapshot.maps[probe].weights, grid.step - grid.length, grid.pool)
    colours = drawing.colour_map()(drawing.weight_norm()(maps), bytes=True)[..., :3]
    pixels = colours.repeat(grid.cell, 0).repeat(grid.cell, 1)
    left, top, words = 34, 44, f"{moment(snapshot)} · probe: {probe}"
    size = max(left + pixels.shape[1], 9 * len(words)), top + pixels.shape[0]
    picture = Image.new("RGB", size, "white")
    picture.paste(Image.fromarray(pixels), (left, top))
    pen = ImageDraw.Draw(picture)
    pen.font = ImageFont.truetype(findfont("DejaVu Sans"), 13)
    pen.text((left, 4), words, fill=drawing.INK)
    pitch = grid.step * grid.cell
    every = math.ceil(32 / pitch)  # as many names as there is room for
    for i in range(0, layers, every):
        pen.text((4, top + i * pitch), f"L{snapshot.layers[i]}", fill=drawing.INK)
    for j in range(0, heads, every):
        pen.text((left + j * pitch, 25), f"H{snapshot.heads[j]}", fill=drawing.INK)
    picture.save(file, "PNG", compress_level=1)


def score_maps(snapshot: Snapshot, path: Path, title: str = "") -> Path:
    """Draw every score of a snapshot as a map [layer x head]; its colour bar has a mark at the chance level."""
    from matplotlib.colors import Normalize, PowerNorm

    names, layers, heads = [n for n in SCORES if n in snapshot.scores], len(snapshot.layers), len(snapshot.heads)
    small = max(layers, heads) <= 8
    cell = max(4, min(44, 300 // max(layers, heads)))  # pixels
    panel = max(heads * cell, 90) + BESIDE
    down = math.ceil(len(names) / max(1, PAGE // panel))
    across = math.ceil(len(names) / down)
    shared = f"{snapshot.num_attention_heads} heads, {snapshot.num_key_value_heads} key/value heads"
    heading = " · ".join(filter(None, [title, moment(snapshot), shared]))
    size = across * panel, 40 + down * (layers * cell + ABOVE)
    figure = drawing.new_figure(*size, heading)
    places = [range(0, count, math.ceil(count / 16)) for count in (layers, heads)]
    rows = places[0], [f"L{snapshot.layers[i]}" for i in places[0]]
    columns = places[1], [f"H{snapshot.heads[j]}" for j in places[1]]
    for place, name in enumerate(names, start=1):
        axes, score, values = figure.add_subplot(down, across, place), SCORES[name], snapshot.scores[name]
        level, (head, (most,)) = snapshot.chance.get(name), of_best_head([snapshot], name)
        seen = [0.0, 1e-6, level or 0, *values[np.isfinite(values)]]
        norm: Normalize = Normalize(min(seen), max(seen))
        if score.high is not None and score.low is not None:  # by a power law: chance is near the lower end
            norm = PowerNorm(drawing.GAMMA, score.low, score.high)
        numbers_from = -np.inf if max(layers, heads) <= 16 else None
        image = drawing.draw_map(axes, values, rows, columns, norm, numbers_from, 8 if small else 5)
        axes.tick_params(labelsize=7)
        words = f"most: {drawing.short(most)} {score.unit}".rstrip() + f", {head}" if head else "not defined here"
        words += "" if level is None else f" · chance {drawing.short(level)}"
        axes.set_title(f"{score.title}\n{words}", fontsize=8.5, loc="left", pad=8)
        drawing.draw_scale(axes, image, (norm.vmin or 0, norm.vmax or 1), mark=level)
    return drawing.save_figure(figure, path)


def curves(snapshots: Sequence[Snapshot], path: Path, title: str = "", mark: PhaseChange | None = None) -> Path:
    """Draw each pattern score of the head that has most of it at the end over the tokens seen, chance dashed, and the
    copy gain below. snapshots: by step. mark: a vertical line there, as `phase_change` gives it."""
    gains, last, tokens = copy_gains(snapshots), snapshots[-1], [snapshot.tokens for snapshot in snapshots]
    figure = drawing.new_figure(1000, 620 if gains else 420, title or "what the heads do, over training")
    top, *below = figure.subplots(2, 1, height_ratios=(2, 1)) if gains else [figure.subplots()]
    for k, name in enumerate(name for name in PATTERNS if best_head(last, name)):
        head, values = of_best_head(snapshots, name)
        drawing.draw_curve(top, tokens, values, k, f"{SCORES[name].title}, {head}: {values[-1]:.2f}")
        if (chance := last.chance.get(name)) is not None:
            top.axhline(chance, color=drawing.group_colour(k), lw=1, ls=(0, (5, 4)))
    top.legend(loc="upper left", bbox_to_anchor=(1.015, 1), fontsize=8, frameon=False, borderaxespad=0)
    drawing.frame_curves(top, "share of the attention; dashed: chance", "" if gains else "tokens seen")
    top.set_ylim(bottom=0)
    for axes in below:
        drawing.draw_curve(axes, tokens, gains, color=drawing.INK, marker=".")
        axes.axhline(0, color=drawing.INK, lw=0.8, ls=(0, (5, 4)))
        meaning = "loss on the first copy of random tokens minus loss on the second"
        drawing.frame_curves(axes, f"copy gain (nats): {meaning}")
    if mark:
        for axes in (top, *below):
            axes.axvline(mark.tokens, color=drawing.GREY, lw=1.2, ls=":")
        words = f"L{mark.layer} H{mark.head} forms: step {mark.step:,}, {drawing.amount(mark.tokens)} tokens"
        top.set_title(words, fontsize=8.5, loc="right", color="#333333")
    return drawing.save_figure(figure, path)


def badge(snapshot: Snapshot, probe: str, layer: int, head: int) -> str:
    """What a head (by its place in the snapshot) does on this probe: "induction 0.53"; nothing near chance.

    Only scores that are measured on the probe count, so that the number belongs to the map below it. Of several, that
    which is most above chance. A score counts from twice and 0.05 above chance; a sink counts half, because heads rest
    on the first token whatever else they do (Xiao et al. 2023, arXiv 2309.17453).
    """
    above = {}
    for name in PATTERNS:
        chance = snapshot.chance.get(name)
        if SCORES[name].probe == probe and name in snapshot.scores and chance is not None:
            value = float(snapshot.scores[name][layer, head])
            if value >= 2 * chance and value >= chance + 0.05:  # not NaN
                above[name] = (value - chance) * (0.5 if name == "sink" else 1)
    if not above:
        return ""
    best = max(above, key=above.__getitem__)
    return f"{SCORES[best].title} {snapshot.scores[best][layer, head]:.2f}"


def shown_probe(snapshot: Snapshot) -> str:
    """The text of pictures of all heads: the repeated one, where a head that copies draws a stripe; else the first."""
    return "repeated_2" if "repeated_2" in snapshot.maps else next(iter(snapshot.maps))


def moment(snapshot: Snapshot) -> str:
    """Step and tokens seen, for titles; nothing for maps that belong to no step (-1)."""
    if snapshot.step < 0:
        return ""
    tokens = "" if snapshot.step and not snapshot.tokens else f" · {drawing.amount(snapshot.tokens)} tokens seen"
    return f"step {snapshot.step:,}{tokens}"
