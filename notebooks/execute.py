"""Run the notebooks from top to bottom: `python -m notebooks.execute [--write | --refresh] [notebooks …]`.

Besides running every cell it proves the exercises: the hidden solution, which the check must accept, and the wrong
answers in the exercise's metadata and in hints.yaml, which the check must refuse (the latter with their own hints).
--write puts what was printed and drawn into the files; where a control is, which shows nothing without a kernel, it
puts what the control drew at first.

notebooks/zh/NN_….ipynb is a notebook in Chinese: its Markdown cells are its own, all else is the English notebook's and
is copied by --write, or by --refresh, which runs nothing. So change code in the English notebook only.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from configs.command import InputError, exit_on_bad_input
from configs.loader import parse_yaml

FOLDER = Path(__file__).parent
PROGRESS = re.compile(r"\r(?:[^\r\n]* … (?=\r|$))?")  # a line that is written over while something trains
LARGEST_PAGE = 100_000  # characters of HTML in one output
CELL_SECONDS = 900  # a cell that hangs ends here; a slow machine does not
ASKED = re.compile(r"^(\w+) = None  # ", re.MULTILINE)  # in the cell of an exercise: the name of its answer
KEEP = "__before = dict(globals())"
RESTORE = "(lambda kept: (globals().clear(), globals().update(kept)))(__before)"
WIDGET = "application/vnd.jupyter.widget-view+json"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m notebooks.execute", description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of them")
    parser.add_argument("--write", action="store_true", help="keep what is printed and drawn in the files")
    parser.add_argument("--refresh", action="store_true", help="only copy code and outputs to the notebooks in zh/")
    options = parser.parse_args()
    for path in options.notebooks or sorted(FOLDER.glob("[0-9]*.ipynb")):
        if options.refresh:
            refresh(path)
            continue
        print(f"{path.name} …", flush=True)
        exercises, seconds = execute(path, write=options.write)
        print(f"{path.name}: {seconds:.0f} s, {exercises} exercises proven, {path.stat().st_size / 1000:.0f} kB")


def execute(path: Path, *, write: bool) -> tuple[int, float]:
    """Number of exercises, and the seconds that a reader waits. Raises InputError where a cell or an exercise fails.

    An exercise is proven where it stands, right after its check; then the kernel's variables are put back, so that
    no cell further down can live on a solution that the reader did not write.
    """
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    client = client_of(notebook, path)
    proven, seconds, exercise = 0, 0.0, None
    drawn: dict[int, list[Any]] = {}  # cell -> what its controls drew
    with client.setup_kernel(env=os.environ | {"HEADLIGHT_LANG": "en"}):  # whatever language its reader has
        for index, cell in enumerate(list(notebook.cells)):
            tags = cell.metadata.get("tags", [])
            if "exercise" in tags:
                if exercise is not None:
                    break
                exercise = index
            before, there = time.perf_counter(), set(client.comm_objects)
            if failed := error_of(client, cell, index):
                raise InputError(f"{path.name}, cell {index + 1} failed: {failed}")
            seconds += time.perf_counter() - before
            new = client.comm_objects.keys() - there
            drawn[index] = [output for key in new for output in client.comm_objects[key].outputs]
            if "check" in tags and exercise is not None:
                prove(client, notebook, exercise, index, path.name)
                proven, exercise = proven + 1, None
    if exercise is not None:
        raise InputError(f'{path.name}, the exercise in cell {exercise + 1} needs a cell tagged "check" below it')
    if write:
        tidy(notebook, drawn)
        nbformat.write(notebook, path)
        refresh(path)
    return proven, seconds


def refresh(path: Path) -> None:
    """Give zh/<name> every cell of the notebook with what it shows, but leave the text of its Markdown cells.

    Cells belong together if they have the same id. Raises InputError where a Markdown cell has no translation.
    """
    import nbformat

    chinese = path.parent / "zh" / path.name
    if not chinese.is_file():
        return
    notebook = nbformat.read(path, as_version=4)
    texts = {cell.id: cell.source for cell in nbformat.read(chinese, as_version=4).cells}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            if cell.id not in texts:
                raise InputError(f'zh/{path.name} needs a Markdown cell with the id "{cell.id}": {cell.source[:60]!r}')
            cell.source = texts[cell.id]
    nbformat.write(notebook, chinese)


def client_of(notebook: Any, path: Path) -> Any:
    """What runs the notebook's cells, in the folder of `path`."""
    from nbclient import NotebookClient
    from nbclient.output_widget import OutputWidget

    class Output(OutputWidget):
        """Where `interact` draws; it tells the kernel nothing back.

        The kernel does not need it, and what nbclient sends while it waits for an answer on the same socket can hide
        that answer until the cell's time is over: 4 of 41 cells with controls (nbclient 0.11, jupyter_client 8.10).
        """

        def sync_state(self) -> None:
            pass

    resources = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=CELL_SECONDS, kernel_name="python3", resources=resources)
    client.widget_registry = {"@jupyter-widgets/output": {"OutputModel": Output}}
    return client


def error_of(client: Any, cell: Any, index: int, *, hidden: bool = False) -> str:
    """What the cell's error says, "" if it has none. hidden: the cell has no number, so the reader's stay 1 … n."""
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    try:
        client.execute_cell(cell, index, store_history=not hidden)
    except CellExecutionError as error:
        if not hidden:
            print(error, file=sys.stderr)  # with the traceback, which the one line of an InputError has no room for
        return f"{error.ename}: {error.evalue}"
    except (CellTimeoutError, DeadKernelError) as error:
        return str(error).strip() or type(error).__name__
    drawn = [output for widget in client.comm_objects.values() for output in widget.outputs]  # interact hides errors
    return next((f"{error.ename}: {error.evalue}" for error in drawn if error.output_type == "error"), "")


def prove(client: Any, notebook: Any, exercise: int, check: int, name: str) -> None:
    """Raises InputError unless the check takes the solution of the exercise in cell `exercise`, and no wrong answer."""
    from nbformat.v4 import new_code_cell

    def error_in(source: str) -> str:
        """Run something that the notebook does not hold."""
        notebook.cells.append(new_code_cell(source))
        try:
            return error_of(client, notebook.cells[-1], len(notebook.cells) - 1, hidden=True)
        finally:
            notebook.cells.pop()

    place = f"{name}, the exercise in cell {exercise + 1}"
    asks, checks, *below = notebook.cells[exercise : exercise + 1] + notebook.cells[check:]
    own = itertools.takewhile(lambda cell: "exercise" not in cell.metadata.get("tags", []), below)
    folded = next((cell.source for cell in own if "<details>" in cell.source), "")
    solution, wrong = re.search(r"```python\n(.*?)```", folded, re.DOTALL), asks.metadata.get("wrong")
    asked = ASKED.search(asks.source)
    if solution is None or wrong is None or asked is None:
        needs = 'a line "name = None  # what it is", a solution in <details> below it, and "wrong" in its metadata'
        raise InputError(f"{place} needs {needs}")
    error_in(KEEP)
    if "Not yet" not in (error := error_in(f"{wrong}\n{checks.source}")):
        raise InputError(f"{place}: its check does not refuse the wrong answer: {error or 'it gave no error'}")
    for mistake, hint in mistakes(checks.source).items():
        error = error_in(f"import math, torch\n{asked[1]} = {mistake}\n{checks.source}")
        if hint not in error:
            raise InputError(f"{place}: its check does not give {mistake} the hint of hints.yaml: {error}")
    # of a check that says nothing, an answer that is missing would also be none that is wrong
    there = f"assert {asked[1]} is not None, 'the solution sets no {asked[1]}'"
    if error := error_in(f"{asked[1]} = None\n{solution[1]}\n{checks.source}\n{there}"):
        raise InputError(f"{place}: its check does not take the solution: {error}")
    error_in(RESTORE)


def mistakes(check: str) -> dict[str, str]:
    """The wrong answers of hints.yaml to the exercise that a cell checks: Python -> the hint that they need."""
    number = re.search(r'check\("(\d\d\.\d+)"', check)
    hints = parse_yaml((FOLDER / "hints.yaml").read_text(encoding="utf-8"), "hints.yaml")
    known = hints.get(number[1], "") if number else ""
    return {} if isinstance(known, str) else {wrong: hint for wrong, hint in known.items() if wrong != "else"}


def tidy(notebook: Any, drawn: dict[int, list[Any]]) -> None:
    """Leave out what differs from run to run, progress, large pages, and controls: what they drew takes their place."""
    for index, cell in enumerate(notebook.cells):
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        for output in cell.outputs:
            if "text" in output:
                output.text = PROGRESS.sub("", output.text)
        plain = [output for output in cell.outputs if WIDGET not in output.get("data", {}) and output.get("text") != ""]
        cell.outputs = plain + drawn.get(index, [])
        for output in cell.outputs:
            if len(output.get("data", {}).get("text/html", "")) > LARGEST_PAGE:
                del output["data"]["text/html"]  # its text says where to find it
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }


if __name__ == "__main__":
    exit_on_bad_input(main)
