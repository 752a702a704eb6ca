"""What does a comparison draw? Curves, what sharing keys costs, recall over the cache, stages, and a page of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from eval.attention.history import ENOUGH_TO_COPY
from eval.compare import Variant, difference, same_tokenizer
from eval.page.viewer import write_viewer
from eval.pictures import drawing
from storyworld.questions import KINDS

NEAR = "offset points"
SMOOTHED_OVER = 40  # points of a training curve that are left of it
CURVES = {
    "bits_per_byte": "validation bits per byte",
    "loss": "training loss (nats per token, running mean)",
    "induction": "best head's induction score",
    "copy_gain": "copy gain (nats)",
}
SHARING = {"model.num_key_value_heads", "model.intermediate_size"}  # what may differ in a panel of sharing_keys
TRAINING = {"train.max_steps": "{:,} steps", "data.sequence_length": "rows of {:,}"}  # and what between panels
FORMS = {"8": "8 (MHA)", "4": "4 (GQA)", "2": "2 (GQA)", "1": "1 (MQA)", "mla": "MLA"}


def draw(variants: Sequence[Variant], histories: Mapping[str, Any], out: Path) -> dict[str, str]:
    """Every figure that these runs have something for: title -> file in `out`. Those of an earlier comparison go.

    histories: the content of histories.json. comparison.html has the heads of every variant's first run, at the end.
    """
    for old in (*out.glob("comparison_*.png"), *out.glob("comparison.html")):
        old.unlink()
    figures = {"curves": curves(variants, histories)}
    if (shared := sharing_keys(histories)) is not None:
        figures["sharing"] = shared
    if models := points(histories):
        figures["recall"] = recall_over_cache(models)
    if histories["stages"]:
        figures["stages"] = life(histories["stages"])
    files = {name: drawing.save_figure(figure, out / f"comparison_{name}.png").name for name, figure in figures.items()}
    looks = [(variant.name, variant.runs[0].snapshots[-1:]) for variant in variants]
    if drawn := [(name, last) for name, last in looks if last and last[0].maps]:
        files["The heads of all variants, beside each other"] = write_viewer(drawn, out / "comparison.html").name
    return files


def curves(variants: Sequence[Variant], histories: Mapping[str, Any]) -> Any:
    """A line for each run over tokens seen. Losses a token and heads are left out where tokens differ."""
    shown = CURVES if same_tokenizer(variants) else {"bits_per_byte": CURVES["bits_per_byte"]}
    across, down = min(2, len(shown)), -(-len(shown) // 2)
    figure = drawing.new_figure(500 * across, 50 + 330 * down)
    for axes, (key, title) in zip(figure.subplots(down, across, squeeze=False).flat, shown.items(), strict=True):
        for number, (variant, history) in enumerate(zip(variants, histories["variants"], strict=True)):
            for run, of_run in zip(variant.runs, history["runs"], strict=True):
                after_start = [line for line in run.lines["val"] if line["step"] > 0] or run.lines["val"]
                records = {"bits_per_byte": after_start, "loss": run.lines["train"]}.get(key, of_run["looks"])
                line = np.array([(record["tokens"], record[key]) for record in records if record.get(key) is not None])
                line = line.reshape(-1, 2)
                # a training loss is averaged over neighbouring lines: that of a single batch is noisy
                width = max(1, len(line) // SMOOTHED_OVER) if key == "loss" else 1
                x, y = line[len(line) % width :].reshape(-1, width, 2).mean(1).T
                label = variant.name if run is variant.runs[0] else ""
                drawing.draw_curve(axes, x, y, number, label, lw=1.2, markevery=[-1] if key == "loss" else None)
        drawing.frame_curves(axes, title)
        if not any(line.get_xdata().size for line in axes.lines):
            axes.remove()
    drawing.legend_below(figure, figure.axes[0])
    return figure


# ---------------------------------------------------------------------------------------------------------
# what sharing keys costs, and recall over the cache: from histories.json alone, so notebooks 03 and 04 need no run


def sharing_keys(histories: Mapping[str, Any]) -> Any:
    """Copy gain over training: the mean over seeds for each number of key/value heads, and its 95 % interval.

    A panel for each length of training and of rows. None where other keys differ too, or a run was not looked at.
    """
    panels = dict[str, list[Mapping[str, Any]]]()
    for variant in histories["variants"]:
        settings, looks = variant["settings"], [look for run in variant["runs"] for look in run["looks"] or [{}]]
        known = "model.num_key_value_heads" in settings and settings.keys() <= SHARING | TRAINING.keys()
        if not known or any(look.get("copy_gain") is None for look in looks):
            return None
        title = ", ".join(words.format(settings[key]) for key, words in TRAINING.items() if key in settings)
        panels.setdefault(title, []).append(variant)
    figure = drawing.new_figure(max(640, 40 + 230 * len(panels)), 330)
    every_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, models) in zip(every_axes, panels.items(), strict=True):
        for number, model in enumerate(models):
            gains = {run["seed"]: {look["step"]: look["copy_gain"] for look in run["looks"]} for run in model["runs"]}
            tokens = {look["step"]: look["tokens"] for run in model["runs"] for look in run["looks"]}
            steps = sorted(set.intersection(*map(set, gains.values())))
            x = [tokens[step] for step in steps]
            by_seed = [{seed: gains[seed][step] for seed in gains} for step in steps]
            means = [change for values in by_seed if (change := difference(dict.fromkeys(values, 0.0), values))]
            heads = model["settings"]["model.num_key_value_heads"]
            name = "MHA" if heads == model["query_heads"] else "MQA" if heads == 1 else "GQA"
            label = f"{name} ({heads}): {model['kv_bytes']:,} bytes"
            for seed in gains:
                drawing.draw_curve(axes, x, [values[seed] for values in by_seed], number, lw=0.6, marker="", alpha=0.5)
            drawing.draw_curve(axes, x, [mean.value for mean in means], number, label, markevery=4)
            low, high = np.transpose([mean.interval or (mean.value, mean.value) for mean in means])
            axes.fill_between(x, low, high, color=drawing.group_colour(number), alpha=0.15, lw=0)
        axes.axhline(ENOUGH_TO_COPY, color="grey", lw=0.8, ls=":")
        drawing.frame_curves(axes, title)
        axes.locator_params(axis="x", nbins=4)
    ends = [value for axes in every_axes for line in axes.lines[:-1] for value in line.get_ydata()]
    every_axes[0].set_ylim(min(ends) - 0.2, max(ends) + 0.2)  # an interval of few seeds may be far wider than they are
    every_axes[0].set_ylabel("copy gain, nats a token", fontsize=9)
    drawing.legend_below(figure, every_axes[0], "key/value heads: bytes of a token in the cache (16 bits)")
    return figure


class Point(NamedTuple):
    """A model of a sweep over key/value heads and head sizes."""

    form: str  # a key of FORMS
    head_dim: int
    kv_bytes: int  # of a token in a 16-bit cache
    parameters: int
    accuracy: list[float]  # at the end, by seed
    half_at: list[int | None]  # the step of the phase change, by seed; None where it never came
    steps: int  # of the run


def points(histories: Mapping[str, Any]) -> list[Point] | None:
    """The models of a sweep, from histories.json; None where one was not asked, or has no place in the figure."""
    models = []
    for variant in histories["variants"]:
        settings, looks = variant["settings"], [run["recall"] for run in variant["runs"] if run["recall"]]
        form = "mla" if settings.get("model.attention") == "mla" else str(settings.get("model.num_key_value_heads"))
        if not looks or form not in FORMS or "model.head_dim" not in settings:
            return None
        ends = [run[-1][1] for run in looks]
        halves = [next((step for step, share in run if share > 0.5), None) for run in looks]
        sizes = settings["model.head_dim"], variant["kv_bytes"], variant["parameters"]
        models.append(Point(form, *sizes, ends, halves, max(run[-1][0] for run in looks)))
    return models


def recall_over_cache(models: Sequence[Point], yours: Point | None = None) -> Any:
    """Accuracy, and the step of the phase change, over the bytes of a token in the cache.

    A line for each number of key/value heads: the mean over seeds, a dot for each seed, the size of its heads beside
    it. Seeds without a phase change are drawn above the last step. yours: one more model, as a star.
    """
    steps = max(model.steps for model in models)
    figure = drawing.new_figure(1000, 430)
    left, right = figure.subplots(1, 2)
    half = f"step at which over half are right (above the line: not in {steps:,} steps)"
    for axes, title, figures_of in (
        (left, "answers right at the end", lambda model: model.accuracy),
        (right, half, lambda model: [steps * 1.1 if step is None else step for step in model.half_at]),
    ):
        for row, (form, label) in enumerate(FORMS.items()):
            line = sorted((model for model in models if model.form == form), key=lambda model: model.kv_bytes)
            x = [model.kv_bytes * (1 + 0.03 * (row - 2)) for model in line]  # side by side, where bytes are equal
            drawing.draw_curve(axes, x, [mean(figures_of(model)) for model in line], row, label, ms=7)
            for place, model in zip(x, line, strict=True):
                seeds = figures_of(model)
                drawing.draw_curve(axes, [place] * len(seeds), seeds, row, marker=".", ls="none", alpha=0.55)
                if axes is left and form != "mla":
                    axes.annotate(f"{model.head_dim}", (place, mean(seeds)), (4, 5), fontsize=8, textcoords=NEAR)
        if yours is not None:
            label = f"yours: {FORMS[yours.form]}, size {yours.head_dim}"
            star: dict[str, Any] = {"marker": "*", "ms": 19, "color": "gold", "mec": "black", "ls": "none", "zorder": 9}
            drawing.draw_curve(axes, [yours.kv_bytes], [mean(figures_of(yours))], label=label, **star)
        axes.set_xscale("log", base=2)
        drawing.frame_curves(axes, title, "KV-cache bytes a token (16 bits)")
        axes.set_xticks([32, 64, 128, 256, 512, 1024], ["32", "64", "128", "256", "512", "1,024"])
    left.set_ylim(0, 1.05)
    right.axhline(steps * 1.05, color="grey", lw=0.8, ls=":")
    right.set_ylim(0, steps * 1.2)
    drawing.legend_below(figure, left, "key/value heads (number at a point: head size)")
    return figure


# ---------------------------------------------------------------------------------------------------------
# stages of one life


def life(stages: Sequence[Mapping[str, Any]]) -> Any:
    """A column for each stage; its rows: answers right by class (a mark: the best rule that does not read), the heads
    that right answers need, and the matrices that moved."""
    from matplotlib.colors import Normalize

    figure = drawing.new_figure(90 + 230 * len(stages), 630)
    panels = figure.subplots(3, len(stages), squeeze=False)
    kinds = [kind for kind in KINDS if any(f"exact_match_{kind}" in stage["right"] for stage in stages)]
    names = list(dict.fromkeys(name for stage in stages for _, name, _ in stage["moved"]))
    needed = [np.array(stage["needed"], float).clip(min=0) for stage in stages]  # null: not measured
    largest = Normalize(0, max(1e-6, *(np.nanmax(rises) for rises in needed)))
    most = Normalize(0, max((share for stage in stages for *_, share in stage["moved"]), default=1.0))
    for (classes, heads, moved), stage, rises in zip(panels.T, stages, needed, strict=True):
        right, rows = stage["right"], range(len(kinds))
        classes.barh(rows, [right.get(f"exact_match_{kind}", 0) for kind in kinds], color="#0072B2", height=0.7)
        classes.plot([right.get(f"guess_{kind}", np.nan) for kind in kinds], rows, "|", color="black", markersize=9)
        classes.set(xlim=(0, 1), xticks=[0, 0.5, 1], xticklabels=["0", "50 %", "100 %"])
        classes.set_yticks(rows, kinds if stage is stages[0] else [""] * len(kinds), fontsize=8)
        classes.invert_yaxis()
        classes.set_title(f"{stage['name']}\n{right['exact_match']:.0%} right", fontsize=10, **drawing.words())
        of_heads = drawing.draw_map(heads, rises, _counted("L", len(rises)), _counted("H", rises.shape[1]), largest)
        if not stage["moved"]:  # it began with random weights
            moved.set_axis_off()
            moved.text(0.5, 0.5, "the first stage", ha="center", va="center", transform=moved.transAxes, fontsize=9)
            continue
        shares = np.full((1 + max(layer for layer, *_ in stage["moved"]), len(names)), np.nan)
        for layer, name, share in stage["moved"]:
            shares[layer, names.index(name)] = share
        columns = range(len(names)), [name.removesuffix("_proj") for name in names]
        of_matrices = drawing.draw_map(moved, shares, _counted("L", len(shares)), columns, most)
        moved.tick_params(axis="x", rotation=90)
        moved.set_title(f"from {stage['started_from']}", fontsize=8, **drawing.words())
    titles = ("answers right", "needed by right answers", "weights moved")
    for axes, title in zip(panels[:, 0], titles, strict=True):
        axes.set_ylabel(title)
    figure.align_ylabels(panels[:, 0])
    of_what = "rise in loss without it,\nnats a token", "share of its norm"
    for axes, image, label in zip(panels[1:, -1], (of_heads, of_matrices), of_what, strict=True):
        drawing.draw_scale(axes, image, (0, image.norm.vmax), label)
    return figure


def _counted(letter: str, count: int) -> tuple[range, list[str]]:
    return range(count), [f"{letter}{number}" for number in range(count)]
