"""A notebook in notebooks/zh is the English one, cell by cell, with its words in Chinese."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from configs.command import InputError
from notebooks.execute import execute, refresh, translate_outputs
from tests.docs.checks import MARKDOWN, Page, differences
from tests.notebooks.making import ROOT, environment, write_notebook

FOLDER = ROOT / "notebooks"
CHINESE = sorted((FOLDER / "zh").glob("*.ipynb"))
LARGEST = 600_000  # bytes
TEX = re.compile(r"\\(frac|sqrt|sum|text|cdot|left|mathrm|begin)(?![A-Za-z])|\$\$")
IN_ENGLISH = re.compile(r"(?:\b[A-Za-z]+,? ){5}[A-Za-z]+")  # a sentence that nobody translated


def cells(path: Path) -> list:
    return nbformat.read(path, as_version=4).cells


def words(text: str) -> str:
    """Without code, quotations, images, and where links lead."""
    return re.sub(r"```.*?```|<[^>]*>|`[^`]*`|\]\([^)]*\)|“[^”]*”|\*[^*\n]+\*", " ", text, flags=re.DOTALL)


def links(text: str, folder: Path) -> list[str]:
    """Return its links from the root, alike in both languages; anchors only without a translation.

    In Chinese a link leads to the Chinese page where one exists.
    """
    found = []
    for _, target in Page(Path(), text).links:
        file, _, anchor = target.partition("#")
        if target.startswith("https://colab."):  # docs/tools/colab.py
            continue
        if re.match(r"[a-z]+:", target):
            found.append(target)
            continue
        there = Path(os.path.normpath(folder / file))
        assert there.exists(), f"the link to {target} leads nowhere"
        english = there.with_name(there.name.replace(".zh-CN.", "."))
        english = FOLDER / there.name if there.parent == FOLDER / "zh" else english
        chinese = [english.with_suffix(f".zh-CN{english.suffix}"), english.parent / "zh" / english.name]
        translated = any(page.exists() for page in chinese)
        if translated and folder != FOLDER and f"[English]({target})" not in text:
            assert there in chinese, f"{target} is there in Chinese"
        found.append(english.relative_to(ROOT).as_posix() + ("" if translated else f"#{anchor}"))
    return sorted(found)


def mistakes(english: str, chinese: str) -> list[str]:
    """Return the differences of a translated Markdown cell."""
    # a drawing or a formula in words is translated, Python is not
    english, chinese = (re.sub(r"```text\n(.*?)```", r"\1", text, flags=re.DOTALL) for text in (english, chinese))
    found = differences(english, chinese)
    ours, theirs = ({code for _, code in Page(Path(), text).code} for text in (english, chinese))
    found += [f"only one has `{code}`" for code in ours ^ theirs]
    found += [] if re.search(r"[\u4e00-\u9fff]", chinese) else ["it is not in Chinese"]
    found += [f"in English: {text}" for text in IN_ENGLISH.findall(words(chinese))]
    # **“a”**b is bold for a person, but not for Markdown: a mark between punctuation and a letter
    # opens or ends nothing
    texts = [part.content for token in MARKDOWN.parse(chinese) for part in token.children or [] if part.type == "text"]
    found += [f"stars are left: {text}" for text in texts if "*" in text]
    return found + [f"TeX needs a network to be drawn: {match[0]}" for match in TEX.finditer(chinese)]


@pytest.mark.parametrize("path", CHINESE, ids=lambda path: path.stem)
def test_it_says_and_shows_what_the_english_notebook_does(path):
    assert path.stat().st_size <= LARGEST
    english = cells(FOLDER / path.name)
    chinese = cells(path)
    found = []
    for ours, theirs in zip(english, chinese, strict=False):
        if ours.cell_type == theirs.cell_type == "markdown":
            found += [f"{ours.id}: {problem}" for problem in mistakes(ours.source, theirs.source)]
            if links(ours.source, FOLDER) != links(theirs.source, path.parent):
                found.append(f"{ours.id}: {links(ours.source, FOLDER)} and {links(theirs.source, path.parent)}")
            theirs.source = ours.source
        elif "colab" in ours.metadata.get("tags", []):  # docs/tools/colab.py: each enters its own folder
            theirs.source = ours.source
        translate_outputs(ours)
        for cell in (ours, theirs):  # words in pictures are translated, too
            for output in cell.get("outputs", []):
                output.get("data", {}).pop("image/png", None)
    assert not found, "\n".join(found)
    assert chinese == english, "python -m notebooks.execute --refresh copies code and outputs"


@pytest.mark.parametrize("path", CHINESE, ids=lambda path: path.stem)
def test_each_language_leads_to_the_other_and_the_first_line_asks(path):
    first = cells(path)[0].source
    original = cells(FOLDER / path.name)[0].source
    assert re.match(r"# .+？$", first.splitlines()[0])
    assert first.endswith(f"\n\n[English](../{path.name})")
    assert original.endswith(f"\n\n[中文](zh/{path.name})")


@pytest.mark.parametrize(("folder", "start"), [("mine/zh", "还没有回答"), ("mine", "No answer yet")])
def test_who_reads_in_chinese_is_answered_in_chinese(folder, start, tmp_path):
    (tmp_path / folder).mkdir(parents=True)  # as `make mine` makes them
    command = [sys.executable, "-c", "from notebooks.start import check; check('00.1', None, bool)"]
    own = environment(LANG="C.UTF-8", PYTHONUTF8="1", HEADLIGHT_LANG="", LC_ALL="", LC_MESSAGES="")
    said = subprocess.run(command, cwd=tmp_path / folder, env=own, capture_output=True, encoding="utf-8", check=True)
    assert said.stdout.startswith(start)


def test_code_and_outputs_come_from_the_english_notebook(tmp_path):
    (tmp_path / "zh").mkdir()
    output = nbformat.v4.new_output("stream", text="4\nRight.\n")
    text = new_markdown_cell("# Two?")
    code = new_code_cell("print(2 + 2)", outputs=[output])
    english = write_notebook(tmp_path / "01_a.ipynb", text, code)
    refresh(english)  # there is none in Chinese: nothing happens
    translated = [new_markdown_cell("# 二？", id=text.id), new_code_cell("1", id=code.id)]
    chinese = write_notebook(tmp_path / "zh" / "01_a.ipynb", *translated)
    refresh(english)
    assert [cell.source for cell in cells(chinese)] == ["# 二？", "print(2 + 2)"]
    shown = cells(chinese)[1]
    assert shown.outputs[0].text == "4\n正确。\n"
    shown.outputs[0].text = output.text
    assert shown == cells(english)[1]
    write_notebook(english, text, code, new_markdown_cell("New"))
    with pytest.raises(InputError, match="zh/01_a.ipynb needs a Markdown cell .*New"):
        refresh(english)


ENGLISH = "`q` meets 12 keys, 0.5 each.\n\n```python\nx = 1  # one\n```"
RIGHT = "`q` 与 12 个键比较，各 0.5。\n\n```python\nx = 1  # 一\n```"


@pytest.mark.parametrize(
    ("right", "wrong", "problem"),
    [
        ("12", "13", "12 is missing in the translation"),
        ("`q`", "q", "only one has `q`"),
        ("x = 1", "x = 一", "a code block differs"),
        ("比较，", "比较。 The softmax of the scores gives shares. ", "in English"),
        ("个键", "\\frac", "TeX needs a network"),
        ("比较，", "**“比较”**了，", "stars are left"),
    ],
)
def test_what_differs_in_a_cell_is_found(right, wrong, problem):
    assert mistakes(ENGLISH, RIGHT) == []
    assert problem in "\n".join(mistakes(ENGLISH, RIGHT.replace(right, wrong)))


@pytest.mark.slow
def test_words_in_pictures_are_in_chinese_too(tmp_path):
    (tmp_path / "zh").mkdir()
    cells_of = [
        new_markdown_cell("# Three?"),
        new_code_cell("x = 3"),
        new_code_cell("%matplotlib inline\nfrom matplotlib.figure import Figure"),
        new_code_cell(
            "def draw(label):\n    figure = Figure()\n    figure.subplots().set_xlabel(label)\n    return figure"
        ),
        new_code_cell('draw("step")'),  # has a Chinese word
        new_code_cell('draw("xyzzy")'),  # has none
        new_code_cell("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.ylabel('loss')\nplt.show()"),
    ]
    english = write_notebook(tmp_path / "01_a.ipynb", *cells_of)
    translated = [new_markdown_cell("# 三？", id=cells_of[0].id), *cells_of[1:]]
    chinese = write_notebook(tmp_path / "zh" / "01_a.ipynb", *translated)
    execute(english, write=True)

    def pictures(path):
        outputs = [output for cell in cells(path) for output in cell.get("outputs", [])]
        assert all("image/png+zh" not in output.get("data", {}) for output in outputs)
        return [output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})]

    ours, theirs = pictures(english), pictures(chinese)
    assert [a == b for a, b in zip(ours, theirs, strict=True)] == [False, True, False]
    refresh(english)
    assert pictures(chinese) == theirs
