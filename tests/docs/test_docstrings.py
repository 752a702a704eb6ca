"""A docstring or a comment that names a file of Headlight names one that exists."""

import ast
import io
import re
import tokenize

import pytest

from tests.docs.checks import ROOMS, ROOT

SOURCES = sorted(path for room in (*ROOMS, "docs", "tests") for path in (ROOT / room).rglob("*.py"))
FILE = re.compile(
    rf"(?<![\w/.*<])(?:{'|'.join((*ROOMS, 'docs', 'tests'))})/[\w/]+\.(?:py|md|yaml|ipynb|sh|jinja|html|js)\b"
)
OF_THE_READER = ("configs/x.yaml", "configs/YOURS.yaml", "notebooks/build/", "notebooks/mine/", "data/shakespeare")


def prose(source: str) -> str:
    """The docstrings and comments of a Python file."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return "\n".join(texts + [token.string for token in tokens if token.type == tokenize.COMMENT])


def missing(source: str) -> set[str]:
    """The files that a Python file's prose names and that do not exist."""
    named = {name for name in FILE.findall(prose(source)) if not name.startswith(OF_THE_READER)}
    return {name for name in named if not (ROOT / name).is_file()}


@pytest.mark.slow
def test_every_file_that_a_docstring_names_exists():
    found = {str(path.relative_to(ROOT)): missing(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == {}


def test_a_file_that_does_not_exist_is_seen():
    assert missing('def f():\n    """See model/attention.py and model/nowhere.py."""  # data/gone.yaml\n') == {
        "model/nowhere.py",
        "data/gone.yaml",
    }
