"""What does a comparison draw? Cost and quality, the loss curves, and when heads learn to copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from eval.compare.runs import Cost, Variant

# Okabe and Ito's colours, which colour-blind readers can distinguish; in greyscale the markers differ
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8c6bb1"]
MARKERS = "osD^vPX*"
SMOOTHED_OVER = 40  # points of a training curve that are left of it


def cost_and_quality(variants: Sequence[Variant], costs: Mapping[str, Cost], file: Path) -> None:
    """Bits per byte beside what it costs. costs: by variant's name."""
    figure = inches(10.5, 1.7 + 0.42 * len(variants))
    quality, cache, parameters = figure.subplots(1, 3, sharey=True)
    for row, variant in enumerate(variants):
        colour, marker = _look(row)
        values = list(variant.by_seed(lambda run: run.bits_per_byte).values())
        quality.plot(values, [row + 0.22] * len(values), ls="none", marker="|", color=colour, ms=7)
        if values:
            error = stdev(values) if len(values) > 1 else 0.0
            quality.errorbar(mean(values), row, xerr=error, color=colour, marker=marker, capsize=4, lw=1.6)
        for axes, cost in ((cache, costs[variant.name].kv_bytes), (parameters, costs[variant.name].parameters)):
            axes.barh(row, cost, height=0.55, color=colour)
            axes.annotate(f" {cost:,}", (cost, row), va="center", fontsize=8)
    several = any(len(variant.runs) > 1 for variant in variants)
    spread = "\nmean ± standard deviation; | one seed each" if several else "\n(one seed each)"
    quality.set(xlabel=f"validation bits per byte{spread}", ylim=(len(variants) - 0.5, -0.5))
    quality.set_yticks(range(len(variants)), [variant.name for variant in variants])
    quality.margins(x=0.12)
    cache.set(xlabel="KV-cache bytes per token (16-bit)")
    parameters.set(xlabel="parameters")
    for axes in (cache, parameters):
        axes.margins(x=0.3)
        axes.xaxis.set_major_formatter(lambda value, _: _short(value))
    for axes in (quality, cache, parameters):
        axes.grid(axis="x", alpha=0.3)
        axes.locator_params(axis="x", nbins=5)
    figure.savefig(file)


def loss_curves(variants: Sequence[Variant], same_tokenizer: bool, file: Path) -> None:
    """Every run over tokens seen: validation bits per byte, and the training loss where the tokens are the same."""
    figure = inches(10.5 if same_tokenizer else 6.5, 4.2)
    panels = figure.subplots(1, 2 if same_tokenizer else 1, squeeze=False)[0]
    for row, variant in enumerate(variants):
        colour, marker = _look(row)
        for number, run in enumerate(variant.runs):
            label = variant.name if number == 0 else None
            after_start = [line for line in run.val if line["step"] > 0] or run.val
            x, y = _points(after_start, "bits_per_byte")
            panels[0].plot(x, y, color=colour, marker=marker, ms=4, lw=1, alpha=0.8, label=label)
            if same_tokenizer:
                panels[1].plot(*_smoothed(*_points(run.train, "loss")), color=colour, lw=1, alpha=0.8, label=label)
    panels[0].set(xlabel="tokens seen", ylabel="validation bits per byte")
    if same_tokenizer:
        panels[1].set(xlabel="tokens seen", ylabel="training loss (nats per token, running mean)")
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_formatter(lambda value, _: _short(value))
    panels[0].legend(frameon=False, title="a line for each seed" if _several(variants) else None)
    figure.savefig(file)


def head_curves(variants: Sequence[Variant], file: Path) -> bool:
    """Best head's induction score and copy gain over tokens: mean over seeds, the band from lowest to highest.

    False, and no file, where no run has snapshots with these.
    """
    curves = [("best head's induction score", best_induction), ("copy gain (nats)", copy_gain)]
    found = [(title, of) for title, of in curves if any(_band(variant, of)[0].size for variant in variants)]
    if not found:
        return False
    figure = inches(5.3 * len(found), 4.2)
    for axes, (title, of) in zip(figure.subplots(1, len(found), squeeze=False)[0], found, strict=True):
        for row, variant in enumerate(variants):
            tokens, low, middle, high = _band(variant, of)
            colour, marker = _look(row)
            axes.fill_between(tokens, low, high, color=colour, alpha=0.18, lw=0)
            axes.plot(tokens, middle, color=colour, marker=marker, ms=4, lw=1.5, label=variant.name)
        chance = _chance(variants, of)
        if chance is not None:
            axes.axhline(chance, color="#555555", ls=":", lw=1, label="chance")
        axes.set(xlabel="tokens seen", ylabel=title)
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_formatter(lambda value, _: _short(value))
        axes.legend(frameon=False, title="mean, lowest to highest seed" if _several(variants) else None)
    figure.savefig(file)
    return True


def best_induction(snapshot: Any) -> float | None:
    """The largest induction score of any head; None where it was not measured."""
    values = snapshot.scores.get("induction")
    return None if values is None or np.isnan(values).all() else float(np.nanmax(values))


def copy_gain(snapshot: Any) -> float | None:
    """Loss on the first copy of a repeated text minus the loss on the later ones, nats."""
    return snapshot.scalars.get("copy_gain")


def _chance(variants: Sequence[Variant], of: Callable[[Any], float | None]) -> float | None:
    """What uniform attention scores on the probe of the induction score; None for other curves."""
    snapshots = [snapshot for variant in variants for run in variant.runs for snapshot in run.snapshots]
    return snapshots[-1].chance.get("induction") if of is best_induction and snapshots else None


def _band(variant: Variant, of: Callable[[Any], float | None]) -> tuple[np.ndarray, ...]:
    """(tokens, lowest, mean, highest) over the seeds, a point for each step at which one has it."""
    points: dict[int, list[tuple[int, float]]] = {}
    for run in variant.runs:
        for snapshot in run.snapshots:
            value = of(snapshot)
            if value is not None:
                points.setdefault(snapshot.step, []).append((snapshot.tokens, value))
    rows = []
    for _, pairs in sorted(points.items()):
        values = [value for _, value in pairs]
        rows.append((mean(tokens for tokens, _ in pairs), min(values), mean(values), max(values)))
    return tuple(np.array(rows, dtype=float).reshape(-1, 4).T)


def _points(lines: list[dict[str, Any]], key: str) -> tuple[np.ndarray, np.ndarray]:
    finite = [line for line in lines if line[key] is not None]
    return np.array([line["tokens"] for line in finite]), np.array([line[key] for line in finite])


def _smoothed(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means over neighbouring points: the loss of a single batch is noisy."""
    width = max(1, len(x) // SMOOTHED_OVER)
    kept = len(x) // width * width
    return x[-kept:].reshape(-1, width).mean(1), y[-kept:].reshape(-1, width).mean(1)


def inches(width: float, height: float) -> Any:
    """A new figure of this size."""
    from eval.attention.pictures.drawing import DPI, new_figure  # torch, and --help should not wait for it

    return new_figure(width * DPI, height * DPI, layout="constrained")


def _look(row: int) -> tuple[str, str]:
    return COLOURS[row % len(COLOURS)], MARKERS[row % len(MARKERS)]


def _several(variants: Sequence[Variant]) -> bool:
    return any(len(variant.runs) > 1 for variant in variants)


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"
