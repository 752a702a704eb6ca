"""Read a sweep's runs into what a card stores of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from configs.command import InputError
from configs.files import read_text
from configs.loader import load_config
from eval.attention.history import best_head, like_the_last
from eval.attention.probes import BLOCK_TOKENS, repeated_probe, text_probe
from eval.attention.snapshots import Snapshot, take_snapshot
from eval.cards.forks import heads_of
from eval.compare.runs import BITS, GAP, KV_BYTES, RunResult, read_runs
from eval.config import AttentionConfig, Outcome
from eval.hooks import figures_in
from eval.load_model import open_checkpoint
from eval.run_files import read_result

CONFIGS = Path(__file__).resolve().parents[2] / "configs/cards"
RESULTS = Path(__file__).parent
# Scores of the best head, and figures of the model, that are stored of a run's end.
SCORES = (
    "previous_token induction induction_varied same_distance text_induction song_induction "
    "antecedent_writes"
).split()
FIGURES = ("copy_gain", "song_copy_gain")
PASSAGES = 16
TOKENS = 64  # of a passage as it is; the first BLOCK_TOKENS of it are read twice
Results = dict[str, Any]


def read_results(
    name: str, paths: Sequence[Path], prose: Path | None = None, stored: Results | None = None
) -> Results:
    """Return what a card stores of its runs, in its config's order. Rounded to four digits.

    stored: results of earlier runs, to which these are added. If two runs have the same seed, the
    new one replaces the stored one. Raises InputError if a variant would be lost or mixed up.
    """
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
    if stored and stored["outcome"] != outcome.model_dump():
        raise InputError("the stored results have another outcome: name another file with --out")
    earlier = {variant["name"]: variant for variant in stored["variants"]} if stored else {}
    for rung in earlier.keys() - {"baseline", *config["rungs"]}:
        problem = f"{rung} was stored, and is no rung of configs/cards/{name}.yaml"
        raise InputError(f"{problem}: name another file with --out")
    variants = []
    for rung in ("baseline", *config["rungs"]):
        runs = by_rung.pop(rung, [])
        variant = earlier.get(rung, {"name": rung})
        by_seed = {run["seed"]: run for run in variant.get("runs", ())}
        for run in runs:
            size = {"parameters": run.figures["parameters"], "kv_bytes": run.figures[KV_BYTES]}
            new = run_results(run, outcome, text, has_forks)
            last_steps = {other["steps"][-1] for other in by_seed.values()} | {new["steps"][-1]}
            if len(last_steps) > 1 or (by_seed and variant | size != variant):
                remedy = "is this another config? Name another file with --out"
                problem = f"other runs of {rung} have another size or length"
                raise InputError(f"{run.path}: {problem}: {remedy}")
            variant = variant | size
            by_seed[run.seed] = new
        if by_seed:
            variants.append(variant | {"runs": [by_seed[seed] for seed in sorted(by_seed)]})
    for rung, runs in by_rung.items():
        raise InputError(f"{runs[0].path}: {rung} is no rung of configs/cards/{name}.yaml")
    results = {"outcome": outcome.model_dump(), "variants": variants}
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
    head's induction. No lag if the run never reaches the outcome, as neither may have moved.
    """
    lines = run.lines["hooks/in_context"]
    end: Results = {f"in_context_{key}": value for key, value in figures_in(lines[-1]).items()}
    heads = {s.step: value_of(s, "induction") or 0.0 for s in snapshots}
    values = (value_of(snapshot, outcome.score) for snapshot in snapshots)
    has_curve = len(lines) > 1  # the hook may have looked at the end alone
    if has_curve and any(value is not None and value >= outcome.at_least for value in values):
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
