"""Changes over a run: when the induction head formed, curves, and lines for terminal and report."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from configs.text import table
from eval.attention.metrics import CONTROLS, PATTERNS, SCORES
from eval.attention.snapshots import Snapshot

# In nats. At 1 the second copy's tokens are e times as likely as the first's.
ENOUGH_TO_COPY = 1.0
# Smaller changes of a score may be noise, which reaches 0.08 in the demo.
LEAST_CHANGE = 0.15
# Below this multiple of chance, a head looks there about as much as any other.
LEAST_TIMES_CHANCE = 3.0


class PhaseChange(NamedTuple):
    """Layer and head index, and the moment at which the head formed."""

    layer: int
    head: int
    step: int
    tokens: int
    seconds: float


def best_head(snapshot: Snapshot, score: str) -> tuple[int, int] | None:
    """Return the index in the snapshot of the head with the largest score; None without any."""
    # a run may measure some scores only, and an old snapshot lacks newer ones
    values = snapshot.scores.get(score)
    if values is None or not np.isfinite(values).any():
        return None
    # of equal scores, the first; NaN counts as lowest
    layer, head = np.unravel_index(np.nanargmax(values), values.shape)
    return int(layer), int(head)


def like_the_last(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """Return the snapshots of the same heads and texts as the last one, ordered by step."""

    def heads_and_texts(snapshot: Snapshot) -> tuple:
        texts = {name: probe.labels for name, probe in snapshot.maps.items()}
        return snapshot.layers, snapshot.heads, texts

    # After a resume they may be others, which do not make one curve.
    ordered = sorted(snapshots, key=lambda snapshot: snapshot.step)
    return [s for s in ordered if heads_and_texts(s) == heads_and_texts(ordered[-1])]


def phase_change(snapshots: Sequence[Snapshot]) -> PhaseChange | None:
    """Return when the run's best induction head formed, or None if none did.

    It formed at the first snapshot with half of its last score. The precision is the distance
    between two snapshots. Olsson et al. 2022 (arXiv 2209.11895) read this phase change off the
    curves, without a formula.
    """
    ordered = sorted(snapshots, key=lambda snapshot: snapshot.step)
    ordered = [snapshot for snapshot in ordered if best_head(snapshot, "induction")]
    if not ordered:
        return None
    last = ordered[-1]
    best = best_head(last, "induction")
    assert best is not None
    chance = last.chance.get("induction")
    final = float(last.scores["induction"][best])
    # the first that passes half, even if the score falls again: learning is rarely a straight line
    moment = next(s for s in ordered if s.scores["induction"][best] >= final / 2)
    # ten times chance, or it is no induction head; at the first snapshot, it did not form here
    if final < (10 * chance if chance else 0.1) or moment is ordered[0]:
        return None
    layer = last.layers[best[0]]
    head = last.heads[best[1]]
    return PhaseChange(layer, head, moment.step, moment.tokens, moment.seconds)


def copies_from(snapshots: Sequence[Snapshot]) -> int | None:
    """Return the first step with a copy gain of ENOUGH_TO_COPY, or None.

    It belongs to no head, so unlike models can be compared.
    """
    steps = [s.step for s in snapshots if (s.scalars.get("copy_gain") or 0.0) >= ENOUGH_TO_COPY]
    return min(steps, default=None)


def choose(snapshots: Sequence[Snapshot], most: int) -> list[Snapshot]:
    """Choose at most `most` of the ordered snapshots, dense early, with the first and the last."""
    if len(snapshots) <= most:
        return [*snapshots]
    first = snapshots[0].step
    last = snapshots[-1].step
    # Even in log(1 + 20 x progress). A plain logarithm takes steps 1, 2 and 5, which look alike.
    position = np.log1p([20 * (snapshot.step - first) / (last - first) for snapshot in snapshots])
    chosen = {0, len(snapshots) - 1}
    for target in np.linspace(0, position[-1], most)[1:-1]:
        free = [i for i in range(len(snapshots)) if i not in chosen]
        distances = [abs(position[i] - target) for i in free]
        # each target takes the nearest that is left, so exactly `most` are chosen
        chosen.add(free[int(np.argmin(distances))])
    return [snapshots[i] for i in sorted(chosen)]


def copy_gains(snapshots: Sequence[Snapshot]) -> list[float]:
    """Return each snapshot's copy gain in nats, NaN if undefined; [] if it was never measured."""
    values = [snapshot.scalars.get("copy_gain") for snapshot in snapshots]
    gains = [float("nan") if value is None else value for value in values]
    return gains if np.isfinite(gains).any() else []


def of_best_head(snapshots: Sequence[Snapshot], score: str) -> tuple[str, list[float]]:
    """Return the last snapshot's best head, such as "L1 H3", and its score in each snapshot."""
    last = snapshots[-1]
    best = best_head(last, score)
    # NaN for a snapshot without this score
    values = [float("nan")] * len(snapshots)
    if best is None:
        return "", values
    for i, snapshot in enumerate(snapshots):
        if score in snapshot.scores:
            values[i] = float(snapshot.scores[score][best])
    return f"L{last.layers[best[0]]} H{last.heads[best[1]]}", values


def changes(snapshots: Sequence[Snapshot]) -> Iterator[tuple[int, str]]:
    """Yield (step, line), such as "layer 2, head 0: induction 0.02 → 0.61".

    A line is about the head that changed most; a step has one for each score at most.
    """
    # Score -> (layer, head), the values last reported: so a slow change is reported too, once.
    reported: dict[str, np.ndarray] = {}
    for snapshot in like_the_last(snapshots):
        for name in ("previous_token", "induction"):  # the two halves of copying
            now = snapshot.scores.get(name)
            if now is None:
                continue
            level = snapshot.chance.get(name) or 0.0
            before = reported.setdefault(name, now.copy())
            # a score may be undefined at first
            before[:] = np.where(np.isnan(before), now, before)
            change = np.abs(np.nan_to_num(now - before))
            # below chance, a change means little
            # fmax, because one of the two may be NaN
            change[np.fmax(before, now) < LEAST_TIMES_CHANCE * level] = 0
            clear = change >= LEAST_CHANGE
            if clear.any():
                # one line a score: a step at which ten heads move would fill the terminal
                i, j = np.unravel_index(change.argmax(), change.shape)
                head = f"layer {snapshot.layers[i]}, head {snapshot.heads[j]}"
                values = f"{before[i, j]:.2f} → {now[i, j]:.2f}"
                chance = f" (chance {level:.2f})" if level else ""
                more = f", and {clear.sum() - 1} more" if clear.sum() > 1 else ""
                meaning = SCORES[name].meaning.rstrip(".")
                meaning = meaning[0].lower() + meaning[1:]
                title = SCORES[name].title
                yield snapshot.step, f"{head}: {title} {values}{chance}{more}: {meaning}"
            before[clear] = now[clear]  # also of the heads that "more" counts


def findings(snapshots: Sequence[Snapshot]) -> list[str]:
    """Return the paragraphs about attention in report.md."""
    snapshots = like_the_last(snapshots)
    first = snapshots[0]
    last = snapshots[-1]
    # the order of a report: when it formed, what it is good for, what is lost without it
    parts = [formed(snapshots) or "Induction was not measured."]
    for name, text in (
        ("copy_gain", "random tokens"),
        ("song_copy_gain", "the songs of unseen stories"),
    ):
        before = first.scalars.get(name)
        after = last.scalars.get(name)
        if before is not None and after is not None:
            parts.append(
                f"Copy gain on {text} (loss on the first copy minus loss on the second): "
                f"{before:.2f} nats a token at step {first.step:,}, "
                f"{after:.2f} at step {last.step:,}."
            )
    # of the last look: earlier heads are those of a model that is gone
    parts += [without_them(last), strongest_heads(last)]
    return [f"{part}\n" for part in parts if part]


def formed(snapshots: Sequence[Snapshot]) -> str:
    """One sentence for a newcomer: when the best induction head formed; "" if not measured."""
    snapshots = like_the_last(snapshots)
    last = snapshots[-1]
    change = phase_change(snapshots)
    best = best_head(last, "induction")
    level = last.chance.get("induction")
    if best is None:
        return ""
    score = float(last.scores["induction"][best])
    name = f"layer {last.layers[best[0]]}, head {last.heads[best[1]]}"
    numbers = f"induction {score:.2f}" + (f", chance {level:.2f}" if level else "")
    if change is not None:
        return (
            f"Around step {change.step:,} ({change.tokens:,} tokens, {change.seconds:.0f} "
            f"seconds), {name} learned to look at what followed the same token before, "
            f"which is how a model copies ({numbers})."
        )
    # the first snapshot may lack this score
    first = float(snapshots[0].scores.get("induction", last.scores["induction"])[best])
    if len(snapshots) > 1:
        numbers += f", was {first:.2f} at step {snapshots[0].step:,}"
    # It did not form within the run: it is fine-tuned, or was first measured too late.
    if level and max(first, score) >= 10 * level:
        return (
            f"From the first look on, {name} looked at what followed the same token before "
            f"({numbers})."
        )
    return (
        "No head has learned yet to look at what followed the same token before "
        f"(the best: {name}, {numbers})."
    )


def without_them(last: Snapshot) -> str:
    """One sentence: the rise of the loss without the induction circuit; "" if there is none."""
    best = best_head(last, "induction")
    least = 10 * (last.chance.get("induction") or 0.01)  # as in phase_change
    if best is None or last.scores["induction"][best] < least:
        return ""
    draws = []
    rises = []
    for ablation in last.ablations:
        # the random draws show that any heads, removed, cost something
        if ablation.what.startswith("random"):
            draws.append(ablation.rise)
        else:
            heads = ", ".join(f"L{layer} H{head}" for layer, head in ablation.heads)
            rises.append(f"by {ablation.rise:.2f} without the {ablation.what} ({heads})")
    if not rises:
        return ""
    random = f"; without as many random heads by {max(0, *draws):.2f} at most" if draws else ""
    return (
        f"The loss on the second copy of random words rises {' and '.join(rises)}, "
        f"in nats a token{random}."
    )


def strongest_heads(last: Snapshot) -> str:
    """Return a table of every pattern's strongest head, for the patterns above chance."""
    rows = []
    for name in (*PATTERNS, *CONTROLS):
        head, (score,) = of_best_head([last], name)
        level = last.chance.get(name)
        if head and score > (level or 0.0):
            chance = "none" if level is None else f"{level:.3f}"
            rows.append([SCORES[name].title, SCORES[name].probe, head, f"{score:.3f}", chance])
    header = ["pattern", "measured on", "strongest head", "score", "chance"]
    return table(header, rows) if rows else ""
