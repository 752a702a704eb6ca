"""Figures of a comparison: curves, the cost of shared keys, stages, and a page of heads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eval.attention.history import ENOUGH_TO_COPY
from eval.compare.runs import Variant, difference, forks, same_tokenizer
from eval.page.viewer import write_viewer
from eval.pictures import drawing
from storyworld.questions import KINDS

# A training curve is averaged to about this many points.
SMOOTHED_OVER = 40
CURVES = {
    "bits_per_byte": "validation bits per byte",
    "loss": "training loss (nats per token, running mean)",
    "induction": "best head's induction score",
    "copy_gain": "copy gain (nats)",
}
# In sharing_keys, models of a panel may differ in SHARING, and panels in TRAINING.
SHARING = {"model.num_key_value_heads", "model.intermediate_size"}
TRAINING = {"train.max_steps": "{:,} steps", "data.sequence_length": "rows of {:,}"}


def draw(variants: Sequence[Variant], histories: Mapping[str, Any], out: Path) -> dict[str, str]:
    """Draw all figures of these runs, and return {title: file in `out`}.

    histories: the content of histories.json
    """
    # The last comparison may have had more figures.
    for old in (*out.glob("comparison_*.png"), *out.glob("comparison.html")):
        old.unlink()
    figures = {"curves": curves(variants, histories)}
    figures["sharing"] = sharing_keys(histories["variants"])
    if histories["stages"]:
        figures["stages"] = life(histories["stages"])
    files = {}
    for name, figure in figures.items():
        if figure is not None:
            files[name] = drawing.save_figure(figure, out / f"comparison_{name}.png").name
    pages = []
    for variant in variants:
        # the last heads of its first run; of a life and its fork, those of every step
        snapshots = variant.runs[0].snapshots[0 if forks(variants) else -1 :]
        if snapshots and snapshots[0].maps:
            pages.append((variant.name, snapshots))
    if pages:
        title = "The heads of all variants, beside each other"
        files[title] = write_viewer(pages, out / "comparison.html").name
    return files


def curves(variants: Sequence[Variant], histories: Mapping[str, Any]) -> Any:
    """Draw a line for each run over tokens seen; only bits per byte if tokenizers differ."""
    # a loss a token says nothing across tokenizers: a longer token is harder, and there are fewer
    keys = list(CURVES) if same_tokenizer(variants) else ["bits_per_byte"]
    across = min(2, len(keys))
    down = -(-len(keys) // 2)  # rounded up
    figure = drawing.new_figure(500 * across, 50 + 330 * down)
    for axes, key in zip(figure.subplots(down, across, squeeze=False).flat, keys, strict=True):
        for number, variant in enumerate(variants):
            recorded = histories["variants"][number]["runs"]
            for run, history in zip(variant.runs, recorded, strict=True):
                # the loss before the first step would flatten the curve
                val = [line for line in run.lines["val"] if line["step"] > 0] or run.lines["val"]
                logs = {"bits_per_byte": val, "loss": run.lines["train"]}
                curve = []
                for line in logs.get(key, history["looks"]):
                    if line.get(key) is not None:
                        curve.append((line["tokens"], line[key]))
                # The loss of a single batch is noisy: average neighbouring lines.
                width = max(1, len(curve) // SMOOTHED_OVER) if key == "loss" else 1
                # whole groups of `width` points, the newest among them
                points = np.reshape(curve, (-1, 2))[len(curve) % width :]
                x, y = points.reshape(-1, width, 2).mean(1).T
                label = variant.name if run is variant.runs[0] else ""  # one line in the legend
                marks = [-1] if key == "loss" else None
                drawing.draw_curve(axes, x, y, number, label, lw=1.2, markevery=marks)
        drawing.frame_curves(axes, CURVES[key])
        if not any(line.get_xdata().size for line in axes.lines):
            axes.remove()
        for fork in forks(variants):  # where the lives part
            axes.axvline(fork.tokens, color="grey", lw=0.8, ls=":")
    drawing.legend_below(figure, figure.axes[0])
    return figure


def sharing_keys(variants: Sequence[Mapping[str, Any]]) -> Any:
    """Draw copy gain over training for each number of key/value heads.

    variants: of histories.json, so notebooks 03 and 04 need no run

    None if other keys differ, or if a run has no snapshots.
    """
    # A panel for each length of training and of rows.
    panels: dict[str, list[Mapping[str, Any]]] = {}
    for variant in variants:
        settings = variant["settings"]
        other_keys = settings.keys() - SHARING - TRAINING.keys()
        if other_keys or "model.num_key_value_heads" not in settings:
            return None
        for run in variant["runs"]:
            if not run["looks"] or None in [look["copy_gain"] for look in run["looks"]]:
                return None
        titles = [form.format(settings[key]) for key, form in TRAINING.items() if key in settings]
        panels.setdefault(", ".join(titles), []).append(variant)
    figure = drawing.new_figure(max(640, 40 + 230 * len(panels)), 330)
    every_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, models) in zip(every_axes, panels.items(), strict=True):
        for number, model in enumerate(models):
            _draw_copy_gain(axes, model, number)
        drawing.frame_curves(axes, title)
        axes.locator_params(axis="x", nbins=4)
    # The interval of few seeds may be far wider than the lines, so these set the limits.
    gains = np.concatenate([line.get_ydata() for axes in every_axes for line in axes.lines])
    for axes in every_axes:
        axes.axhline(ENOUGH_TO_COPY, color="grey", lw=0.8, ls=":")
    every_axes[0].set_ylim(min(gains) - 0.2, max(gains) + 0.2)
    every_axes[0].set_ylabel("copy gain, nats a token", fontsize=9)
    title = "key/value heads: bytes of a token in the cache (16 bits)"
    drawing.legend_below(figure, every_axes[0], title)
    return figure


def _draw_copy_gain(axes: Any, variant: Mapping[str, Any], number: int) -> None:
    tokens = {}
    gains: dict[int, dict[int, float]] = {}  # step -> seed -> nats
    for run in variant["runs"]:
        for look in run["looks"]:
            tokens[look["step"]] = look["tokens"]
            gains.setdefault(look["step"], {})[run["seed"]] = look["copy_gain"]
    # Only steps that every seed has.
    steps = [step for step in sorted(gains) if len(gains[step]) == len(variant["runs"])]
    x = [tokens[step] for step in steps]
    # A thin line for each seed, then their mean and its 95 % interval.
    for run in variant["runs"]:
        y = [gains[step][run["seed"]] for step in steps]
        drawing.draw_curve(axes, x, y, number, lw=0.6, marker="", alpha=0.5)
    means = []
    lows = []
    highs = []
    for step in steps:
        # the difference to zero is the mean
        mean = difference(dict.fromkeys(gains[step], 0.0), gains[step])
        assert mean is not None
        low, high = mean.interval or (mean.value, mean.value)
        means.append(mean.value)
        lows.append(low)
        highs.append(high)
    heads = variant["settings"]["model.num_key_value_heads"]
    form = {variant["query_heads"]: "MHA", 1: "MQA"}.get(heads, "GQA")
    label = f"{form} ({heads}): {variant['kv_bytes']:,} bytes"
    drawing.draw_curve(axes, x, means, number, label, markevery=4)
    axes.fill_between(x, lows, highs, color=drawing.group_colour(number), alpha=0.15, lw=0)


def life(stages: Sequence[Mapping[str, Any]]) -> Any:
    """Draw a column for each stage, in three rows.

    Right answers by class, with a mark for the best rule that does not read; heads that right
    answers need; matrices that moved.
    """
    from matplotlib.colors import Normalize

    asked = set().union(*(stage["right"] for stage in stages))
    kinds = [kind for kind in KINDS if f"exact_match_{kind}" in asked]
    matrices = list(dict.fromkeys(name for stage in stages for _, name, _ in stage["moved"]))
    # (layer, head); NaN: not measured
    # a loss that falls without a head would need a second colour; it is rare and small
    needed = [np.array(stage["needed"], float).clip(min=0) for stage in stages]
    # all columns share one scale
    largest = max(1e-6, *(np.nanmax(rises) for rises in needed))
    scale_of_needs = Normalize(0, largest)
    moved = [share for stage in stages for *_, share in stage["moved"]]
    most = max(moved, default=1.0)
    scale_of_moves = Normalize(0, most)
    figure = drawing.new_figure(90 + 230 * len(stages), 630)
    panels = figure.subplots(3, len(stages), squeeze=False)
    for (top, middle, bottom), stage, rises in zip(panels.T, stages, needed, strict=True):
        right = stage["right"]
        rows = range(len(kinds))
        shares = [right.get(f"exact_match_{kind}", 0) for kind in kinds]
        guesses = [right.get(f"guess_{kind}", np.nan) for kind in kinds]
        top.barh(rows, shares, color="#0072B2", height=0.7)
        # a bar that ends left of its mark is worse than a rule that never reads
        top.plot(guesses, rows, "|", color="black", markersize=9)
        top.set(xlim=(0, 1), xticks=[0, 0.5, 1], xticklabels=["0", "50 %", "100 %"])
        top.set_yticks(rows, kinds if stage is stages[0] else [""] * len(kinds), fontsize=8)
        top.invert_yaxis()
        title = f"{stage['name']}\n{right['exact_match']:.0%} right"
        top.set_title(title, fontsize=10, **drawing.text_style())
        heads = _counted("H", len(rises[0]))
        needs = drawing.draw_map(middle, rises, _counted("L", len(rises)), heads, scale_of_needs)
        if not stage["moved"]:
            # it began with random weights
            bottom.set_axis_off()
            style = {"ha": "center", "va": "center", "fontsize": 9}
            bottom.text(0.5, 0.5, "the first stage", transform=bottom.transAxes, **style)
            continue
        layers = 1 + max(layer for layer, *_ in stage["moved"])
        changes = np.full((layers, len(matrices)), np.nan)
        for layer, name, share in stage["moved"]:
            changes[layer, matrices.index(name)] = share
        columns = range(len(matrices)), [name.removesuffix("_proj") for name in matrices]
        moves = drawing.draw_map(bottom, changes, _counted("L", layers), columns, scale_of_moves)
        bottom.tick_params(axis="x", rotation=90)
        bottom.set_title(f"from {stage['started_from']}", fontsize=8, **drawing.text_style())
    titles = ("answers right", "needed by right answers", "weights moved")
    for axes, title in zip(panels[:, 0], titles, strict=True):
        axes.set_ylabel(title)
    figure.align_ylabels(panels[:, 0])
    rise = "rise in loss without it,\nnats a token"
    drawing.draw_scale(panels[1, -1], needs, (0, largest), rise)
    drawing.draw_scale(panels[2, -1], moves, (0, most), "share of its norm")
    return figure


def _counted(letter: str, count: int) -> tuple[range, list[str]]:
    return range(count), [f"{letter}{number}" for number in range(count)]
