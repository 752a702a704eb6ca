"""Make a site from README, FINDINGS, the guides and the notebooks: `make site`

    python -m docs.tools.site [--out site]

The site needs no server and no network: open site/index.html. Its search works offline, too. Pages
have the places of their files, so every relative link stays right. A notebook becomes a page with
its stored outputs; nothing runs. A link to a file of code leads to a copy of that file. A link or
an anchor that leads nowhere is an error. If `make slides` ran before, the site has the slides, too.
"""

from __future__ import annotations

import argparse
import logging
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort
from nbconvert import MarkdownExporter

from configs.command import InputError, exit_on_bad_input

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README*.md FINDINGS.md CHANGELOG.md CONTRIBUTING.md docs/*.md notebooks/*.ipynb "
    "notebooks/zh/*.ipynb notebooks/*/README.md pretrained/README.md"
).split()
# the page that trains, the one that computes, and what the theme lacks
OTHER_FILES = (
    "docs/*.html docs/images/* docs/tools/site.css docs/tools/iframe-worker.js slides/*.pdf"
).split()
LINK = re.compile(r"\[([^\[\]]*)\]\(([^()\s]+)\)")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a site from the guides and the notebooks.")
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="default: site/")
    args = parser.parse_args()
    print(f"{make_site(args.out.resolve())}: open it in a browser")


def make_site(out: Path) -> Path:
    """Write the site into `out`, and return its first page. Raises InputError for a dead link."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        for pattern in OTHER_FILES:
            for file in ROOT.glob(pattern):
                copy(file, source)
        for pattern in PAGES:
            for file in sorted(ROOT.glob(pattern)):
                add_page(file, source)
        # mkdocs names dead links in its log alone
        logging.getLogger("mkdocs").addHandler(logging.StreamHandler())
        settings = str(Path(__file__).with_suffix(".yml"))
        pages = sorted(file.relative_to(source).as_posix() for file in source.rglob("*.md"))
        # strict: a dead link is an error, not a warning
        slides = sorted(file.relative_to(source).as_posix() for file in source.glob("slides/*.pdf"))
        nav = navigation(pages, slides)
        config = load_config(settings, docs_dir=folder, site_dir=str(out), strict=True, nav=nav)
        try:
            build(config)
        except Abort as error:
            raise InputError(f"the site has links that lead nowhere: {error}") from None
    return out / "index.html"


def navigation(pages: list[str], slides: list[str]) -> list[Any]:
    """Return mkdocs' `nav`: the order of the pages, and names for what has no title of its own."""
    chinese = [page for page in pages if re.search(r"zh-CN|/zh/", page)]
    english = [page for page in pages if page not in chinese]

    def inside(folder: str, pages: list[str]) -> list[str]:
        return [page for page in pages if page.startswith(folder)]

    def of_slides(name: str, language: str) -> list[Any]:
        files = [file for file in slides if file.endswith(f".{language}.pdf")]
        decks = [{Path(file).name.partition(".")[0]: file} for file in files]
        return [{name: decks}] if decks else []

    return [
        {"Start": "README.md"},
        {"A head is born": "docs/train.html"},
        {"Course": inside("notebooks/", english)},
        *of_slides("Slides", "en"),
        {"Guides": inside("docs/", english)},
        "FINDINGS.md",
        {"About": ["pretrained/README.md", "CHANGELOG.md", "CONTRIBUTING.md"]},
        {
            "中文": [
                {"开始": "README.zh-CN.md"},
                {"课程": inside("notebooks/", chinese)},
                *of_slides("幻灯片", "zh"),
                {"指南": inside("docs/", chinese)},
            ]
        },
    ]


def copy(file: Path, source: Path) -> None:
    target = source / file.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)


def add_page(file: Path, source: Path) -> None:
    """Write a guide or a notebook as Markdown for mkdocs, and copy the code that it links to."""
    page = source / file.relative_to(ROOT).with_suffix(".md")
    page.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".ipynb":
        notebook = nbformat.read(file, as_version=4)
        # names without hidden folders, which mkdocs leaves out
        names = {"unique_key": file.stem, "output_files_dir": f"{file.stem}_pictures"}
        text, resources = MarkdownExporter().from_notebook_node(notebook, names)
        for name, content in resources["outputs"].items():
            picture = page.parent / name
            picture.parent.mkdir(exist_ok=True)
            picture.write_bytes(content)
    else:
        text = file.read_text(encoding="utf-8")

    def mended(link: re.Match[str]) -> str:
        words, target = link.groups()
        path = target.partition("#")[0]
        linked = file.parent / path
        if not path or re.match(r"[a-z]+:", target):
            return link[0]
        if linked.is_dir():  # a site has no list of files
            return words
        if linked.suffix == ".ipynb":
            return link[0].replace(".ipynb", ".md")
        if linked.is_file() and linked.suffix != ".md":
            copy(linked.resolve(), source)
        return link[0]

    # Python-Markdown reads the inside of an element only if it is asked to
    text = text.replace("<details>", '<details markdown="1">')
    page.write_text(LINK.sub(mended, text), encoding="utf-8")


if __name__ == "__main__":
    exit_on_bad_input(main)
