"""What happened in every run, in one small file? histories.json: scores of heads over training, no weights.

Some ten kB for nine runs, so it can be kept, sent and read where the runs are not: notebook 03 reads one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eval.attention.history import best_head, phase_change
from eval.compare.runs import Cost, RunResult, Variant, differing_keys

if TYPE_CHECKING:
    from eval.attention.snapshots import Snapshot

FILE = "histories.json"  # in the folder of a comparison
HEAD_SCORES = ("previous_token", "induction")
DIGITS = 4


def histories(variants: Sequence[Variant], costs: Mapping[str, Cost]) -> dict[str, Any]:
    """The content of histories.json.

    {"variants": [{"name", "settings", "parameters", "kv_bytes", "runs": [run]}]}; settings: the keys in which the
    variants differ; costs: by variant's name. A run:
    seed, machine, loss (nats a token) and bits_per_byte of its last evaluation, floor_gap (bits per byte above the
    entropy floor), formed ({layer, head, step} of its induction head, null where none formed), chance (by score), and
    looks: {step, tokens, previous_token, induction: the head that has most of it at that step, copy_gain: nats} of the
    heads that were looked at last. null: not measured. recall: [step, share of right answers] of its looks.
    """
    keys = differing_keys(variants)
    return {
        "variants": [
            {
                "name": variant.name,
                "settings": {key: variant.settings.get(key) for key in keys},
                "parameters": costs[variant.name].parameters,
                "kv_bytes": costs[variant.name].kv_bytes,
                "runs": [_run(run) for run in variant.runs],
            }
            for variant in variants
        ]
    }


def _run(run: RunResult) -> dict[str, Any]:
    last = run.snapshots[-1] if run.snapshots else None
    of_these = [one for one in run.snapshots if last and (one.layers, one.heads) == (last.layers, last.heads)]
    formed = phase_change(of_these)
    return {
        "seed": run.seed,
        "machine": run.machine,
        "loss": _rounded(run.loss),
        "bits_per_byte": _rounded(run.bits_per_byte),
        "floor_gap": _rounded(run.floor_gap),
        "formed": {"layer": formed.layer, "head": formed.head, "step": formed.step} if formed else None,
        "chance": {name: _rounded(last.chance.get(name)) for name in HEAD_SCORES} if last else {},
        "looks": [_look(snapshot) for snapshot in of_these],
        "recall": [[line["step"], _rounded(line["accuracy"])] for line in run.recall],
    }


def _look(snapshot: Snapshot) -> dict[str, Any]:
    best = {name: best_head(snapshot, name) for name in HEAD_SCORES}
    scores = {name: None if place is None else float(snapshot.scores[name][place]) for name, place in best.items()}
    figures = {**scores, "copy_gain": snapshot.scalars.get("copy_gain")}
    return {"step": snapshot.step, "tokens": snapshot.tokens} | {key: _rounded(one) for key, one in figures.items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, DIGITS) + 0.0  # no -0.0
