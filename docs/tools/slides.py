"""Make slides from the notebooks, a PDF for each week of docs/syllabus.md: `make slides`

    python -m docs.tools.slides [--out slides] [--week 3] [--language zh] [--html]
    python -m docs.tools.slides --mark notebooks/05_watch_it_learn.ipynb

A cell is on a slide if its metadata has the standard `slideshow.slide_type`: "slide" begins a
page, "fragment" and "-" continue it. Other cells are left out, and so are folded solutions. In
JupyterLab you set the type in the property inspector. A cell that draws gives its stored picture,
any other its code and what it printed. The first cell of a notebook gives the cover.

`--mark` gives the cells of a notebook a first choice of types: text, pictures, and short code that
a text announces. Then `python -m notebooks.execute --refresh` copies them to the Chinese notebook.

Chromium prints the pages. It needs no network.
"""

from __future__ import annotations

import argparse
import base64
import html
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from configs.command import InputError, exit_on_bad_input

ROOT = Path(__file__).resolve().parents[2]
SYLLABUS = {"en": "docs/syllabus.md", "zh": "docs/syllabus.zh-CN.md"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")
PRINT_SECONDS = 120
ON_A_SLIDE = ("slide", "subslide", "fragment", "-")

# Sizes in pixels of a page of 1280 × 720, which is 13.3 × 7.5 inches in the PDF.
WIDTH, HEIGHT = 1136, 530  # of the space for text and pictures, below the title
TEXT, CODE, TABLE = 28, 21, 23  # font sizes
GAP = 14  # below a block
LARGE = 34  # font size of a page with little text
BESIDE = 540  # width of each column when a picture is beside the text
SMALLEST_SCALE = 1.0  # A picture beside or below text is at least as large as in the notebook.
LARGEST_SCALE = 2.0

WORDS = {
    "en": {
        "week": "Week {}",
        "again": " (continued)",
        "this week": "This week",
        "notebooks": "notebooks",
        "exercises": "exercises",
        "minutes": "minutes",
        "english": "",
    },
    "zh": {
        "week": "第 {} 周",
        "again": "（续）",
        "this week": "这一周",
        "notebooks": "笔记本",
        "exercises": "练习",
        "minutes": "分钟",
        "english": "这个笔记本还没有中文版。",
    },
}


@dataclass
class Week:
    number: int
    notebooks: list[str]  # "00", "00b", …
    rows: list[str] = field(default_factory=list)  # of the syllabus, without the week


@dataclass
class Block:
    """A piece of a page in HTML. `width` is that of a picture at scale 1, and 0 for text."""

    html: str
    kind: str
    text: str = ""
    width: int = 0
    height: int = 0


@dataclass
class Page:
    title: str
    blocks: list[Block] = field(default_factory=list)
    picture: Block | None = None
    after: list[Block] = field(default_factory=list)  # text below the picture
    kind: str = "page"  # or "cover"

    @property
    def columns(self) -> int:
        """Return 2 if the picture is beside the text."""
        if self.picture is None or not self.blocks:
            return 1
        return 2 if self.picture.width * SMALLEST_SCALE <= BESIDE else 1

    def height(self) -> float:
        """Estimate the height of the content. A page overflows if it is more than HEIGHT."""
        width = WIDTH if self.columns == 1 else BESIDE
        text = sum(height_of(block, width) + GAP for block in self.blocks + self.after)
        if self.picture is None:
            return text
        if self.columns == 2:
            return max(text, self.picture.height * SMALLEST_SCALE)
        return text + self.picture.height * self.least_scale() + GAP

    def least_scale(self) -> float:
        """Return the smallest scale at which the letters of the picture are readable."""
        assert self.picture is not None
        return min(SMALLEST_SCALE, WIDTH / self.picture.width, (HEIGHT - GAP) / self.picture.height)

    def is_large(self) -> bool:
        """Return True if its text fits in a larger font."""
        is_text = all(block.kind in ("text", "list") for block in self.blocks)
        grown = self.height() * (LARGE / TEXT) ** 2
        return self.picture is None and is_text and grown < HEIGHT

    def scale(self) -> float:
        """Return the largest scale at which the picture fits."""
        assert self.picture is not None
        width = BESIDE if self.columns == 2 else WIDTH
        room = float(HEIGHT - GAP)
        if self.columns == 1:
            room -= sum(height_of(block, WIDTH) + GAP for block in self.blocks + self.after)
        fitting = min(width / self.picture.width, room / self.picture.height)
        return min(LARGEST_SCALE, fitting)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m docs.tools.slides", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "slides", help="default: slides/")
    parser.add_argument("--week", type=int, help="default: all weeks with notebooks")
    parser.add_argument("--language", choices=("en", "zh"), help="default: both")
    parser.add_argument(
        "--html", action="store_true", help="write HTML, for which no browser is needed"
    )
    parser.add_argument("--mark", nargs="+", type=Path, help="notebooks that get slide types")
    args = parser.parse_args()
    if args.mark:
        for path in args.mark:
            print(f"{path}: {mark(path)} cells are on slides")
        return
    args.out.mkdir(parents=True, exist_ok=True)
    for language in [args.language] if args.language else ["en", "zh"]:
        for week in weeks(language):
            if args.week not in (None, week.number):
                continue
            name = f"week{week.number}.{language}"
            pages = deck(week, language)
            if args.html:
                file = args.out / f"{name}.html"
                file.write_text(as_html(pages, week, language), encoding="utf-8")
            else:
                file = args.out / f"{name}.pdf"
                print_pdf(as_html(pages, week, language), file)
            print(f"{file}: {len(pages)} pages, {file.stat().st_size / 1e6:.1f} MB")


# --------------------------------------------------------------------------------------------------
# weeks and notebooks


def weeks(language: str) -> list[Week]:
    """Return the weeks of the last table of the syllabus that have notebooks."""
    found: dict[int, Week] = {}
    text = (ROOT / SYLLABUS[language]).read_text(encoding="utf-8")
    for number, notebooks, exercises, minutes in re.findall(
        r"^\| (\d) \| (.*?) \| (.*?) \| (\d*) \|$", text, re.MULTILINE
    ):
        week = found.setdefault(int(number), Week(int(number), []))
        week.notebooks += re.findall(r"\b\d\d[a-z]?(?![\w])", re.sub(r"\]\(.*?\)", "]", notebooks))
        week.rows.append(f"| {notebooks} | {exercises} | {minutes} |")
    for week in found.values():
        week.notebooks.sort()
    return [week for week in found.values() if week.notebooks]


def notebook_file(number: str, language: str) -> Path:
    """Return the notebook with this number, in Chinese if it exists and is wanted."""
    files = sorted((ROOT / "notebooks").glob(f"{number}_*.ipynb"))
    if len(files) != 1:
        raise InputError(f"docs/syllabus.md: there is no notebook {number}")
    chinese = files[0].parent / "zh" / files[0].name
    return chinese if language == "zh" and chinese.is_file() else files[0]


def deck(week: Week, language: str) -> list[Page]:
    """Return the pages of a week: a cover and slides for each notebook, and the week's work."""
    words = WORDS[language]
    pages = []
    for number in week.notebooks:
        path = notebook_file(number, language)
        cells = read(path)
        pages.append(cover(number, cells, path, language))
        pages += slides_of(cells, words["again"])
    if week.rows:
        head = (
            f"| {words['notebooks']} | {words['exercises']} | {words['minutes']} |\n|---|---|---:|"
        )
        pages.append(Page(words["this week"], [text_block("\n".join([head, *week.rows]))]))
    return pages


def read(path: Path) -> list[Any]:
    import nbformat

    return nbformat.read(path, as_version=4).cells


def cover(number: str, cells: list[Any], path: Path, language: str) -> Page:
    """Return the title page: the title and the first paragraph of the first cell."""
    title, *blocks = split_blocks(cells[0].source)
    page = Page(title.removeprefix("# "), kind="cover")
    page.blocks = [text_block(blocks[0])]
    if language == "zh" and path.parent.name != "zh":
        page.blocks.append(text_block(WORDS["zh"]["english"]))
    return page


def slides_of(cells: list[Any], again: str) -> list[Page]:
    """Return the pages of a notebook: cells with a type, and new pages where one is full."""
    pages: list[Page] = []
    section = title = re.sub(r"^# ", "", cells[0].source.split("\n")[0])
    begins = True
    for cell in cells[1:]:
        kind = cell.metadata.get("slideshow", {}).get("slide_type", "skip")
        begins |= kind in ("slide", "subslide")
        if title != section:  # an exercise, which ends with its cell
            title = section
            begins = True
        for block in blocks_of(cell):
            if block.kind == "heading":
                title = block.html
                section = title if block.text.startswith("## ") else section
                begins = True
                continue
            if kind not in ON_A_SLIDE:
                continue
            if begins or not pages:
                pages.append(Page(title))
                begins = False
            pages += add(pages[-1], block, again)
    return [page for page in pages if page.blocks or page.picture]


def add(page: Page, block: Block, again: str) -> list[Page]:
    """Put a block on the page if it fits. Otherwise return a new page with it."""
    before = page.blocks, page.picture, page.after
    if block.kind == "picture":
        if page.picture is None:
            page.picture = block
            if page.height() <= HEIGHT:
                return []
    else:
        if page.picture is None or page.columns == 2:
            page.blocks = [*page.blocks, block]
        else:
            page.after = [*page.after, block]
        if page.height() <= HEIGHT or (not before[0] and before[1] is None):
            return []
    page.blocks, page.picture, page.after = before
    title = page.title if page.title.endswith(again) else page.title + again
    new = Page(title)
    if block.kind == "picture":
        new.picture = block
    else:
        new.blocks = [block]
    # "… like this:" goes with what it announces
    column = page.after or page.blocks
    if block.kind != "text" and column and column[-1].text.endswith((":", "：")):
        last = column.pop()
        new.blocks.insert(0, last)
        if new.height() > HEIGHT:
            column.append(new.blocks.pop(0))
        elif not page.blocks and page.picture is None:
            new.title = page.title
    return [new]


# --------------------------------------------------------------------------------------------------
# which cells are on slides

SHORT_CODE, SHORT_RESULT = 12, 9  # lines
TALLEST = 555  # pixels; a taller picture would be too small on a page


def mark(path: Path) -> int:
    """Give the cells of a notebook slide types, and return how many are on slides."""
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    before = ""  # the text before the cell
    marked = 0
    for cell in notebook.cells[1:]:
        cell.metadata.pop("slideshow", None)
        kind = None
        if cell.cell_type == "markdown":
            before = "\n".join(split_blocks(cell.source))
            if before:
                kind = "slide" if before.startswith("#") else "fragment"
        else:
            kind = "fragment" if is_shown(cell, before) else None
            before = ""
        if kind:
            cell.metadata["slideshow"] = {"slide_type": kind}
            marked += 1
    nbformat.write(notebook, path)
    return marked


def is_shown(cell: Any, before: str) -> bool:
    """Return True for a picture that is not too tall, and for short code that a text announces."""
    blocks = blocks_of(cell)
    if blocks[0].kind == "picture":
        return all(block.height <= TALLEST for block in blocks)
    is_exercise = bool({"exercise", "check"} & set(cell.metadata.get("tags", [])))
    is_announced = before.endswith((":", "：")) or before.startswith("**")
    lines = [line for line in cell.source.split("\n") if line.strip()]
    printed = "".join(output.text for output in cell.outputs if "text" in output).strip()
    result = printed.split("\n")
    is_short = len(lines) <= SHORT_CODE and len(result) <= SHORT_RESULT
    is_guess = "You made no guess" in printed
    return bool(printed) and is_announced and is_short and not (is_exercise or is_guess)


# --------------------------------------------------------------------------------------------------
# cells as blocks


def blocks_of(cell: Any) -> list[Block]:
    if cell.cell_type == "markdown":
        return [text_block(text) for text in split_blocks(cell.source)]
    pictures = [
        output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {})
    ]
    if pictures:
        return [picture_block(png) for png in pictures]
    code = code_block(cell.source, "code")
    printed = "".join(output.text for output in cell.outputs if "text" in output).rstrip()
    if not printed:
        return [code]
    result = code_block(printed, "output")
    both = Block(code.html + result.html, "code", f"{code.text}\n\n{result.text}\n")
    return [both if height_of(both, WIDTH) <= HEIGHT else result]


def split_blocks(source: str) -> list[str]:
    """Split Markdown at empty lines, except within fences.

    Labels of difficulty, folded parts, comments, linked pictures and the way to the next notebook
    are left out.
    """
    source = re.sub(r"^.*[●○]{5}.*$", "", source, flags=re.MULTILINE)
    source = re.sub(r"<details>.*?</details>|<!--.*?-->", "", source, flags=re.DOTALL)
    left_out = r"^(\[?!\[.*\]\(.*\)|<img .*>|Next: .*|下一课.*)$"
    source = re.sub(left_out, "", source, flags=re.MULTILINE)
    blocks = []
    lines: list[str] = []
    is_fenced = False
    for line in [*source.split("\n"), ""]:
        is_fenced ^= line.startswith("```")
        if line.strip() or is_fenced:
            lines.append(line)
        elif lines:
            blocks.append("\n".join(lines))
            lines = []
    return blocks


def text_block(text: str) -> Block:
    import mistune

    heading = re.match(r"#+ (.*)", text)
    # a slide is printed: a link keeps its words
    text = re.sub(r"(?<!!)\[([^\]]+)\]\([^)]*\)", r"\1", text)
    rendered = str(mistune.create_markdown(plugins=["table"])(text))
    if heading:
        inner = re.sub(r"^<h\d>|</h\d>$", "", rendered.strip())
        return Block(inner, "heading", text)
    if text.startswith("```"):
        return Block(rendered, "code", re.sub(r"```\w*\n?", "", text).rstrip())
    if text.startswith("    "):
        return Block(rendered, "code", text)
    if text.startswith("|"):
        return Block(rendered, "table", text)
    return Block(rendered, "list" if re.match(r"[-*] |\d+\. ", text) else "text", text)


def code_block(text: str, kind: str) -> Block:
    text = re.sub(r"^%matplotlib.*\n", "", text.strip("\n"))
    return Block(f'<pre class="{kind}">{html.escape(text)}</pre>', "code", text)


def picture_block(png: str) -> Block:
    width, height = (int.from_bytes(base64.b64decode(png)[at : at + 4]) for at in (16, 20))
    source = "data:image/png;base64," + png.replace("\n", "")
    return Block(f'<img src="{source}" alt="">', "picture", width=width, height=height)


def units(text: str) -> float:
    """Return the width of a text in letters. A Chinese character is as wide as two."""
    text = re.sub(r"[*`]", "", text)
    return sum(2.0 if ord(letter) > 0x2E80 else 1 for letter in text)


def height_of(block: Block, width: float) -> float:
    """Estimate the height of a block in pixels, a little too large."""
    if block.kind == "code":
        in_a_line = (width - 44) / (0.602 * CODE)
        lines = sum(max(1, ceil(units(line) / in_a_line)) for line in block.text.split("\n"))
        return 1.35 * CODE * lines + 28
    if block.kind == "table":
        rows = [row.strip("|").split("|") for row in block.text.split("\n")]
        columns = list(zip(*rows, strict=False))
        widest = [max(units(cell.strip()) for cell in column) for column in columns]
        in_a_line = (width - 28 * len(widest)) / (0.52 * TABLE)
        # columns share the width by their longest cell; a short one keeps what it needs
        share = min(1.0, in_a_line / sum(widest))
        lines = sum(
            max(
                ceil(units(cell.strip()) / max(8, share * most))
                for cell, most in zip(row, widest, strict=False)
            )
            for row in rows
        )
        return 1.4 * TABLE * lines + 14 * len(rows)
    in_a_line = (width - (36 if block.kind == "list" else 0)) / (0.53 * TEXT)
    items = re.split(r"\n(?=[-*] |\d+\. )", block.text)
    lines = sum(ceil(units(item.replace("\n", " ")) / in_a_line) for item in items)
    return 1.4 * TEXT * lines + (6 * len(items) if block.kind == "list" else 0)


# --------------------------------------------------------------------------------------------------
# HTML and PDF

STYLE = f"""
@page {{ size: 1280px 720px; margin: 0; }}
* {{ box-sizing: border-box; }}
html, body {{ margin: 0; background: white; }}
body {{ color: #1a1a1a; -webkit-print-color-adjust: exact;
  font: {TEXT}px/1.4 "Noto Sans", "Helvetica Neue", Arial, "Liberation Sans", "DejaVu Sans",
  "PingFang SC", "Microsoft YaHei", "Noto Sans CJK SC", sans-serif; }}
.page {{ width: 1280px; height: 720px; padding: 50px 72px 0; position: relative; overflow: hidden;
  break-after: page; }}
h1 {{ font-size: 38px; line-height: 1.2; margin: 0 0 26px; color: #0072B2; font-weight: 600; }}
h1 small {{ font-size: 24px; font-weight: 400; color: #666; }}
.cover h1 {{ font-size: 56px; margin: 120px 0 36px; }}
.cover .body {{ font-size: 32px; }}
.large {{ font-size: {LARGE}px; }}
.body {{ height: {HEIGHT}px; }}
.two {{ display: grid; grid-template-columns: {BESIDE}px {BESIDE}px; gap: 56px; }}
.two .picture {{ align-self: center; }}
.picture {{ text-align: center; margin-bottom: {GAP}px; }}
.body p, .body ul, .body ol, .body table, .body pre {{ margin: 0 0 {GAP}px; }}
ul, ol {{ padding-left: 32px; }}
li {{ margin-bottom: 6px; }}
pre, code {{ font-family: "DejaVu Sans Mono", "Noto Sans Mono CJK SC", Menlo, Consolas,
  monospace; }}
pre {{ font-size: {CODE}px; line-height: 1.35; padding: 14px 20px; background: #f3f4f6;
  border-radius: 8px; white-space: pre-wrap; overflow-wrap: anywhere; }}
pre.output {{ background: white; border-left: 4px solid #D55E00; border-radius: 0; }}
code {{ font-size: 0.84em; background: #f3f4f6; padding: 1px 5px; border-radius: 4px; }}
pre code {{ font-size: inherit; padding: 0; background: none; }}
table {{ border-collapse: collapse; font-size: {TABLE}px; }}
th, td {{ padding: 6px 14px; border-bottom: 1px solid #ccc; text-align: left;
  vertical-align: top; }}
td {{ overflow-wrap: anywhere; }}
th {{ white-space: nowrap; }}
.foot {{ position: absolute; left: 72px; right: 72px; bottom: 20px; font-size: 17px; color: #777;
  display: flex; justify-content: space-between; }}
"""


def as_html(pages: list[Page], week: Week, language: str) -> str:
    name = f"Headlight · {WORDS[language]['week'].format(week.number)}"
    notebook = ""
    drawn = []
    for number, page in enumerate(pages, start=1):
        if page.kind == "cover":
            notebook = page.title
        body = "".join(block.html for block in page.blocks)
        style = "body large" if page.is_large() else "body"
        if page.picture is not None:
            scale = page.scale()
            size = f'width="{scale * page.picture.width:.0f}"'
            picture = page.picture.html.replace("<img", f"<img {size}")
            style = "body two" if page.columns == 2 else "body"
            below = "".join(block.html for block in page.after)
            body = f'<div>{body}</div><div class="picture">{picture}</div>{below}'
        foot = f"<span>{name} · {html.escape(notebook)}</span><span>{number}</span>"
        drawn.append(
            f'<section class="page {page.kind}"><h1{title_size(page)}>{page.title}</h1>'
            f'<div class="{style}">{body}'
            f'</div><div class="foot">{foot}</div></section>'
        )
    code = "zh-CN" if language == "zh" else "en"
    return (
        f'<!doctype html><html lang="{code}"><meta charset="utf-8"><title>{name}</title>'
        f"<style>{STYLE}</style><body>{''.join(drawn)}</body></html>"
    )


def title_size(page: Page) -> str:
    """Return a style that keeps a long title in one line."""
    letters = units(re.sub(r"<.*?>", "", page.title))
    fitting = WIDTH / (0.57 * letters)
    if page.kind == "cover" or fitting >= 38:
        return ""
    return f' style="font-size: {fitting:.0f}px"'


def browser() -> str:
    """Return the path of Chromium. Raises InputError if there is none."""
    for name in BROWSERS:
        path = shutil.which(name)
        if path:
            return path
    raise InputError(
        "PDFs need Chromium or Chrome; --html writes pages that you can print yourself"
    )


def print_pdf(page: str, file: Path) -> None:
    program = browser()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "slides.html"
        source.write_text(page, encoding="utf-8")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"]
        flags += [f"--user-data-dir={folder}/profile", f"--print-to-pdf={file.resolve()}"]
        done = subprocess.run(
            [program, *flags, source.as_uri()],
            capture_output=True,
            text=True,
            timeout=PRINT_SECONDS,
            check=False,
        )
    if done.returncode or not file.is_file():
        raise InputError(f"{program} printed no PDF: {done.stderr.strip()[-300:]}")


if __name__ == "__main__":
    exit_on_bad_input(main)
