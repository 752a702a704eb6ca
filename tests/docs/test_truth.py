"""Guides that list what the code has list all of it, and say of it what the code says."""

import math
import re
import tomllib

import pytest
import yaml

from data.reading.files import COMPRESSED, KINDS
from eval.attention.metrics import SCORES
from model.backends.choice import BACKENDS
from tests.docs.checks import ROOT

pytestmark = pytest.mark.slow


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def rows(page: str) -> dict[str, list[str]]:
    """First cell of every table row that begins with `code` -> its cells; `a`, `b` in a cell are
    two rows.
    """
    found = {}
    for line in re.findall(r"^\| `.*$", page, re.MULTILINE):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        found |= dict.fromkeys(re.findall(r"`([^`]+)`", cells[0]), cells)
    return found


def test_every_head_score_is_explained_with_its_range_and_the_chance_that_is_computed():
    page = text("docs/measure.md")
    T = 64
    explained = rows(page.split("## Where a head looks")[1].split("## Controls")[0])
    assert set(explained) == set(SCORES)
    for name, score in SCORES.items():
        least, most = ("" if bound is None else f"{bound:g}" for bound in (score.low, score.high))
        assert explained[name][2].startswith(f"{least}…{most}" if least else "any number"), name
    chance = {
        "entropy": f"{sum(math.log(i + 1) for i in range(1, T)) / (T - 1):.2f}",
        "entropy_sink_free": f"{sum(math.log(i) for i in range(2, T)) / (T - 2):.2f}",
        "distance": f"{(T - 1) / 4:g}",
        "sink": f"{sum(1 / (i + 1) for i in range(1, T)) / (T - 1):.3f}",
        "previous_token": f"{sum(1 / (i + 1) for i in range(2, T)) / (T - 2):.3f}",
    }
    assert {name: explained[name][-1] for name in chance} == chance


def test_backends_sources_and_files_are_all_listed():
    assert set(rows(text("docs/attention.md").split("## Masks")[0])) == {"auto", *BACKENDS}
    page = text("docs/data_formats.md")
    kinds = [f"kind: {kind}" for kind in ("storyworld", "files", "hub", "mix")]
    assert [name for name in [*kinds, *(f"`{ending}`" for ending in [*KINDS, *COMPRESSED])] if name not in page] == []


def test_the_table_of_the_rooms_follows_the_import_rules():
    contract = tomllib.loads(text("pyproject.toml"))["tool"]["importlinter"]["contracts"][0]
    page = text("docs/architecture.md").partition("\n## ")[0]
    rooms = re.findall(r"(?m)^\| `(\w+)/` \|", page)
    in_order = re.findall(r"\w+", " ".join(contract["layers"]))
    assert rooms == in_order
    for pair in (layer for layer in contract["layers"] if "|" in layer):
        first, second = pair.split(" | ")
        assert f"`{first}/` and `{second}/`" in page


def test_citation_and_changelog_are_of_this_version():
    version = tomllib.loads(text("pyproject.toml"))["project"]["version"]
    cited = yaml.safe_load(text("CITATION.cff"))
    assert cited["version"] == version
    assert f"## [{version}] - {cited['date-released']}" in text("CHANGELOG.md")
