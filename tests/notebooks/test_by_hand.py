"""Notebook 07: its folded solutions are those that it uses itself, and what it looks with sees what
is there.
"""

from __future__ import annotations

import inspect
import textwrap

import nbformat
import torch

from notebooks import by_hand
from tests.notebooks.making import ROOT


def test_the_folded_solutions_are_the_ones_that_the_notebook_uses():
    cells = nbformat.read(ROOT / "notebooks" / "07_induction_by_hand.ipynb", as_version=4).cells
    folded = [cell.source for cell in cells if "<details>" in cell.source]
    for step, solution in zip((by_hand.look_back, by_hand.hand_over, by_hand.match), folded, strict=False):
        body = textwrap.dedent(inspect.getsource(step).split("\n", 1)[1])
        assert textwrap.indent(body, "    ") in solution, step.__name__


def test_a_letter_that_comes_twice_has_one_follower_in_the_repeated_block():
    probe = by_hand.repeated(rows=3, period=20)
    first = probe.input_ids[:, 1:21]
    second = probe.input_ids[:, 21:]
    assert torch.equal(first, second)
    assert all(len(set(row)) == 20 and 0 not in row for row in first.tolist())
    assert torch.equal(by_hand.tokens("".join(probe.labels[0])), probe.input_ids[:1])
