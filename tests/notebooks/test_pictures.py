"""Pictures of the notebooks: forbidden fields are empty, and written numbers are right."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from eval.pictures import drawing
from notebooks.pictures import bars, batch_places, expression_graph, heatmap, roofline, shares
from notebooks.solutions.autograd import Value

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


def test_a_graph_has_an_arrow_for_each_parent_and_parents_are_left_of_their_children():
    a = Value(3.0)
    out = a * a + a
    for value, name in ((a, "a"), (out, "y"), (out.parents[0], "square")):
        value.name = name
    axes = drawing.new_figure(500, 300).subplots()
    expression_graph(axes, out)
    texts = {text.get_text(): text.get_position() for text in axes.texts if text.get_text()}
    assert texts["a\n3"][0] < texts["square\n9"][0] < texts["y\n12"][0]
    assert sum(text.arrowprops is not None for text in axes.texts if hasattr(text, "arrowprops")) == 4
    slopes = [text.get_text() for text in axes.texts if text.get_text().startswith("×")]
    assert sorted(slopes) == ["× 1", "× 1", "× 3", "× 3"]
    assert not [text for text in texts if "gradient" in text]
    out.backward()
    expression_graph(axes, out)
    assert [text.get_text() for text in axes.texts if "gradient" in text.get_text()].count("gradient 7") == 1


def test_a_roof_is_flat_where_arithmetic_limits_and_points_have_their_speed():
    axes = drawing.new_figure(300, 300).subplots()
    numbers = tuple(torch.tensor([x]) for x in (8e9, 1e9, 1.0, 2.0))  # operations, bytes, seconds
    roofline(axes, bandwidth=1e9, rate=4e9, series={"read": numbers})
    roof, expected, measured, _ = axes.lines
    assert float(roof.get_ydata()[-1]) == 4
    assert float(roof.get_ydata()[0]) < 1
    assert [float(line.get_ydata()[0]) for line in (expected, measured)] == [8, 4]


def test_the_places_of_a_batch_end_with_the_last_request():
    axes = drawing.new_figure(300, 300).subplots()
    batch_places(axes, "fixed", [(0, 0, 5), (1, 0, 2), (1, 2, 7)])
    assert axes.get_title() == "fixed: 9 rounds"
    assert [bar.get_x() for bar in axes.patches] == [0, 0, 2]


def test_shares_are_side_by_side_and_a_bar_has_its_height():
    matrix = torch.tensor([[0.001, 1.2], [-0.3, 0.5]])
    figure = shares({"one": (matrix, "ab", "cd"), "two": (matrix, "ab", "cd")}, height=2)
    one, two = figure.axes
    assert (one.get_title(), two.get_title()) == ("one", "two")
    assert [text.get_text() for text in one.texts] == ["1.00", "0.50"]
    (axes,) = bars({"a": 1.5, "b": torch.tensor(-2.0)}, "logit").axes
    assert [bar.get_height() for bar in axes.patches] == [1.5, -2.0]
