"""Print a finding's table from stored results: `python -m eval.cards sharing`

The outcome is named in configs/cards/sharing.yaml, before the runs. To measure again:

    python -m train.sweep configs/cards/sharing.yaml --seeds 20
    python -m eval.cards sharing --runs runs/sharing-*-seed*

The second command writes the results into eval/cards/sharing.json. --out names another file.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.command import InputError, exit_on_bad_input
from configs.files import read_json, run_path, write_atomically
from configs.loader import load_config
from configs.text import table
from eval.attention.history import best_head, like_the_last
from eval.attention.snapshots import Snapshot
from eval.compare.runs import BITS, GAP, KV_BYTES, RunResult, read_runs
from eval.config import Outcome
from eval.run_files import read_result

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs/cards"
RESULTS = ROOT / "eval/cards"
# Scores of the best head, and figures of the model, that are stored of a run's end.
SCORES = (
    "previous_token induction induction_varied same_distance text_induction song_induction "
    "antecedent_writes"
).split()
FIGURES = ("copy_gain", "song_copy_gain")
Results = dict[str, Any]


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    names = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    parser.add_argument("name", choices=names, help=f"a card: {', '.join(names)}", metavar="name")
    parser.add_argument("--runs", nargs="+", type=run_path, help="store the results of these runs")
    parser.add_argument("--out", type=Path, help="file of the results")
    args = parser.parse_args()
    file = args.out or RESULTS / f"{args.name}.json"
    if args.runs:
        outcome = Outcome(**load_config(CONFIGS / f"{args.name}.yaml").values["outcome"])
        results = read_results(args.name, outcome, args.runs)
        write_atomically(file, json.dumps(results).encode())
        print(f"wrote {file}\n")
    if not file.is_file():
        raise InputError(f"{file}: there are no results yet: train the sweep, then name its --runs")
    print(in_words(read_json(file, dict)))


# Reading runs.


def read_results(name: str, outcome: Outcome, paths: Sequence[Path]) -> Results:
    """Return what a card stores of its runs, the baseline's first. Rounded to four digits."""
    # by name: the config of an older run may lack keys that later ones have
    by_rung: dict[str, list[RunResult]] = {}
    for variant in read_runs(paths):
        for run in variant.runs:
            rung = re.sub(r"-seed\d+$", "", run.name.removeprefix(f"{name}-"))
            by_rung.setdefault(rung, []).append(run)
    stored = []
    for rung, runs in by_rung.items():
        runs.sort(key=lambda run: run.seed)
        figures = runs[0].figures
        stored.append(
            {
                "name": rung,
                "parameters": figures["parameters"],
                "kv_bytes": figures[KV_BYTES],
                "runs": [run_results(run, outcome) for run in runs],
            }
        )
    stored.sort(key=lambda variant: variant["name"] != "baseline")  # stable: the others stay
    results = {"outcome": outcome.model_dump(), "variants": stored}
    return json.loads(
        json.dumps(results),
        parse_float=lambda digits: float(f"{float(digits):.4g}"),
        parse_constant=lambda constant: None,
    )


def run_results(run: RunResult, outcome: Outcome) -> Results:
    """Return a run's curve of the outcome, and its figures at the end."""
    steps = []
    values = []
    if outcome.score == "recall":
        for line in run.lines["recall"]:
            steps.append(line["step"])
            values.append(line["accuracy"])
    snapshots = like_the_last(run.snapshots)
    for snapshot in snapshots if outcome.score != "recall" else []:
        steps.append(snapshot.step)
        values.append(value_of(snapshot, outcome.score))
    if not any(value is not None for value in values):
        raise InputError(f"{run.path}: {outcome.score} was never measured: it is the outcome")
    end = {}
    for name in (*SCORES, *FIGURES) if snapshots else ():
        end[name] = value_of(snapshots[-1], name)
    if read_result(run.path, print) is None:
        raise InputError(f"{run.path}: is not finished: finish it, or leave it out")
    return {
        "seed": run.seed,
        "steps": steps,
        "values": values,
        "loss": run.lines["val"][-1]["loss"],
        "bits_per_byte": run.figures[BITS],
        "floor_gap": run.figures.get(GAP),
        "end": end,
    }


def value_of(snapshot: Snapshot, name: str) -> float | None:
    """Return a figure of the model, or the largest score of a head; None if not measured."""
    if name in snapshot.scalars:
        return snapshot.scalars[name]
    head = best_head(snapshot, name)
    return float(snapshot.scores[name][head]) if head else None


# Statistics and the table.


def reached_at(run: Results, at_least: float) -> tuple[int, bool]:
    """Return the first step with the outcome and True, or the last step and False."""
    for step, value in zip(run["steps"], run["values"], strict=True):
        if value is not None and value >= at_least:
            return step, True
    return run["steps"][-1], False


def times(runs: Sequence[Results], at_least: float) -> Any:
    """Return scipy's right-censored data: the steps at which runs reach the outcome."""
    from scipy.stats import CensoredData

    pairs = [reached_at(run, at_least) for run in runs]
    return CensoredData.right_censored([step for step, _ in pairs], [not hit for _, hit in pairs])


def median_step(sample: Any) -> str:
    """Return the Kaplan–Meier median with its 95 % interval, "–" where half never get there."""
    from scipy.stats import ecdf

    survival = ecdf(sample).sf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NaN where all runs, or none, are left
        limits = survival.confidence_interval(method="log-log")
    # the interval of the median: where the curve's own limits fall to one half
    texts = []
    for curve in (survival, limits.low, limits.high):
        below = [
            int(step)
            for step, share in zip(curve.quantiles, curve.probabilities, strict=True)
            if share <= 0.5  # False for NaN
        ]
        texts.append(f"{below[0]:,}" if below else "–")
    median, low, high = texts
    return f"{median} ({low} to {high})"


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number (Holm 1979)."""
    corrected = [0.0] * len(p_values)
    largest = 0.0
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def in_words(results: Results) -> str:
    """Return a card's table, and the sentence that says what its columns are."""
    try:
        from scipy.stats import logrank
    except ImportError:
        raise InputError("eval.cards needs scipy: pip install scipy") from None
    outcome = results["outcome"]
    at_least = outcome["at_least"]
    baseline, *others = results["variants"]
    samples = [times(variant["runs"], at_least) for variant in results["variants"]]
    p_values = holm([float(logrank(samples[0], sample).pvalue) for sample in samples[1:]])
    rows = []
    for variant, sample, p in zip([baseline, *others], samples, [None, *p_values], strict=True):
        runs = variant["runs"]
        hits = sum(reached_at(run, at_least)[1] for run in runs)
        ends = [run["values"][-1] for run in runs if run["values"][-1] is not None]
        row = [variant["name"], f"{variant['parameters']:,}", f"{variant['kv_bytes']:,}"]
        row += [f"{hits} of {len(runs)}", median_step(sample)]
        row.append("baseline" if p is None else f"{p:.2g}")
        row.append(f"{sum(ends) / len(ends):.2f} ({min(ends):.2f} to {max(ends):.2f})")
        row.append("baseline" if p is None else loss_difference(baseline["runs"], runs))
        rows.append(row)
    header = ["variant", "parameters", "cache, bytes a token", f"runs that reach {at_least:g}"]
    header += ["median step (95 %)", "p", f"{outcome['score']} at the end", "loss (95 %)"]
    note = (
        f"Outcome, named before the runs: {outcome['score']} ≥ {at_least:g}. Median step: "
        "Kaplan–Meier; a run that ends before is censored. p: log-rank test against the baseline, "
        "corrected for the number of rows (Holm). At the end: mean (lowest to highest). Loss: "
        "held-out nats a token minus the baseline's of the same seed, Student's t."
    )
    return f"{table(header, rows)}\n\n{note}"


def loss_difference(baseline: Sequence[Results], runs: Sequence[Results]) -> str:
    """Return the mean paired difference in held-out loss, with its 95 % interval."""
    from scipy.stats import ttest_rel

    before = {run["seed"]: run["loss"] for run in baseline if run["loss"] is not None}
    pairs = [(run["loss"], before[run["seed"]]) for run in runs if run["seed"] in before]
    pairs = [(after, loss) for after, loss in pairs if after is not None]
    if not pairs:
        return "–"
    mean = math.fsum(after - loss for after, loss in pairs) / len(pairs)
    if len(pairs) == 1:
        return f"{mean:+.3f}"
    interval = ttest_rel(*zip(*pairs, strict=True)).confidence_interval()
    return f"{mean:+.3f} ({interval.low:+.3f} to {interval.high:+.3f})"


if __name__ == "__main__":
    exit_on_bad_input(main)
