"""Pictures of attention. matplotlib's Figure and Agg canvas, never pyplot: nothing is shared with a notebook."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from eval.attention.capture import AttentionMaps

GAP = 2  # empty cells between two heads
GROUP_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8c6bb1", "#555555"]
CJK_FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "PingFang SC", "Microsoft YaHei")


def tile(maps: AttentionMaps, row: int = 0) -> np.ndarray:
    """All heads of one sequence in one array: layers downwards, heads to the right, NaN where nothing is.

    Keys after the query are NaN too: they are not small weights, they do not exist.
    """
    weights = maps.weights[:, row].numpy()  # (layer, head, T, T)
    layers, heads, length, _ = weights.shape
    step = length + GAP
    canvas = np.full((layers * step - GAP, heads * step - GAP), np.nan, dtype=np.float32)
    lower = np.tril(np.ones((length, length), dtype=bool))
    for i in range(layers):
        for j in range(heads):
            tile_of_head = np.where(lower, weights[i, j], np.nan)
            canvas[i * step : i * step + length, j * step : j * step + length] = tile_of_head
    return canvas


def mosaic(maps: AttentionMaps, token_labels: list[str], title: str, path: Path, row: int = 0) -> None:
    """Draw every layer x head as one PNG, with token labels, KV groups framed and one fixed colour scale.

    Rows of a map are queries (the token that looks), columns are keys (the token looked at).
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    layers, heads, length = len(maps.layers), len(maps.heads), maps.weights.shape[-1]
    step = length + GAP
    cell = max(1.7, 0.105 * length)  # inches a head
    width, height = heads * cell + 2.6, layers * cell + 2.3
    figure = Figure(figsize=(width, height), dpi=100)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((1.35 / width, 1.25 / height, heads * cell / width, layers * cell / height))
    colours = _colour_map()
    image = axes.imshow(
        tile(maps, row), cmap=colours, norm=PowerNorm(0.4, 0, 1), interpolation="nearest", aspect="equal"
    )
    _label_tokens(axes, token_labels, layers, heads, length)
    _label_heads(axes, maps, step, length)
    _frame_groups(axes, maps, step, length)
    bar_axes = figure.add_axes((1 - 0.95 / width, 1.25 / height, 0.16 / width, layers * cell / height))
    bar = figure.colorbar(image, cax=bar_axes, ticks=[0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1])
    bar.ax.set_yticklabels(["0", ".01", ".05", ".1", ".25", ".5", ".75", "1"], fontsize=8)
    bar.set_label("attention weight (same scale in every picture)", fontsize=8)
    figure.text(0.5, 1 - 0.3 / height, title, ha="center", va="center", fontsize=12)
    figure.savefig(path)


def fonts() -> list[str]:
    """Font families for token labels: matplotlib's own, and the first installed one with Chinese characters."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *[name for name in CJK_FONTS if name in installed][:1]]


def _colour_map():
    from matplotlib import colormaps

    return colormaps["magma_r"].with_extremes(bad="#f0f0f0")


def _label_tokens(axes, token_labels: list[str], layers: int, heads: int, length: int) -> None:
    """Token names once a row of heads (queries) and once under each column of heads (keys)."""
    step = length + GAP
    names = [_shorten(label) for label in token_labels[:length]]
    axes.set_yticks([i * step + t for i in range(layers) for t in range(length)])
    axes.set_yticklabels(names * layers, fontsize=6.5, family=fonts())
    axes.set_xticks([j * step + t for j in range(heads) for t in range(length)])
    axes.set_xticklabels(names * heads, fontsize=6.5, rotation=90, family=fonts())
    axes.tick_params(length=0, pad=2)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_xlim(-1.5, heads * step - GAP + 0.5)
    axes.set_ylim(layers * step - GAP + 0.5, -1.5)


def _label_heads(axes, maps: AttentionMaps, step: int, length: int) -> None:
    for i, row_of_labels in enumerate(maps.labels):
        for j, label in enumerate(row_of_labels):
            name, _, group = label.partition(" (")
            text = name if maps.num_key_value_heads == maps.num_attention_heads else f"{name}  {group[:-1]}"
            x, y = j * step + length - 0.8, i * step - 0.2  # in the empty upper triangle
            axes.text(x, y, text, ha="right", va="top", fontsize=9, weight="bold", color="#444444")


def _frame_groups(axes, maps: AttentionMaps, step: int, length: int) -> None:
    """One frame around the heads of a layer that share a key/value head; the colour says which."""
    from matplotlib.patches import Rectangle

    group_size = maps.num_attention_heads // maps.num_key_value_heads
    groups = [head // group_size for head in maps.heads]
    for i in range(len(maps.layers)):
        start = 0
        for j in range(1, len(groups) + 1):
            if j < len(groups) and groups[j] == groups[start]:
                continue
            corner = (start * step - 1.2, i * step - 1.2)
            width = (j - start - 1) * step + length + 1.4
            colour = GROUP_COLOURS[groups[start] % len(GROUP_COLOURS)]
            axes.add_patch(Rectangle(corner, width, length + 1.4, fill=False, lw=1.6, ec=colour))
            start = j


def _shorten(label: str, longest: int = 12) -> str:
    label = label.replace("$", r"\$")  # matplotlib would read formulas
    return label if len(label) <= longest else label[: longest - 1] + "…"
