"""The product's type stays plain; ruff limits the width of lines."""

from pathlib import Path

from docs.tools.plain import figures_of
from tests.docs.checks import ROOMS, ROOT


def test_docstrings_begin_with_a_verb_or_a_noun_and_statements_stand_alone():
    product = figures_of(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))
    assert product.relative <= 10
    assert product.packed <= 8 * product.lines / 1000
    tests = figures_of((ROOT / "tests").rglob("*.py"))
    assert tests.relative <= 20
    assert tests.packed <= 16 * tests.lines / 1000


def test_the_figures_are_those_of_a_file(tmp_path: Path):
    file = tmp_path / "x.py"
    file.write_text(
        '"""What is this?"""\n\na, b = 1, 2  # two\na, b = b, a\nB, T = x.shape\n'
        f'def f():\n    """Return a."""\n    return "{"a" * 100}"\n'
    )
    figures = figures_of([file])
    assert (figures.relative, figures.packed, figures.comments) == (1, 1, 1)
    assert figures.lines == 7
