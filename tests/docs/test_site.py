"""The site: every link within it, also those of raw HTML, and its search, opened as files."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.docs.checks import ROOT
from tests.eval.page.viewer_helpers import chromium

pytestmark = pytest.mark.slow
NOTEBOOKS = list((ROOT / "notebooks").glob("*.ipynb"))


class Links(HTMLParser):
    def __init__(self, file: Path):
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(unquote(value))
            elif name in ("id", "name") and value:
                self.anchors.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("mkdocs", reason="pip install -r requirements-dev.txt")
    from docs.tools.site import make_site

    return make_site(tmp_path_factory.mktemp("a site")).parent


def test_slides_are_in_the_navigation_if_there_are_any():
    from docs.tools.site import navigation

    nav = navigation(["README.md"], ["slides/week1.en.pdf", "slides/week1.zh.pdf"])
    assert {"Slides": [{"week1": "slides/week1.en.pdf"}]} in nav
    assert {"幻灯片": [{"week1": "slides/week1.zh.pdf"}]} in nav[-1]["中文"]
    assert "lide" not in str(navigation(["README.md"], []))


def test_every_link_within_the_site_leads_somewhere(site):
    pages = {file: Links(file) for file in site.rglob("*.html") if file.name != "404.html"}
    assert len(pages) > 70
    dead = []
    for file, page in pages.items():
        for link in page.links:
            path, _, anchor = link.partition("#")
            target = (file.parent / path).resolve() if path else file
            if re.match(r"[a-z]+:", link):
                continue
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].anchors):
                dead.append(f"{file.relative_to(site)}: {link}")
    assert dead == []


def test_no_page_asks_another_server_for_anything(site):
    """Links lead there, but nothing is loaded from there."""
    loads = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*?\b(?:src|href)="?(?:https?:)?//[^>]*""")
    for file in site.rglob("*.html"):
        assert loads.findall(re.sub(r'<link rel="?canonical[^>]*', "", file.read_text(encoding="utf-8"))) == []


def test_it_has_every_page_and_picture_of_a_notebook(site):
    assert "中文" in (site / "notebooks/05_watch_it_learn.html").read_text(encoding="utf-8")
    for folder in ("notebooks", "notebooks/zh"):
        assert len(list((site / folder).glob("*.html"))) == len(NOTEBOOKS)
    assert len(list(site.glob("notebooks/05_watch_it_learn_pictures/*.png"))) >= 3


@pytest.mark.parametrize("words", ["induction head", "归纳头"])
def test_the_search_works_without_a_server(site, words):
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1300, "height": 900})
        page.goto((site / "index.html").as_uri(), wait_until="domcontentloaded")
        page.locator("input.md-search__input").first.fill(words, timeout=60_000)
        page.wait_for_function("document.querySelectorAll('.md-search-result__item').length > 2", timeout=60_000)
