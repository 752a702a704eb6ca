"""Notebooks 10 and 10b: their checks refuse learners' mistakes, each with a hint."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch

from notebooks import start
from notebooks.checks import repairs
from tests.notebooks.making import refusal
from tests.notebooks.mistakes_repairs import RIGHT, WRONG
from tests.notebooks.test_cell_answers import cells_of

PRELUDE = """
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from notebooks.checks import repairs
from notebooks.start import check
"""


@pytest.fixture(scope="module")
def long_texts():
    return repairs.long_texts(start.shipped("small"))


@pytest.mark.parametrize("number", WRONG)
def test_a_check_accepts_right_answers_and_refuses_mistakes_with_a_hint(number, long_texts, monkeypatch):
    check, solution = cells_of(number.split(".")[0], number)
    lm, ids = long_texts
    monkeypatch.setattr(repairs, "stretched", partial(repairs.stretched, lm=lm, ids=ids))
    check = check.replace("partial(repairs.stretched, lm=lm, ids=ids)", "repairs.stretched")
    for answer in [solution, *RIGHT.get(number, [])]:
        assert refusal(PRELUDE, answer, check) == "", answer
    hints = list(start.HINTS[number].values())
    for mistake in WRONG[number]:
        answer = mistake
        if isinstance(mistake, tuple):
            right, wrong = mistake
            assert solution.count(right) == 1, right
            answer = solution.replace(right, wrong)
        elif mistake.startswith("lambda"):
            name = re.search(r'check\("[^"]+", (\w+)', check)[1]
            answer = f"{name} = {mistake}"
        sentence = refusal(PRELUDE, answer, check)
        assert sentence.startswith("Not yet. "), answer
        assert any(sentence.endswith(hint) for hint in hints), answer
    assert len(WRONG[number]) >= 12


def test_a_window_keeps_the_loss_of_a_long_text_and_scaling_all_pairs_does_not(long_texts):
    lm, ids = long_texts
    windowed, _ = repairs.long_texts(start.shipped("small"), window=128)
    usual = repairs.loss_by_place(lm, ids)
    window = repairs.loss_by_place(windowed, ids)
    slower = repairs.loss_by_place(lm, ids, repairs.stretched_frequencies(32, 128, 1024))
    assert torch.equal(repairs.loss_by_place(lm, ids), usual)  # the frequencies are set back
    torch.testing.assert_close(window[0], usual[0])
    assert window[2] < slower[2] < usual[2]


@pytest.mark.parametrize("norm", ["before", "after", "sum"])
def test_each_example_layer_depends_on_both_norms_and_both_parts(norm):
    x, parts, expected = repairs.example_layer(norm)
    again, _, same = repairs.example_layer(norm)
    assert torch.equal(x, again)
    assert torch.equal(expected, same)
    for i in range(4):
        damaged = [*parts]
        damaged[i] = torch.zeros_like
        attention, mlp, norm1, norm2 = damaged
        h = {
            "before": lambda x, f, n: x + f(n(x)),
            "after": lambda x, f, n: x + n(f(x)),
            "sum": lambda x, f, n: n(x + f(x)),
        }[norm]
        with torch.no_grad():
            assert not torch.allclose(h(h(x, attention, norm1), mlp, norm2), expected, atol=0.01)
