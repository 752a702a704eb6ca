"""Figures of how plain the type of Python files is: `python -m docs.tools.sizes` prints them."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

WIDTH = 100
RELATIVE = re.compile(r"(What|Whether|Where|Which|Whose|How|Of|Those|That)\b")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Figures:
    """The figures of some files."""

    # of stripped lines that are not blank: neither squeezing nor indenting changes them
    characters: int = 0
    # that are not blank
    lines: int = 0
    # of more than 100 columns
    wide: int = 0
    # assignments such as `a, b = x, y`; a swap and a shape are not counted
    packed: int = 0
    # docstrings that begin with What, Whether, Where, …
    relative: int = 0
    # without markers for tools
    comments: int = 0


def figures_of(files: Iterable[Path]) -> Figures:
    """Count the figures of these files together."""
    figures = Figures()
    for file in files:
        source = file.read_text(encoding="utf-8")
        tree = ast.parse(source)
        lines = [line for line in source.splitlines() if line.strip()]
        figures.characters += sum(len(line.strip()) for line in lines)
        figures.lines += len(lines)
        figures.wide += sum(len(line) > WIDTH for line in lines)
        figures.packed += len(list(packed(tree)))
        figures.relative += len(list(relative(tree)))
        figures.comments += sum(is_comment(token) for token in tokens_of(source))
    return figures


def packed(tree: ast.AST) -> Iterator[int]:
    """Yield the line of every assignment that unpacks a tuple written beside it."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
            continue
        if isinstance(node.targets[0], ast.Tuple):
            left = sorted(map(ast.unparse, node.targets[0].elts))
            right = sorted(map(ast.unparse, node.value.elts))
            if left != right:  # a swap has the same on both sides
                yield node.lineno


def relative(tree: ast.AST) -> Iterator[str]:
    """Yield every docstring that begins with a relative clause or a question."""
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED):
            text = ast.get_docstring(node) or ""
            if RELATIVE.match(text):
                yield text


def tokens_of(source: str) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(source).readline)


def is_comment(token: tokenize.TokenInfo) -> bool:
    markers = ("# type:", "# noqa", "# fmt:", "#!/", "# ---")
    return token.type == tokenize.COMMENT and not token.string.startswith(markers)
