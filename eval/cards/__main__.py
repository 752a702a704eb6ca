"""Print a finding's table from stored results: `python -m eval.cards sharing`

The outcome is named in configs/cards/sharing.yaml, before the runs. To measure again:

    python -m train.sweep configs/cards/sharing.yaml --seeds 20
    python -m eval.cards sharing --runs runs/sharing-*-seed*

The second command writes the results into eval/cards/sharing.json. --out names another file. With
--prose, every model also reads 16 passages of a book. --picture draws when runs reach the outcome.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from configs.command import InputError, command_parser, exit_on_bad_input
from configs.files import read_json, read_text, run_path, write_atomically
from configs.loader import load_config
from configs.text import table
from eval.attention.history import best_head, like_the_last
from eval.attention.probes import BLOCK_TOKENS, repeated_probe, text_probe
from eval.attention.snapshots import Snapshot, take_snapshot
from eval.cards.forks import forks_in_words, heads_of
from eval.compare.runs import BITS, GAP, KV_BYTES, RunResult, read_runs
from eval.config import AttentionConfig, Outcome
from eval.hooks import figures_in
from eval.load_model import open_checkpoint
from eval.pictures import drawing
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
PASSAGES = 16
TOKENS = 64  # of a passage as it is; the first BLOCK_TOKENS of it are read twice
Results = dict[str, Any]


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


# Reading runs.


def read_results(name: str, paths: Sequence[Path], prose: Path | None = None) -> Results:
    """Return what a card stores of its runs, in its config's order. Rounded to four digits."""
    config = load_config(CONFIGS / f"{name}.yaml").values
    outcome = Outcome(**config["outcome"])
    text = read_text(prose) if prose else ""
    # by name: the config of an older run may lack keys that later ones have
    has_forks = any("fork" in rung for rung in config["rungs"].values())
    by_rung: dict[str, list[RunResult]] = {}
    for variant in read_runs(paths):
        for run in variant.runs:
            rung = re.sub(r"-seed\d+$", "", run.name.removeprefix(f"{name}-"))
            by_rung.setdefault(rung, []).append(run)
    stored = []
    for rung in ("baseline", *config["rungs"]):
        runs = sorted(by_rung.pop(rung, []), key=lambda run: run.seed)
        if not runs:
            continue
        figures = runs[0].figures
        stored.append(
            {
                "name": rung,
                "parameters": figures["parameters"],
                "kv_bytes": figures[KV_BYTES],
                "runs": [run_results(run, outcome, text, has_forks) for run in runs],
            }
        )
    for rung, runs in by_rung.items():
        raise InputError(f"{runs[0].path}: {rung} is no rung of configs/cards/{name}.yaml")
    results = {"outcome": outcome.model_dump(), "variants": stored}
    return json.loads(
        json.dumps(results),
        parse_float=lambda digits: float(f"{float(digits):.4g}"),
        parse_constant=lambda constant: None,
    )


def run_results(
    run: RunResult, outcome: Outcome, prose: str = "", has_forks: bool = False
) -> Results:
    """Return a run's curve of the outcome, and its figures at the end, also on prose."""
    steps = []
    values = []
    if outcome.score == "recall":
        for line in run.lines["recall"]:
            steps.append(line["step"])
            values.append(line["accuracy"])
    snapshots = like_the_last(run.snapshots)
    forked_at = run.forked_from[1] if run.forked_from else 0
    if forked_at:  # what it does after the change; before, it is its baseline
        snapshots = [snapshot for snapshot in snapshots if snapshot.step > forked_at]
    for snapshot in snapshots if outcome.score != "recall" else []:
        steps.append(snapshot.step)
        values.append(value_of(snapshot, outcome.score))
    if not any(value is not None for value in values):
        raise InputError(f"{run.path}: {outcome.score} was never measured: it is the outcome")
    end = {}
    for name in (*SCORES, *FIGURES) if snapshots else ():
        end[name] = value_of(snapshots[-1], name)
    if "hooks/in_context" in run.lines:
        end |= in_context(run, outcome, snapshots)
    if prose:
        end |= on_prose(run.path, prose)
    if read_result(run.path, print) is None:
        raise InputError(f"{run.path}: is not finished: finish it, or leave it out")
    stored = {
        "seed": run.seed,
        "steps": steps,
        "values": values,
        "loss": run.lines["val"][-1]["loss"],
        "bits_per_byte": run.figures[BITS],
        "floor_gap": run.figures.get(GAP),
        "end": end,
    }
    if has_forks:
        stored |= {"forked_at": forked_at} | heads_of(run.path, snapshots[-1])
    return stored


def in_context(run: RunResult, outcome: Outcome, snapshots: Sequence[Snapshot]) -> Results:
    """Return the in-context-learning score at the end, and how far it falls behind induction.

    The lag is between the steps at which each has made half of its way: the score, and the best
    head's induction. None if the run never reaches the outcome, as neither may have moved.
    """
    lines = run.lines["hooks/in_context"]
    end: Results = {f"in_context_{key}": value for key, value in figures_in(lines[-1]).items()}
    heads = {s.step: value_of(s, "induction") or 0.0 for s in snapshots}
    values = (value_of(snapshot, outcome.score) for snapshot in snapshots)
    if any(value is not None and value >= outcome.at_least for value in values):
        scores = {line["step"]: line["score"] for line in lines}
        end["in_context_lag"] = half_way(scores) - half_way(heads)
    return end


def half_way(curve: Mapping[int, float]) -> int:
    """Return the first step with at least half of the change from the first value to the last."""
    first, *_, last = curve.values()
    return next(step for step, x in curve.items() if abs(x - last) <= abs(first - last) / 2)


def on_prose(run: Path, prose: str) -> Results:
    """Return the figures of a run's newest checkpoint on passages from all parts of a text."""
    lm, tokenizer, _ = open_checkpoint(run, "cpu")
    ids = tokenizer.encode(prose)
    if len(ids) < PASSAGES * TOKENS:
        raise InputError(f"--prose has {len(ids):,} tokens: give {PASSAGES * TOKENS:,} or more")
    rows = []
    for i in range(PASSAGES):
        start = i * (len(ids) - TOKENS) // (PASSAGES - 1)
        rows.append(ids[start : start + TOKENS])
    documents = np.array([token for row in rows for token in (tokenizer.bos_id, *row)])
    blocks = [row[:BLOCK_TOKENS] for row in rows]
    as_it_is = text_probe(tokenizer, documents, TOKENS)
    twice = repeated_probe(tokenizer, 2, 1 + 2 * BLOCK_TOKENS, blocks=blocks)
    probes = [probe for probe in (as_it_is, twice) if probe is not None]
    snapshot = take_snapshot(lm, probes, AttentionConfig(), (0, 0, 0.0))
    return {
        "prose_induction": value_of(snapshot, "text_induction"),
        "passage_induction": value_of(snapshot, "induction"),
        "passage_copy_gain": value_of(snapshot, "copy_gain"),
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
    # A fork that begins late has no step to compare: its baseline was there before.
    first = min(reached_at(run, at_least)[0] for run in baseline["runs"])
    from_start = [variant["runs"][0].get("forked_at", 0) < first for variant in others]
    tested = [sample for sample, is_whole in zip(samples[1:], from_start, strict=True) if is_whole]
    corrected = iter(holm([float(logrank(samples[0], sample).pvalue) for sample in tested]))
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
    note = "At the end, the best head's induction on each text: mean (lowest to highest run)."
    return f"{table(['variant', *columns.values()], rows)}\n\n{note}"


def draw(results: Results, file: Path) -> None:
    """Draw the share of runs that have reached the outcome, by step (Kaplan–Meier)."""
    from scipy.stats import ecdf

    outcome = results["outcome"]
    figure = drawing.new_figure(640, 360)
    axes = figure.subplots()
    for number, variant in enumerate(results["variants"]):
        reached = ecdf(times(variant["runs"], outcome["at_least"])).cdf
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
