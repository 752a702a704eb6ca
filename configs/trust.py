"""Whose word is a config? A key that names code, such as `eval.hooks`, is followed only if it is the user's own word.

Their own word is the command line, and a file that they keep where they work: under the current directory or in this
repository, links followed. What came with a run or a model is not, wherever it lies: config.yaml, the name under which
a run keeps its config, and every file in a folder that holds checkpoints, weights or logs.
"""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SAVED = "config.yaml"  # a run's own config
MARKS = ("checkpoints", "model.safetensors", "model.safetensors.index.json", "metrics.jsonl")


def is_own(file: Path | None) -> bool:
    """Whether a config is the user's own word. None: the command line."""
    if file is None:
        return True
    file = file.resolve()
    return file.name != SAVED and any(_keeps(root, file) for root in (Path.cwd().resolve(), REPOSITORY))


def _keeps(root: Path, file: Path) -> bool:
    """Whether the file lies under root, and in none of the folders between is a run."""
    if not file.is_relative_to(root):
        return False
    folders = [root, *(folder for folder in file.parents if folder.is_relative_to(root))]
    return not any((folder / mark).exists() for folder in folders for mark in MARKS)
