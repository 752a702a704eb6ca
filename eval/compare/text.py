"""What does comparison.md say? Warnings, the table, differences with a verdict, and how it was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from configs.text import code, markdown
from configs.text import table as markdown_table
from eval.compare.runs import Cost, RunResult, Variant, caveats, differing_keys
from eval.compare.statistics import Difference, difference, spread
from eval.recall import half_at

Costs = dict[str, Cost]
# of these the mean over all heads is shown; of every other score, the head that has most of it
MEAN_OVER_HEADS = {"sink", "entropy", "entropy_normalised", "entropy_sink_free", "distance", "saturated_rows"}
SHORT_ROWS = 6  # on the terminal; of these labels, the first ones that there are
SHORT = [
    "parameters",
    "KV-cache bytes",
    "recall",
    "validation bits",
    "gap to",
    "induction, best",
    "copy gain",
    "train tokens",
]
SHORT += ["validation loss", "tokens trained on", "runs"]
MOST_COLUMNS = 6  # variants beside each other; of more, each has a row, with these figures:
IN_A_ROW = ["parameters", "train tokens", "validation loss", "gap to", "copies from", "copy gain", "induction, best"]
SIMILAR_SIZE = 0.005  # parameters that differ by no more than this count as equal


def same_tokenizer(variants: Sequence[Variant]) -> bool:
    """Whether a token is the same to all runs, so that losses a token compare."""
    return len({run.tokenizer for variant in variants for run in variant.runs}) == 1


def warnings(variants: Sequence[Variant]) -> list[str]:
    """What a reader must know before believing the table, a line each."""
    runs = [run for variant in variants for run in variant.runs]
    baseline, *others = variants
    found = [f"{run.path} is not finished: its last step is {run.last_step:,}" for run in runs if not run.is_finished]
    found += [f"{run.path}: its last loss is non-finite" for run in runs if run.bits_per_byte is None]
    found += [
        f"{run.path}: its last readable snapshot of the heads is of step {run.snapshots[-1].step:,}, not "
        f"{run.last_step:,}"
        for run in runs
        if run.snapshots and run.snapshots[-1].step != run.last_step
    ]
    if not same_tokenizer(variants):
        found.append(
            "the tokenizers differ, so runs are compared in bits per byte only: a loss per token means another thing"
        )
    found += [f"{other.name} against {baseline.name}: {c}" for other in others for c in caveats(baseline, other)]
    found += [
        f"the runs of {variant.name} have different budgets: {' and '.join(variant.budgets)}"
        for variant in variants
        if len(variant.budgets) > 1
    ]
    if len(machines := dict.fromkeys(run.machine for run in runs if run.machine)) > 1:
        found.append(f"trained on different machines ({'; '.join(machines)}): their tokens/s do not compare")
    return found


# ---------------------------------------------------------------------------------------------------------
# the table


def summary(variants: Sequence[Variant], costs: Costs, speeds: dict[str, float] | None) -> str:
    """The table and the verdict, as Markdown."""
    from eval.compare import formation  # torch

    parts = [rows_of_variants(variants, costs, speeds)] if len(variants) > MOST_COLUMNS else []
    parts += [table(variants, costs, speeds)]
    if len(variants) > 1:
        parts += [differences_table(variants), "\n".join(verdicts(variants, costs)), formation.section(variants)]
    return "\n\n".join(filter(None, parts))


def short(variants: Sequence[Variant], costs: Costs, speeds: dict[str, float] | None) -> str:
    """What matters most, for the terminal: a few rows of the table, and the verdict."""
    from eval.compare import formation

    if len(variants) > MOST_COLUMNS:
        ends = [formation.section(variants), "All differences in bits per byte are in the file."]
        return "\n\n".join(filter(None, [rows_of_variants(variants, costs, speeds), *ends]))
    header, rows = figures_of(variants, costs, speeds)
    found = [next((row for row in rows if row[0].startswith(label)), None) for label in SHORT]
    chosen = [row for row in found if row is not None][:SHORT_ROWS]
    parts = [markdown_table(header, [row for row in rows if row in chosen])]
    return "\n\n".join(parts + (["\n".join(verdicts(variants, costs))] if len(variants) > 1 else []))


def table(variants: Sequence[Variant], costs: Costs, speeds: dict[str, float] | None) -> str:
    """A row for each figure, a column for each variant."""
    return markdown_table(*figures_of(variants, costs, speeds))


def rows_of_variants(variants: Sequence[Variant], costs: Costs, speeds: dict[str, float] | None) -> str:
    """A row for each variant, for more of them than a page is wide: what it changes, and the figures IN_A_ROW."""
    _, rows = figures_of(variants, costs, speeds)
    found = [row for start in IN_A_ROW if (row := next((row for row in rows if row[0].startswith(start)), None))]
    lines = [
        [variant.name, *(row[1 + place] for row in found), _changes(variants[0], variant)]
        for place, variant in enumerate(variants)
    ]
    return markdown_table(["", *(row[0] for row in found), "what it changes"], lines)


def _changes(baseline: Variant, other: Variant) -> str:
    keys = differing_keys([baseline, other])
    return ", ".join(f"{key.removeprefix('model.')} {_value(other.settings, key)}" for key in keys) or "nothing"


def figures_of(
    variants: Sequence[Variant], costs: Costs, speeds: dict[str, float] | None
) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of the table."""
    from eval.compare import formation

    def row(label: str, cell: Callable[[Variant], str]) -> list[str]:
        return [label, *map(cell, variants)]

    def figure(label: str, of: Callable[[RunResult], float | None], digits: int = 4) -> list[str]:
        return row(label, lambda variant: _over_seeds(variant, of, digits))

    rows = [row("runs (seeds)", lambda v: f"{len(v.runs)} ({', '.join(str(run.seed) for run in v.runs)})")]
    rows += [[code(key), *(_value(v.settings, key) for v in variants)] for key in differing_keys(variants)]
    rows.append(row("parameters", lambda v: f"{costs[v.name].parameters:,}"))
    rows.append(row("KV-cache bytes per token", lambda v: f"{costs[v.name].kv_bytes:,}"))
    rows.append(figure("tokens trained on", lambda run: run.train[-1]["tokens"] if run.train else None, 0))
    rows.append(figure("train tokens/s", lambda run: run.tokens_per_s, 0))
    if speeds is not None:
        rows.append(row("decode tokens/s", lambda v: f"{speeds[v.name]:,.0f}"))
    if same_tokenizer(variants):
        rows.append(figure("validation loss (nats per token)", lambda run: run.loss))
    rows.append(figure("validation bits per byte", lambda run: run.bits_per_byte))
    if any(run.floor_gap is not None for variant in variants for run in variant.runs):
        rows.append(figure("gap to the entropy floor (bits per byte)", lambda run: run.floor_gap))
    if any(run.recall for variant in variants for run in variant.runs):
        rows.append(
            figure("recall, share of answers right", lambda run: run.recall[-1]["accuracy"] if run.recall else None)
        )
        rows.append(figure("recall, step at which over one half", lambda run: half_at(run.recall), 0))
    if same_tokenizer(variants):
        if any(formation.was_looked_at(run) for variant in variants for run in variant.runs):
            rows.append(row(formation.LABEL, formation.cell))
        rows += [figure(label, of, 3) for label, of in head_rows(variants)]
    return ["", *[variant.name for variant in variants]], rows


def head_rows(variants: Sequence[Variant]) -> list[tuple[str, Callable[[RunResult], float | None]]]:
    """(label, figure of a run): every head score and every figure of the whole model, from a run's last snapshot."""
    from eval.attention.metrics import SCORES

    last = [run.snapshots[-1] for variant in variants for run in variant.runs if run.snapshots]
    if not last:
        return [("head scores", lambda run: None)]
    names = dict.fromkeys(name for snapshot in last for name in snapshot.scores)
    ordered = [*[name for name in SCORES if name in names], *[name for name in names if name not in SCORES]]
    rows: list[tuple[str, Callable[[RunResult], float | None]]] = []
    for name in ordered:
        title = SCORES[name].title if name in SCORES else name.replace("_", " ")
        unit = SCORES[name].unit if name in SCORES else ""
        levels = {_rounded(snapshot.chance.get(name)) for snapshot in last}
        level = levels.pop() if len(levels) == 1 else None
        about = ", ".join([*([unit] if unit else []), *([f"chance {level}"] if level is not None else [])])
        which = "mean of heads" if name in MEAN_OVER_HEADS else "best head" if name != "max_logit" else "largest"
        rows.append((f"{title}, {which}" + (f" ({about})" if about else ""), _score(name)))
    for name in dict.fromkeys(name for snapshot in last for name in snapshot.scalars):
        if not name.endswith(("_max", "_mean")) and name != "max_logit":  # these are the rows above
            unit = " (nats a token)" if "gain" in name or "ablation" in name else ""
            rows.append((name.replace("_", " ") + unit, _scalar(name)))
    return rows


def _score(name: str) -> Callable[[RunResult], float | None]:
    reduce = np.nanmean if name in MEAN_OVER_HEADS else np.nanmax

    def of(run: RunResult) -> float | None:
        values = run.snapshots[-1].scores.get(name) if run.snapshots else None
        return None if values is None or np.isnan(values).all() else float(reduce(values))

    return of


def _scalar(name: str) -> Callable[[RunResult], float | None]:
    return lambda run: run.snapshots[-1].scalars.get(name) if run.snapshots else None


def _over_seeds(variant: Variant, of: Callable[[RunResult], float | None], digits: int) -> str:
    values = variant.by_seed(of)
    missing = f" (n = {len(values)})" if 0 < len(values) < len(variant.runs) else ""
    return spread(values.values(), digits) + missing


def _rounded(level: float | None) -> str | None:
    return None if level is None or not math.isfinite(level) else f"{level:.2g}"


def _value(settings: dict[str, Any], key: str) -> str:
    value = settings.get(key, "not set")
    shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return shown if len(shown) <= 40 else shown[:39] + "…"


# ---------------------------------------------------------------------------------------------------------
# against the baseline


def differences_table(variants: Sequence[Variant]) -> str:
    """Bits per byte minus the baseline's, with standard error and 95 % interval."""
    baseline, *others = variants
    rows = []
    for other in others:
        found = bits_difference(baseline, other)
        if found is None:
            rows.append([other.name, "-", "-", "-", "-"])
            continue
        error = "-" if found.standard_error is None else f"{found.standard_error:.4f}"
        interval = "-" if found.interval is None else f"{found.interval[0]:+.4f} to {found.interval[1]:+.4f}"
        rows.append([other.name, f"{found.value:+.4f}", error, interval, _seeds(found)])
    header = [f"bits per byte, against {baseline.name}", "difference", "standard error", "95 % interval", "seeds"]
    return markdown_table(header, rows)


def bits_difference(baseline: Variant, other: Variant) -> Difference | None:
    """How many bits per byte the other needs more; None where a loss is non-finite."""
    return difference(*(variant.by_seed(lambda run: run.bits_per_byte) for variant in (baseline, other)))


def verdicts(variants: Sequence[Variant], costs: Costs) -> list[str]:
    """A sentence for each variant that says no more than its seeds do."""
    baseline, *others = variants
    lines = [f"- {_verdict(baseline, other)}{_size(baseline, other, costs)}." for other in others]
    if len(others) > 2:
        lines.append(f"- With {len(others)} comparisons: about one such interval in twenty leaves out zero by chance.")
    return lines


def _verdict(baseline: Variant, other: Variant) -> str:
    found = bits_difference(baseline, other)
    name, its = f"**{markdown(other.name)}**", markdown(baseline.name)
    if found is None:
        return f"{name}: no verdict, because a loss is non-finite"
    if reasons := caveats(baseline, other):
        return f"{name}: no verdict, because it has {markdown(' and '.join(reasons))}"
    if len(other.budgets) > 1:
        return f"{name}: no verdict, because the budgets of single runs differ ({' and '.join(other.budgets)})"
    if found.interval is None:
        return (
            f"{name}: {found.value:+.4f} bits per byte against {its}, without a measure of chance: "
            "that takes two seeds or more of both (train.sweep --seeds 3)"
        )
    low, high = found.interval
    interval = f"95 % interval {low:+.4f} to {high:+.4f}; {_seeds(found)}"
    if not found.excludes_zero:
        return (
            f"{name}: no difference to {its} shows ({found.value:+.4f} bits per byte, {interval}); "
            "a difference within this interval may still be there"
        )
    word = "more" if found.value > 0 else "fewer"
    return f"{name} needs {abs(found.value):.4f} {word} bits per byte than {its} ({interval})"


def _size(baseline: Variant, other: Variant, costs: Costs) -> str:
    change = costs[other.name].parameters / costs[baseline.name].parameters - 1
    if abs(change) <= SIMILAR_SIZE:
        return ""
    return f"; it also has {abs(change):.1%} {'fewer' if change < 0 else 'more'} parameters"


def _seeds(found: Difference) -> str:
    if found.pairs:
        return f"{found.pairs} seeds, paired"
    return "one seed" if found.interval is None else "not paired"


# ---------------------------------------------------------------------------------------------------------
# the page


def page(
    variants: Sequence[Variant],
    summary: str,
    warnings: Sequence[str],
    figures: Sequence[tuple[str, str]],
    decoded: bool,
) -> str:
    """The whole of comparison.md."""
    runs = sum(len(variant.runs) for variant in variants)
    lines = [f"# Comparison: {', '.join(markdown(variant.name) for variant in variants)}", ""]
    plural = "s" if len(variants) > 1 else ""
    baseline = f"**{markdown(variants[0].name)}**"
    lines += [f"{len(variants)} variant{plural}, {runs} run{'s' if runs > 1 else ''}. Baseline: {baseline}."]
    if runs > len(variants):
        lines += ["Runs that differ only in their seed are one variant: mean ± standard deviation over its seeds."]
    keys = differing_keys(variants)
    lines += ["", f"What differs: {', '.join(map(code, keys))}." if keys else "No setting differs.", ""]
    lines += [line for warning in warnings for line in (f"> **Warning:** {markdown(warning)}", "")]
    lines += [summary, "", "## Figures", ""]
    lines += [line for title, file in figures for line in (f"![{title}]({file})", "")]
    lines += ["## How it was measured", "", *[f"- {note}" for note in _notes(variants, decoded)], ""]
    return "\n".join([*lines, *_equal_keys(variants)])


def _notes(variants: Sequence[Variant], decoded: bool) -> list[str]:
    notes = [
        "KV-cache bytes per token: 2 (keys and values) × layers × key/value heads × head_dim × 2 bytes (16-bit). "
        "With attention: mla: layers × (kv_lora_rank + qk_rope_head_dim) × 2 bytes.",
        "Train tokens/s: the median over the lines of a run's metrics.jsonl. Runs are trained at different times, "
        "so whatever else the machine did is in there: small differences mean nothing.",
    ]
    if decoded:
        notes.append(
            "Decode tokens/s: greedy, one row, with a key-value cache in float32; the newest "
            "checkpoint of a variant's first run; medians of turns in which all variants alternated, on this machine."
        )
    if any(run.snapshots for variant in variants for run in variant.runs):
        notes.append(
            "Head scores: from the last snapshot of each run, on the probes of eval.attention. “Best head”: the "
            "largest of all heads; which one that is differs between runs. A pattern does not prove what a head does."
        )
    if len(variants) > 1:
        baseline, *others = (markdown(variant.name) for variant in variants)
        notes.append(
            f"Differences are {', '.join(others)} minus {baseline}; paired by seed where "
            "two or more seeds are common to both. Intervals are Student's t, wide for few seeds."
        )
    return notes


def _equal_keys(variants: Sequence[Variant]) -> list[str]:
    """All settings that are the same everywhere, folded away."""
    differing = set(differing_keys(variants))
    settings = variants[0].settings
    equal = [key for key in settings if key not in differing]
    lines = [f"- {code(key)}: {markdown(_value(settings, key))}" for key in equal]
    return [
        "<details>",
        f"<summary>{len(equal)} settings are equal in all runs</summary>",
        "",
        *lines,
        "",
        "</details>",
        "",
    ]
