"""What a page may get wrong about the code. Every check takes a Page and returns its mistakes, one line each."""

from __future__ import annotations

import ast
import difflib
import fnmatch
import importlib
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml
from pydantic import TypeAdapter, ValidationError

from configs.command import InputError
from data.config import Source
from eval.attention.probes import ProbeFile
from tests.docs import tree
from tests.docs.page import ROOT, Block, Page, read
from train.config import load_run_config

Check = Callable[[Page], Iterator[str]]
SHELL = ("", "bash", "sh", "shell", "console")
SUFFIXES = ".py .md .yaml .json .jsonl .ipynb .sh .toml .txt .npz .png .gif .html .jinja .cff .csv".split()
SUFFIXES += [".safetensors", ".bin", ".gguf"]
# files that a reader brings, placeholders, and files that were read once
EXAMPLES = """
my.txt book.txt notes/ notes/*.md books/*.txt pairs.jsonl questions.jsonl train.jsonl.gz held_out.jsonl package.json
configs/x.yaml x.yaml configs/mine.yaml x.py runs/x
lora_identity.jsonl rlaif.jsonl sft_data.jsonl lora_data.jsonl r1_data.jsonl dpo_data.jsonl
train_00000.bin
dataset_info.json state.json data/test-00000-of-00001.parquet val/chats.jsonl
""".split()
# names of other projects' things that our code does not spell
FOREIGN = """
wh_questions_object_gap npi_present_1 alpaca_en_demo alpaca_zh_demo glaive_toolcall_en_demo glaive_toolcall_zh_demo
dpo_en_demo dpo_zh_demo sanitize_control_tokens NCCL_DEBUG tokenized_requests
OMP_NUM_THREADS ATEN_CPU_CAPABILITY TORCHINDUCTOR_CACHE_DIR
""".split()
KEY = re.compile(r"^((?:model|data|train|eval|tracking)(?:\.[a-z_0-9N]+)+)(?:$|[=:( ])")
OVERRIDE = re.compile(r"^([a-z_]+(?:\.[a-z_0-9]+)*)=(.*)$")
IDENTIFIER = re.compile(r"\b(?:[A-Za-z][A-Za-z0-9]*_\w*[A-Za-z0-9]|[A-Z][a-z]+[A-Z]\w+)\b")
COMMAND = re.compile(r"(?:python[\d.]*|bin/python|torchrun)\b.*? -m ([A-Za-z_][\w.]*)(.*)$")
READS_CONFIGS = ("train.pretrain", "train.sft", "train.budget", "benchmarks.training", "data.prepare", "data.inspect")


def links(page: Page) -> Iterator[str]:
    """A relative link leads to a file, and its #anchor to a heading there."""
    for line, target in page.links:
        if re.match(r"[a-z]+:", target):  # https:, mailto: are not asked
            continue
        file, _, anchor = unquote(target).partition("#")
        there = (page.folder / file) if file else ROOT / page.path
        if file and not there.exists():
            yield f"{page.path}:{line}: the link {target} leads nowhere"
        elif anchor and there.suffix in (".md", ".ipynb"):
            known = page.anchors if not file else read(there.resolve().relative_to(ROOT)).anchors
            if anchor not in known:
                yield f"{page.path}:{line}: {target}: no heading makes #{anchor}{_nearest(anchor, known)}"


def paths(page: Page) -> Iterator[str]:
    """A file or folder that is named exists, or is written by the code (its name stands there)."""
    for line, text in page.code:
        name = text.strip().rstrip(",;")
        if _looks_like_a_path(name) and not _exists(name, page):
            yield f"{page.path}:{line}: there is no file `{name}`{_nearest(name, tree.files())}"


def _looks_like_a_path(name: str) -> bool:
    if not re.fullmatch(r"[\w.\-*/<>+]+", name) or re.fullmatch(r"[.*]*\w*|\.\w+(\.\w+)?|\d[\d./]*", name):
        return False
    first, slash, _ = name.partition("/")
    in_tree = bool(slash) and (first in tree.files() or name.endswith("/"))
    return in_tree or Path(name).suffix in SUFFIXES


def _exists(name: str, page: Page) -> bool:
    name = name.removeprefix("./")
    first, *rest = name.rstrip("/").split("/")
    if name in EXAMPLES or (first in (".venv", "runs") and len(rest) <= 1):
        return True
    plain = name.rstrip("/")
    beside = page.path.parent.as_posix()
    for pattern in (plain, f"{beside}/{plain}", *(f"{room}/{plain}" for room in (*tree.ROOMS, "docs", "docs/images"))):
        if pattern in tree.files() or ("*" in pattern and fnmatch.filter(tree.files(), pattern)):
            return True
    if "/" not in plain and any(file.endswith(f"/{plain}") for file in tree.files()):
        return True
    last = plain.split("/")[-1]  # what a run or another command leaves: its name stands in the code
    if "/" in plain and plain.split("/")[0] in tree.files():
        return False
    wild = re.sub(r"\\\*|<[^>]*>|\d{3,}", r"""[^"'\\s/]*""", re.escape(last))
    return re.search(rf"(?<![\w.]){wild}(?![\w.])", tree.code()) is not None


def keys(page: Page) -> Iterator[str]:
    """section.key is a key of a config, or a module or something in one."""
    for line, text in page.code:
        if (found := KEY.match(text)) is None or text.endswith(tuple(SUFFIXES)):
            continue
        name = re.sub(r"\.(N|\d+)(?=\.|$)", "", found[1])
        if name in tree.config_keys():
            continue
        if "=" in text or ": " in text or not tree.is_attribute(name):
            yield f"{page.path}:{line}: `{name}` is no key and no name in a module{_nearest(name, tree.config_keys())}"


def identifiers(page: Page) -> Iterator[str]:
    """A word_like_this or a WordLikeThis stands somewhere in the code."""
    for line, text in page.code:
        if re.match(r"https?:", text) or _looks_like_a_path(text):
            continue
        for word in IDENTIFIER.findall(re.sub(r"\bruns/\S+", "", text)):  # a run may have any name
            if word not in tree.words() | tree.stems() | page.own_words and word not in FOREIGN:
                yield f"{page.path}:{line}: nothing is called `{word}`{_nearest(word, tree.words())}"


def commands(page: Page) -> Iterator[str]:
    """`python -m x.y` runs and has these options; overrides are keys that the config takes; make has the target."""
    for line, text in _command_lines(page):
        if (found := COMMAND.search(text)) is not None:
            yield from (f"{page.path}:{line}: {problem}" for problem in _wrong_in(found[1], _cut(found[2])))
        for target in re.findall(r"(?:^|[ ;&`])make ([a-z.][\w./-]*)", text):
            if target not in tree.make_targets():
                yield f"{page.path}:{line}: make has no target {target}{_nearest(target, tree.make_targets())}"
    for line, text in page.code:
        for option in tree.OPTION.findall(text) if text.startswith("--") else []:
            if option not in tree.all_options():
                yield f"{page.path}:{line}: no command has the option {option}{_nearest(option, tree.all_options())}"


def _command_lines(page: Page) -> Iterator[tuple[int, str]]:
    yield from ((line, text) for line, text in page.code)
    for block in page.blocks:
        if block.language in SHELL:
            joined = block.text.replace("\\\n", " ")
            yield from ((block.line, text) for text in joined.splitlines() if not text.lstrip().startswith("#"))


def _cut(arguments: str) -> str:
    """Without a comment, and without what the output is piped or written into."""
    return re.split(r"(?:^|\s)#|\s[|>]\s|&&|;", arguments)[0]


def _wrong_in(module: str, arguments: str) -> Iterator[str]:
    if not tree.is_command(module):
        yield f"`python -m {module}` runs nothing"
        return
    if module.split(".")[0] not in tree.ROOMS:
        return
    for option in tree.OPTION.findall(arguments):
        if option not in tree.options(module):
            yield f"{module} has no option {option}{_nearest(option, tree.options(module))}"
    try:
        words = shlex.split(arguments)
    except ValueError as error:
        yield f"`{arguments.strip()}`: {error}"
        return
    overrides = [word for word in words if OVERRIDE.match(word)]
    wrong = [word for word in overrides if word.partition("=")[0] not in tree.config_keys()]
    yield from (f"{module}: `{word}`: there is no such key" for word in wrong)
    for config in [word for word in words if re.match(r"configs/.*\.yaml$", word) and word not in EXAMPLES]:
        if not (ROOT / config).is_file():
            yield f"there is no {config}"
        elif module in READS_CONFIGS and not wrong and "…" not in arguments:
            try:
                load_run_config(ROOT / config, overrides)
            except InputError as error:
                yield f"{module}: {error}"


def tables(page: Page) -> Iterator[str]:
    """Every row of a table has as many cells as its head: others are dropped, and a | in code counts as well."""
    for line, rows in page.tables:
        counts = [len(re.findall(r"(?<!\\)\|", row.strip().strip("|"))) + 1 for row in rows]
        for number, (row, count) in enumerate(zip(rows, counts, strict=True)):
            if count != counts[0]:
                yield f"{page.path}:{line + number}: {count} cells in a table of {counts[0]}: {row[:60]}"


def yaml_blocks(page: Page) -> Iterator[str]:
    """A YAML block is (part of) a config, a list of sources, or a file of probes."""
    for block in page.blocks:
        if block.language in ("yaml", "yml") and (problem := _wrong_yaml(block)):
            yield f"{page.path}:{block.line}: {problem}"


def _wrong_yaml(block: Block) -> str | None:
    text = block.text.replace("…", "x")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    try:
        if lines and all(line.startswith("{kind:") for line in lines):
            for line in lines:
                TypeAdapter(Source).validate_python(yaml.safe_load(line))
            return None
        values: Any = yaml.safe_load(text)
        if isinstance(values, dict) and set(values) == set(ProbeFile.model_fields):
            ProbeFile.model_validate(values)
            return None
    except (ValidationError, yaml.YAMLError) as error:
        return " ".join(str(error).split())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "block.yaml"
        begins = "" if isinstance(values, dict) and "extends" in values else f"extends: {ROOT}/configs/base.yaml\n"
        path.write_text(begins + re.sub(r"extends: (?!/)", f"extends: {ROOT}/configs/", text), encoding="utf-8")
        try:
            load_run_config(path)
        except InputError as error:
            return str(error).replace(f"{path}:", "line ")
    return None


def imports(page: Page) -> Iterator[str]:
    """A Python block can be read, and what it imports is there."""
    for block in page.blocks:
        if block.language in ("python", "py"):
            yield from (f"{page.path}:{block.line}: {problem}" for problem in _wrong_imports(block.text))


def _wrong_imports(text: str) -> Iterator[str]:
    try:
        parsed = ast.parse("\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("%", "!"))))
    except SyntaxError as error:
        yield f"not Python: {error}"
        return
    for node in ast.walk(parsed):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        for name in names:
            dotted = f"{node.module}.{name}" if isinstance(node, ast.ImportFrom) else name
            if not _can_import(dotted):
                yield f"{dotted} cannot be imported"


def _can_import(dotted: str) -> bool:
    module, _, name = dotted.rpartition(".")
    if tree.is_module(dotted):
        return True
    return bool(module) and tree.is_module(module) and hasattr(importlib.import_module(module), name)


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, sorted(known), 1, 0.75)
    return f": did you mean {close[0]}?" if close else ""


CHECKS: dict[str, Check] = {
    check.__name__: check for check in (links, paths, keys, identifiers, commands, tables, yaml_blocks, imports)
}
