"""What changed since the last look? A line for the terminal, as it happens: layer 2, head 0: induction 0.02 → 0.61."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from eval.attention.metrics import SCORES
from eval.attention.snapshots import Snapshot

WATCHED = ("previous_token", "induction")  # the two halves of copying by looking back
LEAST_CHANGE = 0.15  # of a score; between two looks at the demo, noise moves one by up to 0.08
LEAST_TIMES_CHANCE = 3.0  # before or after: below it, a head looks there about as much as any other


def moments(snapshots: Sequence[Snapshot]) -> list[dict[str, Any]]:
    """The lines of all these looks, each with its step."""
    changes = Changes()
    return [{"step": one.step, "what": line} for one in snapshots for line in changes.notice(one)]


class Changes:
    """Which scores of which heads were shown, so that only a clear change is shown again."""

    def __init__(self) -> None:
        self.shown: dict[str, np.ndarray] = {}  # score -> (layer, head), as last shown
        self.explained: set[str] = set()
        self.looked_at: tuple[list[int], list[int]] = ([], [])

    def notice(self, snapshot: Snapshot) -> list[str]:
        """At most one line a score, about the head that changed most. The first look says nothing."""
        if self.looked_at != (snapshot.layers, snapshot.heads):
            self.shown, self.looked_at = {}, (snapshot.layers, snapshot.heads)
        lines = []
        for name in WATCHED:
            now = snapshot.scores.get(name)
            if now is None:
                continue
            before = self.shown.setdefault(name, now.copy())
            line = self._line(name, before, now, snapshot)
            lines += [line] if line else []
        return lines

    def _line(self, name: str, before: np.ndarray, now: np.ndarray, snapshot: Snapshot) -> str:
        level = snapshot.chance.get(name)
        unknown = np.isnan(before)
        before[unknown] = now[unknown]
        moved = np.abs(np.nan_to_num(now - before))
        moved[np.fmax(before, now) < LEAST_TIMES_CHANCE * (level or 0.0)] = 0
        clear = moved >= LEAST_CHANGE
        if not clear.any():
            return ""
        layer, head = np.unravel_index(moved.argmax(), moved.shape)
        others = int(clear.sum()) - 1
        line = f"layer {snapshot.layers[layer]}, head {snapshot.heads[head]}: {SCORES[name].title} "
        line += f"{before[layer, head]:.2f} → {now[layer, head]:.2f}"
        line += f" (chance {level:.2f})" if level else ""
        line += f", and {others} more {'heads' if others > 1 else 'head'}" * (others > 0)
        if name not in self.explained:
            meaning = SCORES[name].meaning.rstrip(".")
            line += f": {meaning[0].lower()}{meaning[1:]}"
        self.explained.add(name)
        before[clear] = now[clear]
        return line
