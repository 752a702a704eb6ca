"""Guides that list what the code has list all of it, and say of it what the code says."""

import math
import re
import tomllib

import pytest
import yaml

from data.config import FilesSource, HubSource, MixSource, StoryworldSource
from data.reading.files import COMPRESSED, KINDS
from eval.attention.metrics import SCORES
from model.backends.choice import BACKENDS
from tests.docs.page import ROOT

pytestmark = pytest.mark.slow

SOURCES = (StoryworldSource, FilesSource, HubSource, MixSource)


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def rows(page: str) -> dict[str, list[str]]:
    """First cell of every table row that begins with `code` -> its cells; `a`, `b` in a cell are two rows."""
    found = {}
    for line in re.findall(r"^\| `.*$", page, re.MULTILINE):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        found |= dict.fromkeys(re.findall(r"`([^`]+)`", cells[0]), cells)
    return found


def test_every_head_score_is_explained_with_its_range_and_the_chance_that_is_computed():
    page, T = text("docs/measure.md"), 64
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
    assert f"Uniform attention has {sum(1 / (i + 1) for i in range(T)) / T:.3f} there" in page
    assert "`sink_rate`" in page
    assert "`copy_gain`" in page


def test_every_attention_backend_is_in_the_table():
    assert set(rows(text("docs/attention.md").split("## Masks")[0])) == {"auto", *BACKENDS}


def test_every_kind_of_source_and_file_is_described():
    page = text("docs/data_formats.md")
    for kind in (source.model_fields["kind"].annotation.__args__[0] for source in SOURCES):
        assert f"kind: {kind}" in page, kind
    for ending in [*KINDS, *COMPRESSED]:
        assert f"`{ending}`" in page, ending


def test_the_drawing_of_the_rooms_follows_the_import_rules():
    contract = tomllib.loads(text("pyproject.toml"))["tool"]["importlinter"]["contracts"][0]
    floors = {room.strip(): number for number, rooms in enumerate(contract["layers"]) for room in rooms.split("|")}
    drawn = re.findall(r"^ +(\w+)\[.*\] --> (.*)$", text("docs/architecture.md"), re.MULTILINE)
    assert {room for room, _ in drawn} | {"configs"} == floors.keys()
    for room, below in drawn:
        assert all(floors[room] < floors[other] for other in below.split(" & "))


def test_citation_and_changelog_are_of_this_version():
    version = tomllib.loads(text("pyproject.toml"))["project"]["version"]
    cited = yaml.safe_load(text("CITATION.cff"))
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= cited.keys()
    assert (cited["version"], cited["authors"]) == (version, [{"name": "The Headlight authors"}])
    assert f"## [{version}] - {cited['date-released']}" in text("CHANGELOG.md")


@pytest.mark.parametrize(
    "line", re.findall(r"[\d.]+ for [\d,]+(?: ids)?", text("docs/faq.md").split("first loss be?")[1])
)
def test_first_losses_are_logarithms(line):
    loss, ids = re.findall(r"[\d.,]+", line)
    assert loss == f"{math.log(int(ids.replace(',', ''))):.2f}"
