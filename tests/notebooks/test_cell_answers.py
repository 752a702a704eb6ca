"""Checks in notebook cells accept other right answers and refuse learners' mistakes, each with a
hint.

A mistake is a change of the notebook's own solution.
"""

from __future__ import annotations

import nbformat
import pytest

from notebooks.execute import SOLUTION, is_answer
from notebooks.start import HINTS
from tests.notebooks.making import ROOT, refusal

PRELUDE = "import torch\nfrom collections import Counter\nfrom notebooks.start import check, same\n"
PRELUDE += "from notebooks.planted_faults import judge\n"
MARKED = '"Ã" in text or "â€" in text'
WRONG: dict[tuple[str, str], list[tuple[str, str]]] = {
    ("05", "05.1"): [
        ("row - period + 1]", "row - period]"),  # the same token
        ("row - period + 1]", "row - period - 1]"),  # what came before it
        ("row - period + 1]", "row - period + 2]"),
        ("row - period + 1]", "row - 1]"),  # the previous token
        ("row - period + 1]", "row]"),
        ("row - period + 1]", "0]"),  # a sink
        ("row - period + 1]", "row - 2]"),  # right for a period of 3
        ("A[row, row - period + 1]", "A[row - period + 1, row]"),  # rows and columns exchanged
        ("A[row, row - period + 1]", "A[row].max()"),
        ("A[row, row - period + 1]", "A[row, : row - period + 2].sum()"),
        ("range(period + 1, 2 * period + 1)", "range(period, 2 * period)"),
        ("range(period + 1, 2 * period + 1)", "range(period + 1, 2 * period)"),  # the last row is lost
        ("range(period + 1, 2 * period + 1)", "range(period - 1, 2 * period + 1)"),
        ("range(period + 1, 2 * period + 1)", "range(period + 1, len(A), 2)"),
        ("/ period", ""),
        ("/ period", "/ len(A)"),
        ("/ period", "/ (2 * period)"),
        ("return sum", "score = sum"),
    ],
    ("11", "11.1"): [
        ("set(text.splitlines())", "text.splitlines()"),  # a refrain is in one document only
        ("set(text.splitlines())", "[text]"),  # documents, not lines
        ("set(text.splitlines())", "set(text.split())"),  # words
        ("most_common(1)[0][0]", "most_common(1)[0]"),  # with its number
        ("most_common(1)[0][0]", "most_common()[-1][0]"),
        (MARKED, '"Ã" in text'),
        (MARKED, '"â€" in text'),
        (MARKED, '"é" in text or "Ã" in text or "â€" in text'),  # the é of café is right
        (MARKED, "not text.isascii()"),
        (MARKED, '"Ã" in text and "â€" in text'),
        (f"[i for i, text in enumerate(documents) if {MARKED}", f"[text for text in documents if {MARKED}"),
        ("i, text in enumerate(documents)", "i, text in enumerate(documents, 1)"),
        ("max(map(len, documents)) / sum(map(len, documents))", "max(map(len, documents))"),
        ("max(map(len, documents)) / sum(map(len, documents))", "1 / len(documents)"),
        ("sum(map(len, documents))", "sum(map(len, documents + test))"),
        ("sum(map(len, documents))", "sum(sorted(map(len, documents))[:-1])"),  # of the others only
        ("any(row in text for text in documents)", "row in documents"),  # not as a part of one
        ("any(row in text for text in documents)", "any(text in row for text in documents)"),
        ("any(row in text for text in documents)", "any(row[:20] in text for text in documents)"),
        ("[i for i, row in enumerate(test)", "[row for row in test"),
        ('"leaked": [', '"leaks": ['),
        ("    return {", "    return None and {"),
    ],
}
RIGHT = {
    ("05", "05.1"): [
        "def induction_score(A, period):\n    return A.diagonal(1 - period)[2:].mean()",
        "def induction_score(A, period):\n    rows = torch.arange(period + 1, len(A))\n"
        "    return float(A[rows, rows - period + 1].mean())",
    ],
    ("11", "11.1"): [
        """
def broken(text):
    try:
        return text.encode("cp1252").decode("utf-8") != text
    except UnicodeError:
        return False

def inspect_text(documents, test):
    lines = [line for text in documents for line in text.splitlines()]
    together = "\\n".join(documents)
    return {
        "repeated": max(set(lines), key=lambda line: sum(line in text for text in documents)),
        "broken": [i for i in range(len(documents)) if broken(documents[i])],
        "largest": len(max(documents, key=len)) / sum(len(text) for text in documents),
        "leaked": [i for i in range(len(test)) if test[i] in together],
    }
"""
    ],
}
EXERCISES = list(WRONG)


def cells_of(lesson: str, number: str) -> tuple[str, str]:
    """Return the check and the solution of an exercise."""
    (path,) = (ROOT / "notebooks").glob(f"{lesson}_*.ipynb")
    cells = nbformat.read(path, as_version=4).cells
    at = next(i for i, cell in enumerate(cells) if f'check("{number}"' in cell.source)
    solution = SOLUTION.search(cells[at + 1].source)[1]
    return cells[at].source, solution


@pytest.mark.parametrize(("lesson", "number"), EXERCISES)
def test_a_check_accepts_right_answers_and_refuses_mistakes_with_a_hint(lesson, number):
    check, solution = cells_of(lesson, number)
    for answer in [solution, *RIGHT[lesson, number]]:
        assert refusal(PRELUDE, answer, check) == "", answer
    hints = list(HINTS[number].values())
    accepted = []
    for right, wrong in WRONG[lesson, number]:
        assert solution.count(right) == 1, right
        sentence = refusal(PRELUDE, solution.replace(right, wrong), check)
        if not sentence:
            accepted.append(wrong)
            continue
        assert sentence.startswith("Not yet. "), wrong
        assert any(sentence.endswith(hint) for hint in hints), wrong
    assert len(WRONG[lesson, number]) >= 12
    assert len(accepted) <= 0.05 * len(WRONG[lesson, number]), accepted


@pytest.mark.parametrize(
    ("right", "wrong", "piece"),
    [
        ("set(text.splitlines())", "text.splitlines()", '["repeated"] is'),
        (MARKED, "not text.isascii()", '["broken"] is'),
        ("sum(map(len, documents))", "len(documents)", '["largest"] is'),
        ("any(row in text for text in documents)", "row in documents", '["leaked"] is'),
        ('"leaked": [', '"leaks": [', "no finding for"),
    ],
)
def test_a_finding_that_is_missed_gets_its_own_hint(right, wrong, piece):
    check, solution = cells_of("11", "11.1")
    assert refusal(PRELUDE, solution.replace(right, wrong), check).endswith(HINTS["11.1"][piece])


def test_a_piece_of_a_sentence_is_told_from_an_answer_in_python():
    assert [is_answer(key) for key in ("8", "lambda x: x", "'about'")] == [True] * 3
    pieces = [key for key in HINTS["11.1"] if not is_answer(key)]
    assert pieces == list(HINTS["11.1"])
