"""trace.jsonl: a line a step that proves two runs equal, to the last bit (`train.trace: true`)."""

from __future__ import annotations

import hashlib

from data.batches import Batch
from train.meters import StepFigures
from train.run import Run


def append(run: Run, batch: Batch, figures: StepFigures) -> None:
    """Step, sha256 of the whole batch, and loss, gradient norm and learning rate as hexadecimal floats.

    Reads the loss off the device at every step, which is why it is not always on.
    """
    rows = [row for share in run.world.gather(row_hashes(batch)) for row in share]
    record = {
        "step": figures.step + 1,
        "batch": hashlib.sha256("".join(rows).encode()).hexdigest(),
        "loss": float(figures.loss).hex(),
        "grad_norm": float(figures.grad_norm).hex(),
        "lr": figures.lr.hex(),
    }
    if run.world.is_first:
        run.tracker.append(run.config.directory / "trace.jsonl", record)


def row_hashes(batch: Batch) -> list[str]:
    """One sha256 a row: its number and its part of every tensor."""
    rows = zip(batch.row_ids, *(t.cpu().numpy() for t in batch.tensors.values()), strict=True)
    return [
        hashlib.sha256(str(number).encode() + b"".join(a.tobytes() for a in row)).hexdigest() for number, *row in rows
    ]
