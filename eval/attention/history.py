"""What changed over time? When the induction head formed, curves over training, lines for terminal and report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from configs.text import table
from eval.attention.metrics import PATTERNS, SCORES
from eval.attention.snapshots import Snapshot

ENOUGH_TO_COPY = 1.0  # nats of copy gain: the right token of a second copy is e times as likely as in the first
LEAST_CHANGE = 0.15  # of a score; between two looks at the demo, noise moves one by up to 0.08
LEAST_TIMES_CHANCE = 3.0  # before or after: below it, a head looks there about as much as any other


class PhaseChange(NamedTuple):
    """A head, by its true numbers, and when it became what it is."""

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

    def looked_at(snapshot: Snapshot) -> tuple:
        return snapshot.layers, snapshot.heads, {name: probe.labels for name, probe in snapshot.maps.items()}

    ordered = sorted(snapshots, key=lambda snapshot: snapshot.step)
    return [snapshot for snapshot in ordered if looked_at(snapshot) == looked_at(ordered[-1])]


def phase_change(snapshots: Sequence[Snapshot]) -> PhaseChange | None:
    """The moment at which the run's best induction head formed.

    The head: the one with the largest score in the last snapshot, which must be 10 times its chance level there (0.1
    where there is no such level). The moment: the first snapshot in which it has half of that last score. None if the
    last score is too low, or if the first snapshot has half of it already, since then nothing formed in this run.

    Olsson et al. 2022 (arXiv 2209.11895) call the short window in which induction heads appear, and with them the
    gain from context, a phase change; they read it off the curves and give no formula. Half of the final value is the
    middle of such a step; its precision is the distance between two snapshots.
    """
    ordered = sorted((s for s in snapshots if best_head(s, "induction")), key=lambda snapshot: snapshot.step)
    place = best_head(ordered[-1], "induction") if ordered else None
    if place is None:
        return None
    last, chance = ordered[-1], ordered[-1].chance.get("induction")
    final = float(last.scores["induction"][place])
    formed = next(s for s in ordered if s.scores["induction"][place] >= final / 2)
    if final < (10 * chance if chance else 0.1) or formed is ordered[0]:
        return None
    return PhaseChange(last.layers[place[0]], last.heads[place[1]], formed.step, formed.tokens, formed.seconds)


def copies_from(snapshots: Sequence[Snapshot]) -> int | None:
    """The first step at which the copy gain is ENOUGH_TO_COPY or more; None if it never is.

    It asks what the model does, not which head does it: models of unlike parts can be compared by it.
    """
    return min((s.step for s in snapshots if (s.scalars.get("copy_gain") or 0.0) >= ENOUGH_TO_COPY), default=None)


def choose(snapshots: Sequence[Snapshot], most: int) -> list[Snapshot]:
    """At most `most` of snapshots that are ordered by step, dense early; the first and the last are among them.

    Evenly spaced in log(1 + 20 x step / last step): a logarithm, but linear in the first twentieth of training, where
    a plain one would take step 1, 2 and 5, which look the same.
    """
    if len(snapshots) <= most:
        return [*snapshots]
    first, last = snapshots[0].step, snapshots[-1].step
    places = np.log1p([20 * (snapshot.step - first) / (last - first) for snapshot in snapshots])
    chosen = {0, len(snapshots) - 1}
    for target in np.linspace(0, places[-1], most)[1:-1]:
        free = [i for i in range(len(snapshots)) if i not in chosen]
        chosen.add(min(free, key=lambda i: abs(places[i] - target)))
    return [snapshots[i] for i in sorted(chosen)]


def copy_gains(snapshots: Sequence[Snapshot]) -> list[float]:
    """The copy gain of each snapshot (NaN: undefined), in nats; [] if it was never measured."""
    gains = [float("nan") if (gain := s.scalars.get("copy_gain")) is None else gain for s in snapshots]
    return gains if np.isfinite(gains).any() else []


def of_best_head(snapshots: Sequence[Snapshot], score: str) -> tuple[str, list[float]]:
    """The head that has most of the score at the end, such as "L1 H3", and its score in each snapshot (NaN: undefined);
    "" and NaN if nothing was measured at the end."""
    last, place, undefined = snapshots[-1], best_head(snapshots[-1], score), float("nan")
    if place is None:
        return "", [undefined] * len(snapshots)
    values = [float(s.scores[score][place]) if score in s.scores else undefined for s in snapshots]
    return f"L{last.layers[place[0]]} H{last.heads[place[1]]}", values


# ---------------------------------------------------------------------------------------------------------
# during training: layer 2, head 0: induction 0.02 → 0.61


def changes(snapshots: Sequence[Snapshot]) -> Iterator[tuple[int, str]]:
    """Steps, and what changed there, in a line: at most one a score, about the head that changed most.

    A head is compared with what was last said of it, so that only a clear change is said, once. The first look says
    nothing.
    """
    shown: dict[str, np.ndarray] = {}  # score -> (layer, head)
    for snapshot in like_the_last(snapshots):
        for name in ("previous_token", "induction"):  # the two halves of copying by looking back
            now, level = snapshot.scores.get(name), snapshot.chance.get(name) or 0.0
            if now is None:
                continue
            before = shown.setdefault(name, now.copy())
            before[:] = np.where(np.isnan(before), now, before)
            moved = np.abs(np.nan_to_num(now - before))
            moved[np.fmax(before, now) < LEAST_TIMES_CHANCE * level] = 0
            clear = moved >= LEAST_CHANGE
            if clear.any():
                i, j = np.unravel_index(moved.argmax(), moved.shape)
                head = f"layer {snapshot.layers[i]}, head {snapshot.heads[j]}"
                values = f"{before[i, j]:.2f} → {now[i, j]:.2f}" + (f" (chance {level:.2f})" if level else "")
                more = f", and {clear.sum() - 1} more" if clear.sum() > 1 else ""
                meaning = SCORES[name].meaning.rstrip(".")
                line = f"{head}: {SCORES[name].title} {values}{more}: {meaning[0].lower()}{meaning[1:]}"
                yield snapshot.step, line
            before[clear] = now[clear]


# ---------------------------------------------------------------------------------------------------------
# at the end: the part of report.md about attention


def findings(snapshots: Sequence[Snapshot]) -> list[str]:
    """Lines of Markdown: when the induction head formed, what copying is worth, what ablation costs, and the strongest
    head of each pattern."""
    snapshots = like_the_last(snapshots)
    first, last = snapshots[0], snapshots[-1]
    parts = [formed(snapshots) or "Induction was not measured."]
    for name, on in (("copy_gain", "random tokens"), ("song_copy_gain", "the songs of unseen stories")):
        before, after = first.scalars.get(name), last.scalars.get(name)
        if before is not None and after is not None:
            what = f"Copy gain on {on} (loss on the first copy minus loss on the second)"
            parts.append(
                f"{what}: {before:.2f} nats a token at step {first.step:,}, {after:.2f} at step {last.step:,}."
            )
    return [f"{part}\n" for part in (*parts, without_them(last), strongest_heads(last)) if part]


def formed(snapshots: Sequence[Snapshot]) -> str:
    """For someone who has never seen a head: what the best one came to do, and when; "" if it was not measured."""
    snapshots = like_the_last(snapshots)
    last, change = snapshots[-1], phase_change(snapshots)
    best, level = best_head(last, "induction"), last.chance.get("induction")
    if best is None:
        return ""
    score = float(last.scores["induction"][best])
    name = f"layer {last.layers[best[0]]}, head {last.heads[best[1]]}"
    numbers = f"induction {score:.2f}" + (f", chance {level:.2f}" if level else "")
    if change is not None:
        when = f"Around step {change.step:,} ({change.tokens:,} tokens, {change.seconds:.0f} seconds)"
        learned = "learned to look at what followed the same token before, which is how a model copies"
        return f"{when}, {name} {learned} ({numbers})."
    first = float(snapshots[0].scores.get("induction", last.scores["induction"])[best])
    numbers += f", was {first:.2f} at step {snapshots[0].step:,}" if len(snapshots) > 1 else ""
    if level and max(first, score) >= 10 * level:
        return f"From the first look on, {name} looked at what followed the same token before ({numbers})."
    return f"No head has learned yet to look at what followed the same token before (the best: {name}, {numbers})."


def without_them(last: Snapshot) -> str:
    """What ablating the induction heads, and those that feed them, costs: a sentence; "" where there are none."""
    best, level = best_head(last, "induction"), last.chance.get("induction")
    draws = [ablation.rise for ablation in last.ablations if ablation.what.startswith("random")]
    circuit = [ablation for ablation in last.ablations if not ablation.what.startswith("random")]
    if best is None or not circuit or last.scores["induction"][best] < 10 * (level or 0.01):
        return ""
    names = [", ".join(f"L{layer} H{head}" for layer, head in ablation.heads) for ablation in circuit]
    rises = [
        f"by {ablation.rise:.2f} without the {ablation.what} ({n})" for ablation, n in zip(circuit, names, strict=True)
    ]
    others = f"; without as many random heads by {max(0, *draws):.2f} at most" if draws else ""
    return f"The loss on the second copy of random words rises {' and '.join(rises)}, in nats a token{others}."


def strongest_heads(last: Snapshot) -> str:
    """The strongest head of every pattern, beside chance; nothing where none is above it."""
    rows = []
    for name in PATTERNS:
        head, (score,) = of_best_head([last], name)
        level = last.chance.get(name)
        if head and score > (level or 0.0):
            chance = "none" if level is None else f"{level:.3f}"
            rows.append([SCORES[name].title, SCORES[name].probe, head, f"{score:.3f}", chance])
    return table(["pattern", "measured on", "strongest head", "score", "chance"], rows) if rows else ""
