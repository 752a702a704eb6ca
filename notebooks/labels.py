"""The labels of notebooks and exercises: difficulty, importance and minutes, of labels.yaml."""

from __future__ import annotations

from typing import NamedTuple

from configs.parse import parse_yaml
from notebooks.start import ROOT

FILE = ROOT / "notebooks" / "labels.yaml"
MOST = 5  # difficulty and importance are 1 to 5


class Label(NamedTuple):
    difficulty: int
    importance: int
    minutes: int

    def signs(self) -> tuple[str, str]:
        """Return `●●○○○` for the difficulty, and `★★★★☆` for the importance."""
        difficulty = "●" * self.difficulty + "○" * (MOST - self.difficulty)
        return difficulty, "★" * self.importance + "☆" * (MOST - self.importance)


_labels: dict[str, dict[str, list[int]]] = parse_yaml(FILE.read_text(encoding="utf-8"), FILE.name)
NOTEBOOKS = {number: Label(*label) for number, label in _labels["notebooks"].items()}
CELLS = {number: Label(*label) for number, label in _labels["cells"].items()}  # such as "01.2"
BUILD = {name: Label(*label) for name, label in _labels["build"].items()}


def exercise_minutes(notebook: str) -> int:
    """Return the minutes of all exercises of a notebook, such as "02b"."""
    return sum(label.minutes for key, label in CELLS.items() if key.split(".")[0] == notebook)
