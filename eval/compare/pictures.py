"""What does a comparison draw? Cost and quality, curves, heads beside each other, recall over the cache, and stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np

from data.storyworld.questions import KINDS
from eval.attention.pictures.drawing import DPI, group_colour, new_figure, save_figure, style_curve
from eval.attention.pictures.plots import side_by_side
from eval.attention.pictures.score_plots import score_maps_side_by_side
from eval.attention.viewer import write_viewer
from eval.compare import Variant, same_tokenizer
from eval.recall import half_at

MARKERS = "osD^vPX*"
LEGEND: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "fontsize": 9, "title_fontsize": 9}
SMOOTHED_OVER = 40  # points of a training curve that are left of it
COSTS = {  # of what histories.json has of a variant: the title of its panel
    "kv_bytes": "validation bits per byte, over cache bytes a token",
    "parameters": "validation bits per byte, over parameters",
}
CURVES = {
    "bits_per_byte": "validation bits per byte",
    "loss": "training loss (nats per token, running mean)",
    "induction": "best head's induction score",
    "copy_gain": "copy gain (nats)",
}
FORMS = {"8": "8 (MHA)", "4": "4 (GQA)", "2": "2 (GQA)", "1": "1 (MQA)", "mla": "MLA"}
MATRICES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def draw(variants: Sequence[Variant], histories: Mapping[str, Any], out: Path) -> dict[str, str]:
    """Every figure that these runs have something for: title -> file in `out`. Those of an earlier comparison go.

    histories: the content of histories.json.
    """
    for old in (*out.glob("comparison_*.png"), *out.glob("comparison.html")):
        old.unlink()
    drawings = {"curves": (curves(variants, histories), "comparison_curves.png")}
    if (models := points(histories)) is not None:
        drawings["recall over the bytes of the cache"] = recall_over_cache(models), "comparison_recall.png"
    if histories["stages"]:
        drawings["stages of one life"] = life(histories["stages"]), "comparison_stages.png"
    for figure, file in drawings.values():
        save_figure(figure, out / file, full_colour=True)
    files = {title: file for title, (_, file) in drawings.items()}
    # the heads of every variant's first run at the end
    named = [(variant.name, variant.runs[0].snapshots[-1]) for variant in variants if variant.runs[0].snapshots]
    shared = set.intersection(*({*snapshot.maps} for _, snapshot in named)) if named else set()
    for probe, title in (("text", "every head on a held-out text"), ("repeated_2", "every head on repeated tokens")):
        if probe in shared:
            files[title] = side_by_side(named, out / f"comparison_{probe}.png", probe).name
    if any("induction" in snapshot.scores for _, snapshot in named):
        files["scores of every head"] = score_maps_side_by_side(named, out / "comparison_scores.png").name
    if shared:
        write_viewer([(name, [snapshot]) for name, snapshot in named], out / "comparison.html")
    return files


def curves(variants: Sequence[Variant], histories: Mapping[str, Any]) -> Any:
    """Quality over its cost, then a line for each run over tokens seen. Losses a token and heads are left out where
    tokens differ."""
    shown = CURVES if same_tokenizer(variants) else {"bits_per_byte": CURVES["bits_per_byte"]}
    recorded = list(zip(variants, histories["variants"], strict=True))
    down = -(-(len(COSTS) + len(shown)) // 3)
    figure = new_figure(1200, 330 * down + 50, layout="constrained")
    panels = iter(figure.subplots(down, 3, squeeze=False).ravel())
    for (key, title), axes in zip(COSTS.items(), panels, strict=False):
        for row, (variant, history) in enumerate(recorded):
            values = list(variant.by_seed(lambda run: run.bits_per_byte).values()) or [np.nan]
            axes.plot([history[key]] * len(values), values, ls="none", marker="_", color=group_colour(row), ms=9)
            error = stdev(values) if len(values) > 1 else 0
            axes.errorbar(history[key], mean(values), yerr=error, capsize=4, label=variant.name, **_look(row))
        style_curve(axes, title)
        axes.margins(x=0.12)
        axes.locator_params(axis="x", nbins=5)
    handles, labels = axes.get_legend_handles_labels()
    for (key, title), axes in zip(shown.items(), panels, strict=False):
        for row, (variant, history) in enumerate(recorded):
            for run, of_run in zip(variant.runs, history["runs"], strict=True):
                after_start = [line for line in run.val if line["step"] > 0] or run.val
                line = _line({"bits_per_byte": after_start, "loss": run.train}.get(key, of_run["looks"]), key)
                axes.plot(*line.T, lw=1.2, ms=4, **_look(row) | ({"marker": ""} if key == "loss" else {}))
        style_curve(axes, title)
        axes.set_xlabel("tokens seen", fontsize=8)
        if not any(line.get_xdata().size for line in axes.lines):
            axes.remove()
    several = any(len(variant.runs) > 1 for variant in variants)
    heading = "mean ± standard deviation; a dash and a line for each seed" if several else None
    figure.legend(handles, labels, ncols=min(6, len(labels)), title=heading, **LEGEND)
    return figure


def _line(records: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    """(points, 2): tokens and a figure, where it is there. A training loss is averaged over neighbouring lines: that of
    a single batch is noisy."""
    line = np.array([(one["tokens"], one[key]) for one in records if one.get(key) is not None]).reshape(-1, 2)
    width = max(1, len(line) // SMOOTHED_OVER) if key == "loss" else 1
    return line[len(line) % width :].reshape(-1, width, 2).mean(1)


def _look(row: int) -> dict[str, Any]:
    """The colour and the marker of a variant; in greyscale the markers differ."""
    return {"color": group_colour(row), "marker": MARKERS[row % len(MARKERS)]}


# ---------------------------------------------------------------------------------------------------------
# recall over the cache: from histories.json alone, so notebook 03 needs no run


class Point(NamedTuple):
    """A model of a sweep over key/value heads and head sizes.

    form: a key of FORMS. kv_bytes: of a token in a 16-bit cache. accuracy: at the end, by seed. half_at: the step of
    the phase change, by seed; None where it never came. steps: of the run.
    """

    form: str
    head_dim: int
    kv_bytes: int
    parameters: int
    accuracy: list[float]
    half_at: list[int | None]
    steps: int


def points(histories: Mapping[str, Any]) -> list[Point] | None:
    """The models of a sweep, from histories.json; None where one was not asked, or has no place in the figure."""
    models = []
    for variant in histories["variants"]:
        settings, kv_heads = variant["settings"], variant["settings"].get("model.num_key_value_heads")
        form = "mla" if settings.get("model.attention") == "mla" else str(kv_heads)
        looks = [
            [{"step": step, "accuracy": accuracy} for step, accuracy in run["recall"]]
            for run in variant["runs"]
            if run["recall"]
        ]
        if not looks or form not in FORMS or not {"model.num_key_value_heads", "model.head_dim"} <= settings.keys():
            return None
        ends, halves = [run[-1]["accuracy"] for run in looks], [half_at(run) for run in looks]
        sizes = settings["model.head_dim"], variant["kv_bytes"], variant["parameters"]
        models.append(Point(form, *sizes, ends, halves, max(run[-1]["step"] for run in looks)))
    return models


def recall_over_cache(models: Sequence[Point], yours: Point | None = None) -> Any:
    """Accuracy, and the step of the phase change, over the bytes of a token in the cache.

    A line for each number of key/value heads: the mean over seeds, a dot for each seed, the size of its heads beside
    it. Seeds without a phase change are drawn above the last step. yours: one more model, as a star.
    """
    steps = max(model.steps for model in models)

    def half(model: Point) -> list[float]:
        return [steps * 1.1 if step is None else step for step in model.half_at]

    figure = new_figure(10 * DPI, 4.3 * DPI, layout="constrained")
    left, right = figure.subplots(1, 2)
    for row, (form, label) in enumerate(FORMS.items()):
        line = sorted((model for model in models if model.form == form), key=lambda model: model.kv_bytes)
        x = [model.kv_bytes * (1 + 0.03 * (row - 2)) for model in line]  # side by side, where bytes are equal
        for axes, of in ((left, lambda model: model.accuracy), (right, half)):
            style = {"color": group_colour(row), "marker": MARKERS[row], "ms": 7, "lw": 1.6, "label": label}
            axes.plot(x, [mean(of(model)) for model in line], **style)
            for place, model in zip(x, line, strict=True):
                axes.plot(
                    [place] * len(of(model)), of(model), ls="none", marker=".", color=group_colour(row), alpha=0.55
                )
        for place, model in zip(x, line if form != "mla" else (), strict=False):
            at = {"xytext": (4, 5), "textcoords": "offset points", "fontsize": 8}
            left.annotate(f"{model.head_dim}", (place, mean(model.accuracy)), **at)
    if yours is not None:
        star = {"marker": "*", "ms": 19, "color": "gold", "mec": "black", "ls": "none", "zorder": 9}
        label = f"yours: {FORMS[yours.form]}, size {yours.head_dim}"
        left.plot([yours.kv_bytes], [mean(yours.accuracy)], label=label, **star)
        right.plot([yours.kv_bytes], [mean(half(yours))], **star)
    left.axhline(0.5, color="grey", lw=0.8, ls=":")
    left.set(ylabel="answers right at the end", ylim=(0, 1.05))
    right.axhline(steps * 1.05, color="grey", lw=0.8, ls=":")
    at = {"xycoords": ("axes fraction", "data"), "ha": "right", "fontsize": 8}
    right.annotate(f"not in {steps:,} steps", (0.98, steps * 1.06), **at)
    right.set(ylabel="step at which over half are right", ylim=(0, steps * 1.2))
    ticks = [32, 64, 128, 256, 512, 1024]
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.set_xlabel("KV-cache bytes a token (16 bits)")
        axes.grid(alpha=0.3)
    handles, labels = left.get_legend_handles_labels()
    title = "key/value heads (number at a point: head size)"
    figure.legend(handles, labels, ncols=len(labels), title=title, **LEGEND)
    return figure


# ---------------------------------------------------------------------------------------------------------
# stages of one life


def life(stages: Sequence[Mapping[str, Any]]) -> Any:
    """A column for each stage; its rows: answers right by class (a mark: the best rule that does not read), the heads
    that right answers need, and the matrices that moved."""
    figure = new_figure(90 + 230 * len(stages), 630, layout="constrained")
    panels = figure.subplots(3, len(stages), squeeze=False)
    kinds = [kind for kind in KINDS if any(f"exact_match_{kind}" in stage["right"] for stage in stages)]
    matrices = {name for stage in stages for _, name, _ in stage["moved"]}
    names = [name for name in MATRICES if name in matrices] + sorted(matrices - {*MATRICES})
    needed = max(1e-6, *(np.max(stage["needed"]) for stage in stages))
    most = max((share for stage in stages for *_, share in stage["moved"]), default=1.0)
    for (classes, heads, moved), stage in zip(panels.T, stages, strict=True):
        rows = np.arange(len(kinds))
        classes.barh(
            rows, [stage["right"].get(f"exact_match_{kind}", 0) for kind in kinds], color="#0072B2", height=0.7
        )
        guesses = [stage["right"].get(f"guess_{kind}", np.nan) for kind in kinds]
        classes.plot(guesses, rows, "|", color="black", markersize=9)
        classes.set(yticks=rows, xlim=(0, 1), xticks=[0, 0.5, 1], xticklabels=["0", "50 %", "100 %"])
        classes.set_yticklabels(kinds if stage is stages[0] else [], fontsize=8)
        classes.invert_yaxis()
        share = f"{stage['right']['exact_match']:.0%} right"
        classes.set_title(f"{stage['name']}\n{share}", fontsize=10, parse_math=False)
        rises = np.clip(stage["needed"], 0, None)
        of_heads = heads.imshow(rises, cmap="magma_r", vmin=0, vmax=needed)
        heads.set(xlabel="head", xticks=range(rises.shape[1]), yticks=range(rises.shape[0]))
        if not stage["moved"]:  # it began with random weights
            moved.set_axis_off()
            moved.text(0.5, 0.5, "the first stage", ha="center", va="center", transform=moved.transAxes, fontsize=9)
            continue
        shares = np.full((1 + max(layer for layer, *_ in stage["moved"]), len(names)), np.nan)
        for layer, name, share in stage["moved"]:
            shares[layer, names.index(name)] = share
        of_matrices = moved.imshow(shares, cmap="magma_r", vmin=0, vmax=most, aspect="auto")
        moved.set(yticks=range(len(shares)), xticks=range(len(names)))
        moved.set_xticklabels([name.removesuffix("_proj") for name in names], rotation=90, fontsize=8)
        moved.set_title(f"from {stage['started_from']}", fontsize=8, parse_math=False)
    for row, title in enumerate(("answers right", "needed by right answers\nlayer", "weights moved\nlayer")):
        panels[row, 0].set_ylabel(title)
    figure.align_ylabels(panels[:, 0])
    for row, image, label in (
        (panels[1], of_heads, "rise in loss without it,\nnats a token"),
        (panels[2], of_matrices, "share of its norm"),
    ):
        figure.colorbar(image, ax=[*row], shrink=0.9).set_label(label, fontsize=8)
    return figure
