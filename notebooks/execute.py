"""Run notebooks: `python -m notebooks.execute [--write | --refresh] [notebooks …]`.

Each exercise is tested after its check. The check must accept the solution below it, and refuse the
wrong answer in the exercise's metadata. Each wrong answer in hints.yaml must get its own hint. (A
key that is a piece of a sentence is no answer.) `--write` saves the outputs in the files. `play`
draws once, because a page without a kernel has no controls.

notebooks/zh/NN_….ipynb is a notebook in Chinese with its own Markdown cells. `--write` copies the
other cells from the English notebook, and so does `--refresh`, which runs nothing. So change code
only in the English notebook. In the copies, printed sentences and words in pictures are in Chinese
where configs/sentences.zh.txt has them. `--refresh` keeps the pictures of zh/.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import time
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Any

from configs.command import InputError, exit_on_bad_input
from configs.language import in_chinese

FOLDER = Path(__file__).parent
MIME = "image/png+zh"  # of notebooks/chinese_pictures.py, which imports much
Pictures = dict[str, list[str]]  # cell -> its pictures, as base64
# A training overwrites such a line.
PROGRESS = re.compile(r"\r(?:[^\r\n]* … (?=\r|$))?")
LARGEST_PAGE = 100_000  # An output may have at most this many characters of HTML.
CELL_SECONDS = 900  # A longer cell is stopped. No cell needs so long, even on a slow machine.
# The cell of an exercise names its answer: `answer = None  # what it is`.
ANSWER = re.compile(r"^(\w+) = None  # ", re.MULTILINE)
SECOND_LANGUAGE = "from notebooks.chinese_pictures import begin; begin(); del begin"
SOLUTION = re.compile(r"<details>.*?```python\n(.*?)```", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m notebooks.execute", description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of them")
    parser.add_argument("--write", action="store_true", help="keep all outputs in the files")
    parser.add_argument("--refresh", action="store_true", help="only copy code and outputs to zh/")
    args = parser.parse_args()
    for path in args.notebooks or sorted(FOLDER.glob("[0-9]*.ipynb")):
        if args.refresh:
            refresh(path)
            continue
        print(f"{path.name} …", flush=True)
        began = time.perf_counter()
        exercises = execute(path, write=args.write)
        seconds = time.perf_counter() - began
        print(f"{path.name}: {seconds:.0f} s, {exercises} exercises proven")


def execute(path: Path, *, write: bool) -> int:
    """Run a notebook and return its number of exercises.

    Raises InputError if a cell fails, or if an exercise proves nothing.
    """
    import nbformat  # slow to import, and `--help` does not need it
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    sources = [cell.source for cell in notebook.cells]
    exercises = add_proofs(notebook.cells, path.name)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    first.source = f"{SECOND_LANGUAGE}\n{first.source}"
    started: list[int] = []
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_start=lambda cell, cell_index: started.append(cell_index),
    )
    try:
        client.execute(env=os.environ | {"HEADLIGHT_LANG": "en", "HEADLIGHT_PLAY": "once"})
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        problem = str(error)
        if isinstance(error, CellExecutionError):
            print(error, file=sys.stderr)  # an InputError has one line, too short for a traceback
            problem = f"{error.ename}: {error.evalue}"
        raise InputError(f"{path.name}, cell {started[-1] + 1} failed: {problem}") from None
    if write:
        for cell, source in zip(notebook.cells, sources, strict=True):
            cell.source = source
        tidy(notebook)
        pictures = taken_out(notebook)
        nbformat.write(notebook, path)
        refresh(path, pictures)
    return exercises


def add_proofs(cells: list[Any], name: str) -> int:
    """Append a proof to the check of each exercise, and return their number."""
    exercises = [i for i, cell in enumerate(cells) if "exercise" in cell.metadata.get("tags", [])]
    for start, end in pairwise([*exercises, len(cells)]):
        checks = [cell for cell in cells[start:end] if "check" in cell.metadata.get("tags", [])]
        text = "\n".join(cell.source for cell in cells[start:end] if cell.cell_type == "markdown")
        answer = ANSWER.search(cells[start].source)
        solution = SOLUTION.search(text)
        wrong = cells[start].metadata.get("wrong")
        if not (checks and answer and solution and wrong):
            raise InputError(
                f'{name}, the exercise in cell {start + 1} needs "name = None  # what it is", '
                '"wrong" in its metadata, a cell tagged "check", and a solution in <details>'
            )
        proof = (answer[1], checks[0].source, solution[1], wrong)
        checks[0].source += f"\n__import__('notebooks.execute').execute.prove(globals(), *{proof})"
    return len(exercises)


def prove(variables: dict[str, Any], answer: str, check: str, solution: str, wrong: str) -> None:
    """Assert that a check accepts the solution and refuses wrong answers, each with its own hint.

    It runs in the kernel of the notebook, but on copies of its variables. So no later cell can
    depend on the solution.
    """
    from notebooks.start import HINTS

    def problem_of(source: str) -> str:
        try:
            with redirect_stdout(io.StringIO()):
                exec(compile(source, "an answer", "exec"), dict(variables))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    problem = problem_of(f"{wrong}\n{check}") or "it raises nothing"
    assert "Not yet" in problem, f"its check does not refuse the wrong answer: {problem}"
    number = re.search(r'check\(\s*"(\d\d\w?\.\d+)"', check)
    hints = HINTS.get(number[1], "") if number else ""
    for mistake, hint in {} if isinstance(hints, str) else hints.items():
        if is_answer(mistake):
            problem = problem_of(f"import math, torch\n{answer} = {mistake}\n{check}")
            assert hint in problem, f"its check does not give {mistake} its own hint: {problem}"
    # a check that prints nothing would also accept a missing answer
    is_set = f"assert {answer} is not None, 'the solution sets no {answer}'"
    problem = problem_of(f"{answer} = None\n{solution}\n{check}\n{is_set}")
    assert not problem, f"its check does not accept the solution: {problem}"


def is_answer(key: str) -> bool:
    """Return True if a key of hints.yaml is an answer in Python, not a piece of a sentence."""
    try:
        compile(key, "a hint", "eval")
    except SyntaxError:  # "else" is one, too
        return False
    return True


def tidy(notebook: Any) -> None:
    """Remove progress lines, large pages, and everything that changes from run to run."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "text" in output:
                output.text = PROGRESS.sub("", output.text)
            if len(output.get("data", {}).get("text/html", "")) > LARGEST_PAGE:
                del output["data"]["text/html"]  # its plain text names the file
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.get("text") != ""]
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }


def taken_out(notebook: Any) -> Pictures:
    """Remove the Chinese pictures from a notebook and return them."""
    pictures = {}
    for cell in notebook.cells:
        found = [o["data"] for o in cell.get("outputs", []) if "image/png" in o.get("data", {})]
        pictures[cell.id] = [data.pop(MIME, data["image/png"]) for data in found]
    return pictures


def refresh(path: Path, pictures: Pictures | None = None) -> None:
    """Copy every cell of the notebook to zh/<name>, except for the text of Markdown cells.

    pictures: in Chinese; default: those that are there

    Cells with the same id belong together. Raises InputError for a Markdown cell without a
    translation.
    """
    import nbformat

    chinese = path.parent / "zh" / path.name
    if not chinese.is_file():
        return
    notebook = nbformat.read(path, as_version=4)
    before = nbformat.read(chinese, as_version=4)
    texts = {cell.id: cell.source for cell in before.cells}
    pictures = pictures or taken_out(before)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            if cell.id not in texts:
                text = repr(cell.source[:60])
                raise InputError(f"zh/{path.name} needs a Markdown cell {cell.id}: {text}")
            cell.source = texts[cell.id]
        elif "colab" in cell.metadata.get("tags", []):  # it enters zh/
            cell.source = texts.get(cell.id, cell.source)
        translate_outputs(cell)
        shown = [o["data"] for o in cell.get("outputs", []) if "image/png" in o.get("data", {})]
        for data, picture in zip(shown, pictures.get(cell.id, []), strict=False):
            data["image/png"] = picture
    nbformat.write(notebook, chinese)


def translate_outputs(cell: Any) -> None:
    """Put the printed lines of a cell into Chinese, where configs/sentences.zh.txt has them."""
    for output in cell.get("outputs", []):
        if "text" in output:
            output.text = "\n".join(in_chinese(line) for line in output.text.split("\n"))


if __name__ == "__main__":
    exit_on_bad_input(main)
