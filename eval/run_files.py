"""What do the files of a run say? metrics.jsonl, samples.jsonl and result.json, read back and checked.

Any of them may be missing, damaged or written by somebody else. `warn` gets a line that names
it and says why, and what is left counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from configs.files import DamagedFile, checked, read_json, read_lines

Warn = Callable[[str], None]
METRICS, SAMPLES, RESULT, EXPERTS = "metrics.jsonl", "samples.jsonl", "result.json", "experts.jsonl"
MOST = 1e300  # of a number in a log: sums of two of them are finite
FIGURES = ("train", "val", "attention", "floor", "recall")  # splits whose lines hold nothing but numbers


def _has_step(line: dict[str, Any]) -> dict[str, Any]:
    step = line.get("step")
    if type(step) is not int or step < 0:
        raise ValueError("`step` must be a number, 0 or more")
    return line


def _is_metric(line: dict[str, Any]) -> dict[str, Any]:
    _has_step(line)
    if type(line.get("split")) is not str:
        raise ValueError("`split` must be a name")
    for key in ("tokens", "time_s"):
        if not _is_number(line.get(key)) or line[key] < 0:
            raise ValueError(f"`{key}` must be a number, 0 or more")
    numbers = line["split"] in FIGURES
    for key, value in line.items():
        is_right = value is None or _is_number(value) or isinstance(value, bool | list | dict) or key == "split"
        if not is_right and (numbers or not isinstance(value, str)):
            raise ValueError(f"`{key}` must be a finite number")
    return line


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= MOST and math.isfinite(value)


def _is_sample(line: dict[str, Any]) -> dict[str, Any]:
    _has_step(line)
    if not (isinstance(line.get("prompt"), str) and isinstance(line.get("text"), str)):
        raise ValueError("`prompt` and `text` must be text")
    return line


METRIC = Annotated[dict[str, Any], AfterValidator(_is_metric)]
SAMPLE = Annotated[dict[str, Any], AfterValidator(_is_sample)]
Number = Annotated[float, Field(allow_inf_nan=False, ge=-MOST, le=MOST)]


class Result(BaseModel):
    """What is read of result.json."""

    step: Annotated[int, Field(ge=0)] | None = None
    sample: str = ""
    seen: str = ""
    summary: list[str] = []
    floor: dict[str, Number | None] = {}


def read_metrics(run: Path, warn: Warn) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; none without the file."""
    return _read_log(run / METRICS, METRIC, warn)


def read_samples(run: Path, warn: Warn) -> list[dict[str, Any]]:
    """The lines of samples.jsonl; none without the file."""
    return _read_log(run / SAMPLES, SAMPLE, warn)


def read_result(run: Path, warn: Warn) -> dict[str, Any] | None:
    """result.json; None if there is none, or none that can be read."""
    try:
        values = read_json(run / RESULT)
        checked(values, str(run / RESULT), Result)
        return values
    except DamagedFile as error:
        if (run / RESULT).exists():
            warn(str(error))
        return None


def _read_log(file: Path, kind: Any, warn: Warn) -> list[dict[str, Any]]:
    try:
        return read_lines(file, warn, kind)
    except DamagedFile as error:
        warn(str(error))
        return []
