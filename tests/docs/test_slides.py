"""`python -m docs.tools.slides`: every week has slides, and nothing on them is cut off or tiny."""

from __future__ import annotations

import base64
import html
import re
import unicodedata

import nbformat
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
POINT = 0.75  # points in a pixel; a PDF counts in points, from the lower left corner
WIDTH, HEIGHT = 1280 * POINT, 720 * POINT
LEFT, TOP, BOTTOM = 72 * POINT, 44 * POINT, 64 * POINT  # the margins of slides.css
FOOT = 50 * POINT  # the top of the line below the slide
SMALLEST = 20  # pixels: font size


def test_every_week_with_notebooks_has_a_deck_and_both_languages_have_the_same():
    of = {language: {week.number: sorted(week.notebooks) for week in slides.weeks(language)} for language in LANGUAGES}
    assert of["en"] == of["zh"]
    assert sorted(of["en"]) == list(range(1, 9))
    files = {path.name.split("_")[0] for path in (slides.ROOT / "notebooks").glob("[0-9]*.ipynb")}
    assert files == set().union(*of["en"].values())


@every_week
def test_a_notebook_has_a_cover_and_slides_and_the_week_ends_with_its_table(language, week):
    deck = slides.deck(week, language)
    for section in deck.split("<section")[1:]:
        assert section.count('class="cover"') == 1
        # the primer for tensors has no slides
        assert section.count('class="slide"') >= 4 or "page: n00a" in section, section[:200]
    assert deck.count("<section") == len(week.notebooks)
    last = deck.split('<table class="slide">')[-1]
    assert last.count("<tr>") == 3 + len(week.rows)  # title, content, head of the table


def shown(*cells) -> list[tuple[str, str]]:
    """Return the title and the text of the slides of a notebook."""
    first = new_markdown_cell("# Why?\n\nBecause.")
    return [(slide.title, " ".join(text_of(slide.content).split())) for slide in slides.slides_of([first, *cells])]


def text_of(content: str) -> str:
    return html.unescape(re.sub(r"<.*?>", "", content))


def typed(cell, kind: str | None):
    if kind:
        cell.metadata["slideshow"] = {"slide_type": kind}
    return cell


def test_typed_cells_are_shown_without_solutions_and_a_title_ends_with_its_exercise():
    exercise = (
        "### Exercise 1\n\n●●○○○ 5 min\n\nWrite it.\n\n<details><summary>Solution</summary>\n\nSecret.\n\n</details>"
    )
    assert shown(
        typed(new_markdown_cell("## Part\n\nOne [link](a.md). ![A picture](a.png)"), "slide"),
        typed(new_markdown_cell("Left out."), None),
        typed(new_markdown_cell("Also left out."), "skip"),
        typed(new_markdown_cell("Two.\n\n```\n## no heading\n```"), "fragment"),
        typed(new_markdown_cell(exercise), "slide"),
        typed(new_code_cell("answer = None"), None),
        typed(new_code_cell("print(3)", outputs=[new_output("stream", text="3\n")]), "-"),
        typed(new_markdown_cell("Three."), "slide"),
    ) == [
        ("Part", "One link. Two. ## no heading"),
        ("Exercise 1", "Write it."),
        ("Part", "print(3)3"),
        ("Part", "Three."),
    ]


def test_long_code_is_left_out_and_its_result_is_not():
    for lines, expected in ((1, "x = 1 1"), (40, "1")):
        cell = new_code_cell("x = 1\n" * lines, outputs=[new_output("stream", text="1\n")])
        (slide,) = slides.slides_of([new_markdown_cell("# Why?\n\nBecause."), typed(cell, "-")])
        assert text_of(slide.content.replace("<pre", " <pre")).split() == expected.split()


def test_mark_chooses_texts_and_pictures(tmp_path):
    picture = new_output("display_data", data={"image/png": base64.b64encode(b"a picture").decode()})
    cells = [
        (new_markdown_cell("# Why?\n\nFirst:"), None),
        (new_markdown_cell("## Part\n\nLike this:"), "slide"),
        (new_code_cell("print(1)", outputs=[new_output("stream", text="1\n")]), None),
        (new_markdown_cell("- Words."), "fragment"),
        (new_markdown_cell("<details>Secret.</details>"), None),
        (new_code_cell("draw()", outputs=[picture]), "fragment"),
    ]
    path = write_notebook(tmp_path / "a.ipynb", *(cell for cell, _ in cells))
    slides.mark(path)
    marked = nbformat.read(path, as_version=4).cells
    assert [cell.metadata.get("slideshow", {}).get("slide_type") for cell in marked] == [kind for _, kind in cells]


# ----------------------------------------------------------------------------------------------------
# the printed pages


def printed(deck: str, file) -> list:
    """Return the pages of a deck's PDF."""
    from pypdfium2 import PdfDocument

    with chromium():  # skips where there is none
        pass
    slides.print_pdf(deck, file)
    return list(PdfDocument(file))


def letters(page) -> list[tuple[str, float, tuple[float, float, float, float]]]:
    """Return each letter of a page, its font size in pixels, and its left, bottom, right and top in points."""
    from pypdfium2 import raw

    text = page.get_textpage()
    matrix = raw.FS_MATRIX()
    result = []
    for i in range(text.count_chars()):
        letter = chr(raw.FPDFText_GetUnicode(text, i))
        if raw.FPDFText_IsGenerated(text, i) or letter.isspace():
            continue
        # Chromium makes a whole document smaller if a line is too wide. The matrix shows it.
        raw.FPDFText_GetMatrix(text, i, matrix)
        size = raw.FPDFText_GetFontSize(text, i) * matrix.d / POINT
        result.append((letter, size, text.get_charbox(i)))
    return result


def pictures(page) -> list:
    from pypdfium2 import raw

    return list(page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE]))


def squeezed(text: str) -> str:
    """Return the letters and digits of a text: lines end elsewhere, and signs move in a PDF."""
    return re.sub(r"\W", "", unicodedata.normalize("NFKC", text))


@pytest.mark.slow
@every_week
def test_nothing_on_the_printed_pages_is_cut_off_tiny_or_missing(language, week, tmp_path):
    deck = slides.deck(week, language)
    pages = printed(deck, tmp_path / "week.pdf")
    words = ""
    for number, page in enumerate(pages, start=1):
        assert page.get_size() == (WIDTH, HEIGHT)
        text = page.get_textpage().get_text_range()
        words += squeezed(text)
        # the foot, a title, and something below it
        assert pictures(page) or len(text.split("\n")) >= 3, f"page {number} is empty: {text}"
        for letter, size, (left, bottom, right, top) in letters(page):
            where = f"page {number}: {letter!r} of {size} px at {left, bottom, right, top} in {text}"
            assert size >= SMALLEST - 0.01, where
            # letters may hang over by a point
            assert LEFT - 1 <= left <= right <= WIDTH - LEFT + 1, where
            assert top <= HEIGHT - TOP + 1, where
            assert bottom >= BOTTOM - 1 or 0 < bottom < top <= FOOT, where
        for picture in pictures(page):
            left, bottom, right, top = picture.get_bounds()
            where = f"page {number}: a picture at {left, bottom, right, top}"
            assert LEFT - 1 <= left <= right <= WIDTH - LEFT + 1, where
            assert BOTTOM - 1 <= bottom <= top <= HEIGHT - TOP + 1, where
            assert (right - left) / POINT >= 0.85 * picture.get_px_size()[0], f"{where} is smaller than in the notebook"
    # a broken picture is none
    assert sum(len(pictures(page)) for page in pages) == deck.count("<img")
    blocks = re.findall(r"<(p|li|pre|td|th)\b[^>]*>((?:(?!<(?:p|li|pre|td|th)\b).)*?)</\1>", deck, re.DOTALL)
    assert len(blocks) > 20
    missing = [block for _, block in blocks if squeezed(text_of(block)) not in words]
    assert not missing


@pytest.mark.slow
def test_a_title_is_on_each_page_and_what_a_text_announces_is_below_it(tmp_path):
    content = str(slides.render("Words.\n\n" * 8 + "Like this:"))
    code = slides.as_html(new_code_cell("x = 1\n" * 10))
    table = slides.as_table(slides.Slide("Why?", content + code))
    deck = slides.deck(slides.Week(1), "en").replace("<body>", f"<body>{table}")
    first, second, _ = (page.get_textpage().get_text_range() for page in printed(deck, tmp_path / "a.pdf"))
    assert "Why?" in first
    assert "Why?" in second
    assert first.count("Words.") == 8
    assert second.index("Like this:") < second.index("x = 1")
