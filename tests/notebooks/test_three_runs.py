"""The notebooks that open a run fit any run: two that copy, of two sizes, and one that never did.

No cell raises, and no sentence that a cell computes contradicts the run.
"""

from __future__ import annotations

import re
from contextlib import chdir
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import pytest
from nbclient import NotebookClient

from eval.attention.history import best_head, like_the_last, phase_change
from eval.attention.snapshots import read_all
from tests.notebooks.making import ROOT, environment, printed
from tests.train.helpers import pretrain

pytestmark = pytest.mark.slow
RUNS = ("small", "demo", "beginner")
OPENS = re.compile(r"\b(?:demo|small)\(\)")
OPENED = [
    path for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")) if OPENS.search(path.read_text(encoding="utf-8"))
]


class Reader(NamedTuple):
    folder: Path  # a repository with runs/small, and perhaps runs/demo
    copies: bool


@pytest.fixture(scope="module", params=RUNS)
def reader(request, tmp_path_factory) -> Reader:
    """Make a reader's repository, in which `small()` and `demo()` return the same run."""
    folder = tmp_path_factory.mktemp(request.param)
    for entry in ROOT.iterdir():
        if entry.name not in ("runs", "mine", ".git"):
            (folder / entry.name).symlink_to(entry)
    if request.param == "beginner":
        train_beginner(folder)
    else:
        (folder / "runs").mkdir()
        (folder / "runs" / "small").symlink_to(ROOT / "pretrained" / request.param)
    return Reader(folder, copies=request.param != "beginner")


def train_beginner(folder: Path) -> None:
    """Train runs/small for so few steps, of another seed and with other tokens, that it never copies."""
    short = ["seed=1", "train.max_steps=60", "data.source.documents=1500", "eval.attention.every=20"]
    short += ["eval.final_max_tokens=2048", "eval.floor_documents=1"]
    with chdir(folder), pytest.MonkeyPatch.context() as patch:
        # pictures take longer than the training
        patch.setattr("eval.hooks.attention.render", lambda *_: [])
        pretrain(Path("configs/small.yaml"), *short)


def run_notebook(path: Path, reader: Reader) -> dict[str, str]:
    """Run a notebook in the reader's repository. Return what each cell prints, by its id."""
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    root = f"pathlib.Path({str(reader.folder)!r})"
    code[0].source += f"\nimport os, pathlib, notebooks.start\nnotebooks.start.ROOT = {root}"
    code[0].source += "\nos.chdir(notebooks.start.ROOT)"
    resources = {"metadata": {"path": str(reader.folder)}}
    client = NotebookClient(notebook, kernel_name="python3", resources=resources, timeout=900)
    client.execute(env=environment(HEADLIGHT_LANG="en", HEADLIGHT_PLAY="once"))
    return {cell.id: printed(cell) for cell in code}


def looks_of(reader: Reader) -> list[Any]:
    return like_the_last(read_all(reader.folder / "runs" / "small")[0])


@pytest.mark.parametrize("path", OPENED, ids=lambda path: path.stem)
def test_it_runs_and_says_nothing_false_about_the_run(path, reader):
    texts = run_notebook(path, reader)
    text = texts.get("yours", "")
    if path.stem.startswith("05"):
        agrees_on_copying(text, reader)
    elif path.stem.startswith("06"):
        agrees_on_scores(text, reader)
    elif path.stem.startswith("14"):
        agrees_on_names(text, reader)


def agrees_on_copying(text: str, reader: Reader) -> None:
    """Compare the sentences of notebook 05 with the run's own snapshots."""
    looks = looks_of(reader)
    change = phase_change(looks)
    assert (change is not None) == reader.copies
    assert ("No head has learned yet" in text) == (change is None)
    if change:
        assert f"Around step {change.step:,} (" in text
        assert f"layer {change.layer}, head {change.head} learned" in text
        helper = best_head(looks[-1], "previous_token")
        scores = {look.step: look.scores["previous_token"][helper] for look in looks}
        half = min(step for step, score in scores.items() if score >= scores[looks[-1].step] / 2)
        order = "earlier" if half < change.step else "not earlier"
        assert f"L{helper[0]} H{helper[1]}, had half of its last score at step {half:,}, {order} than" in text
    gain = looks[-1].scalars["song_copy_gain"]
    more_or_less = "less" if gain > 0 else "more"
    assert f"A song costs {abs(gain):.2f} nats a token {more_or_less} the second time." in text
    share, left_over = map(int, re.search(r"(\d+) % of its words.*, (\d+) %", text).groups())
    assert (share > 50) == reader.copies
    assert ("has not learned to copy songs" in text) == (not reader.copies)
    assert ("needed for more than half" in text) == (reader.copies and left_over < share / 2)


def agrees_on_scores(text: str, reader: Reader) -> None:
    """Compare the specialists of notebook 06 with the scores of the run's last look."""
    last = looks_of(reader)[-1]
    for name in ("previous_token", "induction", "song_induction", "sink"):
        line = re.search(rf"^{name}: .*", text, re.MULTILINE)[0]
        times, count = re.search(r"has (\S+) times chance; specialists: (\d+)", line).groups()
        of_chance = last.scores[name] / last.chance[name]
        assert float(times) == pytest.approx(of_chance.max(), abs=0.051)
        assert int(count) == (of_chance >= 3).sum()
    induction = re.search(r"^induction: .*; specialists: (\d+)", text, re.MULTILINE)[1]
    assert (int(induction) > 0) == reader.copies


def agrees_on_names(text: str, reader: Reader) -> None:
    """Compare what notebook 14 says of names: a run that never copied completes none."""
    completed, asked = map(int, re.search(r"completes (\d+) of (\d+) names", text).groups())
    assert (completed > asked / 2) == reader.copies
    assert ("no head carries a name" in text) == (completed == 0)
    assert ("One head alone brings back" in text) == (completed > 0)
    if completed:
        share = int(re.search(r"brings back (\d+)%", text)[1])
        assert 0 <= share <= 100
        assert ("does most of the work" in text) == (share > 80)
        assert ("shares the work" in text) == (share <= 80)
