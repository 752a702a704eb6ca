"""What did the heads of a run come to do? In words and tables: the part of report.md about attention."""

from __future__ import annotations

from collections.abc import Sequence

from configs.text import table
from eval.attention.history import best_head, like_the_last, phase_change
from eval.attention.metrics import PATTERNS, SCORES
from eval.attention.snapshots import Snapshot


def findings(snapshots: Sequence[Snapshot]) -> list[str]:
    """Lines of Markdown: when the induction head formed, what copying is worth, what each ablation costs, and the
    strongest head of each pattern."""
    snapshots = like_the_last(snapshots)
    first, last = snapshots[0], snapshots[-1]
    lines = [formed(snapshots), ""]
    for name, on in (("copy_gain", "random tokens"), ("song_copy_gain", "the songs of unseen stories")):
        before, after = first.scalars.get(name), last.scalars.get(name)
        if before is not None and after is not None:
            lines.append(
                f"- Copy gain on {on} (loss on the first copy minus loss on the second): {before:.2f} nats a token "
                f"at step {first.step:,}, {after:.2f} at step {last.step:,}."
            )
    lines += [""] if lines[-1] else []
    return lines + [text for part in (ablations(last), strongest_heads(last)) if part for text in (part, "")]


def formed(snapshots: Sequence[Snapshot]) -> str:
    """Layer, head, step and seconds of the phase change, or that there was none."""
    last, change = snapshots[-1], phase_change(snapshots)
    if change is None:
        best = best_head(last, "induction")
        if best is None:
            return "Induction was not measured."
        score, level = float(last.scores["induction"][best]), last.chance.get("induction")
        before = float(snapshots[0].scores.get("induction", last.scores["induction"])[best])
        if level and score >= 10 * level:
            return (
                f"An induction head was there at the first look (step {snapshots[0].step:,}): {_name(last, best)}. "
                f"It has {_value(score)} at step {last.step:,} (was {_value(before)}; chance {_value(level)})."
            )
        if level and before >= 10 * level:
            return (
                f"The induction head that was there at the first look (step {snapshots[0].step:,}) is weaker: "
                f"{_name(last, best)} has {_value(score)} at step {last.step:,} (was {_value(before)}; chance "
                f"{_value(level)})."
            )
        return f"No induction head formed: the best one has {_value(score)} (chance {_value(level)})."
    layer, head = last.layers.index(change.layer), last.heads.index(change.head)
    score, level = float(last.scores["induction"][layer, head]), last.chance.get("induction")
    return (
        f"An induction head formed: L{change.layer} H{change.head}. It passed half of its final score at step "
        f"{change.step:,}, after {change.tokens:,} tokens and {change.seconds:.0f} seconds of training. At step "
        f"{last.step:,} it gives {_value(score)} of its attention on random repeated tokens to what followed the "
        f"same token before (chance {_value(level)})."
    )


def in_one_sentence(snapshots: Sequence[Snapshot]) -> str:
    """The same for someone who has never seen a head: what the best one came to do; "" if it was not measured."""
    snapshots = like_the_last(snapshots)
    last, change = snapshots[-1], phase_change(snapshots)
    best = best_head(last, "induction")
    if best is None:
        return ""
    level, score = last.chance.get("induction"), float(last.scores["induction"][best])
    name = f"layer {last.layers[best[0]]}, head {last.heads[best[1]]}"
    numbers = f"induction {score:.2f}" + (f", chance {level:.2f}" if level else "")
    if change is not None:
        before = f"{float(snapshots[0].scores['induction'][best]):.2f} → {score:.2f}"
        chance = f", chance {level:.2f}" if level else ""
        learned = "learned to look at what followed the same token before, which is how a model copies"
        return f"Around step {change.step:,}, {name} {learned} (induction {before}{chance})."
    first = float(snapshots[0].scores.get("induction", last.scores["induction"])[best])
    numbers += f", was {first:.2f} at step {snapshots[0].step:,}" if len(snapshots) > 1 else ""
    if level and score >= 10 * level:
        return f"From the first look on, {name} looks at what followed the same token before ({numbers})."
    if level and first >= 10 * level:
        return f"What followed the same token before: {name} looked at it at first, and does so less now ({numbers})."
    return f"No head has learned yet to look at what followed the same token before (the best: {name}, {numbers})."


def without_them(last: Snapshot) -> str:
    """What ablating the induction heads, and those that feed them, costs: a sentence; "" where there are none."""
    best, level = best_head(last, "induction"), last.chance.get("induction")
    draws = [one.rise for one in last.ablations if one.what.startswith("random")]
    circuit = [one for one in last.ablations if not one.what.startswith("random")]
    if best is None or not circuit or last.scores["induction"][best] < 10 * (level or 0.01):
        return ""
    rises = " and ".join(f"by {one.rise:.2f} without the {one.what} ({_in_words(one.heads)})" for one in circuit)
    others = f"; without as many random heads by {max(draws):.2f} at most" if draws else ""
    return f"The loss on the second copy of random words rises {rises}, in nats a token{others}."


def _in_words(heads: Sequence[tuple[int, int]]) -> str:
    """layer 1, heads 1 and 3; layer 2, head 0"""
    layers = dict.fromkeys(layer for layer, _ in heads)
    of = {layer: [str(head) for one, head in heads if one == layer] for layer in layers}
    return "; ".join(f"layer {layer}, head{'s' * (len(n) > 1)} {' and '.join(n)}" for layer, n in of.items())


def ablations(last: Snapshot) -> str:
    """A row for the induction heads, the heads that feed them and each random draw; nothing where none was ablated."""
    rows = [[one.what, _listed(one.heads), f"{one.rise:.2f}"] for one in last.ablations]
    header = ["ablated together", "heads", "loss on second copies of random tokens rises by (nats a token)"]
    return table(header, rows) if rows else ""


def strongest_heads(last: Snapshot) -> str:
    """The strongest head of every pattern, beside chance; nothing where none is above it."""
    rows = []
    for name in PATTERNS:
        best, level = best_head(last, name), last.chance.get(name)
        score = float(last.scores[name][best]) if best is not None else 0.0
        if best is not None and score > (level or 0.0):
            rows.append([SCORES[name].title, SCORES[name].probe, _name(last, best), _value(score), _value(level)])
    return table(["pattern", "measured on", "strongest head", "score", "chance"], rows) if rows else ""


def _name(snapshot: Snapshot, place: tuple[int, int]) -> str:
    return f"L{snapshot.layers[place[0]]} H{snapshot.heads[place[1]]}"


def _listed(heads: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"L{layer} H{head}" for layer, head in heads)


def _value(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
