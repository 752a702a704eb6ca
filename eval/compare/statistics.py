"""What can a few seeds say? Mean and standard deviation, and a difference with its standard error."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import mean, stdev

# 97.5 % quantiles of Student's t by degrees of freedom; beyond the last one they hardly change
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True)
class Difference:
    """other - baseline. standard_error and freedom are None with one seed; pairs: seeds that both have, else 0."""

    value: float
    standard_error: float | None = None
    freedom: int | None = None
    pairs: int = 0

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % confidence interval (Student's t); None with one seed."""
        if self.standard_error is None or self.freedom is None:
            return None
        reach = T_QUANTILES[min(self.freedom, len(T_QUANTILES)) - 1] * self.standard_error
        return self.value - reach, self.value + reach

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval leaves out 0; seeds that agree to the last digit show nothing, so no."""
        return self.interval is not None and bool(self.standard_error) and self.interval[0] * self.interval[1] > 0


def difference(baseline: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    """The difference of two variants' figures, given by seed; None where one of them has none.

    Paired over the seeds that both have if these are two or more, since data order and initial weights then have
    much in common; else of the means, with Welch's standard error and degrees of freedom (Welch 1947, Biometrika 34).
    """
    if not baseline or not other:
        return None
    common = sorted(baseline.keys() & other.keys())
    if len(common) > 1:
        changes = [other[seed] - baseline[seed] for seed in common]
        return Difference(mean(changes), stdev(changes) / math.sqrt(len(common)), len(common) - 1, len(common))
    value = mean(other.values()) - mean(baseline.values())
    if min(len(baseline), len(other)) < 2:
        return Difference(value)
    shares = [(stdev(group.values()) ** 2 / len(group), len(group) - 1) for group in (baseline, other)]
    variance = sum(share for share, _ in shares)
    below = sum(share**2 / freedom for share, freedom in shares)
    return Difference(value, math.sqrt(variance), max(1, math.floor(variance**2 / below)) if below else 1)


def spread(values: Collection[float], digits: int = 4) -> str:
    """`mean ± standard deviation`; one value alone has no ±, and none is a dash."""
    if not values:
        return "-"
    shown = f"{mean(values):,.{digits}f}"
    return f"{shown} ± {stdev(values):,.{digits}f}" if len(values) > 1 else shown
