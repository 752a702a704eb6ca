"""`python -m notebooks.execute` finds a cell that fails, and an exercise whose check or solution is
wrong.
"""

from __future__ import annotations

import re
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell

from configs.command import InputError
from tests.notebooks.making import ROOT, environment, exercise, write_notebook

IMPORTS = "from notebooks.start import check, play, same"
VAGUE = """
def judge(number):
    assert number == 4, "It is another number."
check("02b.1", four, judge)
"""
TWICE = 'check("07.1", twice, lambda f: same("twice(2)", f(2), 4))'


@pytest.fixture
def execute(monkeypatch):
    """notebooks.execute.execute, in a kernel that finds this tree."""
    from notebooks.execute import execute

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HEADLIGHT_LANG", "zh")  # what is proven and written is English all the same
    return execute


def main(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "notebooks.execute", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_notebook_is_run_proven_and_written_with_what_it_shows(execute, tmp_path):
    path = write_notebook(
        tmp_path / "01_good.ipynb",
        new_markdown_cell("# Is it four?"),
        IMPORTS,
        *exercise("four = 4", "four = 5"),
        "play(lambda width: print(width), width=[3, 5])",
        *exercise("def twice(n):\n    return 2 * n", "twice = abs", TWICE, "twice"),
        "print('\\rstep 1 … ', end='', flush=True); print('\\rend')",
    )
    before = path.read_bytes()
    assert (execute(path, write=False), path.read_bytes()) == (2, before)
    execute(path, write=True)
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(notebook.cells) == 10
    assert [cell.execution_count for cell in code] == list(range(1, 8))
    assert code[-1].outputs[0].text == "end\n"
    assert code[2].outputs[0].text.startswith("No answer yet")
    assert "widget" not in path.read_text(encoding="utf-8")
    (drawn,) = [cell for cell in code if cell.source.startswith("play(")]
    # what the control drew at first, for the web
    assert [output.text for output in drawn.outputs] == ["3\n"]
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert all("execution" not in cell.metadata for cell in code)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cells", "complaint"),
    [
        (exercise("four = 4", "four = 4.0"), "AssertionError: its check does not refuse the wrong answer: it raises"),
        (exercise("four = 4", "four = vier"), "does not refuse the wrong answer: NameError: name 'vier'"),
        (exercise("four = 4", "four = 5", "print('well')"), "does not refuse the wrong answer: it raises"),
        (exercise("four = 5", "four = 3"), "cell 3 failed: AssertionError: its check does not accept"),
        (exercise("four = None", "four = 3"), "the solution sets no four"),
        (exercise("answer = 4", "four = 3"), "the solution sets no four"),
        (exercise("four = 4", None), 'exercise in cell 2 needs "name = None'),
        (exercise("four = 4", "four = 5")[:2], "exercise in cell 2 needs"),
        (exercise("four = 4", "four = 5")[::2], "exercise in cell 2 needs"),
        (exercise("four = 4", "four = 5", VAGUE), "AssertionError: its check does not give lambda queries"),
        ([*exercise("four = side = 4", "four = 5"), "print(side)"], "cell 5 failed: NameError: name 'side'"),
    ],
)  # fmt: skip
def test_an_exercise_that_proves_nothing_is_refused(execute, tmp_path, cells, complaint):
    path = write_notebook(tmp_path / "bad.ipynb", IMPORTS, *cells)
    before = path.read_bytes()
    with pytest.raises(InputError) as raised:
        execute(path, write=True)
    assert complaint in str(raised.value)
    assert str(raised.value).startswith("bad.ipynb, ")
    assert path.read_bytes() == before


@pytest.mark.slow
def test_a_large_page_is_left_out_and_its_text_stays(execute, tmp_path):
    shown = "from IPython.display import display\ndisplay({'text/html': '<b>' + N * 'x', 'text/plain': 'N'}, raw=True)"
    path = write_notebook(tmp_path / "n.ipynb", *(shown.replace("N", size) for size in ("9", "900_000")))
    execute(path, write=True)
    small, large = (cell.outputs[0].data for cell in nbformat.read(path, as_version=4).cells)
    assert small == {"text/html": "<b>" + 9 * "x", "text/plain": "9"}
    assert large == {"text/plain": "900_000"}


@pytest.mark.slow
def test_a_failing_cell_is_named_by_one_line_and_code_2_after_its_traceback(tmp_path):
    path = write_notebook(tmp_path / "02_bad.ipynb", new_markdown_cell("# Why?"), "x = 0", "def f():\n    1 / x\n\nf()")
    result = main(str(path), "--write")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == "error: 02_bad.ipynb, cell 3 failed: ZeroDivisionError: division by zero"
    assert "----> 2     1 / x" in re.sub(r"\x1b\[[0-9;]*m", "", result.stderr)
    assert nbformat.read(path, as_version=4).cells[2].outputs == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "problem"),
    [  # interact hides an error in what it draws
        ("play(lambda width: print(1 / width), width=[0, 5])", "ZeroDivisionError: division by zero"),
        ("import os; os._exit(1)", ".*Kernel died"),
    ],
)
def test_hidden_errors_and_dead_kernels_are_found(execute, tmp_path, cell, problem):
    path = write_notebook(tmp_path / "n.ipynb", IMPORTS, cell)
    with pytest.raises(InputError, match=f"n.ipynb, cell 2 failed: {problem}"):
        execute(path, write=False)
