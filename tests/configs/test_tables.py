"""The one table of the house: aligned in a terminal, Markdown on a page."""

from __future__ import annotations

import pytest

from configs.tables import columns, table


def test_names_stand_left_and_figures_right():
    assert table(["name", "x"], [["a", "1,000"], ["longer", 2]]) == (
        "| name   |     x |\n"
        "| ------ | ----: |\n"
        "| a      | 1,000 |\n"
        "| longer |     2 |"
    )  # fmt: skip


def test_wide_characters_and_accents_keep_the_columns_aligned():
    lines = table(["", "loss"], [["中文", 1], ["e\u0301t", 2], ["plain", 3]]).splitlines()
    assert {columns(line) for line in lines} == {columns(lines[0])}
    assert len({len(line) for line in lines}) > 1  # aligned by what a terminal shows, not by characters


def test_a_cell_cannot_break_the_table():
    assert table(["a", "b"], [["x|y", "two\nlines"]]).splitlines()[2] == "| x\\|y | two lines |"
    assert table(["only"], []).splitlines() == ["| only |", "| ---- |"]


def test_a_row_of_another_width_is_refused():
    with pytest.raises(ValueError, match="zip"):
        table(["a", "b"], [["1"]])
