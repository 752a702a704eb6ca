"""Which of these runs is better, and at what? `python -m eval.compare runs/mha runs/gqa runs/mqa [--out FOLDER]`

Writes a folder of its own, runs/compare-mha-gqa-mqa: comparison.md with one table and the differences against the
first variant, figures, a page of heads, and histories.json, the curves as numbers. Runs that differ only in their seed
are one variant: mean ± standard deviation. Comparing the same runs again replaces their folder; a comparison of other
runs is never overwritten.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from configs.command import InputError, exit_on_bad_input
from configs.files import DamagedFile, read_json
from configs.text import code, markdown
from configs.text import table as markdown_table
from eval.attention.history import ENOUGH_TO_COPY, best_head, phase_change
from eval.attention.metrics import SCORES
from eval.compare import (
    Cost,
    RunResult,
    Variant,
    caveats,
    difference,
    differing_keys,
    read_runs,
    same_tokenizer,
    spread,
    stages,
)
from eval.compare.pictures import draw
from eval.load_model import add_device_option, open_model
from eval.quantised import decode_speeds
from eval.recall import half_at

RUNS = "runs.json"  # in the folder of a comparison: which runs it is of
MOST_NAMES = 6  # in the name of that folder
MOST_COLUMNS = 6  # variants beside each other; of more, each has a row
# of these the mean over all heads is shown; of every other score, the head that has most of it
MEAN_OVER_HEADS = {"sink", "entropy", "entropy_normalised", "entropy_sink_free", "distance", "saturated_rows"}
SHORT_ROWS = 9  # on the terminal: the first of these that there are, by how their labels begin
SHORT = ["difference in bits", "parameters", "KV-cache", "recall", "validation bits", "gap to", "induction, best"]
SHORT += ["copy gain", "train tokens", "validation loss", "tokens trained on", "runs"]
IN_A_ROW = ["parameters", "train tokens", "validation loss", "difference in bits", "gap to", "copies from", "copy gain"]
IN_A_ROW += ["induction, best"]
DIGITS = 4  # of a figure in histories.json
NOTES = """
- KV-cache bytes per token: 2 (keys and values) × layers × key/value heads × head_dim × 2 bytes (16-bit). With attention: mla: layers × (kv_lora_rank + qk_rope_head_dim) × 2 bytes.
- Train tokens/s: the median over the lines of a run's metrics.jsonl. Runs are trained at different times, so whatever else the machine did is in there: small differences mean nothing.
- Decode tokens/s: greedy, one row, with a key-value cache in float32; the newest checkpoint of a variant's first run; medians of turns in which all variants alternated, on this machine.
- Head scores: from the last snapshot of each run, on the probes of eval.attention. “Best head”: the largest of all heads; which one that is differs between runs. A pattern does not prove what a head does.
- Differences are those of the variant minus the baseline; paired by seed where two or more seeds are common to both. Intervals are Student's t, wide for few seeds. About one interval in twenty leaves out zero by chance.
"""  # noqa: E501


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m eval.compare", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="run directories; the first one's variant is the baseline")
    parser.add_argument("--out", type=Path, help="folder to write; default: compare-<names> beside the runs")
    parser.add_argument("--all", action="store_true", help="print every row of the table; the file has them anyway")
    parser.add_argument("--skip-decode", action="store_true", help="do not measure decoding")
    parser.add_argument("--skip-stages", action="store_true", help="do not measure runs that start from each other")
    add_device_option(parser)
    given = parser.parse_args()
    if given.out is not None and _is_of_others(given.out, given.runs):
        raise InputError(f"--out: {given.out} holds a comparison of other runs: name another folder, or remove it")
    decode, life = not given.skip_decode, not given.skip_stages
    compare(given.runs, given.out, decode=decode, device=given.device, life=life, all_rows=given.all)
    return 0


def compare(
    paths: Sequence[Path],
    out: Path | None = None,
    *,
    decode: bool = True,
    device: str = "auto",
    notes: Sequence[str] = (),
    life: bool = True,
    all_rows: bool = False,
) -> None:
    """Write comparison.md and its figures for these runs into `out`, a folder for them alone, and print its tables.

    out: default, compare-<names> in the folder of the first run; a number follows if a comparison of other runs has
    that name. decode: measure decoding as well, on `device`. notes: warnings of the caller's. life: measure what
    training did, where runs start from each other.
    Raises InputError for a path that is not a run, has no checkpoint or no evaluation, or is named twice.
    """
    variants, damaged = read_runs(paths)
    warnings = [*notes, *damaged, *warnings_of(variants)]
    costs, models = {}, {}
    for variant in variants:
        lm, _ = open_model(variant.runs[0].path, device if decode else "cpu")
        costs[variant.name] = Cost(lm.num_parameters(), lm.config.num_hidden_layers * lm.config.cache_numbers * 2)
        if decode:
            models[variant.name] = lm
    rows = rows_of(variants, costs, decode_speeds(models) if decode else None)
    recorded = {"variants": histories(variants, costs), "stages": stages.measure(variants, device) if life else []}
    ends = [stages.table(recorded["stages"])] if recorded["stages"] else []
    tables = [markdown_table(["", *(variant.name for variant in variants)], rows), *ends]
    short = short_table(variants, rows)
    if len(variants) > MOST_COLUMNS:
        tables.insert(0, short)
    out = out or _own_folder(paths, variants)
    out = Path(os.path.relpath(out)) if out.is_relative_to(Path.cwd()) else out
    try:
        out.mkdir(parents=True, exist_ok=True)
        figures = draw(variants, recorded, out)
        (out / "comparison.md").write_text(page(variants, tables, warnings, figures), encoding="utf-8")
        (out / "histories.json").write_text(json.dumps(_rounded(recorded)), encoding="utf-8")
        (out / RUNS).write_text(json.dumps([str(path.resolve()) for path in paths]), encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out: {out} cannot be written: {error.strerror}") from None
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print("\n\n".join(tables if all_rows else [short, *ends]))
    print(f"\n{'' if all_rows else 'all rows (--all), figures and heads: '}{out / 'comparison.md'}")


def _own_folder(paths: Sequence[Path], variants: Sequence[Variant]) -> Path:
    """compare-mha-gqa-mqa beside the runs; compare-mha-gqa-mqa-2 where that is a comparison of other runs."""
    names = [Path(variant.name).name for variant in variants]
    more = [f"and-{len(names) - MOST_NAMES}-more"] if len(names) > MOST_NAMES else []
    name = "-".join(["compare", *names[:MOST_NAMES], *more])
    candidates = (paths[0].resolve().parent / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(folder for folder in candidates if not folder.exists() or not _is_of_others(folder, paths))


def _is_of_others(folder: Path, paths: Sequence[Path]) -> bool:
    """Whether a folder holds a comparison, and not one of these very runs."""
    try:
        return read_json(folder / RUNS, list[str]) != [str(path.resolve()) for path in paths]
    except DamagedFile:
        return (folder / "comparison.md").is_file()


def warnings_of(variants: Sequence[Variant]) -> list[str]:
    """What a reader must know before believing the table, a line each."""
    baseline, *others = variants
    lines, runs = [], [run for variant in variants for run in variant.runs]
    for run in runs:
        if not run.is_finished:
            lines.append(f"{run.path} is not finished: its last step is {run.last_step:,}")
        if run.bits_per_byte is None:
            lines.append(f"{run.path}: its last loss is non-finite")
        if run.snapshots and run.snapshots[-1].step != run.last_step:
            step = f"{run.snapshots[-1].step:,}, not {run.last_step:,}"
            lines.append(f"{run.path}: its last readable snapshot of the heads is of step {step}")
    if not same_tokenizer(variants):
        lines.append(
            "the tokenizers differ, so runs are compared in bits per byte only: a loss per token means another thing"
        )
    for other in others:
        lines += [f"{other.name} against {baseline.name}: {caveat}" for caveat in caveats(baseline, other)]
    if len(baseline.budgets) > 1:
        lines.append(f"the runs of {baseline.name} have different budgets: {' and '.join(baseline.budgets)}")
    if len(machines := dict.fromkeys(run.machine for run in runs if run.machine)) > 1:
        lines.append(f"trained on different machines ({'; '.join(machines)}): their tokens/s do not compare")
    return lines


# ---------------------------------------------------------------------------------------------------------
# the table


def rows_of(
    variants: Sequence[Variant], costs: Mapping[str, Cost], speeds: Mapping[str, float] | None
) -> list[list[str]]:
    """A row for each figure: its label, and a cell for each variant."""
    baseline, *others = variants
    runs, rows = [run for variant in variants for run in variant.runs], list[list[str]]()

    def row(label: str, cell: Callable[[Variant], str]) -> None:
        rows.append([label, *map(cell, variants)])

    def figure(label: str, of: Callable[[RunResult], float | None], digits: int = 4) -> None:
        def cell(variant: Variant) -> str:
            values = variant.by_seed(of)
            missing = f" (n = {len(values)})" if 0 < len(values) < len(variant.runs) else ""
            return spread(values.values(), digits) + missing

        row(label, cell)

    def against_baseline(label: str, of: Callable[[RunResult], float | None], form: str, less: str, more: str) -> None:
        """Three rows: the difference with its standard error, its interval, and whether that is more than noise."""
        values, interval, verdict = cells = [[f"difference in {label}{end}"] for end in ("", ", 95 %", ", verdict")]
        for line in cells:
            line.append("baseline" if line is values else "")
        for other in others:
            both = [variant.by_seed(of) for variant in (baseline, other)]
            is_whole = [*map(len, both)] == [len(baseline.runs), len(other.runs)]
            found = difference(*both) if is_whole else None
            low, high = found.interval if found and found.interval else (None, None)
            error = f" ± {found.standard_error:{form}}" if found and low is not None else ""
            values.append(f"{found.value:+{form}}{error}{', paired' * bool(found.pairs)}" if found else "-")
            interval.append("-" if low is None else f"{low:+{form}} to {high:+{form}}")
            if found is None or caveats(baseline, other):
                verdict.append(f"none: {'see the warnings' if found else 'not in every seed'}")
            elif low is None:
                verdict.append("needs two seeds or more of both")
            else:
                word = more if found.value > 0 else less
                verdict.append(f"{word}, by more than noise" if found.excludes_zero else "within noise")
        rows.extend(cells if others else [])

    row("runs (seeds)", lambda variant: f"{len(variant.runs)} ({', '.join(str(run.seed) for run in variant.runs)})")
    rows += [[code(key), *(_value(variant.settings, key) for variant in variants)] for key in differing_keys(variants)]
    row("parameters", lambda variant: f"{costs[variant.name].parameters:,}")
    row("KV-cache bytes per token", lambda variant: f"{costs[variant.name].kv_bytes:,}")
    figure("tokens trained on", lambda run: run.train[-1]["tokens"] if run.train else None, 0)
    figure("train tokens/s", lambda run: run.tokens_per_s, 0)
    if speeds is not None:
        row("decode tokens/s", lambda variant: f"{speeds[variant.name]:,.0f}")
    if same_tokenizer(variants):
        figure("validation loss (nats per token)", lambda run: run.loss)
    figure("validation bits per byte", lambda run: run.bits_per_byte)
    against_baseline("bits per byte", lambda run: run.bits_per_byte, ".4f", "better", "worse")
    if any(run.floor_gap is not None for run in runs):
        figure("gap to the entropy floor (bits per byte)", lambda run: run.floor_gap)
    if any(run.recall for run in runs):
        figure("recall, share of answers right", lambda run: run.recall[-1]["accuracy"] if run.recall else None)
        figure("recall, step at which over one half", lambda run: half_at(run.recall), 0)
    ends = [run.snapshots[-1] for run in runs if run.snapshots]
    if not ends or not same_tokenizer(variants):
        return rows
    figure(f"copies from step (copy gain ≥ {ENOUGH_TO_COPY:g} nat; - = not yet)", lambda run: run.copying_step, 0)
    if all(run.copying_step is not None for run in baseline.runs):
        against_baseline("steps until it copies", lambda run: run.copying_step, ",.0f", "earlier", "later")
    for name in [name for name in SCORES if any(name in end.scores for end in ends)]:
        best = "mean of heads" if name in MEAN_OVER_HEADS else "best head" if name != "max_logit" else "largest"
        levels = {f"chance {level:.2g}" for end in ends if (level := end.chance.get(name)) is not None}
        about = ", ".join(filter(None, [SCORES[name].unit, *(levels if len(levels) == 1 else ())]))
        figure(f"{SCORES[name].title}, {best}" + f" ({about})" * bool(about), partial(over_heads, score=name), 3)
    for name in dict.fromkeys(name for end in ends for name in end.scalars):
        if not name.endswith(("_max", "_mean")) and name != "max_logit":  # these are the rows above
            unit = " (nats a token)" if "gain" in name or "ablation" in name else ""
            figure(name.replace("_", " ") + unit, partial(_at_the_end, scalar=name), 3)
    return rows


def over_heads(run: RunResult, score: str) -> float | None:
    """A score in a run's last snapshot: that of the best head, or the mean of all."""
    values = run.snapshots[-1].scores.get(score) if run.snapshots else None
    if values is None or np.isnan(values).all():
        return None
    return float(np.nanmean(values) if score in MEAN_OVER_HEADS else np.nanmax(values))


def _at_the_end(run: RunResult, scalar: str) -> float | None:
    return run.snapshots[-1].scalars.get(scalar) if run.snapshots else None


def _value(settings: Mapping[str, Any], key: str) -> str:
    value = settings.get(key, "not set")
    shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return shown if len(shown) <= 40 else shown[:39] + "…"


def short_table(variants: Sequence[Variant], rows: Sequence[Sequence[str]]) -> str:
    """What matters most: a few of the rows; or, of more variants than a page is wide, a row for each of them."""
    many = len(variants) > MOST_COLUMNS
    labels = IN_A_ROW if many else SHORT
    chosen = [row for label in labels for row in rows if row[0].startswith(label)]
    if not many:
        first = chosen[:SHORT_ROWS]
        return markdown_table(["", *(variant.name for variant in variants)], [row for row in rows if row in first])
    lines = []
    for place, variant in enumerate(variants):
        keys = differing_keys([variants[0], variant])
        changes = ", ".join(f"{key.removeprefix('model.')} {_value(variant.settings, key)}" for key in keys)
        lines.append([variant.name, *(row[1 + place] for row in chosen), changes or "nothing"])
    return markdown_table(["", *(row[0] for row in chosen), "what it changes"], lines)


# ---------------------------------------------------------------------------------------------------------
# the files


def page(
    variants: Sequence[Variant], tables: Sequence[str], warnings: Sequence[str], figures: Mapping[str, str]
) -> str:
    """The whole of comparison.md."""
    keys, settings = differing_keys(variants), variants[0].settings
    equal = [f"- {code(key)}: {markdown(_value(settings, key))}" for key in settings if key not in keys]
    parts = [
        f"# Comparison: {', '.join(markdown(variant.name) for variant in variants)}",
        f"Baseline: **{markdown(variants[0].name)}**. Runs that differ only in their seed are one variant: "
        "mean ± standard deviation over its seeds.",
        f"What differs: {', '.join(map(code, keys))}." if keys else "No setting differs.",
        *(f"> **Warning:** {markdown(warning)}" for warning in warnings),
        *tables,
        "## Figures",
        *(f"{'!' * file.endswith('.png')}[{title}]({file})" for title, file in figures.items()),
        f"## How it was measured\n{NOTES}",
        f"<details>\n<summary>{len(equal)} settings are equal in all runs</summary>",
        "\n".join(equal),
        "</details>\n",
    ]
    return "\n\n".join(parts)


def histories(variants: Sequence[Variant], costs: Mapping[str, Cost]) -> list[dict[str, Any]]:
    """What happened in every run, for histories.json: some kB that are read where the runs are not, as in notebook 03.

    A variant: name, settings (the keys in which they differ), parameters, kv_bytes, and runs. A run: seed, machine,
    loss (nats a token) and bits_per_byte of its last evaluation, floor_gap (bits per byte above the entropy floor),
    formed ({layer, head, step} of its induction head, null where none formed), chance (by score), looks: {step, tokens,
    previous_token, induction: the head that has most of it at that step, copy_gain: nats} of the heads that were looked
    at last, and recall: [step, share of right answers] of its looks. null: not measured.
    """
    keys, recorded = differing_keys(variants), []
    for variant in variants:
        settings = {key: variant.settings.get(key) for key in keys}
        about = {"name": variant.name, "settings": settings, **costs[variant.name]._asdict()}
        recorded.append(about | {"runs": [_history(run) for run in variant.runs]})
    return recorded


def _history(run: RunResult) -> dict[str, Any]:
    last = run.snapshots[-1] if run.snapshots else None
    shown = [one for one in run.snapshots if last and (one.layers, one.heads) == (last.layers, last.heads)]
    formed, looks, scores = phase_change(shown), [], ("previous_token", "induction")
    for snapshot in shown:
        places = {name: best_head(snapshot, name) for name in scores}
        best = {name: float(snapshot.scores[name][place]) if place else None for name, place in places.items()}
        at = {"step": snapshot.step, "tokens": snapshot.tokens}
        looks.append(at | best | {"copy_gain": snapshot.scalars.get("copy_gain")})
    return {
        **{key: getattr(run, key) for key in ("seed", "machine", "loss", "bits_per_byte", "floor_gap")},
        "formed": {"layer": formed.layer, "head": formed.head, "step": formed.step} if formed else None,
        "chance": {name: last.chance.get(name) for name in scores} if last else {},
        "looks": looks,
        "recall": [[line["step"], line["accuracy"]] for line in run.recall],
    }


def _rounded(value: Any) -> Any:
    """For JSON, which has no word but null for what is not a number. Settings keep their digits."""
    if isinstance(value, dict):
        return {key: inner if key == "settings" else _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    if isinstance(value, float):
        return round(value, DIGITS) + 0.0 if math.isfinite(value) else None  # no -0.0
    return value


if __name__ == "__main__":
    exit_on_bad_input(main)
