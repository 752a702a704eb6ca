"""Forks in a card: what a change in the middle of a life did to its heads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from configs.loader import load_config
from configs.text import table
from eval.attention.snapshots import Snapshot

# One of these notes the token before, the other looks for what followed it.
CIRCUIT = ("previous_token", "induction")


def heads_of(run: Path, last: Snapshot) -> dict[str, Any]:
    """Return the scores of the circuit's heads at the end, and the heads that the fork changed."""
    changed: set[str] = set()
    for change in load_config(run / "config.yaml").values.get("changes", []):
        changed |= {*change["clamp"], *change["without"]}
    scores: dict[str, dict[str, float]] = {}
    for name in CIRCUIT:
        for layer, row in zip(last.layers, last.scores[name], strict=True):
            for head, score in zip(last.heads, row, strict=True):
                scores.setdefault(name, {})[f"L{layer}H{head}"] = float(score)
    return {"changed": sorted(changed), "heads": scores}


def forks_in_words(results: Mapping[str, Any]) -> str:
    """Return the table of forks beside the baseline of the same seeds; "" without any."""
    baseline, *others = results["variants"]
    of_seed = {run["seed"]: run for run in baseline["runs"]}
    rows = []
    for variant in others:
        pairs = [(run, of_seed[run["seed"]]) for run in variant["runs"] if run["seed"] in of_seed]
        if not pairs or "changed" not in pairs[0][0]:
            continue
        row = [variant["name"], f"{pairs[0][0]['forked_at']:,}"]
        row.append(f"{fmean(run['values'][0] for run, _ in pairs):.2f}")
        for lives in zip(*pairs, strict=True):
            others_best = []
            for life, (fork, _) in zip(lives, pairs, strict=True):
                heads = life["heads"]["previous_token"]
                others_best.append(max(heads[name] for name in heads.keys() - fork["changed"]))
            row.append(f"{fmean(others_best):.2f}")
        same = sum(strongest(fork) == strongest(before) for fork, before in pairs)
        rows.append([*row, f"{same} of {len(pairs)}"])
    if not rows:
        return ""
    header = ["fork", "from step", f"{results['outcome']['score']} at the next look"]
    header += ["strongest other previous-token head", "in the baseline", "same induction head"]
    note = (
        "Forks: means over seeds. Other: no head that the fork changed; in the baseline, without "
        "the same heads. Same: the strongest induction head at the end is the baseline's."
    )
    return f"{table(header, rows)}\n\n{note}"


def strongest(run: Mapping[str, Any]) -> str:
    heads = run["heads"]["induction"]
    return max(heads, key=heads.get)
