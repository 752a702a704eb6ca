"""A Markdown file, or the Markdown cells of a notebook, taken apart: headings, links, code in the text, code blocks."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
IN_HTML = re.compile(r"""<(?:a|img|source|video)\b[^>]*?\b(?:href|src)=["']([^"']+)["']""")
ANCHOR_IN_HTML = re.compile(r"""<a\b[^>]*?\b(?:id|name)=["']([^"']+)["']""")


@dataclass(frozen=True)
class Block:
    """A fenced block: the word behind its fence, what it holds, the line where it begins."""

    language: str
    text: str
    line: int


@dataclass
class Page:
    """path: from the repository's root. links, code: (line, text); in a notebook the line is the cell's number.

    tables: (line, its lines). own_words: of a notebook's own code.
    """

    path: Path
    headings: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    links: list[tuple[int, str]] = field(default_factory=list)
    code: list[tuple[int, str]] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    tables: list[tuple[int, list[str]]] = field(default_factory=list)
    own_words: set[str] = field(default_factory=set)

    @property
    def folder(self) -> Path:
        return ROOT / self.path.parent


def read(path: Path) -> Page:
    """path: of a .md or an .ipynb, from the repository's root."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return parse(text, path)
    page = Page(path)
    for number, cell in enumerate(json.loads(text)["cells"]):
        if cell["cell_type"] == "markdown":
            _take_apart("".join(cell["source"]), page, number)
        else:
            page.own_words |= set(re.findall(r"\w+", "".join(cell["source"])))
    page.anchors |= slugs(page.headings)
    return page


def parse(text: str, path: Path = Path("made_up.md")) -> Page:
    page = Page(path)
    _take_apart(text, page)
    page.anchors |= slugs(page.headings)
    return page


def _take_apart(text: str, page: Page, cell: int | None = None) -> None:
    tokens = MARKDOWN.parse(text)
    for number, token in enumerate(tokens):
        line = cell if cell is not None else token.map[0] + 1 if token.map else 0
        if token.type == "heading_open":
            page.headings.append(_plain(tokens[number + 1]))
        elif token.type == "fence":
            page.blocks.append(Block(token.info.strip().split(" ")[0], token.content, line))
        elif token.type == "table_open" and token.map:
            page.tables.append((line, text.splitlines()[slice(*token.map)]))
        elif token.type == "html_block":
            _html(token.content, page, line)
        for part in token.children or []:
            target = part.attrGet("href") if part.type == "link_open" else part.attrGet("src")
            if part.type in ("link_open", "image"):
                page.links.append((line, str(target)))
            elif part.type == "code_inline":
                page.code.append((line, part.content))
            elif part.type == "html_inline":
                _html(part.content, page, line)


def _html(text: str, page: Page, line: int) -> None:
    page.links += [(line, target) for target in IN_HTML.findall(text)]
    page.anchors |= set(ANCHOR_IN_HTML.findall(text))


def _plain(inline: Token) -> str:
    """The text of a heading without its markup."""
    return "".join(part.content for part in inline.children or [] if part.type in ("text", "code_inline"))


def slugs(headings: list[str]) -> set[str]:
    """The anchors that GitHub gives headings: lower case, no punctuation, - for blanks, -1 … where one comes again."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in headings:
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found
