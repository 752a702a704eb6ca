"""The statistics of a card: when runs reach its outcome, and how their losses differ."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

from configs.command import InputError
from eval.cards.reading import Results


def scipy_stats() -> Any:
    """Return the module scipy.stats. Raises InputError: only cards need scipy."""
    try:
        from scipy import stats
    except ImportError:
        raise InputError("cards need scipy: pip install scipy") from None
    return stats


def reached_at(run: Results, at_least: float) -> tuple[int, bool]:
    """Return the first step with the outcome and True, or the last step and False."""
    for step, value in zip(run["steps"], run["values"], strict=True):
        if value is not None and value >= at_least:
            return step, True
    return run["steps"][-1], False


def times(runs: Sequence[Results], at_least: float) -> Any:
    """Return scipy's right-censored data: the steps at which runs reach the outcome."""
    pairs = [reached_at(run, at_least) for run in runs]
    return scipy_stats().CensoredData.right_censored(
        [step for step, _ in pairs], [not hit for _, hit in pairs]
    )


def logrank_p(sample: Any, other: Any) -> float:
    """Return the p-value of a log-rank test; 1 if no run of either reaches the outcome."""
    if sample.num_censored() + other.num_censored() == len(sample) + len(other):
        return 1.0
    return float(scipy_stats().logrank(sample, other).pvalue)


def median_step(sample: Any) -> str:
    """Return the Kaplan–Meier median with its 95 % interval, "–" where half never get there."""
    survival = scipy_stats().ecdf(sample).sf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NaN where all runs, or none, are left
        limits = survival.confidence_interval(method="log-log")
    # the interval of the median: where the curve's own limits fall to one half
    texts = []
    for curve in (survival, limits.low, limits.high):
        below = [
            int(step)
            for step, share in zip(curve.quantiles, curve.probabilities, strict=True)
            if share <= 0.5  # False for NaN
        ]
        texts.append(f"{below[0]:,}" if below else "–")
    median, low, high = texts
    return f"{median} ({low} to {high})"


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number (Holm 1979)."""
    corrected = [0.0] * len(p_values)
    largest = 0.0
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def loss_difference(baseline: Sequence[Results], runs: Sequence[Results]) -> str:
    """Return the mean paired difference in held-out loss, with its 95 % interval."""
    before = {run["seed"]: run["loss"] for run in baseline if run["loss"] is not None}
    pairs = [(run["loss"], before[run["seed"]]) for run in runs if run["seed"] in before]
    pairs = [(after, loss) for after, loss in pairs if after is not None]
    if not pairs:
        return "–"
    mean = math.fsum(after - loss for after, loss in pairs) / len(pairs)
    if len(pairs) == 1:
        return f"{mean:+.3f}"
    interval = scipy_stats().ttest_rel(*zip(*pairs, strict=True)).confidence_interval()
    return f"{mean:+.3f} ({interval.low:+.3f} to {interval.high:+.3f})"
