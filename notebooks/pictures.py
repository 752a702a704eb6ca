"""Draw a matrix: a mask, scores or attention weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from eval.pictures import drawing

MAY = "#0072B2"
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
