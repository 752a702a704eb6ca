"""A tiny training run, and everything that can be seen of it, by aspect."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook

from eval.attention import snapshots
from model.attention import Attention
from tests.train.helpers import metrics, pretrain

NUMBERS = itertools.count()
Passes = list[tuple[int, torch.dtype]]


@contextmanager
def watched_passes() -> Iterator[Passes]:
    """Rows and dtype of each pass through an attention layer while training."""
    seen: Passes = []

    def note(module, inputs, output):
        if isinstance(module, Attention) and module.training:
            seen.append((len(output), output.dtype))

    handle = register_module_forward_hook(note)
    try:
        yield seen
    finally:
        handle.remove()


def observed_run(config: Path, overrides: list[str], folder: Path, code: int = 0) -> dict[str, Any]:
    """Train in a folder of its own, which shares the prepared data of its parent.

    Figures are {step: …}; what is seen before the first step is apart, because it does not depend on learning.
    """
    name = f"run{next(NUMBERS)}"
    with watched_passes() as passes:
        done = pretrain(config, f"output_dir={folder}", f"name={name}", *overrides, code=code)
    run = folder / name
    lines = metrics(run)
    train = [line for line in lines if line["split"] == "train"]
    val = {line["step"]: line["loss"] for line in lines if line["split"] == "val"}
    report = (run / "report.md").read_text(encoding="utf-8") if code == 0 else ""
    return {
        "schedule": {line["step"]: line["lr"] for line in train},
        "learning": {line["step"]: [line["loss"], line["grad_norm"]] for line in train},
        "steps": [line["step"] for line in train][-1:],
        "tokens": {line["step"]: line["tokens"] for line in train},
        "logged": {line["step"] for line in train},
        "skipped": [line["step"] for line in lines if line["split"] == "skipped"],
        "passes": len(passes) / max(1, len(train)),
        "rows": sorted({rows for rows, _ in passes}),
        "dtype": {dtype for _, dtype in passes},
        "evaluated": list(val),
        "first validation": val.get(0),
        "last validation": list(val.values())[-1:],
        "checkpoints": sorted(path.name for path in (run / "checkpoints").iterdir()),
        "trace": (run / "trace.jsonl").exists(),
        "wandb": (run / "wandb").exists(),
        "floor": re.findall(r"(\d+) whole held-out stories", report),
        **_samples(run),
        **_questions(lines),
        **_attention(run),
        "failures": [line for line in done.stdout.splitlines() if "warning" in line],
    }


def _samples(run: Path) -> dict[str, Any]:
    file = run / "samples.jsonl"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    return {"sampled": [line["step"] for line in lines], "first samples": [x["text"] for x in lines if x["step"] == 0]}


def _questions(lines: list[dict]) -> dict[str, Any]:
    return {"asked": [(line["step"], line["asked"]) for line in lines if line["split"] == "questions"]}


def _attention(run: Path) -> dict[str, Any]:
    found, problems = snapshots.read_all(run)
    assert not problems
    first = found[0] if found else None
    return {
        "looked at": [one.step for one in found],
        "maps": sorted(first.maps) if first else [],
        "labels": first.maps["text"].labels[:4] if first and "text" in first.maps else [],
        "map length": len(first.maps["text"].labels) if first and "text" in first.maps else 0,
        "layers": first.layers if first else [],
        "heads": first.heads if first else [],
        "scores": sorted(first.scores) if first else [],
    }
