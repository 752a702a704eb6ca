"""`python -m docs.tools.slides`: every week has slides, and nothing on them is cut off or tiny."""

from __future__ import annotations

import base64
import re

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from docs.tools import slides
from tests.eval.page.viewer_helpers import chromium
from tests.notebooks.making import write_notebook

LANGUAGES = ("en", "zh")
WEEKS = [(language, week) for language in LANGUAGES for week in slides.weeks(language)]
every_week = pytest.mark.parametrize(
    ("language", "week"), WEEKS, ids=lambda value: str(getattr(value, "number", value))
)
LOW = """() => [...document.querySelectorAll('.page')].map((page) => {
  const top = page.getBoundingClientRect();
  const inside = [...page.querySelectorAll('.body *')].map((element) => element.getBoundingClientRect());
  const foot = page.querySelector('.foot').getBoundingClientRect().top - top.top;
  const sizes = [...page.querySelectorAll('.body p, .body li, .body td, .body pre')];
  return {
    low: Math.max(0, ...inside.map((box) => box.bottom - top.top)) - foot,
    wide: Math.max(0, ...inside.map((box) => box.right - top.left)) - top.width,
    small: Math.min(99, ...sizes.map((element) => parseFloat(getComputedStyle(element).fontSize))),
    broken: [...page.querySelectorAll('img')].filter((image) => !image.naturalWidth).length,
  };
})"""


def test_every_week_with_notebooks_has_a_deck_and_both_languages_have_the_same():
    of = {language: {week.number: week.notebooks for week in slides.weeks(language)} for language in LANGUAGES}
    assert of["en"] == of["zh"]
    assert sorted(of["en"]) == list(range(1, 9))
    files = {path.name.split("_")[0] for path in (slides.ROOT / "notebooks").glob("[0-9]*.ipynb")}
    # the primer for tensors is no week's notebook
    assert files - set().union(*of["en"].values()) <= {"00a"}


@every_week
def test_no_page_is_too_full_and_no_picture_is_shrunk(language, week):
    pages = slides.deck(week, language)
    assert [page.kind for page in pages].count("cover") == len(week.notebooks)
    assert len(pages) >= 8 * len(week.notebooks), "python -m docs.tools.slides --mark gives a notebook slides"
    for number, page in enumerate(pages, start=1):
        assert page.title, number
        assert page.height() <= slides.HEIGHT, f"page {number}, {page.title}: cut a cell, or give it no slide_type"
        if page.picture is not None:
            assert page.scale() > 0.9, f"page {number}, {page.title}: the picture would be hard to read"


def shown(*cells) -> list[tuple[str, str]]:
    """Return the title and the text of the pages of a notebook."""
    first = new_markdown_cell("# Why?\n\nBecause.")
    pages = slides.slides_of([first, *cells], " …")
    return [(page.title, " ".join(block.text for block in page.blocks + page.after)) for page in pages]


def typed(cell, kind: str | None):
    if kind:
        cell.metadata["slideshow"] = {"slide_type": kind}
    return cell


def test_typed_cells_are_shown_without_solutions_and_a_title_ends_with_its_exercise():
    exercise = "### Exercise 1\n\nWrite it.\n\n<details><summary>Solution</summary>\n\nSecret.\n\n</details>"
    assert shown(
        typed(new_markdown_cell("## Part\n\nOne [link](a.md)."), "slide"),
        typed(new_markdown_cell("Left out."), None),
        typed(new_markdown_cell("Also left out."), "skip"),
        typed(new_markdown_cell("Two."), "fragment"),
        typed(new_markdown_cell(exercise), "slide"),
        typed(new_code_cell("answer = None"), None),
        typed(new_code_cell("print(3)", outputs=[new_output("stream", text="3\n")]), "-"),
    ) == [("Part", "One link. Two."), ("Exercise 1", "Write it."), ("Part", "print(3)\n\n3\n")]


def test_what_does_not_fit_goes_on_a_new_page():
    cells = [typed(new_markdown_cell("Many words on a page. " * 30), "-") for _ in range(3)]
    assert [title for title, _ in shown(*cells)] == ["Why?", "Why? …", "Why? …"]
    long = typed(new_code_cell("x = 1\n" * 40, outputs=[new_output("stream", text="1\n")]), "-")
    assert shown(long) == [("Why?", "1")]  # long code is left out, its result is not


def test_mark_chooses_text_pictures_and_announced_code(tmp_path):
    result = [new_output("stream", text="1\n")]
    small, tall = (
        [new_output("display_data", data={"image/png": base64.b64encode(b" " * 16 + size).decode()})]
        for size in (bytes([0, 0, 1, 0] * 2), bytes([0, 0, 9, 0] * 2))
    )
    exercise = new_code_cell("print(1)", outputs=result)
    exercise.metadata["tags"] = ["exercise"]
    cells = [
        (new_markdown_cell("# Why?\n\nFirst:"), None),
        (new_code_cell("print(1)", outputs=result), None),  # no text announces it
        (new_markdown_cell("## Part\n\nLike this:"), "slide"),
        (new_code_cell("print(1)", outputs=result), "fragment"),
        (new_code_cell("print(1)", outputs=result), None),
        (new_markdown_cell("Like this:"), "fragment"),
        (exercise, None),
        (new_markdown_cell("Like this:"), "fragment"),
        (new_code_cell("print(1)\n" * 13, outputs=result), None),
        (new_markdown_cell("<details>Secret.</details>"), None),
        (new_code_cell("draw()", outputs=small), "fragment"),
        (new_code_cell("draw()", outputs=tall), None),
    ]
    path = write_notebook(tmp_path / "a.ipynb", *(cell for cell, _ in cells))
    assert slides.mark(path) == slides.mark(path) == 5
    types = [cell.metadata.get("slideshow", {}).get("slide_type") for cell in slides.read(path)]
    assert types == [kind for _, kind in cells]


def test_chinese_letters_count_twice():
    assert slides.units("注意力 `abc`") == 2 * 3 + 4


@pytest.mark.slow
def test_in_a_browser_a_page_ends_above_its_foot_and_its_letters_are_large():
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        for language, week in WEEKS:
            page.set_content(slides.as_html(slides.deck(week, language), week, language))
            page.wait_for_function("[...document.images].every((image) => image.complete)")
            for number, seen in enumerate(page.evaluate(LOW), start=1):
                where = f"week {week.number} {language}, page {number}: {seen}"
                assert seen["low"] <= 2, where
                assert seen["wide"] <= 0, where
                assert seen["small"] >= slides.CODE, where
                assert not seen["broken"], where


@pytest.mark.slow
def test_a_deck_is_printed_with_a_page_for_each_slide(tmp_path):
    with chromium():  # skips where there is none
        pass
    week = slides.weeks("zh")[-1]
    pages = slides.deck(week, "zh")
    file = tmp_path / "week.pdf"
    slides.print_pdf(slides.as_html(pages, week, "zh"), file)
    pdf = file.read_bytes()
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) == len(pages)
    assert b"/MediaBox [0 0 960 540]" in pdf  # 16:9, in points
