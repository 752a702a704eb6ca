"""Read the files of a run: metrics.jsonl, samples.jsonl and result.json.

Any of them may be missing, cut off or written by another program. `warn` is called with a line
about each problem, and the rest is used.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat, NonNegativeInt

from configs.files import DamagedFile, read_json, read_lines

Warn = Callable[[str], None]
METRICS = "metrics.jsonl"
SAMPLES = "samples.jsonl"
RESULT = "result.json"
EXPERTS = "experts.jsonl"


class Metric(BaseModel, extra="allow"):
    """A line of metrics.jsonl; its other keys are the figures of one split."""

    step: NonNegativeInt
    tokens: NonNegativeInt
    time_s: Annotated[FiniteFloat, Field(ge=0)]
    split: str


def read_log(file: Path, kind: Any, warn: Warn) -> list[Any]:
    """Return the lines of a log, each of this kind; none without the file."""
    try:
        return read_lines(file, warn, kind)
    except DamagedFile as error:
        warn(str(error))
        return []


def read_metrics(run: Path, warn: Warn) -> list[dict[str, Any]]:
    return [line.model_dump() for line in read_log(run / METRICS, Metric, warn)]


def first_difference(
    lines: list[dict[str, Any]], others: list[dict[str, Any]]
) -> tuple[int, str, float, float] | None:
    """Return the first step at which two runs differ: (step, figure, here, there).

    lines, others: of metrics.jsonl. Only steps that both have logged are compared.
    """
    # One of the two may log or evaluate more often.
    theirs = {(line["split"], line["step"]): line for line in others}
    for line in lines:
        other = theirs.get((line["split"], line["step"]), {})
        for figure in ("loss", "grad_norm", "lr"):
            # equal to the last bit, or not: training is repeatable, so no tolerance is needed
            if figure in line and figure in other and line[figure] != other[figure]:
                return line["step"], figure, line[figure], other[figure]
    return None


def read_samples(run: Path, warn: Warn) -> list[dict[str, Any]]:
    return read_log(run / SAMPLES, dict[str, Any], warn)


def read_result(run: Path, warn: Warn) -> dict[str, Any] | None:
    """Read result.json; None if there is none, or it cannot be read."""
    try:
        return read_json(run / RESULT) if (run / RESULT).exists() else None
    except DamagedFile as error:
        warn(str(error))
        return None
