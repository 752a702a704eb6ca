"""Find mistakes of a guide: its links, and every file, key, name, command and option in it.

`mistakes(page)` takes a Markdown file, or the Markdown of a notebook, and returns one line for
each.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import fnmatch
import importlib.util
import io
import json
import os
import pkgutil
import re
import runpy
import shlex
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote

import yaml
from markdown_it import MarkdownIt
from pydantic import TypeAdapter, ValidationError

from configs.command import InputError
from configs.loader import fields
from data.config import Source
from eval.attention.probes import ProbeFile
from train.config import RunConfig, load_run_config

ROOT = Path(__file__).parents[2]
ROOMS = ("configs", "model", "storyworld", "data", "eval", "train", "serve", "benchmarks", "notebooks")
MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
SUFFIXES = set(".py .md .yaml .json .jsonl .ipynb .sh .toml .txt .npz .png .gif .html .jinja .cff .csv .gguf".split())
# of other projects and of the reader
EXAMPLES = {"configs/x.yaml", "train_00000.bin", "sanitize_control_tokens", "tokenized_requests"}
EXAMPLES |= {"OMP_NUM_THREADS", "NCCL_DEBUG", "HF_ENDPOINT", "save_to_disk"}
KEY = re.compile(r"((?:model|data|train|eval|tracking)(?:\.[a-z_0-9N]+)+)(?:$|[=:( ])")
NAME = re.compile(r"\b(?:[A-Za-z][A-Za-z0-9]*_\w*[A-Za-z0-9]|[A-Z][a-z]+[A-Z]\w+)\b")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
COMMAND = re.compile(r"(?:python[\d.]*|torchrun)\b.*? -m ([A-Za-z_][\w.]*)(.*)$")
READS_CONFIGS = ("train.pretrain", "train.sft", "train.budget", "benchmarks.training", "data.prepare", "data.inspect")


@dataclass
class Page:
    """links, code (in a sentence): (line, text).

    blocks: (line, language, text). own_words: a notebook's own names.
    """

    path: Path
    text: str
    own_words: set[str] = field(default_factory=set)
    headings: list[tuple[str, str]] = field(default_factory=list)  # (h2, text)
    links: list[tuple[int, str]] = field(default_factory=list)
    code: list[tuple[int, str]] = field(default_factory=list)
    blocks: list[tuple[int, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        tokens = MARKDOWN.parse(self.text)
        for number, token in enumerate(tokens):
            line = token.map[0] + 1 if token.map else 0
            if token.type == "heading_open":
                inside = tokens[number + 1].children or []
                plain = "".join(part.content for part in inside if part.type in ("text", "code_inline"))
                self.headings.append((token.tag, plain))
            elif token.type == "fence":
                self.blocks.append((line, token.info.strip().split(" ")[0], token.content))
            for part in token.children or []:
                if part.type == "code_inline":
                    self.code.append((line, part.content))
                elif target := part.attrGet("href") or part.attrGet("src"):
                    self.links.append((line, str(target)))
        for found in re.finditer(r"""<(?:a|img|source|video)\b[^>]*?\b(?:href|src)=["']([^"']+)""", self.text):
            self.links.append((self.text.count("\n", 0, found.start()) + 1, found[1]))

    @property
    def anchors(self) -> set[str]:
        """Return GitHub's anchors of the headings (-1 … for a repeated one), and <a id="…">."""
        slugs = [re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-") for _, text in self.headings]
        again = {f"{slug}-{n}" for slug, count in Counter(slugs).items() for n in range(1, count)}
        return again | {*slugs, *re.findall(r"""<a\b[^>]*?\b(?:id|name)=["']([^"']+)""", self.text)}


def read(path: Path) -> Page:
    """path: of a .md or an .ipynb, from the repository's root.

    What was removed may be named and is left out.
    """
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return Page(path, re.sub(r"(?ms)^### Removed$.*?(?=^#|\Z)", "", text))
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
    words = {word for kind, source in cells if kind == "code" for word in re.findall(r"\w+", source)}
    return Page(path, "\n\n".join(source for kind, source in cells if kind == "markdown"), words)


def mistakes(page: Page) -> list[str]:
    """Every mistake, as `docs/sft.md:12: what is wrong`."""
    checks = (markers, tables, links, names, commands, blocks)
    return [f"{page.path}:{line}: {problem}" for check in checks for line, problem in check(page)]


Mistakes = Iterator[tuple[int, str]]


def markers(page: Page) -> Mistakes:
    """No merge has left its marks."""
    for number, line in enumerate(page.text.splitlines(), 1):
        if re.match(r"(<{7}|\|{7}|>{7}) |={7}$", line):
            yield number, f"a conflict of a merge: {line}"


def tables(page: Page) -> Mistakes:
    """A row has as many cells as its head; a | in code counts as well."""
    for table in re.finditer(r"(?:^\|.*\n?)+", page.text, re.MULTILINE):
        counts = [len(re.findall(r"(?<!\\)\|", row)) for row in table[0].splitlines()]
        for number, count in enumerate(counts, page.text.count("\n", 0, table.start()) + 1):
            if count != counts[0]:
                yield number, f"{count - 1} cells in a table of {counts[0] - 1}"


def links(page: Page) -> Mistakes:
    """A relative link leads to a file, and its #anchor to a heading there; https: is not asked."""
    for line, target in page.links:
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = unquote(target).partition("#")
        there = ROOT / page.path.parent / file if file else ROOT / page.path
        if file and not there.exists():
            yield line, f"the link {target} leads nowhere"
        elif anchor and there.suffix in (".md", ".ipynb"):
            known = read(there.resolve().relative_to(ROOT)).anchors if file else page.anchors
            if anchor not in known:
                yield line, f"{target}: no heading makes #{anchor}{nearest(anchor, known)}"


def names(page: Page) -> Mistakes:
    """Check that `code` names a file, a key of a config, an option or a name in the source."""
    for line, text in page.code:
        path = text.strip().rstrip(",;")
        key = re.sub(r"\.(N|\d+)(?=\.|$)", "", found[1]) if (found := KEY.match(text)) else ""
        if re.match(r"https?:", text) or text in EXAMPLES:
            continue
        if is_path(path):
            if not exists(path, page):
                yield line, f"there is no file `{path}`{nearest(path, files())}"
            continue
        if key and key not in config_keys() and ("=" in text or ": " in text or not is_attribute(key)):
            yield line, f"`{key}` is no key and no name in a module{nearest(key, config_keys())}"
            continue
        for option in OPTION.findall(text) if text.startswith("--") else []:
            if not re.search(rf"{option}(?![\w-])", code()):
                yield line, f"no command has the option {option}"
        # a run may have any name
        for word in NAME.findall(re.sub(r"\b(?:runs/|name=)\S+", "", text)):
            if not any(word in known for known in (words(), page.own_words, EXAMPLES)):
                yield line, f"nothing is called `{word}`{nearest(word, words())}"


def is_path(name: str) -> bool:
    if not re.fullmatch(r"[\w.\-*/<>+]+", name) or re.fullmatch(r"[.*]*\w*|\.\w+(\.\w+)?|\d[\d./]*", name):
        return False
    first, slash, _ = name.partition("/")
    return (bool(slash) and (first in files() or name.endswith("/"))) or Path(name).suffix in SUFFIXES


def exists(name: str, page: Page) -> bool:
    """In the tree, at the end of a path there, or written by a run or a command: its name stands in
    the code.
    """
    plain = (
        name.removeprefix("./").rstrip("/").replace("notebooks/build/", "notebooks/solutions/")
    )  # the reader's own files
    first, *inside = plain.split("/")
    if name in EXAMPLES or (first in (".venv", "runs") and len(inside) <= 1):
        return True
    if plain in files() or fnmatch.filter(files(), f"*/{plain}") or ("*" in plain and fnmatch.filter(files(), plain)):
        return True
    wild = re.sub(r"\\\*|<[^>]*>|\d{3,}", r"""[^"'\\s/]*""", re.escape(plain.split("/")[-1]))
    return not (inside and first in files()) and bool(re.search(rf"(?<![\w.]){wild}(?![\w.])", code()))


def commands(page: Page) -> Mistakes:
    """`python -m x.y` runs and has these options; overrides are keys that the config takes; make
    has the target.
    """
    lines = list(page.code)
    for line, language, text in page.blocks:
        if language in ("", "bash", "sh", "shell", "console"):
            lines += [(line, one) for one in text.replace("\\\n", " ").splitlines() if not one.lstrip().startswith("#")]
    targets = set(re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for line, text in lines:
        if found := COMMAND.search(text):
            # neither a comment, nor where output goes
            arguments = re.split(r"(?:^|\s)#|\s[|>]\s|&&|;", found[2])[0]
            yield from ((line, problem) for problem in wrong_in(found[1], arguments))
        for target in re.findall(r"(?:^|[ ;&`])make ([a-z][\w-]*)", text):
            if target not in targets:
                yield line, f"make has no target {target}{nearest(target, targets)}"


def wrong_in(module: str, arguments: str) -> Iterator[str]:
    if not is_command(module):
        yield f"`python -m {module}` runs nothing"
    elif module.split(".")[0] in ROOMS:
        for option in set(OPTION.findall(arguments)) - options(module):
            yield f"{module} has no option {option}{nearest(option, options(module))}"
        given = shlex.split(arguments)
        overrides = [word for word in given if re.match(r"[a-z_]+(\.[a-z_0-9]+)*=", word)]
        unknown = [word for word in overrides if word.partition("=")[0] not in config_keys()]
        yield from (f"{module}: `{word}`: there is no such key" for word in unknown)
        for config in [word for word in given if re.match(r"configs/.*\.yaml$", word) and word not in EXAMPLES]:
            if not (ROOT / config).is_file():
                yield f"there is no {config}"
            elif module in READS_CONFIGS and not unknown and "…" not in arguments:
                try:
                    load_run_config(ROOT / config, overrides)
                except InputError as error:
                    yield f"{module}: {error}"


def blocks(page: Page) -> Mistakes:
    """A YAML block is (part of) a config, a list of sources, or a file of probes; Python's imports
    are there.
    """
    for line, language, text in page.blocks:
        wrong = {"yaml": wrong_yaml, "python": wrong_python}.get(language, lambda text: ())
        yield from ((line, problem) for problem in wrong(text))


def wrong_yaml(text: str) -> Iterator[str]:
    text = text.replace("…", "x")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    try:
        if all(line.startswith("{kind:") for line in lines):
            for line in lines:
                TypeAdapter(Source).validate_python(yaml.safe_load(line))
            return
        if "texts" in (values := yaml.safe_load(text)):
            ProbeFile.model_validate(values)
            return
        with tempfile.TemporaryDirectory() as folder:
            text = text if "extends" in values else f"{text}\nextends: base.yaml\n"
            file = Path(folder) / "block.yaml"
            file.write_text(text.replace("extends: ", f"extends: {ROOT}/configs/"), encoding="utf-8")
            load_run_config(file)
    except (ValidationError, yaml.YAMLError, InputError) as error:
        yield re.sub(r"\S*/block\.yaml:", "line ", " ".join(str(error).split()))


def wrong_python(text: str) -> Iterator[str]:
    try:
        parsed = ast.parse("\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("%", "!"))))
    except SyntaxError as error:
        yield f"not Python: {error}"
        return
    for node in ast.walk(parsed):
        for name in node.names if isinstance(node, ast.Import | ast.ImportFrom) else []:
            dotted = f"{node.module}.{name.name}" if isinstance(node, ast.ImportFrom) else name.name
            if not is_attribute(dotted):
                yield f"{dotted} cannot be imported"


def differences(text: str, translation: str) -> list[str]:
    """Return where a translation differs: levels of headings, code without comments, numbers."""
    ours = Page(Path(), text)
    theirs = Page(Path(), translation)
    levels = [[tag for tag, _ in page.headings] for page in (ours, theirs)]
    found = [] if levels[0] == levels[1] else [f"the headings differ: {levels[0]} and {levels[1]}"]
    code = [[re.sub(r"(?m)(^|\s+)# .*$", "", block) for _, _, block in page.blocks] for page in (ours, theirs)]
    found += [f"a code block differs:\n{a}\n-\n{b}" for a, b in zip(*code, strict=False) if a != b]
    found += [f"{len(code[0])} code blocks, and {len(code[1])}"] if len(code[0]) != len(code[1]) else []
    ours_only = numbers(text) - numbers(translation)
    theirs_only = numbers(translation) - numbers(text)
    found += [f"{number} is missing in the translation" for number in ours_only.elements()]
    return found + [f"{number} is only in the translation" for number in theirs_only.elements()]


def numbers(text: str) -> Counter[str]:
    """Every number outside of links and HTML, in one spelling: 1,234 is 1234, 05 is 5, − is -."""
    plain = re.sub(r"\]\([^)]*\)|<[^>]+>|https?://\S+", "] ", text).replace("％", "%")
    found = re.findall(r"(?:(?<![\w.,)%])([+\-−]))?(\d{1,3}(?:,\d{3})+(?!\d)|\d+)(\.\d+)?", plain)
    return Counter(
        sign.replace("−", "-") + (whole.replace(",", "").lstrip("0") or "0") + part for sign, whole, part in found
    )


# What there is to be named


@cache
def files() -> frozenset[str]:
    """Every file and folder of the repository, from its root, with forward slashes."""
    not_ours = ".git .venv runs wandb __pycache__ .pytest_cache .ruff_cache .mypy_cache .hypothesis".split()
    found = []
    for folder, folders, here in os.walk(ROOT):
        folders[:] = set(folders).difference(not_ours)
        found += [(Path(folder) / name).relative_to(ROOT).as_posix() for name in [*folders, *here]]
    return frozenset(found)


@cache
def code() -> str:
    """The text of all code and configs, but not of the tests, which hold names that do not exist."""
    kinds = {*".py .yaml .jinja .js .css .html .toml .txt .sh".split(), ""}
    chosen = [ROOT / name for name in sorted(files()) if Path(name).suffix in kinds and not name.startswith("tests/")]
    return "\n".join(file.read_text(encoding="utf-8") for file in chosen if file.is_file())


@cache
def words() -> frozenset[str]:
    return frozenset(re.findall(r"\w+", code())) | {Path(name).stem for name in files()}


@cache
def config_keys() -> frozenset[str]:
    """Dotted keys of a run's YAML, and of a file of probes."""
    return frozenset(".".join(path) for model in (RunConfig, ProbeFile) for path, _ in fields(model)) | {"extends"}


@cache
def is_attribute(dotted: str) -> bool:
    """Return True for a module's dotted name, or a name in one: eval.page.viewer.notebook."""
    with contextlib.suppress(ImportError, AttributeError, ValueError):
        return find(dotted) is not None or pkgutil.resolve_name(dotted) is not None
    return False


def find(module: str) -> Any:
    """Its spec or None.

    `pip` is not looked for: setuptools would step aside, and torch.compile fail afterwards.
    """
    with contextlib.suppress(ModuleNotFoundError):  # the parent of a dotted name is missing
        return True if module == "pip" else importlib.util.find_spec(module)
    return None


def is_command(module: str) -> bool:
    """Return True if `python -m module` runs something."""
    spec = find(module)
    if spec is None or module.split(".")[0] not in ROOMS:
        return spec is not None
    if spec.submodule_search_locations is not None:
        return find(f"{module}.__main__") is not None
    return '__name__ == "__main__"' in Path(spec.origin).read_text(encoding="utf-8")


@cache
def options(module: str) -> frozenset[str]:
    """The options that `python -m module --help` names; the program itself is asked."""
    out = io.StringIO()
    with (
        mock.patch.object(sys, "argv", [module, "--help"]),
        mock.patch.dict(os.environ, {"COLUMNS": "1000"}),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", RuntimeWarning)  # runpy: the module was imported before
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    return frozenset(OPTION.findall(out.getvalue()))


def nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), 1, 0.75)
    return f": did you mean {close[0]}?" if close else ""
