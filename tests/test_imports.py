"""Who imports whom: no circle of files, be it through TYPE_CHECKING or an import inside a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("configs", "model", "data", "eval", "train", "serve", "benchmarks", "notebooks")


def imports_in(folder: Path, rooms: tuple[str, ...] = ROOMS) -> dict[str, set[str]]:
    """Module -> the modules of these rooms that it names anywhere in its source."""
    files = {name_of(file, folder): file for room in rooms for file in sorted((folder / room).rglob("*.py"))}
    return {name: set(named_in(name, file, files)) - {name} for name, file in files.items()}


def name_of(file: Path, folder: Path) -> str:
    parts = file.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def named_in(name: str, file: Path, known: dict[str, Path]) -> Iterator[str]:
    package = name if file.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield from (found for found in [inner if inner in known else source] if found in known)


def circles(imports: dict[str, set[str]]) -> list[frozenset[str]]:
    """The largest groups of modules that all lead to one another."""
    reached = {name: reachable(name, imports) for name in imports}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in imports}
    return [group for group in groups if group]


def reachable(name: str, imports: dict[str, set[str]]) -> set[str]:
    found, left = set[str](), [name]
    while left:
        new = imports[left.pop()] - found
        found |= new
        left += new
    return found


def test_no_circle_of_files():
    imports = imports_in(ROOT)
    assert len(imports) > 100
    assert sum(map(len, imports.values())) > 300  # the graph is not empty because nothing was resolved
    found = [sorted(circle) for circle in circles(imports)]
    assert not found, f"files that import each other: {found}: move what both need into a third file"


def test_a_circle_is_found_however_it_is_written(tmp_path):
    files = {
        "data/__init__.py": "",
        "data/a.py": "from __future__ import annotations\nif TYPE_CHECKING:\n    from data.b import B",
        "data/b.py": "def f():\n    from . import c",
        "data/c.py": "import data.d",
        "data/d.py": "from .a import A",
        "data/e.py": "from data import a, d",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    imports = imports_in(tmp_path, ("data",))
    assert imports["data.e"] == {"data.a", "data.d"}
    assert circles(imports) == [frozenset({"data.a", "data.b", "data.c", "data.d"})]
