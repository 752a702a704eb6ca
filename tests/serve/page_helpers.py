"""A folder of runs whose files are written line by line, and a browser that notices whatever the
page does wrong.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from filelock import FileLock

from configs.files import append_line
from eval.attention.snapshots import Snapshot, write
from tests.eval.page.viewer_helpers import snapshot, watched

HARMFUL = "<script>alert(1)</script><img src=x onerror=alert(2)>"  # in a text
HARMFUL_NAME = "<img src=x onerror=alert(3)>"  # of a folder


class Growing:
    """A run that a test writes, as training does."""

    def __init__(self, runs: Path, name: str, **settings):
        self.path = runs / name
        self.path.mkdir(parents=True)
        values = {"name": name, "seed": 0, "train.max_steps": 400} | settings
        nested: dict = {}
        for key, value in values.items():
            *sections, last = key.split(".")
            place = nested
            for section in sections:
                place = place.setdefault(section, {})
            place[last] = value
        (self.path / "config.yaml").write_text(json.dumps(nested), encoding="utf-8")

    def log(self, step: int, split: str = "train", **figures) -> None:
        usual = {"loss": 8.0 / (1 + step / 50), "lr": 0.01, "tokens_per_s": 1000.0} if split == "train" else {}
        line = {"step": step, "tokens": 100 * step, "time_s": step / 10, "split": split} | usual | figures
        append_line(self.path / "metrics.jsonl", line)

    def look(self, step: int, induction: float = 0.0, labels: list[str] | None = None) -> Snapshot:
        one = snapshot(step, labels=labels)
        scores = np.full((2, 4), 0.01, np.float32)
        scores[1, 2] = induction
        one.scores["induction"] = scores
        write(one, self.path / "attention")
        return one

    def begin(self) -> None:
        """As a process that owns its folder (train/run/checkpoint.py)."""
        self.lock = FileLock(self.path / "owner.lock")
        self.lock.acquire()

    def end(self) -> None:
        self.lock.release()
        (self.path / "result.json").write_text('{"step": 400}', encoding="utf-8")


def visited(browser, address: str, place: str = "", **more):
    """The page of a server, which asks nobody else."""
    return watched(browser, f"{address}/{place}", (address,), wait="html[data-ready]", **more)
