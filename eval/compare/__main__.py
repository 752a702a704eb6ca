"""Compare runs: `python -m eval.compare runs/mha runs/gqa runs/mqa [--out FOLDER]`

Writes a new folder, runs/compare-mha-gqa-mqa: comparison.md (a table, and differences against the
first variant), figures, a page of heads, and histories.json (the curves as numbers). Runs that
differ only in their seed are one variant: mean ± standard deviation. The same runs replace their
folder; a comparison of other runs is never overwritten.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from configs.command import InputError, command_parser, exit_on_bad_input, still_busy
from configs.files import read_json, run_path
from configs.text import markdown, table
from eval.compare import stages
from eval.compare.pictures import draw
from eval.compare.runs import (
    Variant,
    caveats,
    forks,
    histories,
    read_runs,
    rows_of,
    same_tokenizer,
)
from eval.load_model import add_device_option

RUNS = "runs.json"  # This file of a comparison names its runs.
# The terminal shows only the rows with labels that begin so.
SHORT: tuple[str, ...] = ("parameters", "KV-cache", "train tokens", "validation", "gap to")
SHORT += ("difference in bits", "recall", "copies from", "copy gain", "induction, best")
NOTES = """
- KV-cache bytes per token: 2 (keys and values) × layers × key/value heads × head_dim × 2 bytes
  (16-bit). With attention: mla: layers × (kv_lora_rank + qk_rope_head_dim) × 2 bytes.
  `python -m benchmarks.decoding --kv-heads 8,2,1` times what this saves.
- Train tokens/s: the median over the lines of a run's metrics.jsonl. Runs are trained at different
  times, maybe on different machines beside other programs: small differences mean nothing.
- Head scores: from the last snapshot of each run, on the probes of eval.attention. “Best head”: the
  largest of all heads; which one that is differs between runs. A pattern does not prove what a head
  does.
- Differences are those of the variant minus the baseline, paired by the seeds that both have.
  Intervals are Student's t, wide for few seeds. About one interval in twenty leaves out zero by
  chance.
"""


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("runs", nargs="+", type=run_path, help="the baseline's runs first")
    parser.add_argument("--out", type=Path, help="default: compare-<names> beside the runs")
    parser.add_argument("--skip-stages", action="store_true", help="do not measure stages")
    add_device_option(parser)
    args = parser.parse_args()
    # all runs are checked before anything is measured, which may take minutes
    variants = read_runs(args.runs)
    names = "-".join(Path(variant.name).name for variant in variants)
    # a file's name may have 255 bytes at most, and eight runs can have more
    out = args.out or args.runs[0].parent / f"compare-{names}"[:100]
    # A long comparison must not disappear because another one got the same short name.
    if (out / RUNS).is_file() and read_json(out / RUNS, list[str]) != _paths(variants):
        raise InputError(f"{out} has a comparison of other runs: remove it, or name another --out")
    with still_busy("comparing"):
        compare(variants, out, [] if args.skip_stages else stages.measure(variants, args.device))


def _paths(variants: Sequence[Variant]) -> list[str]:
    return [str(run.path.resolve()) for variant in variants for run in variant.runs]


def compare(
    variants: Sequence[Variant],
    out: Path,
    life: Sequence[stages.Stage] = (),
    notes: Sequence[str] = (),
) -> None:
    """Write comparison.md and figures into the folder `out`, and print the main rows.

    life:  stages of training, if runs start from each other
    notes: the caller's warnings
    """
    baseline, *others = variants
    warnings = list(notes)
    for variant in variants:
        for run in variant.runs:
            warnings += run.warnings
    if not same_tokenizer(variants):
        warnings.append("the tokenizers differ, so runs are compared in bits per byte only")
    for other in others:
        # A comparison that is not fair is shown all the same, with the reason first.
        for caveat in caveats(baseline, other):
            warnings.append(f"{other.name} against {baseline.name}: {caveat}")

    # Written and read again: six digits suffice, and JSON has no NaN.
    text = json.dumps({"variants": histories(variants), "stages": life})
    recorded = json.loads(
        text,
        parse_float=lambda digits: float(f"{float(digits):.6g}"),
        parse_constant=lambda name: None,
    )
    names = ["", *(variant.name for variant in variants)]
    rows = rows_of(variants)
    ends = [fork.sentence for fork in forks(variants)]
    ends += [stages.table(life)] if life else []
    # only now: a comparison that cannot be made leaves no folder
    out.mkdir(parents=True, exist_ok=True)
    figures = []
    for title, file in draw(variants, recorded, out).items():
        figures.append(f"{'!' if file.endswith('.png') else ''}[{title}]({file})")
    parts = [
        f"# Comparison: {', '.join(map(markdown, names[1:]))}",
        f"Baseline: **{markdown(baseline.name)}**. Runs that differ only in their seed are one "
        "variant: mean ± standard deviation over its seeds.",
        *(f"> **Warning:** {markdown(warning)}" for warning in warnings),
        table(names, rows),
        *ends,
        "## Figures",
        *figures,
        f"## How it was measured\n{NOTES}",
    ]
    (out / "comparison.md").write_text("\n\n".join(parts), encoding="utf-8")
    (out / "histories.json").write_text(json.dumps(recorded), encoding="utf-8")
    # last: a folder without it is unfinished, and the next comparison may take it
    (out / RUNS).write_text(json.dumps(_paths(variants)), encoding="utf-8")
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    short = table(names, [row for row in rows if row[0].startswith(SHORT)])
    print("\n\n".join([short, *ends, f"all rows, figures and heads: {out / 'comparison.md'}"]))


if __name__ == "__main__":
    exit_on_bad_input(main)
