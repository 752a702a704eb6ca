"""The link and the first cell for Google Colab, in copies of the notebooks; and Colab, imitated."""

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import nbformat
import pytest
import torch

from docs.tools import colab
from tests.docs.checks import ROOT
from tests.processes import run_main

pytestmark = pytest.mark.slow
ADDRESS = "https://github.com/someone/headlight"


@pytest.fixture
def notebooks(tmp_path) -> Path:
    """Copies with the link and the cell. They were added twice, with another address first."""
    folder = tmp_path / "notebooks"
    (folder / "zh").mkdir(parents=True)
    for path in (ROOT / "notebooks").rglob("[0-9]*.ipynb"):
        shutil.copy(path, folder / path.relative_to(ROOT / "notebooks"))
    colab.add_to(folder, "https://github.com/before/moved")
    colab.add_to(folder, ADDRESS)
    return folder


def test_every_notebook_gets_one_link_and_one_cell_and_stays_as_it_is(notebooks):
    paths = sorted(notebooks.rglob("*.ipynb"))
    assert len(paths) == 44
    for path in paths:
        place = path.relative_to(notebooks)
        before = nbformat.read(ROOT / "notebooks" / place, as_version=4)
        after = nbformat.read(path, as_version=4)
        page = (
            f"{ADDRESS.replace('https://github.com', 'https://colab.research.google.com/github')}/blob/main/notebooks/"
        )
        assert after.cells[0].source.count("colab.research") == 1
        # the label comes first, where docs.tools.labels would put it again
        assert f"]({page}{place.as_posix()})" in after.cells[0].source.split("\n\n")[2]
        assert [colab.TAG in cell.metadata.get("tags", []) for cell in after.cells].index(True) == 1
        assert ADDRESS in after.cells[1].source
        sources = [[cell.source for cell in before.cells], [cell.source for cell in after.cells]]
        del sources[1][1]  # the cell for Colab
        sources[1][0] = colab.LINK.sub("", sources[1][0])
        sources[0][0] = colab.LINK.sub("", sources[0][0])
        assert sources[0] == sources[1]
        counts = [cell.execution_count for cell in after.cells if cell.cell_type == "code"]
        assert counts == list(range(1, len(counts) + 1))


def test_an_address_that_colab_cannot_open_is_refused():
    done = run_main(colab.main, "https://example.org/headlight")
    assert (done.returncode, done.stdout) == (2, "")


def test_the_cell_works_in_an_imitation_of_colab(tmp_path, notebooks):
    """A new environment with a torch of its own and a module google.colab, an empty folder, and a
    repository to clone: after the cell, the Chinese notebook opens a trained model.
    """
    venv.create(tmp_path / "colab", with_pip=True)
    python = tmp_path / "colab/bin/python"
    packages = [path for path in sys.path if path.endswith("site-packages")]
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    purelib = subprocess.run([python, "-c", where], capture_output=True, encoding="utf-8", check=True).stdout.strip()
    Path(purelib, "torch_and_others.pth").write_text("\n".join(packages))
    (Path(purelib) / "google/colab").mkdir(parents=True)
    (Path(purelib) / "google/colab/__init__.py").touch()

    cells = nbformat.read(notebooks / "zh/01_attention_by_hand.ipynb", as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    code[0] = code[0].replace(ADDRESS, ROOT.as_uri())
    ends = """
import torch
from eval.load_model import open_model
lm, _ = open_model("pretrained/demo")
from configs.language import language
print(torch.__version__, torch.__file__, lm.num_parameters(), language())
"""
    content = tmp_path / "content"
    content.mkdir()
    script = content / "notebook.ipy"
    script.write_text("import google.colab\n" + "\n".join(code[:2]) + ends, encoding="utf-8")
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    # what is not there cannot be fetched: the cell must find every requirement of this environment
    variables = os.environ | {
        "PATH": path,
        "PIP_NO_INDEX": "1",
        "IPYTHONDIR": str(tmp_path),
        "PYTHONPATH": "",
        "HEADLIGHT_LANG": "",
    }
    done = subprocess.run(
        [python, "-m", "IPython", "--no-banner", script.name],
        cwd=content, env=variables, capture_output=True, encoding="utf-8", timeout=600,
    )  # fmt: skip
    parameters = json.loads((ROOT / "pretrained/demo/result.json").read_text("utf-8"))["parameters"]
    assert done.stdout.strip().endswith(f"{torch.__version__} {torch.__file__} {parameters} zh"), (
        done.stdout + done.stderr
    )
    assert not list(Path(purelib).glob("torch-*"))
