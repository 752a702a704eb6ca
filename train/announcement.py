"""The first lines of a run, on the terminal and in report.md: model, device, length, rows."""

from __future__ import annotations

from train.budget import in_words
from train.run import Run


def opening(run: Run) -> str:
    """What is about to happen, in a few lines."""
    c = run.config
    joined = run.batches.rows.length // c.data.sequence_length
    rows = run.micro_rows * joined
    together = f", {joined} joined into one" if joined > 1 else ""
    if together and run.device.device.type == "cpu":
        together += "; on a CPU data.rows_joined=1 may be quicker"
    return "\n".join(
        [
            f"{c.name}: {run.lm.num_parameters():,} parameters, {in_words(c.model)}",
            "; ".join(run.device.notes),
            f"{_extent(run)} of {c.train.tokens_per_step:,} tokens ({c.rows_per_step} rows of "
            f"{c.data.sequence_length}, {rows} at a time{together}){_epochs(run)}"
            + (f"; starts from {c.init_from}" if c.init_from else ""),
            *([f"{run.world.size} processes, {run.world.parallel}"] if run.world.size > 1 else []),
        ]
    )


def _extent(run: Run) -> str:
    steps, minutes = run.config.max_steps, run.config.train.max_minutes
    if steps:
        return f"{steps:,} steps"
    return f"{minutes:g} minutes by the clock (so never twice exactly the same) in steps"


def _epochs(run: Run) -> str:
    steps = run.config.max_steps
    return f", {steps * run.batches.rows_per_batch / run.batches.rows.per_epoch:.2f} epochs" if steps else ""
