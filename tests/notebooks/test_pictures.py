"""Matrices drawn by the notebooks: forbidden fields are empty, and written numbers are right."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from eval.pictures import drawing
from notebooks.pictures import heatmap

TRIANGLE = torch.ones(3, 3, dtype=torch.bool).tril()


def drawn(matrix: Tensor, **options):
    """The axes and the mesh of a heatmap."""
    axes = drawing.new_figure(300, 300).subplots()
    heatmap(axes, matrix, **options)
    return axes, axes.collections[0]


@pytest.mark.parametrize(
    "matrix",
    [
        TRIANGLE,
        torch.zeros(3, 3).masked_fill(~TRIANGLE, -math.inf).softmax(-1),
        torch.full((3, 3), 7.0).masked_fill(~TRIANGLE, -math.inf),
    ],
    ids=["mask", "weights", "scores"],
)
def test_what_may_not_be_seen_is_empty(matrix):
    _, mesh = drawn(matrix)
    assert torch.equal(torch.from_numpy(mesh.get_array().mask).reshape(3, 3), ~TRIANGLE)


def test_weights_have_the_colours_of_the_other_pictures_and_scores_are_white_at_zero():
    _, weights = drawn(torch.tensor([[1.0, 0.0], [0.3, 0.7]]))
    assert weights.get_cmap() == drawing.colour_map()
    assert weights.norm(0.3) == pytest.approx(0.3**drawing.GAMMA)
    assert drawn(torch.tensor([[8.0, -1.0], [0.0, -math.inf]]))[1].norm(0.0) == 0.5


def test_the_numbers_stand_in_their_cells_first_row_on_top():
    axes, _ = drawn(torch.tensor([[8.0, -0.01], [2.26, -math.inf]]), decimals=1, rows="ab")
    assert {text.get_position(): text.get_text() for text in axes.texts} == {
        (0.5, 0.5): "8.0",
        (1.5, 0.5): "0.0",
        (0.5, 1.5): "2.3",
    }
    assert axes.yaxis_inverted()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
