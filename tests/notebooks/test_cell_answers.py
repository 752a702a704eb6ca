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
PRELUDE += "from notebooks import by_hand\nfrom notebooks.by_hand import BEFORE, NEXT, ONE, TOKEN, V\n"
PRELUDE += "from notebooks.checks import induction\n"
MARKED = '"Ã" in text or "â€" in text'
SHARES = "(logits / temperature).softmax(-1)"
LOWER = "torch.arange(T)[:, None] >= torch.arange(T)[None, :]"
ASK = "q[:half, ONE] = angles.cos()\n    q[half:, ONE] = -angles.sin()"
FIND = "q[:, TOKEN] = 20 * torch.eye(V)"
ANSWER = "k[:, BEFORE] = torch.eye(V)"
READ = "v[:, TOKEN] = torch.eye(V)"
WRITE = "o[NEXT, :] = torch.eye(V)"
REST = "q[0, ONE] = 5  # every token asks for row 0"
WRONG: dict[tuple[str, str], list[tuple[str, str]]] = {
    ("00c", "00c.1"): [
        (SHARES, "(logits * temperature).softmax(-1)"),
        (SHARES, "logits.softmax(-1)"),
        (SHARES, "logits.softmax(-1) / temperature"),
        (SHARES, "logits.softmax(-1) ** (1 / temperature)"),  # the sum is not 1
        (SHARES, "(logits / temperature).softmax(0)"),
        (SHARES, "(logits / temperature).log_softmax(-1)"),
        (SHARES, "(logits / temperature).exp()"),
        (SHARES, "(logits / temperature).exp() / (logits / temperature).exp().sum(-1, keepdim=True)"),
        (SHARES, "(logits / temperature).sigmoid()"),
        (SHARES, "(logits - temperature).softmax(-1)"),
        (SHARES, "(logits / temperature**2).softmax(-1)"),
        (SHARES, "(logits / max(temperature, 1)).softmax(-1)"),
        (SHARES, "(logits / min(temperature, 1)).softmax(-1)"),
        (SHARES, "(logits / temperature).argmax(-1)"),
        ("    return", "    shares ="),
    ],
    ("00c", "00c.2"): [
        (LOWER, LOWER.replace(">=", ">")),
        (LOWER, LOWER.replace(">=", "<=")),
        (LOWER, LOWER.replace(">=", "<")),
        (LOWER, LOWER.replace(">=", "==")),
        (LOWER, LOWER.replace(">=", "!=")),
        (LOWER, LOWER.replace(">=", "-")),
        (LOWER, f"({LOWER}).float()"),
        (LOWER, f"({LOWER}).tolist()"),
        (LOWER, f"({LOWER})[None]"),
        (LOWER, f"~({LOWER})"),
        (LOWER, "torch.ones(T, T, dtype=torch.bool)"),
        (LOWER, "torch.ones(T, T, dtype=torch.bool).tril(1)"),
        (LOWER, "torch.ones(32, 32, dtype=torch.bool).tril()"),
        ("    return", "    mask ="),
    ],
    ("07", "07.1"): [
        (ASK, "q[:half, ONE] = angles.cos()\n    q[half:, ONE] = angles.sin()"),  # one place ahead
        (ASK, "q[:half, ONE] = angles.sin()\n    q[half:, ONE] = angles.cos()"),
        (ASK, "q[:half, ONE] = 1"),  # at itself
        (ASK, "q[:half, ONE] = (2 * angles).cos()\n    q[half:, ONE] = -(2 * angles).sin()"),  # two places back
        (ASK, "q[:half, ONE] = angles.cos()"),
        (ASK, "q[half:, ONE] = -angles.sin()"),
        (ASK, "q[:half, ONE] = -angles.cos()\n    q[half:, ONE] = angles.sin()"),  # everything else
        (ASK, "q[:half, TOKEN.start] = angles.cos()\n    q[half:, TOKEN.start] = -angles.sin()"),
        (ASK, "q[::2, ONE] = angles.cos()\n    q[1::2, ONE] = -angles.sin()"),  # neighbours are no pair
        (ASK, "pass"),
        ("k[:half, ONE] = 10", "k[:half, ONE] = 1"),  # not sharp
        ("k[:half, ONE] = 10", "k[:half, ONE] = -10"),
        ("k[:half, ONE] = 10", "k[:, ONE] = 10"),
    ],
    ("07", "07.2"): [
        (READ, "v[:, BEFORE] = torch.eye(V)"),
        (READ, "v[:, NEXT] = torch.eye(V)"),
        (READ, "v[:, ONE] = 1"),
        (READ, "v[:, TOKEN] = 1"),
        (READ, "v[:, TOKEN] = -torch.eye(V)"),
        (READ, "v[:, TOKEN] = 0.3 * torch.eye(V)"),
        (READ, "v[:, TOKEN] = torch.eye(V).flip(0)"),
        (READ, "pass"),
        ("o[BEFORE, :] = torch.eye(V)", "o[TOKEN, :] = torch.eye(V)"),
        ("o[BEFORE, :] = torch.eye(V)", "o[NEXT, :] = torch.eye(V)"),
        ("o[BEFORE, :] = torch.eye(V)", "o[BEFORE, :] = o[NEXT, :] = torch.eye(V)"),
        ("o[BEFORE, :] = torch.eye(V)", "o[BEFORE, :] = torch.eye(V).roll(1, 0)"),
        ("o[BEFORE, :] = torch.eye(V)", "pass"),
    ],
    ("07", "07.3"): [
        (FIND, "q[:, BEFORE] = 20 * torch.eye(V)"),
        (FIND, "q[:, TOKEN] = torch.eye(V)"),  # not sharp
        (FIND, "q[:, TOKEN] = -20 * torch.eye(V)"),
        (FIND, "q[:, ONE] = 20"),
        (FIND, "pass"),
        (ANSWER, "k[:, TOKEN] = torch.eye(V)"),  # finds the same letter
        (ANSWER, "k[:, NEXT] = torch.eye(V)"),
        (ANSWER, "pass"),
        (READ, "v[:, BEFORE] = torch.eye(V)"),  # writes the letter itself
        (READ, "v[:, NEXT] = torch.eye(V)"),
        (READ, "pass"),
        (WRITE, "o[TOKEN, :] = torch.eye(V)"),
        (WRITE, "o[BEFORE, :] = torch.eye(V)"),
        (WRITE, "o[NEXT, :] = -torch.eye(V)"),
    ],
    ("07", "07.4"): [
        (REST, "q[0, ONE] = 15"),  # a match loses
        (REST, "q[0, ONE] = 0.5"),
        (REST, "q[0, ONE] = -5"),
        (REST, "q[1, ONE] = 5"),
        (REST, "pass"),
        ("k[0, 0] = 1", "k[0, 1] = 1"),  # "a" answers
        ("k[0, 0] = 1", "k[1, 0] = 1"),
        ("k[0, 0] = 1", "k[0, ONE] = 1"),  # every token answers
        ("k[0, 0] = 1", "k[0, 0] = -1"),
        ("k[0, 0] = 1", "k[0, 0] = 0"),
        ("v[0, 0] = 0", "v[0, 1] = 0"),
        ("v[0, 0] = 0", "v[0, 0] = 5"),
        ("v[0, 0] = 0", "pass"),
    ],
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
    ("00c", "00c.1"): [
        "def my_probabilities(logits, temperature):\n    scores = logits / temperature\n"
        "    powers = (scores - scores.amax(-1, keepdim=True)).exp()\n    return powers / powers.sum(-1, keepdim=True)",
    ],
    ("00c", "00c.2"): ["def my_mask(T):\n    return torch.ones(T, T, dtype=torch.bool).tril()"],
    ("07", "07.1"): [
        "def my_look_back(q, k, angles):\n    k[:32, ONE] = 3\n    q[:32, ONE] = 4 * angles.cos()\n"
        "    q[32:, ONE] = -4 * angles.sin()",
    ],
    ("07", "07.2"): ["def my_hand_over(v, o):\n    v[:, TOKEN] = 2 * torch.eye(V)\n    o[BEFORE] = torch.eye(V) / 2"],
    ("07", "07.3"): [
        "def my_match(q, k, v, o):\n    q[:, TOKEN] = 6 * torch.eye(V)\n    k[:, BEFORE] = 5 * torch.eye(V)\n"
        "    v[:, TOKEN] = torch.eye(V)\n    o[NEXT] = 3 * torch.eye(V)",
    ],
    ("07", "07.4"): ["def my_rest(q, k, v):\n    q[0, ONE] = 2\n    k[0, 0] = 2\n    v[0, 0] = 0"],
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
