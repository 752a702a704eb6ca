"""Figures of how plain the type of Python files is: `python -m docs.tools.sizes` prints them."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Comments that begin so are for a tool, or rule a line: no reader learns from them.
FOR_TOOLS = ("# type:", "# noqa", "# fmt:", "#!/", "# ---")
RELATIVE = re.compile(r"(What|Whether|Where|Which|Whose|How|Of|Those|That)\b")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Figures:
    """The figures of some files."""

    # of stripped lines that are not blank: neither squeezing nor indenting changes them
    characters: int = 0
    # that are not blank
    lines: int = 0
    # assignments such as `a, b = x, y`; a swap and a shape are not counted
    packed: int = 0
    # docstrings that begin with What, Whether, Where, …
    relative: int = 0
    # without FOR_TOOLS
    comments: int = 0


def figures_of(files: Iterable[Path]) -> Figures:
    """Count the figures of these files together."""
    figures = Figures()
    for file in files:
        source = file.read_text(encoding="utf-8")
        # the syntax tree, because a search for commas and words would be wrong within strings
        tree = ast.parse(source)
        lines = [line for line in source.splitlines() if line.strip()]
        figures.characters += sum(len(line.strip()) for line in lines)
        figures.lines += len(lines)
        figures.packed += len(list(packed(tree)))
        figures.relative += len(list(relative(tree)))
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT and not token.string.startswith(FOR_TOOLS):
                figures.comments += 1
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
