"""Print a finding's table from stored results: `python -m eval.cards sharing`

The outcome is named in configs/cards/sharing.yaml, before the runs. To measure again:

    python -m train.sweep configs/cards/sharing.yaml --seeds 20
    python -m eval.cards sharing --runs runs/sharing-*-seed*

The second command writes the results into eval/cards/sharing.json. --out names another file. With
--prose, every model also reads 16 passages of a book. --picture draws when runs reach the outcome.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from configs.command import InputError, command_parser, exit_on_bad_input
from configs.files import read_json, run_path, write_atomically
from configs.text import table
from eval.cards.forks import forks_in_words
from eval.cards.reading import CONFIGS, RESULTS, Results, read_results
from eval.cards.survival import (
    holm,
    loss_difference,
    median_step,
    reached_at,
    scipy_stats,
    times,
)
from eval.pictures import drawing

# Columns of the second table, if they were measured: what the models do on other texts.
ENDS = {
    "induction_varied": "random tokens, blocks of 12 to 40",
    "copy_gain": "copy gain there, nats",
    "song_induction": "songs",
    "antecedent_writes": "names in stories",
    "prose_induction": "prose as it is",
    "passage_induction": "prose, each passage twice",
    "passage_copy_gain": "copy gain there, nats",
    "in_context_score": "in-context score, nats",
    "in_context_without_strongest": "without the strongest induction heads",
    "in_context_without_random": "without as many random heads",
    "in_context_induction_heads": "induction heads",
    "in_context_without_induction_heads": "without all of them",
    "in_context_lag": "its lag behind induction, steps",
}


def main() -> None:
    parser = command_parser(__doc__)
    names = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    parser.add_argument("name", choices=names, help=f"a card: {', '.join(names)}", metavar="name")
    parser.add_argument("--runs", nargs="+", type=run_path, help="store the results of these runs")
    parser.add_argument("--prose", type=Path, help="a text unlike those of training (UTF-8)")
    parser.add_argument("--out", type=Path, help="file of the results")
    parser.add_argument(
        "--picture", type=Path, help="draw the share of runs over steps (.png, .svg)"
    )
    args = parser.parse_args()
    file = args.out or RESULTS / f"{args.name}.json"
    if args.runs:
        results = read_results(args.name, args.runs, args.prose)
        write_atomically(file, json.dumps(results).encode())
        print(f"wrote {file}\n")
    if not file.is_file():
        raise InputError(f"{file}: there are no results yet: train the sweep, then name its --runs")
    results = read_json(file, dict)
    print(in_words(results))
    if args.picture:
        draw(results, args.picture)
        print(f"\nwrote {args.picture}")


def in_words(results: Results) -> str:
    """Return a card's table, and the sentence that says what its columns are."""
    outcome = results["outcome"]
    at_least = outcome["at_least"]
    baseline, *others = results["variants"]
    samples = [times(variant["runs"], at_least) for variant in results["variants"]]
    # A fork that begins late has no step to compare: its baseline was there before.
    first = min(reached_at(run, at_least)[0] for run in baseline["runs"])
    from_start = [variant["runs"][0].get("forked_at", 0) < first for variant in others]
    tested = [sample for sample, is_whole in zip(samples[1:], from_start, strict=True) if is_whole]
    corrected = iter(
        holm([float(scipy_stats().logrank(samples[0], sample).pvalue) for sample in tested])
    )
    p_values = [f"{next(corrected):.2g}" if is_whole else "–" for is_whole in from_start]
    rows = []
    p_values = ["baseline", *p_values]
    for variant, sample, p in zip(results["variants"], samples, p_values, strict=True):
        runs = variant["runs"]
        hits = sum(reached_at(run, at_least)[1] for run in runs)
        ends = [run["values"][-1] for run in runs if run["values"][-1] is not None]
        row = [variant["name"], f"{variant['parameters']:,}", f"{variant['kv_bytes']:,}"]
        row += [f"{hits} of {len(runs)}", median_step(sample)]
        row.append(p)
        row.append(spread(ends))
        row.append(p if variant is baseline else loss_difference(baseline["runs"], runs))
        rows.append(row)
    header = ["variant", "parameters", "cache, bytes a token", f"runs that reach {at_least:g}"]
    header += ["median step (95 %)", "p", f"{outcome['score']} at the end", "loss (95 %)"]
    note = (
        f"Outcome, named before the runs: {outcome['score']} ≥ {at_least:g}. Median step: "
        "Kaplan–Meier; a run that ends before is censored. p: log-rank test against the baseline, "
        "corrected for the number of rows (Holm). At the end: mean (lowest to highest). Loss: "
        "held-out nats a token minus the baseline's of the same seed, Student's t."
    )
    more = (ends_in_words(results), forks_in_words(results))
    return "\n\n".join(filter(None, (table(header, rows), note, *more)))


def ends_in_words(results: Results) -> str:
    """Return a table of what the models do on other texts at the end; "" if nothing is stored."""
    ends = {}  # variant -> of each run
    for variant in results["variants"]:
        ends[variant["name"]] = [run.get("end", {}) for run in variant["runs"]]
    measured = set()
    for runs in ends.values():
        for end in runs:
            measured |= {name for name in end if end[name] is not None}
    columns = {name: title for name, title in ENDS.items() if name in measured}
    if not columns:
        return ""
    rows = []
    for name, runs in ends.items():
        row = [name]
        for column in columns:
            values = [end[column] for end in runs if end.get(column) is not None]
            row.append(spread(values) if values else "–")
        rows.append(row)
    note = (
        "At the end: mean (lowest to highest run). A text's column is the best head's induction "
        "there. In-context score: the loss of late tokens minus that of early ones."
    )
    return f"{table(['variant', *columns.values()], rows)}\n\n{note}"


def draw(results: Results, file: Path) -> None:
    """Draw the share of runs that have reached the outcome, by step (Kaplan–Meier)."""
    outcome = results["outcome"]
    figure = drawing.new_figure(640, 360)
    axes = figure.subplots()
    for number, variant in enumerate(results["variants"]):
        reached = scipy_stats().ecdf(times(variant["runs"], outcome["at_least"])).cdf
        last = max(run["steps"][-1] for run in variant["runs"])
        x = [0, *reached.quantiles, last]
        y = [0, *reached.probabilities, reached.probabilities[-1]]
        # lines that would hide each other are a little apart
        y = [share + 0.004 * number for share in y]
        colour = drawing.group_colour(number)
        label = f"{variant['name']} ({len(variant['runs'])} runs)"
        axes.step(x, y, where="post", color=colour, label=label, lw=1.8)
    drawing.frame_curves(
        axes, f"share of runs with {outcome['score']} ≥ {outcome['at_least']:g}", "step"
    )
    axes.set_ylim(-0.02, 1.06)
    axes.legend(loc="best", fontsize=8, frameon=False)
    drawing.save_figure(figure, file)


def spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    exit_on_bad_input(main)
