"""How much is recalled for how many bytes of cache? One figure of a sweep over key/value heads and head sizes.

Drawn from the content of histories.json alone, so it needs no run: notebook 03 lays a model of its own over it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from eval.compare.figures import COLOURS, MARKERS, inches
from eval.recall import half_at

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMS = {"8": "8 (MHA)", "4": "4 (GQA)", "2": "2 (GQA)", "1": "1 (MQA)", "mla": "MLA"}


@dataclass(frozen=True)
class Point:
    """A model of the sweep.

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


def points(histories: Mapping[str, Any]) -> list[Point]:
    """The models that were asked, from the content of histories.json."""
    found = []
    for variant in histories["variants"]:
        runs, settings = [run["recall"] for run in variant["runs"] if run["recall"]], variant["settings"]
        form = "mla" if settings.get("model.attention") == "mla" else str(settings["model.num_key_value_heads"])
        looks = [[{"step": step, "accuracy": accuracy} for step, accuracy in run] for run in runs]
        found.append(
            Point(
                form,
                settings["model.head_dim"],
                variant["kv_bytes"],
                variant["parameters"],
                [run[-1]["accuracy"] for run in looks],
                [half_at(run) for run in looks],
                max(run[-1]["step"] for run in looks),
            )
        )
    return found


def draw(histories: Mapping[str, Any], file: Path) -> bool:
    """The figure of a comparison; False, and no file, where models were not asked, or have no place in it."""
    variants = histories["variants"]
    keys = {"model.num_key_value_heads", "model.head_dim"}
    if not all(
        keys <= {*variant["settings"]} and any(run["recall"] for run in variant["runs"]) for variant in variants
    ):
        return False
    found = points(histories)
    if not {one.form for one in found} <= {*FORMS}:
        return False
    recall_over_cache(found).savefig(file)
    return True


def recall_over_cache(models: Sequence[Point], yours: Point | None = None) -> Figure:
    """Accuracy, and the step of the phase change, over the bytes of a token in the cache.

    A line for each number of key/value heads: the mean over seeds, a dot for each seed, the size of its heads beside
    it. Seeds without a phase change are drawn above the last step. yours: one more model, as a star.
    """
    figure = inches(10, 4.3)
    left, right = figure.subplots(1, 2)
    steps = max(one.steps for one in models)
    for row, (form, label) in enumerate(FORMS.items()):
        line = sorted((one for one in models if one.form == form), key=lambda one: one.kv_bytes)
        style = {"color": COLOURS[row], "marker": MARKERS[row], "ms": 7, "lw": 1.6, "label": label}
        x = [one.kv_bytes * (1 + 0.03 * (row - 2)) for one in line]  # side by side, where bytes are equal
        left.plot(x, [mean(one.accuracy) for one in line], **style)
        right.plot(x, [mean(_steps(one, steps)) for one in line], **style)
        for place, one in zip(x, line, strict=True):
            for axes, values in ((left, one.accuracy), (right, _steps(one, steps))):
                axes.plot([place] * len(values), values, ls="none", marker=".", color=COLOURS[row], alpha=0.55)
            if form != "mla":
                left.annotate(
                    f"{one.head_dim}", (place, mean(one.accuracy)), (4, 5), textcoords="offset points", fontsize=8
                )
    if yours is not None:
        star = {"marker": "*", "ms": 19, "color": "gold", "mec": "black", "ls": "none", "zorder": 9}
        name = f"yours: {FORMS[yours.form]}, size {yours.head_dim}"
        left.plot([yours.kv_bytes], [mean(yours.accuracy)], label=name, **star)
        right.plot([yours.kv_bytes], [mean(_steps(yours, steps))], **star)
    _finish(left, right, steps)
    return figure


def _steps(one: Point, last: int) -> list[float]:
    """Of each seed; above the last step where there was no phase change."""
    return [last * 1.1 if step is None else step for step in one.half_at]


def _finish(left: Any, right: Any, steps: int) -> None:
    left.axhline(0.5, color="grey", lw=0.8, ls=":")
    left.set(ylabel="answers right at the end", ylim=(0, 1.05))
    right.axhline(steps * 1.05, color="grey", lw=0.8, ls=":")
    right.annotate(
        f"not in {steps:,} steps", (0.98, steps * 1.06), xycoords=("axes fraction", "data"), ha="right", fontsize=8
    )
    right.set(ylabel="step at which over half are right", ylim=(0, steps * 1.2))
    ticks = [32, 64, 128, 256, 512, 1024]
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.set_xlabel("KV-cache bytes a token (16 bits)")
        axes.grid(alpha=0.3)
    title = "key/value heads (number at a point: head size)"
    right.legend(
        *left.get_legend_handles_labels(), loc="lower left", frameon=False, fontsize=8, title=title, title_fontsize=8
    )
