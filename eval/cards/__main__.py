"""Print a finding's table from stored results: `python -m eval.cards sharing`

The outcome is named in configs/cards/sharing.yaml, before the runs. To measure again:

    python -m train.sweep configs/cards/sharing.yaml --seeds 20
    python -m eval.cards sharing --runs runs/sharing-*-seed*

The second command adds these runs to eval/cards/sharing.json, so you can extend a sweep later. If
two runs have the same seed, the new one replaces the stored one. --out names another file. With
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
    logrank_p,
    loss_difference,
    median_step,
    reached_at,
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
    parser.add_argument("--runs", nargs="+", type=run_path, help="add the results of these runs")
    parser.add_argument("--prose", type=Path, help="a text unlike those of training (UTF-8)")
    parser.add_argument("--out", type=Path, help="file of the results")
    parser.add_argument("--picture", type=Path, help="draw when each run gets there (.png, .svg)")
    args = parser.parse_args()
    file = args.out or RESULTS / f"{args.name}.json"
    if args.runs:
        stored = read_json(file, dict) if file.is_file() else None
        results = read_results(args.name, args.runs, args.prose, stored)
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
    corrected = iter(holm([logrank_p(samples[0], sample) for sample in tested]))
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
        "Kaplan–Meier; a run that ends before is censored; – is not known. p: log-rank test "
        "against the baseline, by permutations, corrected for the number of rows (Holm). At the "
        "end: mean (lowest to highest). Loss: "
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
    """Draw a dot for each run at the step at which it reaches the outcome, a row for a variant."""
    outcome = results["outcome"]
    variants = results["variants"]
    last = max(run["steps"][-1] for variant in variants for run in variant["runs"])
    never = 1.12 * last
    figure = drawing.new_figure(640, 90 + 26 * len(variants))
    axes = figure.subplots()
    for row, variant in enumerate(variants):
        runs = variant["runs"]
        for number, run in enumerate(runs):
            step, hit = reached_at(run, outcome["at_least"])
            # runs of the same step are side by side
            height = row + 0.6 * ((number + 0.5) / len(runs) - 0.5)
            face = drawing.group_colour(0) if hit else "white"
            colours = {"mfc": face, "mec": drawing.group_colour(0)}
            axes.plot(step if hit else never, height, "o", ms=4, clip_on=False, **colours)
    drawing.frame_curves(
        axes, f"each run's first step with {outcome['score']} ≥ {outcome['at_least']:g}", "step"
    )
    axes.set_xlim(0, 1.15 * last)
    ticks = [step for step in axes.get_xticks() if 0 <= step <= last]
    axes.set_xticks([*ticks, never], [*map(drawing.amount, ticks), "never"])
    axes.set_yticks(range(len(variants)), [variant["name"] for variant in variants])
    axes.set_ylim(len(variants) - 0.5, -0.5)  # the baseline at the top
    drawing.save_figure(figure, file)


def spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    exit_on_bad_input(main)
