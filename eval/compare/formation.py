"""When did a model begin to copy, and how much earlier or later than the baseline's?

The step: the first look at the heads at which the copy gain is a nat or more (eval/attention/history.py, copies_from).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from configs.text import markdown, table
from eval.attention.history import ENOUGH_TO_COPY, copies_from
from eval.compare.runs import RunResult, Variant
from eval.compare.statistics import Difference, difference, spread

LABEL = f"copies from step (copy gain ≥ {ENOUGH_TO_COPY:g} nat)"


def copying_step(run: RunResult) -> int | None:
    """The step of copies_from; None where the run never copied or was not looked at."""
    return copies_from(run.snapshots)


def was_looked_at(run: RunResult) -> bool:
    """Whether copy gains of this run are recorded."""
    return any(snapshot.scalars.get("copy_gain") is not None for snapshot in run.snapshots)


def cell(variant: Variant) -> str:
    """The steps over seeds, or how many seeds never copied in how many steps."""
    looked_at = [run for run in variant.runs if was_looked_at(run)]
    if not looked_at:
        return "-"
    steps = [step for run in looked_at if (step := copying_step(run)) is not None]
    last = max(run.last_step for run in looked_at)
    if not steps:
        return f"not in {last:,} steps"
    if len(steps) == len(looked_at):
        return spread(steps, 0)
    return f"{', '.join(f'{step:,}' for step in steps)}; {len(looked_at) - len(steps)} not in {last:,} steps"


def step_difference(baseline: Variant, other: Variant) -> Difference | None:
    """How many steps later the other copies; None unless every seed of both does."""
    steps = [variant.by_seed(copying_step) for variant in (baseline, other)]
    if any(len(found) < len(variant.runs) for found, variant in zip(steps, (baseline, other), strict=True)):
        return None
    return difference(*steps)


def section(variants: Sequence[Variant]) -> str:
    """Table and sentences about the steps, as Markdown; "" where the baseline does not copy in every seed."""
    baseline, *others = variants
    if not others or len(baseline.by_seed(copying_step)) < len(baseline.runs):
        return ""
    header = [f"copies later than {baseline.name}, steps", "difference", "95 % interval", "seeds that copy"]
    rows = []
    for other in others:
        copying, found = len(other.by_seed(copying_step)), step_difference(baseline, other)
        interval = found.interval if found else None
        rows.append(
            [
                other.name,
                f"{found.value:+,.0f}" if found else "-",
                f"{interval[0]:+,.0f} to {interval[1]:+,.0f}" if interval else "-",
                f"{copying} of {len(other.runs)}",
            ]
        )
    return "\n\n".join([table(header, rows), "\n".join(verdicts(variants))])


def verdicts(variants: Sequence[Variant]) -> list[str]:
    """A sentence for each variant that copies earlier, later or never; one for all whose seeds do not say."""
    baseline, *others = variants
    lines, open_ones = [], []
    for other in others:
        name, found = f"**{markdown(other.name)}**", step_difference(baseline, other)
        copying = other.by_seed(copying_step)
        if len(copying) < len(other.runs):
            last = max(run.last_step for run in other.runs)
            lines.append(f"- {name} copies in {len(copying)} of {len(other.runs)} seeds within {last:,} steps.")
        elif found is None or found.interval is None or found.interval[0] * found.interval[1] <= 0:
            open_ones.append(markdown(other.name))
        else:
            low, high = found.interval
            word, start = "later" if found.value > 0 else "earlier", mean(baseline.by_seed(copying_step).values())
            lines.append(
                f"- {name} copies {abs(found.value):,.0f} steps {word} than {markdown(baseline.name)} (which needs "
                f"{start:,.0f}; 95 % interval {low:+,.0f} to {high:+,.0f})."
            )
    if open_ones:
        lines.append(f"- Neither earlier nor later shows with these seeds: {', '.join(open_ones)}.")
    return lines
