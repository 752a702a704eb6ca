"""What did the heads of a run look at, so far? Its looks (eval/attention/snapshots.py), read once each, for the page.

Scores and texts of every look stay in memory, maps only of those that were asked for last.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from configs.command import InputError
from eval.attention.changes import Changes
from eval.attention.history import like_the_last
from eval.attention.snapshots import Snapshot, read
from eval.attention.viewer.module import told
from eval.attention.viewer.page import quantise
from eval.experts.log import for_viewer
from eval.experts.log import read as read_experts

MOST_BYTES = 200_000_000  # of maps in memory, of all runs together
NO_MAP = np.empty(0, np.float32)


class Looks:
    """The looks of all runs that were asked for. Safe to use from several threads."""

    def __init__(self, most_bytes: int = MOST_BYTES):
        self.most_bytes = most_bytes
        self._lock = threading.Lock()
        self._scored: dict[Path, tuple[tuple[int, int], Snapshot]] = {}
        self._maps: OrderedDict[tuple[Path, str], bytes] = OrderedDict()
        self._size = 0

    def told(self, name: str, run: Path) -> dict[str, Any]:
        """Everything but the maps, as eval/attention/viewer/module.py says it; and what happened when.

        moments: lines as on the terminal, with their step.
        Raises InputError where nobody looked yet.
        """
        with self._lock:
            found, problems = self._of(run)
        about = told(name, found, for_viewer(read_experts(run, lambda problem: None)))
        about["notes"] += problems
        return about | {"moments": _moments(found)}

    def map(self, run: Path, step: int, probe: str) -> bytes:
        """The maps of one look on one text: 255 times the root of each weight (eval.attention.viewer.page.quantise).

        Raises KeyError where there is none.
        """
        with self._lock:
            file = next((file for file in _files(run) if file.stem == f"step_{step:08d}"), None)
            if file is None:
                raise KeyError(step)
            self._look(file)
            if (file, probe) not in self._maps and probe in self._scored[file][1].maps:
                self._read(file)
            codes = self._maps[file, probe]
            self._maps.move_to_end((file, probe))
            return codes

    def _of(self, run: Path) -> tuple[list[Snapshot], list[str]]:
        found, problems = [], []
        for file in _files(run):
            try:
                found.append(self._look(file))
            except InputError as error:
                problems.append(str(error))
        return found, problems

    def _look(self, file: Path) -> Snapshot:
        """One look without its weights; read again where the file changed."""
        here = file.stat()
        mark = (here.st_mtime_ns, here.st_size)
        if file not in self._scored or self._scored[file][0] != mark:
            self._scored[file] = (mark, self._read(file))
        return self._scored[file][1]

    def _read(self, file: Path) -> Snapshot:
        whole = read(file)
        for probe, one in whole.maps.items():
            self._size -= len(self._maps.pop((file, probe), b""))
            self._maps[file, probe] = quantise(one.weights).tobytes()
            self._size += len(self._maps[file, probe])
        newest = {(file, probe) for probe in whole.maps}
        while self._size > self.most_bytes and next(iter(self._maps)) not in newest:
            self._size -= len(self._maps.popitem(last=False)[1])
        maps = {probe: replace(one, weights=NO_MAP) for probe, one in whole.maps.items()}
        return replace(whole, maps=maps, similarity=None)


def _files(run: Path) -> list[Path]:
    return sorted((run / "attention").glob("step_????????.npz"))


def _moments(found: list[Snapshot]) -> list[dict[str, Any]]:
    changes = Changes()
    return [{"step": one.step, "what": line} for one in like_the_last(found) for line in changes.notice(one)]
