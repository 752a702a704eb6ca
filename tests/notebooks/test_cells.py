"""Names in the notebooks' cells exist today, and stored outputs come from today's models.

Nothing is run here.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import os
import re
import shutil
import subprocess
import typing
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

from data.tokenizer import DEFAULT_VOCAB_SIZE
from model.transformer import on_meta
from tests.notebooks.making import ROOT
from train.config import load_run_config

ROOMS = ("configs", "model", "storyworld", "data", "eval", "train", "serve", "benchmarks", "notebooks")
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
CHINESE = sorted((ROOT / "notebooks" / "zh").glob("*.ipynb"))
# notebooks.start.named
SHOWN = re.compile(r"^(?:runs|pretrained)/((small|demo): .*parameters.*)$", re.MULTILINE)
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code(path: Path) -> list:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


# --------------------------------------------------------------------------------------------------
# the reader's folders


@pytest.mark.parametrize("path", NOTEBOOKS + CHINESE, ids=lambda path: str(path.relative_to(ROOT)))
def test_its_links_open_in_jupyter_from_its_place_and_from_the_readers_copy(path):
    """JupyterLab opens files below the folder that it was started in, and no folder."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (started,) = re.findall(r"^\S+/jupyter lab *([^\s#]*)", readme, re.MULTILINE)
    own = path.relative_to(ROOT / "notebooks")
    text = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        for copy in ("notebooks", "mine"):
            if not re.match(r"https?:", target):
                there = os.path.normpath(Path(copy) / own.parent / target)
                assert there.startswith(started), f"{target} from {copy} is outside of {started}"
                file = ROOT / re.sub(r"^mine/(.*\.ipynb)$", r"notebooks/\1", there)
                assert file.is_file(), f"{target} from {copy} is no file"


def test_make_mine_copies_what_is_missing_and_leaves_the_readers_work_alone(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "notebooks" / "zh").mkdir(parents=True)
    (tmp_path / "notebooks" / "00_a.ipynb").write_text("first", encoding="utf-8")
    subprocess.run(["make", "mine"], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    (tmp_path / "mine" / "00_a.ipynb").write_text("solved", encoding="utf-8")
    (tmp_path / "notebooks" / "zh" / "00_a.ipynb").write_text("一", encoding="utf-8")
    subprocess.run(["make", "mine"], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "mine" / "00_a.ipynb").read_text(encoding="utf-8") == "solved"
    assert (tmp_path / "mine" / "zh" / "00_a.ipynb").read_text(encoding="utf-8") == "一"
    assert subprocess.run(["git", "check-ignore", "-q", "mine/00_a.ipynb"], cwd=ROOT, check=False).returncode == 0


@every_notebook
def test_its_code_is_not_cut_in_jupyterlab(path):
    """106 characters fit beside the file browser in a window of 1,280 pixels; the rest of a line
    would be hidden.
    """
    assert not [line for cell in code(path) for line in cell.source.splitlines() if len(line) > 106]


# --------------------------------------------------------------------------------------------------
# the models that stored outputs show


def todays_line(name: str) -> str:
    """Return the line that `small()` or `demo()` prints for a run of today's config."""
    config = load_run_config(ROOT / "configs" / f"{name}.yaml")
    words = config.data.tokenizer.vocab_size or DEFAULT_VOCAB_SIZE
    parameters = on_meta(config.model.model_copy(update={"vocab_size": words})).num_parameters()
    train = config.train
    size = f"{parameters:,} parameters, {train.max_steps:,} steps of {train.tokens_per_step:,} tokens"
    return f"{name}: {size}"


def stale_outputs(cells: list) -> list[str]:
    """Why the stored outputs are not of today's models: nothing, if they are."""
    printed = "\n".join(out.text for cell in cells for out in cell.outputs if out.output_type == "stream")
    shown = {match[2]: match[1] for match in SHOWN.finditer(printed)}
    source = "\n".join(cell.source for cell in cells)
    if not shown and re.search(r"\b(demo|small)\(\)", source):
        return ["it does not say which model it shows"]
    todays = {name: todays_line(name) for name in shown}
    return [f"stored: {line}; today: {todays[name]}" for name, line in shown.items() if line != todays[name]]


@every_notebook
def test_stored_outputs_are_of_todays_models(path):
    assert stale_outputs(code(path)) == [], "python -m notebooks.execute --write runs it again"


@pytest.mark.parametrize(("old", "new"), [("401,856", "1,300,000"), ("1,200 steps", "2,600 steps"), ("runs/", "")])
def test_outputs_of_another_model_are_found(old, new):
    output = nbformat.v4.new_output("stream", text=f"There is none\nruns/{todays_line('small')}\nfour heads\n")
    cell = nbformat.v4.new_code_cell("run = small()", outputs=[output])
    assert stale_outputs([cell]) == []
    assert old in output.text
    output.text = output.text.replace(old, new)
    assert len(stale_outputs([cell])) == 1


# --------------------------------------------------------------------------------------------------
# the names that cells use


class Names(ast.NodeVisitor):
    """Problems of what cells import from our rooms: names, keyword arguments, and attributes of
    what is returned.
    """

    def __init__(self) -> None:
        # a name of the notebook -> our module, function or class
        self.known: dict[str, object] = {}
        # a name of the notebook -> the class of ours that it holds
        self.types: dict[str, type] = {}
        self.problems: list[str] = []

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level or (node.module or "").split(".")[0] not in ROOMS:
            return
        try:
            module = importlib.import_module(node.module or "")
        except ModuleNotFoundError as error:
            self.problems.append(str(error))
            return
        for alias in node.names:
            # a module in a folder is no attribute before it is imported
            if not hasattr(module, alias.name):
                try:
                    importlib.import_module(f"{node.module}.{alias.name}")
                except ModuleNotFoundError:
                    self.problems.append(f"{node.module} has no {alias.name}")
                    continue
            self.known[alias.asname or alias.name] = getattr(module, alias.name)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.split(".")[0] in ROOMS:
                try:
                    self.known[alias.asname or alias.name] = importlib.import_module(alias.name)
                except ModuleNotFoundError as error:
                    self.problems.append(str(error))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        holder = self.type_of(node.value)
        if isinstance(holder, type) and not has(holder, node.attr):
            self.problems.append(f"{holder.__name__} has no {node.attr}")
        module = self.object_of(node.value)
        if isinstance(module, ModuleType) and not hasattr(module, node.attr):
            self.problems.append(f"{module.__name__} has no {node.attr}")

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        function = self.object_of(node.func)
        if not callable(function) or any(word.arg is None for word in node.keywords):
            return
        if isinstance(function, type) and issubclass(function, Exception):
            return
        several = any(isinstance(value, ast.Starred) for value in node.args)
        try:
            signature = inspect.signature(function)
            given = dict.fromkeys(word.arg for word in node.keywords if word.arg)
            (signature.bind_partial if several else signature.bind)(*([] if several else node.args), **given)
        except TypeError as error:
            self.problems.append(f"{ast.unparse(node.func)}: {error}")

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            self.bind(target, self.type_of(node.value))

    def bind(self, target: ast.expr, value: object) -> None:
        """A name now holds an object of this class (None: not known), or no longer one of ours."""
        if isinstance(target, ast.Name):
            self.known.pop(target.id, None)
            self.types.pop(target.id, None)
            if isinstance(value, type) and value.__module__.split(".")[0] in ROOMS:
                self.types[target.id] = value
        elif isinstance(target, ast.Tuple):
            parts = typing.get_args(value) if typing.get_origin(value) is tuple else ()
            for i, part in enumerate(target.elts):
                self.bind(part, parts[i] if len(parts) == len(target.elts) else None)

    def visit_For(self, node: ast.For) -> None:
        self.bind(node.target, item_of(self.type_of(node.iter)))
        self.generic_visit(node)

    def visit_scope(self, node: ast.AST) -> None:
        """A function or a comprehension: its own names end with it."""
        outside = self.known.copy(), self.types.copy()
        for argument in node.args.posonlyargs + node.args.args + node.args.kwonlyargs if hasattr(node, "args") else []:
            self.bind(ast.Name(argument.arg), None)
        for part in getattr(node, "generators", []):
            self.bind(part.target, item_of(self.type_of(part.iter)))
        self.generic_visit(node)
        self.known, self.types = outside
        if isinstance(node, ast.FunctionDef):
            self.bind(ast.Name(node.name), None)

    visit_FunctionDef = visit_Lambda = visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = (
        visit_scope
    )

    def object_of(self, node: ast.expr) -> object:
        """The module, function or class of ours that an expression names, or None."""
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        owner = self.object_of(node.value) if isinstance(node, ast.Attribute) else None
        return None if owner is None else getattr(owner, node.attr, None)

    def type_of(self, node: ast.expr) -> object:
        """The annotation of what an expression gives, as far as calls and attributes of ours say
        it, or None.
        """
        if isinstance(node, ast.Name):
            return self.types.get(node.id)
        if isinstance(node, ast.NamedExpr):
            return self.type_of(node.value)
        if isinstance(node, ast.Subscript):
            return item_of(self.type_of(node.value), getattr(node.slice, "value", None))
        try:
            if isinstance(node, ast.Call):
                function = self.object_of(node.func)
                if isinstance(function, type):
                    return function
                if isinstance(node.func, ast.Attribute) and isinstance(one := self.type_of(node.func.value), type):
                    function = getattr(one, node.func.attr, None)
                return typing.get_type_hints(function).get("return") if inspect.isroutine(function) else None
            if isinstance(node, ast.Attribute) and isinstance(one := self.type_of(node.value), type):
                return typing.get_type_hints(one).get(node.attr)
        except NameError:  # an annotation that is imported for type checking only
            return None
        return None


def item_of(value: object, place: object = None) -> object:
    """Return the element type of an annotated list or tuple (at this place), or None."""
    origin = typing.get_origin(value)
    items = typing.get_args(value)
    if origin is tuple and isinstance(place, int) and place < len(items) and ... not in items:
        return items[place]
    return items[0] if origin is list and items else None


def has(holder: type, name: str) -> bool:
    """Return True if objects of this class have an attribute: its own, a field, or set on `self`."""
    fields = {field.name for field in dataclasses.fields(holder)} if dataclasses.is_dataclass(holder) else set()
    if hasattr(holder, name) or name in fields or name in getattr(holder, "model_fields", {}):
        return True
    for parent in holder.__mro__:
        if name in inspect.get_annotations(parent):
            return True
        if parent.__module__.split(".")[0] in ROOMS:
            source = inspect.getsource(parent)
            if re.search(rf"\bself\.{name}\b[^=\n]*=", source) or f'register_buffer("{name}"' in source:
                return True
    return False


def problems_of(sources: list[str]) -> list[str]:
    names = Names()
    for source in sources:
        names.visit(ast.parse(re.sub(r"^ *[%!].*", "", source, flags=re.MULTILINE)))
    return names.problems


@every_notebook
def test_the_names_that_its_cells_use_exist(path):
    solutions = [
        match
        for cell in nbformat.read(path, as_version=4).cells
        for match in re.findall(r"<details>.*?```python\n(.*?)```", cell.source, re.DOTALL)
    ]
    assert problems_of([cell.source for cell in code(path)] + solutions) == []


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("from eval.attention.history import best_heads", "eval.attention.history has no best_heads"),
        ("from eval.attention.histories import best_head", "No module named 'eval.attention.histories'"),
        ("from eval.compare import pictures\npictures.lives({})", "eval.compare.pictures has no lives"),
        (
            "from model import load\nload('runs/small', devise='cpu')",
            "load: got an unexpected keyword argument 'devise'",
        ),
        ("from notebooks.start import check\ncheck('01.1', 1)", "check: missing a required argument: 'judge'"),
        ("from model import load\nlm = load('x')\nlm.confg", "LanguageModel has no confg"),
        (
            "from eval.attention.snapshots import read_all\nlast = read_all('x')[0][-1]\nlast.score['induction']",
            "Snapshot has no score",
        ),
        (
            "from eval.attention.history import like_the_last\n[seen.steps for seen in like_the_last([])]",
            "Snapshot has no steps",
        ),
        (
            "from eval.load_model import open_model\nlm, words = open_model('x', 'cpu')\nwords.eos",
            "Tokenizer has no eos",
        ),
    ],
)
def test_a_name_that_is_gone_is_found(source, problem):
    assert problems_of([source]) == [problem]
