"""Draw matrices (masks, scores, weights or shares), bars, the graph of an expression, a roofline,
and the places of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from eval.pictures import drawing

MAY = "#0072B2"
GRADIENT = "#D55E00"
GREEN = "#009E73"
LINES_UP_TO = 24  # With more rows, the white lines between the cells would hide them.


def heatmap(
    axes: Any,
    matrix: Tensor,
    title: str = "",
    rows: Sequence[Any] = (),
    columns: Sequence[Any] = (),
    decimals: int | None = None,
) -> Any:
    """Draw a matrix (queries, keys) and return the mesh, for a colour bar.

    - rows, columns: their labels
    - decimals: digits after the point of the printed numbers; None prints no numbers

    A boolean matrix is a mask: blue = may attend. Numbers from 0 to 1 are attention weights, in the
    colours of eval.attention: grey = none. Other numbers are scores: red above 0, blue below, grey
    = minus infinity.
    """
    from matplotlib.colors import ListedColormap

    matrix = matrix.detach().cpu()
    style: dict[str, Any]
    if matrix.dtype == torch.bool:
        hidden = ~matrix
        style = {"cmap": ListedColormap([MAY]), "vmin": 0, "vmax": 1}
    elif float(matrix.min()) >= 0 and float(matrix.max()) <= 1 + 1e-5:
        hidden = matrix == 0
        style = {"cmap": drawing.colour_map(), "norm": drawing.weight_norm()}
    else:
        hidden = matrix.isinf()
        top = float(matrix[~hidden].abs().max())
        style = {"cmap": "RdBu_r", "vmin": -top, "vmax": top}
    lines = 0.5 if len(matrix) <= LINES_UP_TO else 0
    axes.set_facecolor(drawing.NOTHING)
    numbers = matrix.float().masked_fill(hidden, torch.nan)
    mesh = axes.pcolormesh(numbers, edgecolor="white", linewidth=lines, **style)
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.set_title(title, fontsize=10)
    axes.set_xticks([i + 0.5 for i in range(len(columns))], columns, rotation=90, fontsize=8)
    axes.set_yticks([i + 0.5 for i in range(len(rows))], rows, fontsize=8)
    axes.tick_params(length=0)
    if decimals is not None:
        for row, column in (~hidden).nonzero().tolist():
            number = float(matrix[row, column])
            text = f"{round(number, decimals) + 0.0:.{decimals}f}"  # + 0.0: no "-0.0"
            drawing.write_number(axes, mesh, number, (column + 0.5, row + 0.5), text, 7)
    return mesh


def tiles(block: int, tokens: int = 128) -> None:
    """Draw which tiles of (queries, keys) causal attention computes, and show the picture.

    Blue = computed whole, red = with a mask, grey = never.
    """
    import matplotlib.pyplot as plt
    from matplotlib.colors import ListedColormap

    rows = tokens // block
    kinds = torch.ones(rows, rows).tril() + torch.eye(rows)  # 2: the diagonal
    axes: Any = plt.figure(figsize=(3.4, 3.6), layout="constrained").subplots()
    colours = ListedColormap([drawing.NOTHING, MAY, GRADIENT])
    axes.pcolormesh(kinds, cmap=colours, vmin=0, vmax=2, edgecolor="white")
    axes.invert_yaxis()
    axes.set(aspect="equal", xlabel="keys", ylabel="queries", xticks=[], yticks=[])
    share = (kinds > 0).float().mean()
    axes.set_title(f"{tokens} tokens, {block} × {block}: {share:.0%} computed", fontsize=10)
    plt.show()


def panels(charts: dict[str, dict[str, list[float]]], x: Sequence[float], xlabel: str) -> None:
    """Draw charts side by side with logarithmic axes, and show them.

    - charts: title -> a curve's name -> its heights at x
    """
    import matplotlib.pyplot as plt

    figure: Any = plt.figure(figsize=(3.5 * len(charts), 2.7), layout="constrained")
    row = figure.subplots(1, len(charts), squeeze=False)[0]
    for axes, (title, curves) in zip(row, charts.items(), strict=True):
        for (name, heights), colour in zip(curves.items(), (GRADIENT, MAY), strict=True):
            axes.loglog(x, heights, "o-", color=colour, label=name)
        axes.set_title(title, fontsize=10)
        axes.set_xticks(x, x)
        axes.set_xlabel(xlabel, fontsize=8)
        axes.minorticks_off()
    row[0].legend(fontsize=8)
    plt.show()


def expression_graph(axes: Any, out: Any) -> None:
    """Draw how a value was computed, from left to right.

    Each value is a box with its name and number. An arrow leads from a parent to a child, with the
    child's slope for this parent, if it has slopes. The gradient is below a box, unless it is 0.

    - out: the last value, with the attributes of notebook 00b's Value: data, grad, parents, slopes
      and name
    """
    distances: dict[Any, int] = {}  # value -> the largest number of arrows from it to `out`

    def visit(value: Any, distance: int) -> None:
        distances[value] = max(distance, distances.get(value, 0))
        for parent in value.parents:
            visit(parent, distance + 1)

    visit(out, 0)
    columns: dict[int, list[Any]] = {}
    for value, distance in distances.items():
        columns.setdefault(distance, []).append(value)
    places = {}
    for distance, values in columns.items():
        for row, value in enumerate(values):
            places[value] = (-2.2 * distance, 1.6 * ((len(values) - 1) / 2 - row))
    top = max(y for _, y in places.values()) + 0.7
    box = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": MAY}
    for value, (x, y) in places.items():
        text = f"{value.name}\n{value.data:.4g}".strip()
        axes.text(x, y, text, ha="center", va="center", fontsize=9, bbox=box, zorder=3)
        if value.grad:
            gradient = f"gradient {value.grad:.4g}"
            axes.text(x, y - 0.6, gradient, ha="center", va="center", fontsize=9, color=GRADIENT)
        for i, parent in enumerate(value.parents):
            bend = 0.0
            if value.parents.count(parent) > 1:  # two arrows between the same boxes
                bend = 0.35 if i else -0.35
            from_x, from_y = places[parent]
            if from_y == y and distances[parent] > distances[value] + 1:
                bend = -0.5  # around the boxes between them
            style = {"arrowstyle": "->", "shrinkA": 24, "shrinkB": 26, "color": "grey"}
            style["connectionstyle"] = f"arc3,rad={bend}"
            axes.annotate("", (x, y), (from_x, from_y), arrowprops=style)
            # an arc's middle is half of `bend` beside the line
            middle_x = (x + from_x) / 2 + bend / 2 * (y - from_y)
            middle_y = (y + from_y) / 2 - bend / 2 * (x - from_x)
            top = max(top, middle_y + 0.3)
            if value.slopes:
                slope = f"× {value.slopes[i]:.4g}"
                field = {"facecolor": "white", "edgecolor": "none", "pad": 1}
                axes.text(
                    middle_x, middle_y, slope, ha="center", va="center", fontsize=8, bbox=field
                )
    axes.set_xlim(min(x for x, _ in places.values()) - 0.9, 0.9)
    axes.set_ylim(min(y for _, y in places.values()) - 0.9, top)
    axes.set_aspect("equal")
    axes.set_axis_off()


def roofline(
    axes: Any,
    bandwidth: float,
    rate: float,
    series: dict[str, tuple[Tensor, Tensor, Tensor, Tensor]],
) -> None:
    """Draw the highest possible speed of a machine, with predicted and measured speeds.

    - bandwidth: bytes a second; rate: operations a second
    - series: name -> operations, bytes, predicted and measured seconds, one number a case. Hollow
      circles are predictions, full circles measurements
    """
    intensity = torch.logspace(-0.7, 2.7, 50)
    roof = (intensity * bandwidth).clamp(max=rate) / 1e9
    axes.loglog(intensity, roof, color="black", linewidth=1)
    for colour, (name, numbers) in zip((GREEN, MAY, GRADIENT), series.items(), strict=False):
        operations, read, predicted, measured = numbers
        expected = operations / predicted / 1e9
        speed = operations / measured / 1e9
        axes.vlines(operations / read, speed, expected, color=colour, linewidth=0.5)
        axes.loglog(operations / read, expected, "o", color=colour, markerfacecolor="white")
        axes.loglog(operations / read, speed, "o", color=colour, label=name)
    axes.axvline(rate / bandwidth, color="grey", linewidth=0.5)
    axes.set(xlabel="operations for each byte (arithmetic intensity)", ylabel="GFLOP/s")
    axes.legend(fontsize=8)


def batch_places(axes: Any, name: str, answers: Sequence[tuple[int, int, int]]) -> None:
    """Draw who has which place of a batch, from left to right in rounds.

    - answers: (place, first round, number of tokens) of each request, in the order of the queue
    """
    from matplotlib import colormaps

    colours = colormaps["tab20"]
    for number, (place, start, tokens) in enumerate(answers):
        axes.barh(place, tokens, left=start, color=colours(number), edgecolor="white")
        axes.text(start + tokens / 2, place, number, ha="center", va="center", fontsize=8)
    end = max(start + tokens for _, start, tokens in answers)
    axes.axvline(end, color="black", linewidth=1)
    axes.set(xlabel="rounds (a row is a place in the batch)", yticks=[])
    axes.set_title(f"{name}: {end} rounds")


def shares(pictures: dict[str, tuple[Tensor, Sequence[Any], Sequence[Any]]], height: float) -> Any:
    """Return a figure with matrices of shares side by side, each with its title.

    - pictures: title -> matrix, labels of its rows, labels of its columns. A share below 0 or above
      1 is drawn as 0 or 1, and one that rounds to 0 is grey
    - height: of the figure, in inches
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, height), layout="constrained")
    widths = [matrix.shape[1] for matrix, _, _ in pictures.values()]
    all_axes = figure.subplots(1, len(pictures), width_ratios=widths, squeeze=False)[0]
    for axes, (title, (matrix, rows, columns)) in zip(all_axes, pictures.items(), strict=True):
        heatmap(axes, matrix.clamp(0, 1).round(decimals=2), title, rows, columns, decimals=2)
    return figure


def bars(numbers: dict[str, Any], label: str) -> Any:
    """Return a figure with a bar for each number. label: what the numbers are."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2.4), layout="constrained")
    axes = figure.subplots()
    axes.bar(list(numbers), [float(number) for number in numbers.values()], color=MAY)
    axes.axhline(0, color="#999999", linewidth=0.8)
    axes.set(ylabel=label)
    return figure
