"""The notebooks as they are committed: what they hold, and what a person sees who opens one as a
page.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from pathlib import Path

import nbformat
import pytest

from data.tokenizer import DEFAULT_VOCAB_SIZE
from eval.compare.pictures import sharing_keys
from model.transformer import on_meta
from notebooks.execute import ANSWER
from notebooks.start import HINTS
from tests.eval.page.viewer_helpers import chromium
from tests.notebooks.making import FIND_IT, FIRST_CELL, ROOT
from train.config import load_run_config
from train.run.sweep import plan

pytestmark = pytest.mark.slow
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LARGEST = 600_000  # bytes
SHRUNK = 1.4  # of a figure's pixels to those of its place: more, and its letters are hard to read
NOISE = ("missing from font", "Glyph ", "Warning:", "Traceback", "\ufffd")
LINES = 24  # of a cell: more does not fit on a screen beside its output
ABSOLUTE = r"(?<![\w.])/(tmp|home|work|root|Users|private|mnt|opt|content|usr)/|\b[A-Za-z]:\\"
MIRROR = "https://cdnjs.cloudflare.com/"  # where nbconvert's pages look for MathJax and require.js
IMAGES = (ROOT / "docs" / "images").as_uri()
# a hint of a notebook; others are of `python -m notebooks.check`
BY_NUMBER = re.compile(r"\d\d\w?\.\d+").fullmatch
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path):
    return nbformat.read(path, as_version=4)


def code_cells(path: Path) -> list:
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def words(path: Path) -> str:
    """The file without its pictures, in which any four letters may follow each other."""
    notebook = read(path)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            for kind in [kind for kind in output.get("data", {}) if kind.startswith("image/")]:
                del output["data"][kind]
    return json.dumps(notebook, ensure_ascii=False)


@every_notebook
def test_it_begins_with_a_question_and_the_first_cell_of_all_and_is_committed_as_it_runs(path):
    first = read(path).cells[0]
    cells = code_cells(path)
    assert re.match(r"# .+\?$", first.source.splitlines()[0])
    assert FIND_IT in first.source  # what to do where the first cell finds no module `notebooks`
    own = next(cell for cell in cells if "colab" not in cell.metadata.get("tags", []))  # docs/tools/colab.py
    imported = re.search(r"from notebooks.start import (.+)", own.source)
    assert own.source == FIRST_CELL.format(names=imported[1])
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert [output for output in outputs if "image/png" in output.get("data", {})], "no figure shows on the web"


@every_notebook
def test_it_is_small_and_nothing_in_it_belongs_to_one_machine(path):
    assert path.stat().st_size <= LARGEST
    said = words(path)
    metadata = read(path).metadata
    assert not re.search(ABSOLUTE, said.replace("\\\\", "\\")), re.search(f".{{60}}({ABSOLUTE}).{{20}}", said)
    assert "widget-view" not in said
    assert "Warning" not in said
    assert set(metadata) == {"kernelspec", "language_info"}
    assert metadata.kernelspec == {"display_name": "Python 3", "language": "python", "name": "python3"}
    assert metadata.language_info == {"name": "python"}  # no version of Python


@every_notebook
def test_it_lets_the_reader_check_what_they_understood(path):
    cells = read(path).cells
    trees = [ast.parse(re.sub(r"^ *[%!].*", "", cell.source, flags=re.MULTILINE)) for cell in code_cells(path)]
    asserts = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    assert any(node.msg is not None for node in asserts), "no assertion explains itself"
    exercises = [i for i, cell in enumerate(cells) if "exercise" in cell.metadata.get("tags", [])]
    assert len(exercises) >= 2
    for asks, checks, shows in (cells[i : i + 3] for i in exercises):
        assert ANSWER.search(asks.source), "it does not say what to answer"
        assert asks.metadata["wrong"]
        assert "check" in checks.metadata["tags"]
        assert "check(" in checks.source
        solution = r"<details><summary>Solution</summary>\n\n.*```python\n.+```.*\n\n</details>"
        assert re.search(solution, shows.source, re.DOTALL)


def test_the_recorded_sweep_is_whole_and_of_models_of_one_size():
    file = ROOT / "notebooks" / "recall.json"
    assert file.stat().st_size < 60_000
    variants = json.loads(file.read_text(encoding="utf-8"))["variants"]
    forms = [(one["settings"]["model.attention"], one["settings"]["model.num_key_value_heads"]) for one in variants]
    assert {heads for form, heads in forms if form == "heads"} == {8, 4, 2, 1}
    assert [form for form, _ in forms].count("mla") == 3
    steps = load_run_config(ROOT / "configs" / "recall.yaml").train.max_steps
    for one in variants:
        assert len(one["runs"]) >= 3
        assert {run["recall"][-1][0] for run in one["runs"]} == {steps}
    sizes = [one["parameters"] for one in variants]
    assert max(sizes) < 1.003 * min(sizes)


def test_the_recorded_three_models_are_whole_and_of_one_size():
    file = ROOT / "notebooks" / "three_models.json"
    assert file.stat().st_size < 250_000
    variants = json.loads(file.read_text(encoding="utf-8"))["variants"]
    assert sharing_keys(variants) is not None
    panels = {(one["settings"]["train.max_steps"], one["settings"]["data.sequence_length"]) for one in variants}
    assert panels == {(1200, 128), (2400, 128), (1200, 512)}
    assert [one["settings"]["model.num_key_value_heads"] for one in variants] == [4, 2, 1] * 3
    # those of configs/three_models.yaml
    assert {one["parameters"] for one in variants} == {401_856, 401_984}
    assert {tuple(run["seed"] for run in one["runs"]) for one in variants} == {tuple(range(5))}
    for one in variants:
        for run in one["runs"]:
            assert [look["step"] for look in run["looks"]][-1] == one["settings"]["train.max_steps"]


def test_the_recorded_ladder_has_the_rungs_of_its_config_with_their_sizes():
    file = ROOT / "notebooks" / "ladder_seeds.json"
    assert file.stat().st_size < 150_000
    recorded = {one["name"].removeprefix("ladder-"): one for one in json.loads(file.read_text("utf-8"))["variants"]}
    planned = {run.label: run.config for run in plan("configs/ladder.yaml", [], seeds=1)}
    assert list(recorded) == list(planned)
    for name, config in planned.items():
        words = config.model.model_copy(update={"vocab_size": config.data.tokenizer.vocab_size or DEFAULT_VOCAB_SIZE})
        assert recorded[name]["parameters"] == on_meta(words).num_parameters(), name
        seeds = [run["seed"] for run in recorded[name]["runs"]]
        assert seeds == sorted(set(seeds))
        steps = [[look["step"] for look in run["looks"]] for run in recorded[name]["runs"]]
        whole = list(range(0, config.train.max_steps + 1, config.eval.attention.every))
        # a run may be watched in part
        assert all(watched == whole[: len(watched)] for watched in steps), name


def test_no_notebook_shows_a_hint_before_the_first_try():
    checks = [
        cell.source for path in NOTEBOOKS for cell in code_cells(path) if "check" in cell.metadata.get("tags", [])
    ]
    assert sorted(re.search(r'"(\d\d\w?\.\d+)"', source)[1] for source in checks) == sorted(filter(BY_NUMBER, HINTS))
    text = "\n".join(map(words, NOTEBOOKS))
    hints = [hint for one in HINTS.values() for hint in ([one] if isinstance(one, str) else one.values())]
    assert not [hint for hint in hints if hint in text or json.dumps(hint, ensure_ascii=False)[1:-1] in text]


@every_notebook
def test_an_earlier_cell_can_be_run_again_after_a_later_exercise(path):
    cells = read(path).cells
    asked = [ANSWER.search(cell.source)[1] for cell in cells if "exercise" in cell.metadata.get("tags", [])]
    assert len(set(asked)) == len(asked), f"two answers have one name: {asked}"
    for name, cell in itertools.product(asked, code_cells(path)):
        if "exercise" not in cell.metadata.get("tags", []):
            is_set = re.search(rf"^(?:def )?{name}(?: =|\()", cell.source, re.MULTILINE)
            assert not is_set, f"{name} is an exercise, and another cell sets it, too"


@every_notebook
def test_its_cells_are_short_and_its_links_lead_somewhere(path):
    for cell in code_cells(path):
        assert len([line for line in cell.source.splitlines() if line.strip()]) <= LINES, cell.source
    text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if not target.startswith(("http://", "https://")):
            assert (path.parent / target).exists(), f"the link to {target} leads nowhere"
    assert not re.search(r"\\(frac|sqrt|sum|text|cdot|left|mathrm|begin)\b", text), "TeX needs a network to be drawn"


# --------------------------------------------------------------------------------------------------
# as a page


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


def as_page(notebook: Path, folder: Path) -> Path:
    from nbconvert import HTMLExporter

    html, _ = HTMLExporter().from_filename(str(notebook))
    # a link means what it means there
    html = html.replace("<head>", f'<head><base href="{notebook.as_uri()}">', 1)
    page = folder / f"{notebook.stem}.html"
    page.write_text(html, encoding="utf-8")
    return page


LOOK = """() => {
  const wide = [...document.querySelectorAll('.jp-OutputArea-output, .jp-MarkdownOutput')];
  const name = (element) => `${element.className}: ${element.innerText.slice(0, 80)}`;
  const drawn = [...document.querySelectorAll('.jp-OutputArea-output img')];
  const images = [...drawn, ...document.querySelectorAll('.jp-MarkdownOutput img')];
  return {
    wide: Math.max(0, document.documentElement.scrollWidth - document.documentElement.clientWidth),
    cut: wide.filter((element) => element.scrollWidth > element.clientWidth + 1).map(name),
    shrunk: drawn.filter((image) => image.naturalWidth > SHRUNK * image.parentElement.clientWidth)
      .map((image) => `${image.naturalWidth} in ${image.parentElement.clientWidth}`),
    empty: images.filter((image) => !image.complete || image.naturalWidth < 100).length,
    images: images.length,
    text: document.body.innerText,
  };
}"""


def look_at(path: Path, folder: Path, browser) -> dict:
    """Return the problems of the notebook's page without a network; "images" counts pictures."""
    context = browser.new_context(viewport={"width": 1000, "height": 900}, offline=True)
    page = context.new_page()
    console = []
    requests = []
    page.on("pageerror", lambda error: console.append(f"error: {error}"))
    page.on("console", lambda message: console.append(f"{message.text} ({message.location['url']})"))
    page.on("request", lambda request: requests.append(request.url))
    file = as_page(path, folder)
    page.goto(file.as_uri())
    page.wait_for_load_state("load")
    seen = page.evaluate(LOOK.replace("SHRUNK", str(SHRUNK)))
    context.close()
    text = seen.pop("text")
    own = (file.as_uri(), IMAGES, "data:", "blob:", MIRROR)
    return seen | {
        "console": [problem for problem in console if MIRROR not in problem],
        "requests": [url for url in requests if not url.startswith(own)],
        "noise": [noise for noise in NOISE if noise in text],
    }


GOOD = {"wide": 0, "cut": [], "shrunk": [], "empty": 0, "console": [], "requests": [], "noise": []}


@every_notebook
def test_as_a_page_it_shows_everything_without_a_network(path, tmp_path, browser):
    seen = look_at(path, tmp_path, browser)
    assert seen.pop("images") >= 1
    assert seen == GOOD
