"""What there is to be named: files, words of the code, modules and their options, keys of a config, targets of make."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import re
import runpy
import sys
import warnings
from functools import cache
from pathlib import Path
from unittest import mock

from configs.loader import fields
from eval.attention.probes import ProbeFile
from tests.docs.page import ROOT
from train.config import RunConfig

ROOMS = ("configs", "model", "data", "eval", "train", "serve", "benchmarks", "notebooks", "tests")
NOT_OURS = {*".git .venv runs wandb __pycache__ .pytest_cache .ruff_cache .mypy_cache .hypothesis".split()}
CODE = {".py", ".yaml", ".jinja", ".js", ".css", ".html", ".toml", ".txt", ".sh", ""}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")


@cache
def files() -> frozenset[str]:
    """Every file and folder of the repository, from its root, with forward slashes."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in NOT_OURS and not name.endswith(".egg-info")]
        found += [(Path(folder) / name).relative_to(ROOT).as_posix() for name in [*folders, *names]]
    return frozenset(found)


@cache
def code() -> str:
    """The text of all code and configs, but not of the tests, which hold names that do not exist."""
    chosen = [name for name in sorted(files()) if Path(name).suffix in CODE and not name.startswith("tests/")]
    return "\n".join((ROOT / name).read_text(encoding="utf-8") for name in chosen if (ROOT / name).is_file())


@cache
def words() -> frozenset[str]:
    return frozenset(re.findall(r"\w+", code()))


@cache
def stems() -> frozenset[str]:
    """Names of files without their endings: test_exactness, shakespeare_char_15s."""
    return frozenset(Path(name).stem for name in files())


@cache
def config_keys() -> frozenset[str]:
    """Dotted keys of a run's YAML, and of a file of probes."""
    paths = [*(path for model in (RunConfig, ProbeFile) for path, _ in fields(model)), ("extends",)]
    return frozenset(".".join(path) for path in paths)


@cache
def make_targets() -> frozenset[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("$(VENV)", ".venv")
    return frozenset(re.findall(r"^([\w./-]+):", text, re.MULTILINE))


@cache
def is_module(name: str) -> bool:
    if name == "pip":  # looking for it makes setuptools step aside, and torch.compile then fails in this process
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the parent of a dotted name is missing
        return False


def is_command(name: str) -> bool:
    """Whether `python -m name` runs something."""
    if name == "pip":
        return True
    if not is_module(name):
        return False
    spec = importlib.util.find_spec(name)
    assert spec is not None
    if spec.submodule_search_locations is not None:
        return is_module(f"{name}.__main__")
    return name.split(".")[0] not in ROOMS or '__name__ == "__main__"' in Path(str(spec.origin)).read_text("utf-8")


@cache
def options(module: str) -> frozenset[str]:
    """The options that `python -m module --help` names; the program itself is asked."""
    out = io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, "argv", [module, "--help"]))
        stack.enter_context(mock.patch.dict(os.environ, {"COLUMNS": "1000"}))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", RuntimeWarning)  # runpy: the module was imported before
        with contextlib.suppress(SystemExit):
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    return frozenset(OPTION.findall(out.getvalue()))


@cache
def all_options() -> frozenset[str]:
    """Of all command lines of the rooms."""
    found: set[str] = set()
    for name in sorted(files()):
        module = name.removesuffix(".py").replace("/", ".").removesuffix(".__main__")
        if name.endswith(".py") and name.split("/")[0] in ROOMS[:-1] and is_command(module):
            found |= options(module)
    return frozenset(found)


@cache
def is_attribute(dotted: str) -> bool:
    """Whether a dotted name is a module, or something in one: eval.attention.viewer.notebook."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        if is_module(".".join(parts[:length])):
            thing: object = importlib.import_module(".".join(parts[:length]))
            for part in parts[length:]:
                if not hasattr(thing, part):
                    return False
                thing = getattr(thing, part)
            return True
    return False
