"""Which of these runs is better, and at what? `python -m eval.compare runs/mha runs/gqa runs/mqa [--out FOLDER]`

Writes a folder of its own, runs/compare-mha-gqa-mqa: comparison.md with one table and the differences against the
first variant, figures, a page of heads, and histories.json, the curves as numbers. Runs that differ only in their seed
are one variant: mean ± standard deviation. Comparing the same runs again replaces their folder; a comparison of other
runs is never overwritten.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.command import InputError, exit_on_bad_input
from configs.files import read_json
from configs.text import code, markdown
from configs.text import table as markdown_table
from eval.attention.history import best_head
from eval.compare import (
    BITS,
    COPIES,
    GAP,
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

RUNS = "runs.json"  # in the folder of a comparison: which runs it is of
# what is compared with the baseline: its name in the table, the form of a number, and what less and more of it is
COMPARED = {
    BITS: ("bits per byte", ".4f", "better", "worse"),
    COPIES: ("steps until it copies", ",.0f", "earlier", "later"),
}
# what the terminal shows, by how labels begin
SHORT: tuple[str, ...] = ("parameters", "KV-cache", "train tokens", "validation", "difference in bits", "gap to")
SHORT += ("recall", "copies from", "copy gain", "induction, best")
NOTES = """
- KV-cache bytes per token: 2 (keys and values) × layers × key/value heads × head_dim × 2 bytes (16-bit). With attention: mla: layers × (kv_lora_rank + qk_rope_head_dim) × 2 bytes.
- Train tokens/s: the median over the lines of a run's metrics.jsonl. Runs are trained at different times, maybe on different machines, so whatever else these did is in there: small differences mean nothing.
- Decode tokens/s: greedy, one row, with a key-value cache in float32; the newest checkpoint of a variant's first run; medians of turns in which all variants alternated, on this machine.
- Head scores: from the last snapshot of each run, on the probes of eval.attention. “Best head”: the largest of all heads; which one that is differs between runs. A pattern does not prove what a head does.
- Differences are those of the variant minus the baseline, paired by the seeds that both have. Intervals are Student's t, wide for few seeds. About one interval in twenty leaves out zero by chance.
"""  # noqa: E501


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m eval.compare", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="run directories; the first one's variant is the baseline")
    parser.add_argument("--out", type=Path, help="folder to write; default: compare-<names> beside the runs")
    parser.add_argument("--skip-decode", action="store_true", help="do not measure decoding")
    parser.add_argument("--skip-stages", action="store_true", help="do not measure runs that start from each other")
    add_device_option(parser)
    given = parser.parse_args()
    variants = read_runs(given.runs)
    names = "-".join(Path(variant.name).name for variant in variants)
    out = given.out or given.runs[0].parent / f"compare-{names}"[:100]
    if (out / RUNS).is_file() and read_json(out / RUNS, list[str]) != _paths(variants):
        raise InputError(f"{out} holds a comparison of other runs: name another folder with --out, or remove it")
    compare(variants, out, decode=not given.skip_decode, life=not given.skip_stages, device=given.device)
    return 0


def _paths(variants: Sequence[Variant]) -> list[str]:
    return [str(run.path.resolve()) for variant in variants for run in variant.runs]


def compare(
    variants: Sequence[Variant],
    out: Path,
    *,
    decode: bool = True,
    life: bool = True,
    device: str = "auto",
    notes: Sequence[str] = (),
) -> None:
    """Write comparison.md and its figures into `out`, a folder for them alone, and print the rows that matter most.

    decode: measure decoding as well, on `device`. life: measure what training did, where runs start from each other.
    notes: warnings of the caller's.
    """
    baseline, *others = variants
    warnings = [*notes, *(warning for variant in variants for run in variant.runs for warning in run.warnings)]
    if not same_tokenizer(variants):
        meaning = "a loss per token means another thing"
        warnings.append(f"the tokenizers differ, so runs are compared in bits per byte only: {meaning}")
    warnings += [f"{other.name} against {baseline.name}: {why}" for other in others for why in caveats(baseline, other)]
    rows = rows_of(variants)
    if decode:
        models = {variant.name: (open_model(variant.runs[0].path, device)[0], "dynamic") for variant in variants}
        rows.append(["decode tokens/s", *(f"{speed:,.0f}" for speed in decode_speeds(models).values())])
    recorded = {"variants": histories(variants), "stages": stages.measure(variants, device) if life else []}
    names = ["", *(variant.name for variant in variants)]
    ends = [stages.table(recorded["stages"])] if recorded["stages"] else []
    out.mkdir(parents=True, exist_ok=True)
    parts = [
        f"# Comparison: {', '.join(map(markdown, names[1:]))}",
        f"Baseline: **{markdown(baseline.name)}**. Runs that differ only in their seed are one variant: "
        "mean ± standard deviation over its seeds.",
        *(f"> **Warning:** {markdown(warning)}" for warning in warnings),
        *(markdown_table(names, rows), *ends),
        "## Figures",
        *(f"{'!' * file.endswith('.png')}[{title}]({file})" for title, file in draw(variants, recorded, out).items()),
        f"## How it was measured\n{NOTES}",
    ]
    (out / "comparison.md").write_text("\n\n".join(parts), encoding="utf-8")
    # numbers of six digits; null, since JSON has no other word for what is not a number
    known = json.loads(json.dumps(recorded), parse_float=_rounded, parse_constant=lambda _: None)
    (out / "histories.json").write_text(json.dumps(known), encoding="utf-8")
    (out / RUNS).write_text(json.dumps(_paths(variants)), encoding="utf-8")
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    short = markdown_table(names, [row for row in rows if row[0].startswith(SHORT)])
    print("\n\n".join([short, *ends, f"all rows, figures and heads: {out / 'comparison.md'}"]))


# ---------------------------------------------------------------------------------------------------------
# the table


def rows_of(variants: Sequence[Variant]) -> list[list[str]]:
    """A row for each figure: its label, and a cell for each variant."""
    seeds = [f"{len(variant.runs)} ({', '.join(str(run.seed) for run in variant.runs)})" for variant in variants]
    rows = [["runs (seeds)", *seeds]]
    rows += [[code(key), *(_value(variant, key) for variant in variants)] for key in differing_keys(variants)]
    # row of the table -> seed -> figure, for each variant
    table: dict[str, list[dict[int, float]]] = defaultdict(lambda: [{} for _ in variants])
    for number, run in [(number, run) for number, variant in enumerate(variants) for run in variant.runs]:
        for label, value in (run.figures | (run.per_token if same_tokenizer(variants) else {})).items():
            table[label][number] |= {run.seed: value} if value is not None else {}
    for label, by_variant in table.items():
        numbers = [value for values in by_variant for value in values.values()]
        digits = 0 if all(isinstance(value, int) or value > 100 for value in numbers) else 4
        cells = []
        for variant, values in zip(variants, by_variant, strict=True):
            some = [*values.values()]
            is_size = digits == 0 and len({*some}) == 1  # a number of parameters does not scatter
            missing = f" (n = {len(some)})" if 0 < len(some) < len(variant.runs) else ""
            cells.append(spread(some[:1] if is_size else some, digits) + missing)
        rows.append([label, *cells])
        if label in COMPARED and len(variants) > 1 and len(by_variant[0]) == len(variants[0].runs):
            rows += _against_baseline(label, variants, by_variant)
    return rows


def _against_baseline(row: str, variants: Sequence[Variant], by_variant: Sequence[dict[int, float]]) -> list[list[str]]:
    """Three rows: the difference with its standard error, its interval, and whether that is more than noise."""
    name, form, less, more = COMPARED[row]
    columns = [(f"difference in {name}{end}" for end in ("", ", 95 %", ", verdict")), ("baseline", "", "")]
    for variant, of_variant in zip(variants[1:], by_variant[1:], strict=True):
        found = difference(by_variant[0], of_variant) if len(of_variant) == len(variant.runs) else None
        if found is None:
            columns.append(("-", "-", "none: not in every seed"))
            continue
        value, interval, verdict = f"{found.value:+{form}}", "-", "needs two seeds that both have"
        if found.interval is not None:
            low, high = found.interval
            value += f" ± {found.standard_error:{form}}"
            interval = f"{low:+{form}} to {high:+{form}}"
            is_clear = found.standard_error > 0 and low * high > 0  # seeds that agree to the last digit show nothing
            verdict = f"{more if found.value > 0 else less}, by more than noise" if is_clear else "within noise"
        columns.append((value, interval, "none: see the warnings" if caveats(variants[0], variant) else verdict))
    return [list(row) for row in zip(*columns, strict=True)]


def _value(variant: Variant, key: str) -> str:
    value = variant.settings.get(key, "not set")
    shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return shown if len(shown) <= 40 else shown[:39] + "…"


def histories(variants: Sequence[Variant]) -> list[dict[str, Any]]:
    """What happened in every run, for histories.json: some kB that are read where the runs are not, as in notebook 03.

    A variant: name, settings (the keys in which they differ), parameters, kv_bytes, and runs. A run: seed, loss (nats a
    token) and bits_per_byte of its last evaluation, floor_gap (bits per byte above the entropy floor), looks: {step,
    tokens, previous_token, induction: the head that has most of it at that step, copy_gain: nats} of the heads that
    were looked at last, and recall: [step, share of right answers]. null: not measured.
    """
    keys, recorded = differing_keys(variants), []
    for variant in variants:
        runs = []
        for run in variant.runs:
            last, looks = run.snapshots[-1] if run.snapshots else None, []
            for look in run.snapshots:
                if last and (look.layers, look.heads) == (last.layers, last.heads):
                    places = {name: best_head(look, name) for name in ("previous_token", "induction")}
                    best = {name: float(look.scores[name][place]) if place else None for name, place in places.items()}
                    at = {"step": look.step, "tokens": look.tokens}
                    looks.append(at | best | {"copy_gain": look.scalars.get("copy_gain")})
            ends = {"loss": run.val[-1]["loss"], "bits_per_byte": run.bits_per_byte, "floor_gap": run.figures.get(GAP)}
            recall = [[line["step"], line["accuracy"]] for line in run.recall]
            runs.append({"seed": run.seed, **ends, "looks": looks, "recall": recall})
        figures = variant.runs[0].figures
        sizes = {"parameters": figures["parameters"], "kv_bytes": figures["KV-cache bytes per token"]}
        settings = {key: variant.settings.get(key) for key in keys}
        recorded.append({"name": variant.name, "settings": settings, **sizes, "runs": runs})
    return recorded


def _rounded(text: str) -> float:
    return float(f"{float(text):.6g}")


if __name__ == "__main__":
    exit_on_bad_input(main)
