"""Make slides from the notebooks, a PDF for each week of docs/syllabus.md: `make slides`

    python -m docs.tools.slides [--out slides] [--week 3] [--language zh] [--html]
    python -m docs.tools.slides --mark notebooks/05_watch_it_learn.ipynb

A cell is on a slide if its metadata has the standard `slideshow.slide_type`: "slide" begins a
page, "fragment" and "-" continue it. Other cells are left out, and so are folded solutions. In
JupyterLab you set the type in the property inspector. A cell that draws gives its stored picture,
any other its code and what it printed. The first cell of a notebook gives the cover.

`--mark` gives each text and each picture of a notebook a type, for a first draft. Then
`python -m notebooks.execute --refresh` copies the types to the Chinese notebook.

A deck is one HTML document. Chromium breaks it into pages and prints them. It needs no network.
"""

import html
import json
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mistune
import nbformat
from playwright.sync_api import sync_playwright

from configs.command import InputError, command_parser, exit_on_bad_input

ROOT = Path(__file__).resolve().parents[2]
SYLLABUS = {"en": "docs/syllabus.md", "zh": "docs/syllabus.zh-CN.md"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")
ON_A_SLIDE = ("slide", "subslide", "fragment", "-")
# If code and its result have more lines than this, a slide shows only the result.
MOST_LINES = 14

WEEK = {"en": "Week {}", "zh": "第 {} 周"}
COLUMNS = {"en": "| notebooks | exercises | minutes |", "zh": "| 笔记本 | 练习 | 分钟 |"}
# Folded parts, comments, labels of difficulty and the way to the next notebook.
LEFT_OUT = re.compile(
    r"<details>.*?</details>|<!--.*?-->|^[^\n]*[●○]{5}[^\n]*$|^(Next: |下一课)[^\n]*$",
    re.DOTALL | re.MULTILINE,
)
HEADING = re.compile(r"<h(\d)>(.*?)</h\d>\n")


@dataclass
class Week:
    number: int
    notebooks: list[str] = field(default_factory=list)  # "00", "00b", …
    rows: list[str] = field(default_factory=list)  # of the syllabus, without the week


@dataclass
class Slide:
    """A title and what is below it, in HTML. It has as many pages as it needs."""

    title: str
    content: str


class PrintRenderer(mistune.HTMLRenderer):
    """Markdown as it is printed: links keep their words, pictures and raw HTML are left out."""

    def link(self, text: str, url: str, title: str | None = None) -> str:
        return text

    def image(self, text: str, url: str, title: str | None = None) -> str:
        return ""

    def block_html(self, html: str) -> str:
        return ""

    def paragraph(self, text: str) -> str:
        # "… like this:" is on the same page as what it announces
        kind = ' class="announces"' if text.endswith((":", "：")) else ""
        return f"<p{kind}>{text}</p>\n" if text.strip() else ""


render = mistune.create_markdown(renderer=PrintRenderer(), plugins=["table"])


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "slides", help="default: slides/")
    parser.add_argument("--week", type=int, help="default: all weeks with notebooks")
    parser.add_argument("--language", choices=("en", "zh"), help="default: both")
    parser.add_argument("--html", action="store_true", help="write HTML, without a browser")
    parser.add_argument("--mark", nargs="+", type=Path, help="notebooks that get slide types")
    args = parser.parse_args()
    if args.mark:
        for path in args.mark:
            mark(path)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    for language in [args.language] if args.language else ["en", "zh"]:
        for week in weeks(language):
            if args.week not in (None, week.number):
                continue
            file = args.out / f"week{week.number}.{language}.{'html' if args.html else 'pdf'}"
            if args.html:
                file.write_text(deck(week, language), encoding="utf-8")
            else:
                print_pdf(deck(week, language), file)
            print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")


def weeks(language: str) -> list[Week]:
    """Return the weeks of the last table of the syllabus that have notebooks."""
    by_number: dict[int, Week] = {}  # a week may have several rows
    # from the page that students read, so slides and syllabus cannot disagree
    text = (ROOT / SYLLABUS[language]).read_text(encoding="utf-8")
    for number, notebooks, exercises, minutes in re.findall(
        r"^\| (\d) \| (.*?) \| (.*?) \| (\d*) \|$", text, re.MULTILINE
    ):
        week = by_number.setdefault(int(number), Week(int(number)))
        without_addresses = re.sub(r"\]\(.*?\)", "]", notebooks)
        week.notebooks += re.findall(r"\b\d\d[a-z]?\b", without_addresses)
        week.rows.append(f"| {notebooks} | {exercises} | {minutes} |")
    return [week for week in by_number.values() if week.notebooks]


def deck(week: Week, language: str) -> str:
    """Return the slides of a week as HTML: its notebooks, each after a cover, and its table."""
    name = f"Headlight · {WEEK[language].format(week.number)}"
    style = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
    body = ""
    for number in sorted(week.notebooks):
        (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
        chinese = path.parent / "zh" / path.name
        if language == "zh" and chinese.is_file():
            path = chinese
        cells = nbformat.read(path, as_version=4).cells
        title, paragraph = cover(cells[0])
        plain_title = html.unescape(re.sub(r"<.*?>", "", title))
        # the notebook is in the foot of its pages; CSS quotes a string as JSON does
        foot = json.dumps(f"{name} · {plain_title}", ensure_ascii=False)
        style += f"@page n{number} {{ @bottom-left {{ content: {foot}; }} }}\n"
        slides = "".join(map(as_table, slides_of(cells)))
        body += f'<section style="page: n{number}"><div class="cover"><h1>{title}</h1>{paragraph}'
        body += f"</div>{slides}</section>"
    table = render("\n".join([COLUMNS[language], "|---|---|---:|", *week.rows]))
    body += as_table(Slide(WEEK[language].format(week.number), str(table)))
    return (
        f'<!doctype html><html lang="{language}"><meta charset="utf-8"><title>{name}</title>'
        f"<style>{style}</style><body>{body}</body></html>"
    )


def cover(cell: Any) -> tuple[str, str]:
    """Return the title and the first paragraph of a notebook's first cell."""
    # the text before the heading, its level, its words, and the text behind it
    _, _, title, text = HEADING.split(as_html(cell), maxsplit=1)
    return title, text[: text.index("</p>") + 4]


def slides_of(cells: list[Any]) -> list[Slide]:
    """Return the slides of a notebook. A heading begins one, and so does the type "slide".

    A slide has the title of its heading. If it begins without one, it has that of its section.
    """
    slides: list[Slide] = []
    section = cover(cells[0])[0]  # the last heading of level 2
    title = section
    begins = True  # the next text begins a slide
    for cell in cells[1:]:
        # the keys that Jupyter and nbconvert use, so their tools show the same slides
        kind = cell.metadata.get("slideshow", {}).get("slide_type", "skip")
        begins |= kind in ("slide", "subslide")
        if title != section:  # the cell before was an exercise, and is its own section
            title = section
            begins = True
        # three pieces for each heading: level, heading, text. What is above the first has no level.
        pieces = ["", title, *HEADING.split(as_html(cell))]
        for level, heading, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
            title = heading
            section = heading if level == "2" else section
            begins |= level != ""
            if kind not in ON_A_SLIDE or not text:
                continue
            if begins:
                slides.append(Slide(title, ""))
                begins = False
            slides[-1].content += text
    return slides


def as_html(cell: Any) -> str:
    """Return a text, a stored picture, or code with its result."""
    if cell.cell_type == "markdown":
        return str(render(LEFT_OUT.sub("", cell.source)))
    outputs = [output.get("data", {}) for output in cell.outputs]
    pictures = [data["image/png"] for data in outputs if "image/png" in data]
    if pictures:
        return "".join(f'<img src="data:image/png;base64,{png}" alt="">\n' for png in pictures)
    code = cell.source.strip()
    result = "".join(output.text for output in cell.outputs if "text" in output).strip("\n")
    if result and len(f"{code}\n{result}".split("\n")) > MOST_LINES:
        code = ""
    blocks = [("code", code), ("result", result)]
    parts = [f'<pre class="{kind}">{html.escape(text)}</pre>' for kind, text in blocks if text]
    return f"<div>{''.join(parts)}</div>\n"


def as_table(slide: Slide) -> str:
    """Return a slide as a table, because a browser repeats the head of a table on each page."""
    head = f"<thead><tr><th>{slide.title}</th></tr></thead>"
    return f'<table class="slide">{head}<tr><td>{slide.content}</td></tr></table>'


def print_pdf(page: str, file: Path) -> None:
    programs = [path for path in map(shutil.which, BROWSERS) if path]
    if not programs:
        raise InputError("PDFs need Chromium or Chrome; --html writes pages that you can print")
    with sync_playwright() as playwright:
        # an installed browser: Playwright's own would be a large download
        browser = playwright.chromium.launch(executable_path=programs[0], args=["--no-sandbox"])
        tab = browser.new_page()
        tab.set_content(page)
        tab.pdf(path=file, prefer_css_page_size=True, print_background=True)
        browser.close()


def mark(path: Path) -> None:
    """Give the texts and the pictures of a notebook slide types."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells[1:]:
        content = as_html(cell)
        is_code = content.startswith("<div>")
        if content and not is_code:
            kind = "slide" if content.startswith("<h") else "fragment"
            cell.metadata["slideshow"] = {"slide_type": kind}
    nbformat.write(notebook, path)


if __name__ == "__main__":
    exit_on_bad_input(main)
