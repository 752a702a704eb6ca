"""Text that would drive a terminal, or work as Markdown or HTML, in every place where text enters."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.attack.attack import Case
from tests.attack.victims import trained, write_config

DRIVING = {
    "colour": "\x1b[31mred\x1b[0m",
    "clipboard": "\x1b]52;c;aGk=\x07",
    "one-byte CSI": "\x9b2Jgone",
    "turned round": "\u202egnp.exe",
    "isolate": "\u2066x\u2069",
    "carriage return": "good\rbad",
    "backspaces": "ab\b\b\bcd",
    "line separator": "a\u2028error: b",
    "half a character": "a\udcffb",
    "a new line": "a\nerror: b",
}
WORKING = {
    "a picture": "<img src=x onerror=alert(1)>",
    "a cell": "a|b|c",
    "a fence": "```\n# a\n```",
    "a link": "[free](http:e)",
    "code": "`rm` **b** _c_ ~~d~~",
    "an entity": "&lt;b&gt;",
    "a script": "<script>alert(1)<",
}
ANY = DRIVING | WORKING
TINY = "runs/tiny"
PATHS = [  # commands that are given a path which does not exist
    ("train.pretrain",),
    ("train.sft",),
    ("train.sweep",),
    ("train.budget",),
    ("data.prepare",),
    ("data.inspect",),
    ("data.tokenizer_report",),
    ("eval.chat",),
    ("eval.compare",),
    ("eval.samples",),
    ("eval.questions",),
    ("eval.attention", "--text", "The"),
    ("eval.tasks", "--text", "text.txt"),
    ("model.convert_kv_heads", "--num-key-value-heads", "1", "--out", "x"),
    ("notebooks.execute",),
]
READING = [  # commands that are given a run, which has this name
    ("eval.chat", "--max-new-tokens", "4"),
    ("eval.samples", "--max-new-tokens", "4"),
    ("eval.compare", TINY, "--skip-decode"),
    ("eval.attention", "--text", "The cat sat"),
    ("eval.tasks", "--text", "text.txt", "--limit", "2"),
    ("eval.tasks", "--text", "text.txt", "--limit", "2", "--json"),
    ("model.convert_kv_heads", "--num-key-value-heads", "2", "--out", "wider"),
]
CORPUS = [("data.inspect", "--rows", "4", "--ids"), ("data.prepare",), ("data.tokenizer_report",)]


def cases() -> Iterator[Case]:
    for what, text in ANY.items():
        for command in ("train.pretrain", "train.sweep", "train.budget"):
            given = (
                command,
                "tiny.yaml",
                f"name={json.dumps(text)}",
                *["seed=0", "train.warmup_steps=0,1"][: 2 * (command == "train.sweep")],
            )
            yield Case(f"{command}: a run called {what}", given, write_config, says="name")
        yield Case(
            f"a YAML file called {what}", ("train.budget", f"{text}.yaml"), partial(renamed, name=text), says="name"
        )
        for module, *options in READING:
            name = f"{module}: a run directory called {what}, {' '.join(options)}"
            give = (module, f"runs/{text}", *options)
            yield Case(name, give, partial(moved, name=text), b"a\n", check=nothing_works, may_work=True)
        for key in ("data.tokenizer.kind", text):
            yield Case(
                f"an override {key!a}={what}",
                ("train.pretrain", "tiny.yaml", f"{key}={json.dumps(text)}"),
                write_config,
            )
        for given in (
            ("eval.samples", TINY, text),
            ("eval.attention", TINY, "--text", text),
            ("eval.chat", TINY, "--system", text),
        ):
            yield Case(
                f"{given[0]}: a prompt of {what}",
                given,
                trained,
                f"{text}\n/{text}\n".encode(errors="surrogateescape"),
                may_work=True,
            )
    for what, text in DRIVING.items():
        for module, *options in PATHS:
            yield Case(f"{module}: {what} as a path that is missing", (module, text, *options), trained)
        for module, *options in CORPUS:
            given = (module, "tiny.yaml", *options)
            yield Case(f"{module}: a corpus with {what}", given, partial(corpus, text=text), may_work=True)


def renamed(folder: Path, name: str) -> None:
    (folder / f"{name}.yaml").write_text('{"model": {"hidden_size": 16}}', encoding="utf-8")


def moved(folder: Path, name: str) -> None:
    """A copy of the run, under this name, beside it."""
    trained(folder)
    import shutil

    shutil.copytree(folder / TINY, folder / "runs" / name)


def corpus(folder: Path, text: str) -> None:
    write_config(folder)
    raw = "".join(f"{i} the cat {text} sat on mat {i * 7 % 13}.\n" for i in range(60))
    (folder / "text.txt").write_bytes(raw.encode("utf-8", "replace"))


def nothing_works(folder: Path) -> str:
    """Whether a page holds the text as HTML, or as a character that a terminal would obey."""
    pages = [file for kind in ("md", "html") for file in folder.rglob(f"*.{kind}") if os.fsencode(file.name)]
    for file in pages:
        page = file.read_text(encoding="utf-8")
        for raw in (WORKING["a picture"], WORKING["a script"], *(DRIVING[key] for key in ("colour", "turned round"))):
            if raw in page:
                return f"{file.name} holds {raw!a} as it is"
        if file.suffix == ".md" and any(f"{raw}" in page for raw in (WORKING["a cell"], WORKING["a link"])):
            return f"{file.name} holds Markdown of somebody else"
    return ""
