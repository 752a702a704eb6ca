"""The checks of the functions that readers write in notebooks 01, 03, 04, 06, 08, 15 and 16."""

from __future__ import annotations

import itertools
import math
import re

import nbformat
import pytest
import torch
import torch.nn.functional as F

from configs.command import InputError
from model.attention import repeat_kv
from notebooks import start, steps
from notebooks.checks import lessons
from tests.notebooks.making import ROOT, printed, run_cells
from tests.notebooks.mistakes_lessons import RIGHT, WRONG
from train.machine.budget import kv_cache_bytes


def join_halves(a: steps.State, b: steps.State) -> torch.Tensor:
    """The output of two states, by the rule for a block: notebook 08 needs no function of ours."""
    largest = torch.maximum(a[0], b[0])
    shrink_a, shrink_b = (a[0] - largest).exp(), (b[0] - largest).exp()
    return (a[2] * shrink_a + b[2] * shrink_b) / (a[1] * shrink_a + b[1] * shrink_b)


EXERCISES = {
    "score": ("01.1", steps.score),
    "hide": ("01.2", steps.hide),
    "softmax": ("01.3", steps.softmax),
    "mix": ("01.4", steps.mix),
    "divide": ("01.6", steps.divide),
    "attend": ("01.7", steps.attend),
    "repeat_kv": ("03.1", repeat_kv),
    "cache_bytes": ("03.2", kv_cache_bytes),
    "ablate": ("06.2", steps.ablate),
    "shapley": ("06.5", steps.shapley),
    "begins_to_copy": ("04.1", steps.begins_to_copy),
    "earlier": ("04.2", steps.earlier),
    "read_block": ("08.2", steps.read_block),
    "join_halves": ("08.3", join_halves),
    "parting": ("15.1", steps.parting),
    "looks_back": ("15.2", lambda T: torch.eye(T).roll(1, 0).where(torch.arange(T)[:, None] > 0, torch.eye(T))),
    "middle": ("15.3", steps.middle),
    "in_context": ("16.1", steps.in_context),
    "half_way": ("16.2", steps.half_way),
    "smear": ("16.3", lambda k, share: torch.cat((k[:1], share * k[1:] + (1 - share) * k[:-1]))),
}
every_exercise = pytest.mark.parametrize("name", EXERCISES)


def written(source: str):
    return eval(source, {"torch": torch, "math": math, "F": F, "itertools": itertools})


def ask(name: str, answer):
    number, ours = EXERCISES[name]
    return start.check(number, answer, getattr(lessons, name), ours=ours)


@every_exercise
def test_at_least_twelve_plausible_wrong_answers_are_refused_with_one_sentence(name):
    assert len(WRONG[name]) >= 12
    hints = start.HINTS[EXERCISES[name][0]]
    for source in WRONG[name]:
        with pytest.raises(InputError) as refused:
            ask(name, written(source))
        sentence, hint = str(refused.value).split("\n")
        assert sentence.startswith("Not yet. "), source
        assert hint.removeprefix("Hint: ") in hints.values(), source
        assert len(sentence) < 400, source


@every_exercise
def test_right_answers_are_returned_whatever_their_form(name, capsys):
    for source in RIGHT[name]:
        answer = written(source)
        assert ask(name, answer) is answer, source
        assert capsys.readouterr().out == "Right.\n"


@every_exercise
def test_without_an_answer_ours_is_used_and_a_line_says_so(name, capsys):
    ours = EXERCISES[name][1]
    assert ask(name, None) is ours
    assert capsys.readouterr().out.splitlines()[-1] == "Until then, the cells below use Headlight's function."
    assert ask(name, ours) is ours  # and the check accepts it


@pytest.mark.slow
def test_notebook_01_runs_to_its_end_with_the_functions_that_its_reader_wrote(tmp_path):
    cells = nbformat.read(ROOT / "notebooks" / "01_attention_by_hand.ipynb", as_version=4).cells
    sources = []
    for i, cell in enumerate(cells):
        if "exercise" in cell.metadata.get("tags", []):
            sources.append(re.search(r"```python\n(.+?)```", cells[i + 2].source, re.DOTALL)[1])
        elif cell.cell_type == "code":
            sources.append(cell.source)
    ran = run_cells(tmp_path, *sources, "print([f.__name__ for f in (score, hide, softmax, mix, divide, attend)])")
    assert not [output for cell in ran for output in cell.outputs if output.output_type == "error"]
    written = ["my_score", "my_hide", "my_softmax", "my_mix", "my_divide", "my_attend"]
    assert printed(ran[-1]).strip() == str(written)
    assert sum(printed(cell) == "Right.\n" for cell in ran) == 7
