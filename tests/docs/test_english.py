"""Guides, docstrings and messages are plain English: the field's words, in sentences that can be read in one breath."""

import ast
import json
import re

import pytest

from tests.docs.page import MARKDOWN, ROOT

DIARY = {"EXPERIMENTS.md", "README.zh-CN.md"}
PAGES = sorted(
    path.relative_to(ROOT)
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("notebooks/*.ipynb"))
    if path.name not in DIARY
)
ROOMS = ("configs", "model", "data", "eval", "train", "serve", "benchmarks", "notebooks")
CODE = sorted(path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py"))
# literal translations, and the word that an English guide uses
NOT_ENGLISH = {
    r"told of|is told\b|are told\b": "reported",
    r"pass(es|ed|ing) over": "skipped",
    r"\b(is|are) no number\b": "non-finite, NaN",
    r"at hand": "available",
    r"nobody (tells|knows|trained|has looked)": "unknown; or name who",
    r"passing name": "temporary name",
    r"let nobody": "say what is protected",
    r"\bwhoever\b": "if you",
    r"\b(goes|going|went) on\b|\b(to|cannot) go on\b": "continues, resumes",
    r"(?<!there )\b(is|are) no (?!(longer|more|wider|worse|better|faster|number)\b)\w+": "is not a …",
    r"\bof (one's own|yours|theirs|ours)\b": "your, their",
    r"lies? beside|has it that|\bheeded\b|got used to|\bfor ever\b|\banew\b|\bafresh\b": "the plain word",
    r"where there are such|(at (most|least)|of|after|with) so many\b": "if there are any; this many",
    r"as far as (it|its|they)\b": "the part that",
    r"\bsilenc(e|es|ed|ing)\b": "ablate",
}
LONGEST = 40  # words; formulas count as words, so this is far above the twenty of STYLE.md


def prose(text: str) -> list[str]:
    """Sentences outside of tables and code."""
    found, in_table = [], False
    for token in MARKDOWN.parse(text):
        in_table = token.type == "table_open" or (in_table and token.type != "table_close")
        if token.type == "inline" and not in_table:
            parts = token.children or []
            plain = "".join(" " if part.type == "softbreak" else part.content for part in parts)
            found += re.split(r"(?<=[.!?:;])\s+", plain)
    return found


def idioms(text: str) -> list[str]:
    text = " ".join(text.split())
    return [f"{hit[0]!r}: {better}" for wrong, better in NOT_ENGLISH.items() if (hit := re.search(wrong, text, re.I))]


def faults(text: str) -> list[str]:
    return idioms(text) + [f"too long: {one}" for one in prose(text) if len(one.split()) > LONGEST]


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_a_guide_is_written_in_plain_english(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    assert not faults(text)


def strings(source: str) -> str:
    """Docstrings, messages, all other strings and the comments of a Python file, one a line."""
    nodes = ast.walk(ast.parse(source))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n".join(" ".join(text.split()) for text in (*texts, *re.findall(r"# .*", source)))


def test_docstrings_and_messages_are_written_in_plain_english():
    found = {}
    for path in CODE:
        text = strings((ROOT / path).read_text(encoding="utf-8"))
        if "storyworld" in path.parts:
            text = text.replace("told", "written")  # a story may be told
        if hits := idioms(text):
            found[str(path)] = hits
    assert len(CODE) > 100
    assert not found


@pytest.mark.parametrize("folder", ["configs", "eval/attention/viewer"])
def test_comments_of_configs_and_the_viewer_are_written_in_plain_english(folder):
    files = [path for path in (ROOT / folder).iterdir() if path.suffix in (".yaml", ".html", ".js")]
    found = {path.name: hits for path in files if (hits := idioms(path.read_text(encoding="utf-8")))}
    assert files
    assert not found


@pytest.mark.parametrize(
    "text",
    ["A damaged file is told of.", "Bad rows are\npassed over.", "A loss that is no number stops the run.", "a " * 41],
)
def test_what_reads_as_if_translated_is_found(text):
    assert len(faults(text.replace("\n", " "))) == 1


@pytest.mark.parametrize(
    "source",
    [
        'def f():\n    """The run\n    goes on."""',
        'raise ValueError(f"{file} holds a part that "\n    "is no text")',
        'HELP = "the checkpoint on a text of yours"',
        "done = True  # the run goes on",
    ],
)
def test_an_idiom_in_a_docstring_or_a_message_is_found(source):
    assert len(idioms(strings(source))) == 1
