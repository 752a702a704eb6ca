"""The map of the course has every notebook and exercise, and pages have the labels of labels.yaml."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest

from docs.tools import course_map, labels
from notebooks.check import CHECKS
from notebooks.labels import BUILD, CELLS, MOST, NOTEBOOKS, exercise_minutes
from notebooks.start import HINTS
from tests.notebooks.making import ROOT

FILES = {path.name.split("_")[0]: path for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")}
SYLLABUS = {"en": ROOT / "docs/syllabus.md", "zh": ROOT / "docs/syllabus.zh-CN.md"}
every_language = pytest.mark.parametrize("language", ["en", "zh"])
WHOLE_MODEL = 10  # minutes in the syllabus to assemble it and to train it


@every_language
def test_the_map_is_what_its_script_draws(language):
    text = course_map.FILES[language].read_text(encoding="utf-8")
    assert text == course_map.Map(language).draw(), "python -m docs.tools.course_map draws it again"
    ElementTree.fromstring(text)  # well-formed


@every_language
def test_each_notebook_and_exercise_is_on_the_map_once_and_its_link_leads_there(language):
    text = course_map.FILES[language].read_text(encoding="utf-8")
    links = re.findall(r'<a href="([^"]+)"><title>(\S+?)[ <]', text)
    assert sorted(name for _, name in links) == sorted([*FILES, *CHECKS])
    for target, name in links:
        path = (course_map.IMAGES / target).resolve()
        assert path.is_file(), target
        assert path.name == "README.md" if name in CHECKS else path.name == FILES[name].name
        if language == "zh" and name in FILES:
            assert path.parent.name == "zh" or not (FILES[name].parent / "zh" / path.name).exists()


def test_the_pages_have_todays_labels():
    stale = [str(path.relative_to(ROOT)) for path, text in labels.pages().items() if path.read_text("utf-8") != text]
    assert not stale, "python -m docs.tools.labels writes them"


def test_each_notebook_and_exercise_has_a_label():
    assert sorted(NOTEBOOKS) == sorted(FILES)
    assert list(BUILD) == list(CHECKS)
    assert sorted(CELLS) == sorted(key for key in HINTS if re.match(r"\d\d", key))
    for label in (*NOTEBOOKS.values(), *CELLS.values(), *BUILD.values()):
        assert 1 <= label.difficulty <= MOST
        assert 1 <= label.importance <= MOST
        assert 1 <= label.minutes <= 40


def shown(source: str) -> list[str]:
    return re.findall(r"[●○]{5}.*", source)


@pytest.mark.parametrize("path", labels.pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_notebook_shows_one_label_below_its_title_and_one_for_each_exercise(path):
    if path.suffix != ".ipynb":
        return
    cells = nbformat.read(path, as_version=4).cells
    number = path.name.split("_")[0]
    assert len(shown(cells[0].source)) == 1
    assert cells[0].source.splitlines()[2].endswith(shown(cells[0].source)[0])
    theirs = [label for cell in cells[1:] if cell.cell_type == "markdown" for label in shown(cell.source)]
    expected = ["●" * label.difficulty for key, label in CELLS.items() if key.split(".")[0] == number]
    assert [label[:5].rstrip("○") for label in theirs] == expected


def minutes_of(row: str) -> int:
    """Return the minutes of what a row of the syllabus lists."""
    numbers = re.findall(r"(?<![\w/])\d\d[a-z]?(?=\]|[,、（ |])", row)
    names = re.findall(r"`(\w+)`", row)
    minutes = sum(NOTEBOOKS[number].minutes + exercise_minutes(number) for number in numbers if number in NOTEBOOKS)
    minutes += sum(BUILD[name].minutes for name in names)
    return minutes + WHOLE_MODEL * ("#your-whole-model" in row)


@every_language
def test_the_minutes_of_the_syllabus_are_sums_of_labels(language):
    text = SYLLABUS[language].read_text(encoding="utf-8")
    days, weeks = re.findall(r"^## .*\n\n\|.*\n\|[-:| ]+\n((?:\|.*\n)+)", text, re.MULTILINE)[1:3]
    for row in days.splitlines():
        cells = row.strip("|").split("|")
        assert int(cells[0]) == minutes_of("|".join(["", *cells[1:], ""])), row
    total = 0
    for row in weeks.splitlines()[:-1]:
        cells = row.strip("|").split("|")
        assert int(cells[-1]) == minutes_of("|".join(["", *cells[1:-1], ""])), row
        total += int(cells[-1])
    assert round(total / 60) == 22, "change the sentence below the table"
    assert "twenty-two hours" in text or "二十二小时" in text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("### Exercise 1\n\nWrite it.", "### Exercise 1\n\nLABEL\n\nWrite it."),
        ("Why?\n\n**Exercise.** Write it.", "Why?\n\nLABEL\n\n**Exercise.** Write it."),
        ("### 练习 1\n\n●○○○○ old\n\n写。", "### 练习 1\n\nLABEL\n\n写。"),
        ("Write it.", "LABEL\n\nWrite it."),
    ],
)
def test_a_label_is_below_the_heading_or_above_the_paragraph_and_replaces_an_old_one(text, written):
    assert labels.with_line(text, "LABEL") == written


@every_language
def test_no_word_of_the_map_is_outside_its_box(language):
    drawing = ElementTree.fromstring(course_map.Map(language).draw())
    svg = "{http://www.w3.org/2000/svg}"
    boxes = [
        [float(rectangle.get(key)) for key in ("x", "y", "width", "height")]
        for rectangle in drawing.iter(f"{svg}rect")
        if rectangle.get("class") in ("box", "inner")
    ]
    inside = 0
    for text in drawing.iter(f"{svg}text"):
        if text.get("class") not in ("soft", "plain", "code"):
            continue
        left, below = float(text.get("x")), float(text.get("y"))
        right = left + course_map.length(text.text)
        # the last box that is drawn around its beginning is the innermost one
        around = [(x, x + width) for x, y, width, height in boxes if x < left < x + width and y < below < y + height]
        if around:
            assert right <= around[-1][1], text.text
            inside += 1
    assert inside > 60


def test_every_page_of_the_course_shows_the_map():
    english = ("README.md", "docs/syllabus.md", "notebooks/00_from_nothing.ipynb", "notebooks/build/README.md")
    chinese = ("README.zh-CN.md", "docs/syllabus.zh-CN.md", "notebooks/zh/00_from_nothing.ipynb")
    for pages, name in ((english, "course_map.svg"), (chinese, "course_map.zh-CN.svg")):
        assert all(f"images/{name}" in Path(ROOT / page).read_text(encoding="utf-8") for page in pages)
