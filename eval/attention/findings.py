"""What the heads of a run came to do, in words: the part of report.md about attention."""

from __future__ import annotations

from collections.abc import Sequence

from eval.attention.history import best_head, like_the_last, phase_change
from eval.attention.metrics import SCORES
from eval.attention.snapshots import Snapshot

PATTERNS = "previous_token duplicate_token induction song_induction sink antecedent_writes antecedent_refers".split()


def findings(snapshots: Sequence[Snapshot]) -> list[str]:
    """Lines of Markdown: when the induction head formed, what copying is worth, the strongest head of each pattern."""
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
    strongest, random = (last.scalars.get(f"ablation_{which}_heads") for which in ("induction", "random"))
    if strongest is not None and random is not None:
        lines.append(
            f"- Silencing the strongest induction heads raises the loss on second copies by {strongest:.2f} nats a "
            f"token, silencing as many random heads by {random:.2f}."
        )
    if lines[-1]:
        lines.append("")
    return lines + table(last)


def formed(snapshots: Sequence[Snapshot]) -> str:
    """Layer, head, step and seconds of the phase change, or that there was none."""
    last, change = snapshots[-1], phase_change(snapshots)
    if change is None:
        best = best_head(last, "induction")
        if best is None:
            return "Induction was not measured."
        score, level = float(last.scores["induction"][best]), last.chance.get("induction")
        if level and score >= 10 * level:
            layer, head = last.layers[best[0]], last.heads[best[1]]
            return (
                f"An induction head was there from the first look on (step {snapshots[0].step:,}): layer {layer}, head "
                f"{head}, which has {_value(score)} at step {last.step:,} (chance {_value(level)})."
            )
        return f"No induction head formed: the best one has {_value(score)} (chance {_value(level)})."
    layer, head = last.layers.index(change.layer), last.heads.index(change.head)
    score, level = float(last.scores["induction"][layer, head]), last.chance.get("induction")
    return (
        f"An induction head formed: layer {change.layer}, head {change.head}. It passed half of its final score at "
        f"step {change.step:,}, after {change.tokens:,} tokens and {change.seconds:.0f} seconds of training. At "
        f"step {last.step:,} it gives {_value(score)} of its attention on random repeated tokens to what followed the "
        f"same token before (chance {_value(level)})."
    )


def table(last: Snapshot) -> list[str]:
    """The strongest head of every pattern, beside chance."""
    rows = []
    for name in PATTERNS:
        best = best_head(last, name)
        level = last.chance.get(name)
        score = float(last.scores[name][best]) if best is not None else 0.0
        if best is not None and score > (level or 0.0):  # a head below chance does no such thing
            head = f"layer {last.layers[best[0]]}, head {last.heads[best[1]]}"
            rows.append(f"| {SCORES[name].title} | {head} | {_value(score)} | {_value(level)} |")
    return ["| pattern | strongest head | score | chance |", "|---|---|---|---|", *rows, ""] if rows else []


def _value(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
