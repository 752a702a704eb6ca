"""What changed over time? When the induction head formed, curves over training, and which snapshots to show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from eval.attention.snapshots import Snapshot

ENOUGH_TO_COPY = 1.0  # nats of copy gain: the right token of a second copy is e times as likely as in the first


class PhaseChange(NamedTuple):
    """The head, by its true numbers, and the moment at which it became what it is."""

    layer: int
    head: int
    step: int
    tokens: int
    seconds: float


def best_head(snapshot: Snapshot, score: str) -> tuple[int, int] | None:
    """The head (by its place in the snapshot) with the largest score; None without any."""
    values = snapshot.scores.get(score)
    if values is None or not np.isfinite(values).any():
        return None
    layer, head = np.unravel_index(np.nanargmax(values), values.shape)
    return int(layer), int(head)


def like_the_last(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """Those that looked at the same heads on the same texts as the last one, by step: only these make a curve.

    A run may continue with other layers, texts or lengths (`eval.attention`); what it saw before is another picture.
    """
    ordered = sorted(snapshots, key=lambda snapshot: snapshot.step)
    return [one for one in ordered if looked_at(one) == looked_at(ordered[-1])]


def looked_at(snapshot: Snapshot) -> tuple:
    """Which heads on which texts: equal for two snapshots that can be compared."""
    return snapshot.layers, snapshot.heads, {name: one.labels for name, one in snapshot.maps.items()}


def phase_change(snapshots: Sequence[Snapshot], score: str = "induction") -> PhaseChange | None:
    """The moment at which the run's best induction head formed.

    The head: the one with the largest score in the last snapshot, which must be 10 times its chance level there (0.1
    where there is no such level). The moment: the first snapshot in which it has half of that last score. None if the
    last score is too low, or if the first snapshot has half of it already, since then nothing formed in this run.

    Olsson et al. 2022 (arXiv 2209.11895) call the short window in which induction heads appear, and with them the
    gain from context, a phase change; they read it off the curves and give no formula. Half of the final value is the
    middle of such a step; its precision is the distance between two snapshots.
    """
    ordered = sorted((s for s in snapshots if best_head(s, score)), key=lambda snapshot: snapshot.step)
    place = best_head(ordered[-1], score) if ordered else None
    if place is None:
        return None
    last = ordered[-1]
    final, chance = float(last.scores[score][place]), last.chance.get(score)
    if final < (10 * chance if chance else 0.1):
        return None
    formed = next(s for s in ordered if s.scores[score][place] >= final / 2)
    if formed is ordered[0]:
        return None
    return PhaseChange(last.layers[place[0]], last.heads[place[1]], formed.step, formed.tokens, formed.seconds)


def copies_from(snapshots: Sequence[Snapshot], gain: float = ENOUGH_TO_COPY) -> int | None:
    """The first step at which the copy gain is `gain` nats or more; None if it never is.

    It asks what the model does, not which head does it: models of unlike parts can be compared by it. Its precision is
    the distance between two snapshots.
    """
    ordered = sorted(snapshots, key=lambda snapshot: snapshot.step)
    return next((s.step for s in ordered if (s.scalars.get("copy_gain") or 0.0) >= gain), None)


def choose(snapshots: Sequence[Snapshot], most: int) -> list[Snapshot]:
    """At most `most` snapshots by step, dense early; the first and the last are among them.

    Evenly spaced in log(1 + 20 x step / last step): a logarithm, but linear in the first twentieth of training, where
    a plain one would take step 1, 2 and 5, which look the same.
    """
    ordered = sorted(snapshots, key=lambda snapshot: snapshot.step)
    if len(ordered) <= most:
        return ordered
    first, last = ordered[0].step, ordered[-1].step
    places = np.log1p([20 * (snapshot.step - first) / (last - first) for snapshot in ordered])
    chosen = {0, len(ordered) - 1}
    for wanted in np.linspace(0, places[-1], most)[1:-1]:
        free = [i for i in range(len(ordered)) if i not in chosen]
        chosen.add(min(free, key=lambda i: abs(places[i] - wanted)))
    return [ordered[i] for i in sorted(chosen)]


class Curve(NamedTuple):
    """One figure over training: a title, tokens seen and values (NaN: undefined), one each a snapshot."""

    title: str
    tokens: list[int]
    values: list[float]


def copy_gain(snapshots: Sequence[Snapshot]) -> Curve | None:
    """Loss on the first copy of random tokens minus loss on the second, in nats; None where it was not measured."""
    values = [_number(snapshot.scalars.get("copy_gain")) for snapshot in snapshots]
    if not np.isfinite(values).any():
        return None
    return Curve("copy gain (nats)", [snapshot.tokens for snapshot in snapshots], values)


def of_best_head(snapshots: Sequence[Snapshot], score: str) -> Curve | None:
    """The score over training of the head that has most of it at the end; its title names the head."""
    place = best_head(snapshots[-1], score) if snapshots else None
    if place is None:
        return None
    layer, head = snapshots[-1].layers[place[0]], snapshots[-1].heads[place[1]]
    values = [float(s.scores[score][place]) if score in s.scores else float("nan") for s in snapshots]
    return Curve(f"L{layer} H{head}", [snapshot.tokens for snapshot in snapshots], values)


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
