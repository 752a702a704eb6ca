"""Run the notebooks from top to bottom: `python -m notebooks.execute [--write] [notebooks …]`.

Besides running every cell it proves the exercises: the hidden solution, which the check must accept, then the wrong
answer in the exercise's metadata, which the check must refuse. --write puts what was printed and drawn into the files.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

from configs.loader import InputError, exit_on_bad_input

FOLDER = Path(__file__).parent
CELL_SECONDS = 900  # a cell that hangs ends here; a slow machine does not
WIDGET = "application/vnd.jupyter.widget-view+json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m notebooks.execute", description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of them")
    parser.add_argument("--write", action="store_true", help="keep what is printed and drawn in the files")
    options = parser.parse_args()
    for path in options.notebooks or sorted(FOLDER.glob("0*.ipynb")):
        if not path.is_file():
            raise InputError(f"there is no notebook {path}")
        print(f"{path.name} …", flush=True)
        exercises, seconds = execute(path, write=options.write)
        print(f"{path.name}: {seconds:.0f} s, {exercises} exercises proven, {path.stat().st_size / 1000:.0f} kB")
    return 0


def execute(path: Path, *, write: bool) -> tuple[int, float]:
    """Number of exercises, and the seconds that a reader waits. Raises InputError where a cell fails."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=CELL_SECONDS, kernel_name="python3", resources=resources)
    with client.setup_kernel():
        before = time.perf_counter()
        for index, cell in enumerate(notebook.cells):
            if failed := error_of(client, cell, index):
                raise InputError(f"{path.name}, cell {index + 1} failed: {failed}")
        seconds = time.perf_counter() - before
        exercises = [i for i, cell in enumerate(notebook.cells) if "exercise" in cell.metadata.get("tags", [])]
        for index in exercises:
            if problem := refuted(client, notebook, index):
                raise InputError(f"{path.name}, the exercise in cell {index + 1}: {problem}")
    if write:
        tidy(notebook)
        nbformat.write(notebook, path)
    return len(exercises), seconds


def error_of(client, cell, index: int) -> str:
    """What the cell's error says, its traceback last; "" if it has none."""
    from nbclient.exceptions import CellExecutionError, CellTimeoutError

    try:
        client.execute_cell(cell, index)
    except (CellExecutionError, CellTimeoutError) as error:
        return str(error).strip() or type(error).__name__
    return ""


def refuted(client, notebook, index: int) -> str:
    """What is wrong with the exercise in cell `index`, "" if its check takes the solution, not the wrong answer."""
    from nbformat.v4 import new_code_cell

    cells = notebook.cells
    check = next((cell.source for cell in cells[index:] if "check" in cell.metadata.get("tags", [])), None)
    folded = next((cell.source for cell in cells[index:] if "<details>" in cell.source), "")
    solution = re.search(r"```python\n(.*?)```", folded, re.DOTALL)
    wrong = cells[index].metadata.get("wrong")
    if check is None or solution is None or wrong is None:
        return 'it needs a cell tagged "check", a solution in <details>, and a wrong answer in its metadata ("wrong")'
    at = len(cells)  # beyond the notebook: these cells are run in its kernel and kept nowhere
    cells.extend([new_code_cell(f"{solution[1]}\n{check}"), new_code_cell(f"{wrong}\n{check}")])
    right, refused = (error_of(client, cell, at + i) for i, cell in enumerate(cells[at:]))
    said = "".join(output.get("text", "") for output in cells[at].outputs)
    del cells[at:]
    if right or "Right." not in said:
        return f"its check does not take the solution: {right or said}"
    return "" if "Not yet" in refused else f"its check does not refuse a wrong answer: {refused or 'it said nothing'}"


def tidy(notebook) -> None:
    """Leave out what differs from run to run, and controls, which show nothing without a kernel."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }


if __name__ == "__main__":
    exit_on_bad_input(main)
