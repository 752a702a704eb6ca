"""Let the notebooks open in Google Colab: `python -m docs.tools.colab https://github.com/OWNER/NAME`

Each notebook gets a link below its label, and a first cell of code. In Colab this cell fetches the
repository, with its trained models, and installs what Colab lacks; Colab's torch stays. Elsewhere
it does nothing. Run it once when the address of the repository is known, and again if it changes.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import nbformat

from configs.command import InputError, exit_on_bad_input

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
TAG = "colab"
CELL = """\
# For Google Colab: fetch Headlight and its trained models. Colab's torch stays.
import os
import sys

if "google.colab" in sys.modules:
    !git clone -q --depth 1 {address} headlight
    %cd -q headlight
    !grep -v "^torch" requirements.txt > not_torch.txt
    %pip install -q -r not_torch.txt
    sys.path.insert(0, os.getcwd())
    %cd -q {folder}"""
# Words, not Colab's picture: a page without a network could not show it.
WORDS = {"notebooks": "Open in Colab", "notebooks/zh": "在 Colab 中打开"}
LINK = re.compile(rf"^\[({'|'.join(WORDS.values())})\].*$\n\n", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description="Let the notebooks open in Google Colab.")
    parser.add_argument("address", help="of the repository: https://github.com/OWNER/NAME")
    address = parser.parse_args().address.removesuffix("/").removesuffix(".git")
    if not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", address):
        raise InputError(f"{address}: Colab opens https://github.com/OWNER/NAME")
    for path in add_to(FOLDER, address):
        print(f"{path.relative_to(FOLDER.parent)}: written")


def add_to(folder: Path, address: str) -> list[Path]:
    """Write the link and the cell into every notebook of this folder and of its zh/."""
    paths = sorted([*folder.glob("[0-9]*.ipynb"), *folder.glob("zh/*.ipynb")])
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        place = f"notebooks/{path.relative_to(folder).as_posix()}"
        repository = address.removeprefix("https://github.com/")
        page = f"https://colab.research.google.com/github/{repository}/blob/main/{place}"
        # below the label, which docs.tools.labels keeps right below the title
        title, label, text = LINK.sub("", notebook.cells[0].source).split("\n\n", 2)
        link = f"[{WORDS[place.rpartition('/')[0]]}]({page})"
        notebook.cells[0].source = f"{title}\n\n{label}\n\n{link}\n\n{text}"
        # without the cell of an earlier call: it may have another address
        cells = notebook.cells
        notebook.cells = [cell for cell in cells if TAG not in cell.metadata.get("tags", [])]
        # notebooks.start answers in Chinese if it is imported in zh/
        source = CELL.format(address=address, folder=place.rpartition("/")[0])
        cell = nbformat.v4.new_code_cell(source, id=TAG, metadata={"tags": [TAG]})
        notebook.cells.insert(1, cell)
        code = (cell for cell in notebook.cells if cell.cell_type == "code")
        for number, cell in enumerate(code, start=1):
            cell.execution_count = number
        nbformat.write(notebook, path)
    return paths


if __name__ == "__main__":
    exit_on_bad_input(main)
