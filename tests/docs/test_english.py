"""The guides are written in plain English: the field's words, and sentences that can be read in one breath."""

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


def faults(text: str) -> list[str]:
    found = [f"{hit[0]!r}: {better}" for wrong, better in NOT_ENGLISH.items() if (hit := re.search(wrong, text, re.I))]
    return found + [f"too long: {one}" for one in prose(text) if len(one.split()) > LONGEST]


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_a_guide_is_written_in_plain_english(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    assert not faults(text)


@pytest.mark.parametrize(
    "text",
    ["A damaged file is told of.", "Bad rows are\npassed over.", "A loss that is no number stops the run.", "a " * 41],
)
def test_what_reads_as_if_translated_is_found(text):
    assert len(faults(text.replace("\n", " "))) == 1
