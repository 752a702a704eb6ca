"""The statistics of a card: when runs reach its outcome, and how their losses differ."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from configs.command import InputError
from eval.cards.reading import Results

# Six runs against six have 924. All 184,756 of ten against ten would take a second a row.
PERMUTATIONS = 20_000
Time = tuple[int, bool]  # the step at which a run reaches the outcome, True; its last step, False


def scipy_stats() -> Any:
    """Return the module scipy.stats. Raises InputError: only cards need scipy."""
    try:
        from scipy import stats
    except ImportError:
        raise InputError("cards need scipy: pip install scipy") from None
    return stats


def reached_at(run: Results, at_least: float) -> Time:
    """Return the first step with the outcome and True, or the last step and False."""
    for step, value in zip(run["steps"], run["values"], strict=True):
        if value is not None and value >= at_least:
            return step, True
    return run["steps"][-1], False


def times(runs: Sequence[Results], at_least: float) -> list[Time]:
    """Return `reached_at` of every run."""
    return [reached_at(run, at_least) for run in runs]


def logrank_p(sample: Sequence[Time], other: Sequence[Time]) -> float:
    """Return the p-value of a log-rank test: twice the share of permutations that are as extreme.

    Five runs against five have 252 permutations, so p is at least 2 / 252. An approximation for
    large samples, such as scipy's logrank, would give a smaller p. If there are more than
    PERMUTATIONS, so many are drawn at random.
    """
    if min(len(sample), len(other)) < 2:
        return 1.0  # one run shows nothing, and scipy refuses it
    # A run's score: 1 if it reaches the outcome, else 0, minus the number of events expected up to
    # its step if both samples are alike (Peto and Peto 1972, doi 10.2307/2344317).
    steps, hits = np.array([*sample, *other]).T
    expected = np.zeros(len(steps))
    for step in np.unique(steps[hits == 1]):
        events = np.sum(hits[steps == step])
        expected[steps >= step] += events / np.sum(steps >= step)
    scores = hits - expected
    done = scipy_stats().permutation_test(
        (scores[: len(sample)], scores[len(sample) :]),
        lambda values, others, axis: values.mean(axis),
        vectorized=True,
        n_resamples=PERMUTATIONS,
        batch=10_000,
        rng=0,
    )
    return float(done.pvalue)


def median_step(sample: Sequence[Time]) -> str:
    """Return the Kaplan–Meier median with its 95 % interval, "–" where half never get there."""
    stats = scipy_stats()
    steps = [step for step, _ in sample]
    censored = [not hit for _, hit in sample]
    survival = stats.ecdf(stats.CensoredData.right_censored(steps, censored)).sf
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
