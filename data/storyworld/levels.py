"""Which stories does a level hold, and how often is each told?"""

from collections.abc import Callable, Mapping
from math import log2

from .long_plots import LONG_PLOT_WEIGHTS, LONG_PLOTS
from .pen import Choice, Pen
from .plots import PLOT_WEIGHTS, PLOTS

Plots = Mapping[str, Callable[[Pen], None]]


def tell_with(pen: Pen, level: int = 1, plot: str | None = None) -> str:
    """Choose a plot of this level (or take the one given), tell it with this pen and return the plot's name."""
    plots, weights = plots_of(level)
    if plot is None:
        plot = pen.decide("plot", weights, lambda plot: pen.heads(f"{plot}.opening", {}))
    elif plot in plots:  # not drawn, but as dear as ever: the price of a text is that under `tell`
        pen.choices.append(Choice("plot", plot, log2(sum(weights.values()) / weights[plot])))
    else:
        raise ValueError(f"unknown plot {plot!r} at level {level}: use one of {', '.join(plots)}")
    plots[plot](pen)
    return plot


def plots_of(level: int) -> tuple[Plots, Mapping[str, int]]:
    """The plots of a level and how often each is told: level 1 is plots.py, level 2 adds long_plots.py."""
    if level == 1:
        return PLOTS, PLOT_WEIGHTS
    if level != 2:
        raise ValueError(f"unknown level {level!r}: use 1 (nine plots) or 2 (longer ones too)")
    return LONG_PLOTS, LONG_PLOT_WEIGHTS
