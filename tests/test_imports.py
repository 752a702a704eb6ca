"""Who imports whom: no circle of files, be it through TYPE_CHECKING or an import inside a function."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("configs", "model", "storyworld", "data", "eval", "train", "serve", "benchmarks", "notebooks")


def imports_in(folder: Path, *rooms: str) -> dict[str, set[str]]:
    """Module -> the modules of these rooms that it names anywhere in its source."""
    files = [file for room in rooms for file in sorted((folder / room).rglob("*.py"))]
    names = {".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): file for file in files}
    found: dict[str, set[str]] = {}
    for name, file in names.items():
        package = name if file.stem == "__init__" else name.rpartition(".")[0]
        named = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
                source = ".".join([*above, *([node.module] if node.module else [])])
                inner = [f"{source}.{alias.name}" for alias in node.names]
                named |= {dotted if dotted in names else source for dotted in inner}
        found[name] = (named & names.keys()) - {name}
    return found


def test_no_circle_of_files():
    imports = imports_in(ROOT, *ROOMS)
    # the graph is not empty because nothing was resolved
    assert sum(map(len, imports.values())) > 300
    # raises CycleError, with the circle: move what both need into a third file
    TopologicalSorter(imports).prepare()


def test_a_circle_is_found_however_it_is_written(tmp_path):
    (tmp_path / "data").mkdir()
    files = {
        "__init__": "",
        "a": "from __future__ import annotations\nif TYPE_CHECKING:\n    from data.b import B",
        "b": "def f():\n    from . import c",
        "c": "import data.d",
        "d": "from .a import A",
        "e": "from data import a, d",
    }
    for name, text in files.items():
        (tmp_path / f"data/{name}.py").write_text(text)
    imports = imports_in(tmp_path, "data")
    assert imports["data.e"] == {"data.a", "data.d"}
    with pytest.raises(CycleError) as caught:
        TopologicalSorter(imports).prepare()
    assert set(caught.value.args[1]) == {"data.a", "data.b", "data.c", "data.d"}
