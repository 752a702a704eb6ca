"""Small notebooks, made and run in a real kernel, and runs that take two steps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from configs.command import InputError

ROOT = Path(__file__).resolve().parents[2]

# What every notebook begins with, but for the names that it imports.
FIRST_CELL = "from notebooks.start import {names}"
FIND_IT = "Start Jupyter with `.venv/bin/jupyter lab`"  # in the introduction of each

TINY = """
model: {hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 4, num_key_value_heads: mha, \
max_position_embeddings: 64}
data: {source: {kind: storyworld, documents: 40, validation_documents: 5}, tokenizer: {kind: byte}, sequence_length: 32}
train: {max_steps: STEPS, tokens_per_step: 64, device: cpu, compile: false, precision: fp32, checkpoint_every: 0}
eval: {hooks: [HOOKS], every: 0, max_tokens: 64, final_max_tokens: 64, floor_documents: 1}
tracking: {wandb: disabled}
"""


def tiny_config(folder: Path, steps: int = 2, *, watch: bool = False) -> Path:
    """A config for a run that takes `steps` steps of a millisecond.

    watch: it looks at its heads, too.
    """
    path = folder / "tiny.yaml"
    text = TINY.replace("STEPS", str(steps)).replace("HOOKS", "validation, attention" if watch else "validation")
    path.write_text(text, encoding="utf-8")
    return path


def environment(**changes: str) -> dict[str, str]:
    """Environment of a kernel or a program that imports this tree from any working directory."""
    return os.environ | {"PYTHONPATH": str(ROOT)} | changes


def exercise(solution: str, wrong: str | None, check: str = 'check("06.3", four, 4)', asks: str = "four") -> list[Any]:
    """The three cells of an exercise. asks: the name of its answer."""
    asks = new_code_cell(f"{asks} = None  # a number")
    asks.metadata["tags"] = ["exercise"]
    if wrong is not None:
        asks.metadata["wrong"] = wrong
    checks = new_code_cell(check)
    checks.metadata["tags"] = ["check"]
    shows = f"<details><summary>Solution</summary>\n\n```python\n{solution}\n```\n\n</details>"
    return [asks, checks, new_markdown_cell(shows)]


def write_notebook(path: Path, *cells: Any) -> Path:
    """A notebook of these cells; a text is a code cell."""
    made = [new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells]
    nbformat.write(new_notebook(cells=made), path)
    return path


def run_cells(folder: Path, *sources: str) -> list[Any]:
    """The code cells after they ran in a kernel whose working directory is `folder`; errors are
    left in them.
    """
    notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
    place = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, kernel_name="python3", resources=place, allow_errors=True, timeout=900)
    client.execute(env=environment())
    return notebook.cells


def refusal(prelude: str, answer: str, check: str) -> str:
    """Return the sentence and the hint of a cell's check, or "" if it accepts an answer."""
    variables: dict = {}
    exec(prelude, variables)
    exec(compile(answer, "an answer", "exec"), variables)
    try:
        exec(check, variables)
    except InputError as error:
        return str(error)
    return ""


def printed(cell: Any) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def shown_error(cell: Any) -> str:
    """Return all text of the cell's error that a page shows."""
    (error,) = [output for output in cell.outputs if output.output_type == "error"]
    return "\n".join(error.traceback)
