"""Where is every head in a picture? One image for all heads; frames, names, badges and labels over it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from eval.attention.metrics import PATTERNS, SCORES
from eval.attention.pictures import drawing
from eval.attention.pictures.drawing import DPI, LONGEST_SIDE
from eval.attention.snapshots import ProbeMap, Snapshot

SMALLEST_HEAD = 150  # pixels: room for a name and a badge above the diagonal
BETWEEN = -1.0  # in the array of all heads, where no head is: under the scale, so white
SMALLEST_NAMED = 90  # pixels: below, a head has no text of its own
AXES = "row: the token that looks · column: the token looked at"
LABEL_PIXELS = 9  # a token label needs this many to stand apart from the next


@dataclass(frozen=True)
class Grid:
    """Where every head is. A cell is `cell` pixels wide and stands for `pool` tokens; `gap` cells between heads."""

    layers: int
    heads: int
    tokens: int
    pool: int
    cell: int
    gap: int

    @property
    def length(self) -> int:
        """Cells of a head's side."""
        return math.ceil(self.tokens / self.pool)

    @property
    def step(self) -> int:
        """Cells from one head to the next."""
        return self.length + self.gap

    @property
    def has_names(self) -> bool:
        """Whether a head is large enough for a name and a badge of its own."""
        return self.length * self.cell >= SMALLEST_NAMED

    @property
    def width(self) -> int:
        """Pixels of all heads of a layer beside each other."""
        return (self.heads * self.step - self.gap) * self.cell

    @property
    def height(self) -> int:
        """Pixels of all layers under each other."""
        return (self.layers * self.step - self.gap) * self.cell


def lay_out(
    layers: int,
    heads: int,
    tokens: int,
    room: int = LONGEST_SIDE - 300,
    largest: int = 11,
    smallest_head: int = SMALLEST_HEAD,
) -> Grid:
    """The largest whole number of pixels a token with which the grid is no wider than `room`.

    At most `largest`, or what few heads need to fill a picture. Where not even one pixel is left for a token,
    several share a cell.
    """
    most = max(layers, heads)
    pool = math.ceil(tokens / max(1, room // most - 8))
    length = math.ceil(tokens / pool)
    largest = max(largest, math.ceil(smallest_head / length), min(2 * largest, room // (2 * most * (length + 1))))
    for cell in range(largest, 0, -1):
        gap = max(1, math.ceil(8 / cell))
        if most * (length + gap) * cell <= room:
            break
    return Grid(layers, heads, tokens, pool, cell, gap)


def tile(weights: np.ndarray, gap: int, pool: int = 1) -> np.ndarray:
    """All heads of weights (layer, head, query, key) in one array, layers downwards, heads to the right.

    The gaps between them are BETWEEN. Keys after the query are NaN: they are not small weights, they do not exist.
    pool: the largest of this many queries x keys is kept, since a thin diagonal must not vanish between two pixels.
    """
    layers, heads, tokens, _ = weights.shape
    weights = np.where(np.tril(np.ones((tokens, tokens), dtype=bool)), weights, np.nan).astype(np.float32)
    if pool > 1:
        short = -tokens % pool
        padded = np.pad(weights, [(0, 0), (0, 0), (0, short), (0, short)], constant_values=np.nan)
        blocks = padded.reshape(layers, heads, padded.shape[2] // pool, pool, -1, pool)
        weights = np.fmax.reduce(np.fmax.reduce(blocks, axis=5), axis=3)
    length = weights.shape[-1]
    canvas = np.full((layers, length + gap, heads, length + gap), BETWEEN, dtype=np.float32)
    canvas[:, :length, :, :length] = weights.transpose(0, 2, 1, 3)
    return canvas.reshape(layers * (length + gap), heads * (length + gap))[: -gap or None, : -gap or None]


def without_sink(probe: ProbeMap) -> np.ndarray:
    """The weights without the first token of each document (NaN), the rest of each row sums to 1 again.

    A row with less than 0.001 left is NaN as a whole: it would be noise made large.
    """
    documents = probe.documents or [0] * len(probe.labels)
    first = [t for t, document in enumerate(documents) if t == 0 or document != documents[t - 1]]
    weights = probe.weights.astype(np.float32)
    weights[..., first] = 0
    left = weights.sum(-1, keepdims=True)
    weights = np.divide(weights, left, out=np.full_like(weights, np.nan), where=left >= 1e-3)
    weights[..., first] = np.nan
    return weights


def badge(snapshot: Snapshot, probe: str, layer: int, head: int) -> str:
    """What a head (by its place in the snapshot) does on this probe: "induction 0.53"; nothing near chance."""
    name, _ = strongest_pattern(snapshot, probe, layer, head)
    return f"{SCORES[name].title} {snapshot.scores[name][layer, head]:.2f}" if name else ""


def strongest_pattern(snapshot: Snapshot, probe: str, layer: int, head: int) -> tuple[str, float]:
    """The score by which a head (by its place in the snapshot) stands out on this probe, and how far, in nats; "" and 0
    near chance.

    Only scores that are measured on the probe count, so that the number belongs to the map below it. Of several, that
    with the largest Kullback-Leibler divergence from its chance level, both read as the share of attention on the
    pattern's targets. A score counts from twice and 0.05 above chance; a sink counts half, because heads rest on the
    first token whatever else they do (Xiao et al. 2023, arXiv 2309.17453).
    """
    best, most = "", 0.0
    for name in PATTERNS:
        chance = snapshot.chance.get(name)
        if SCORES[name].probe != probe or name not in snapshot.scores or chance is None:
            continue
        value = float(snapshot.scores[name][layer, head])
        if not (value >= 2 * chance and value >= chance + 0.05):  # NaN as well
            continue
        p, q = np.clip([value, chance], 1e-6, 1 - 1e-6)
        nats = float(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))) * (0.5 if name == "sink" else 1)
        if nats > most:
            best, most = name, nats
    return best, most


def score_line(snapshot: Snapshot, name: str, layer: int, head: int) -> str:
    """A score of a head (by its place in the snapshot): "induction 0.53 (chance 0.03)"; "" where it is undefined."""
    value, chance = float(snapshot.scores[name][layer, head]), snapshot.chance.get(name)
    if not math.isfinite(value):
        return ""
    return f"{SCORES[name].title} {value:.2f}" + (f" (chance {chance:.2f})" if chance is not None else "")


def moment(snapshot: Snapshot) -> str:
    """Step and tokens seen, for titles; nothing for maps that belong to no step (-1)."""
    if snapshot.step < 0:
        return ""
    tokens = "" if snapshot.step and not snapshot.tokens else f" · {drawing.amount(snapshot.tokens)} tokens seen"
    return f"step {snapshot.step:,}{tokens}"


def chosen_probe(snapshot: Snapshot, probe: str | None) -> tuple[str, ProbeMap]:
    """This probe, or the first one. Raises ValueError where there is none."""
    if probe is None and snapshot.maps:
        probe = next(iter(snapshot.maps))
    if probe is None or probe not in snapshot.maps:
        raise ValueError(f"step {snapshot.step} has no maps of {probe!r}, but of {sorted(snapshot.maps)}")
    return probe, snapshot.maps[probe]


def kv_heads(snapshot: Snapshot) -> str:
    """The toggle in words: "MHA, 8 heads", "GQA, 8 heads on 2 KV heads", "MLA, 8 heads on one latent"."""
    heads, kv = snapshot.num_attention_heads, snapshot.num_key_value_heads
    if snapshot.attention == "mla":
        return f"MLA, {heads} heads on one latent"
    name = "MHA" if heads == kv else "MQA" if kv == 1 else "GQA"
    return f"{name}, {heads} heads" + ("" if heads == kv else f" on {kv} KV head{'s' if kv > 1 else ''}")


def legend(snapshot: Snapshot, probe: str, grid: Grid, hide_sink: bool) -> str:
    """How a mosaic is read, in one line."""
    shown = snapshot.maps[probe]
    parts = [AXES, " · "]
    shared = "frame: heads that read one key/value head" if snapshot.num_key_value_heads > 1 else "one key/value head"
    parts += ["every head makes its keys and values from one latent" if snapshot.attention == "mla" else shared]
    if grid.has_names and any(SCORES[name].probe == probe for name in PATTERNS if name in snapshot.scores):
        parts += [" · badge: the strongest pattern on this text, as a share of the attention"]
    if shown.documents and len(set(shown.documents)) > 1:
        parts += [" · blue: where a document ends"]
    return "".join(parts) + hidden_note(shown, hide_sink)


def hidden_note(shown: ProbeMap, hide_sink: bool) -> str:
    """What is not in the picture."""
    whose = "first token of each document" if shown.documents and len(set(shown.documents)) > 1 else "first token"
    note = f" · {whose} hidden, the rest of a row sums to 1 again" if hide_sink else ""
    return note + (f" · not shown: {shown.left_out}" if shown.left_out else "")


def draw_heads(figure, left: float, grid: Grid, snapshot: Snapshot, probe: str, hide_sink: bool = False):
    """All maps of one probe as one image, its left edge at this pixel of the figure: (axes, image).

    A cell is a whole number of pixels, so the axes are placed by hand; what extends beyond the figure is for
    `drawing.fit`.
    """
    shown = snapshot.maps[probe]
    axes, image = draw_image(figure, left, grid, without_sink(shown) if hide_sink else shown.weights)
    draw_boundaries(axes, grid, shown)
    draw_frames(axes, grid, snapshot)
    draw_names(axes, grid, snapshot, probe)
    label_tokens(axes, grid, snapshot, shown)
    return axes, image


def draw_image(figure, left: float, grid: Grid, weights: np.ndarray):
    """One imshow for all heads: (axes, image)."""
    width, height = figure.get_size_inches() * DPI
    axes = figure.add_axes((left / width, 1 - grid.height / height, grid.width / width, grid.height / height))
    style = {"cmap": drawing.colour_map(), "norm": drawing.weight_norm(), "interpolation": "none", "aspect": "auto"}
    image = axes.imshow(tile(weights, grid.gap, grid.pool), **style)
    axes.tick_params(length=0, pad=6)
    axes.spines[:].set_visible(False)
    return axes, image


def draw_frames(axes, grid: Grid, snapshot: Snapshot) -> None:
    """One frame around the heads of a layer that share a key/value head; the colour says which."""
    from matplotlib.patches import Rectangle

    groups = [snapshot.group(head) for head in snapshot.heads]
    around = min(0.45 * grid.gap, 4 / grid.cell)
    starts = [j for j in range(len(groups)) if j == 0 or groups[j] != groups[j - 1]]
    for i in range(grid.layers):
        for start, end in zip(starts, [*starts[1:], len(groups)], strict=True):
            corner = (start * grid.step - 0.5 - around, i * grid.step - 0.5 - around)
            width, height = (end - start - 1) * grid.step + grid.length + 2 * around, grid.length + 2 * around
            colour = drawing.group_colour(groups[start])
            axes.add_patch(Rectangle(corner, width, height, fill=False, lw=1.6, ec=colour, clip_on=False))


def draw_boundaries(axes, grid: Grid, shown: ProbeMap) -> None:
    """Where a document of a packed row ends: a step in every head's triangle."""
    from matplotlib.collections import LineCollection

    documents = shown.documents or []
    ends = [t / grid.pool for t in range(1, len(documents)) if documents[t] != documents[t - 1]]
    lines = []
    for i in range(grid.layers):
        for j in range(grid.heads):
            left, top = j * grid.step - 0.5, i * grid.step - 0.5
            lines += [[(left, top + t), (left + t, top + t), (left + t, top + grid.length)] for t in ends]
    axes.add_collection(LineCollection(lines, colors=drawing.BOUNDARY, linewidths=0.8), autolim=False)


def draw_names(axes, grid: Grid, snapshot: Snapshot, probe: str) -> None:
    """Name and badge of each head, in this order, in the empty corner above its diagonal, if there is room for text."""
    pixels = grid.length * grid.cell
    if not grid.has_names:
        return
    size = min(9.0, 0.06 * pixels)
    for i, layer in enumerate(snapshot.layers):
        for j, head in enumerate(snapshot.heads):
            shares = snapshot.num_key_value_heads < snapshot.num_attention_heads
            name = f"L{layer} H{head}" + (f" · KV {snapshot.group(head)}" if shares else "")
            x, y = j * grid.step + grid.length - 0.5 - 3 / grid.cell, i * grid.step - 0.5 + 3 / grid.cell
            style = {"ha": "right", "va": "top", "parse_math": False}
            axes.text(x, y, name, fontsize=size, weight="bold", color="#444444", **style)
            text = badge(snapshot, probe, i, j)
            below = y + 1.7 * size * DPI / 72 / grid.cell
            small = min(0.95 * size, 0.045 * pixels)  # the diagonal comes nearer
            axes.text(x, below, text, fontsize=small, color=drawing.BADGE, **style)


def label_tokens(axes, grid: Grid, snapshot: Snapshot, shown: ProbeMap) -> None:
    """Token names beside each row of heads (queries) and under each column (keys).

    Every second to fourth one where they would touch; only positions where even those would.
    """
    apart = math.ceil(LABEL_PIXELS * grid.pool / grid.cell)
    if not grid.has_names:
        return label_heads(axes, grid, snapshot)
    if apart <= 4:
        places = list(range(0, grid.tokens, apart))
        names = [drawing.shorten(shown.labels[t]) for t in places]
    else:
        every = next(n for n in (10, 20, 50, 100, 200, 500, 1000, 10000) if n * grid.cell / grid.pool >= 24)
        places = list(range(0, grid.tokens, every))
        names = [str(t) for t in places]
    size = min(9.0, max(6.0, 0.65 * grid.cell / grid.pool))
    style = {"fontsize": size, "family": drawing.fonts(), "parse_math": False}
    cells = [(t + 0.5) / grid.pool - 0.5 for t in places]
    axes.set_yticks([i * grid.step + t for i in range(grid.layers) for t in cells])
    axes.set_yticklabels(names * grid.layers, **style)
    axes.set_xticks([j * grid.step + t for j in range(grid.heads) for t in cells])
    axes.set_xticklabels(names * grid.heads, rotation=90, **style)


def label_heads(axes, grid: Grid, snapshot: Snapshot, size: float = 7) -> None:
    """Layers and heads at the edges, where a head has no name of its own."""
    middle = (grid.length - 1) / 2
    axes.set_yticks([i * grid.step + middle for i in range(grid.layers)], [f"L{n}" for n in snapshot.layers])
    axes.set_xticks([j * grid.step + middle for j in range(grid.heads)], [f"H{n}" for n in snapshot.heads])
    axes.tick_params(labelsize=size)


def draw_scale(axes, image) -> None:
    """The colour bar of attention weights, right of the axes."""
    width, height = axes.bbox.size
    tall = min(1, 420 / height)
    bar_axes = axes.inset_axes((1 + 30 / width, 1 - tall, 14 / width, tall))
    ticks = [0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1]
    bar = axes.figure.colorbar(image, cax=bar_axes, ticks=ticks)
    bar.ax.set_yticklabels([f"{tick:g}".lstrip("0") or "0" for tick in ticks], fontsize=8)
    bar.ax.set_ylabel("attention weight", fontsize=8)
    bar.outline.set_visible(False)
