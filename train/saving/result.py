"""runs/<name>/result.json: the final figures of a run, for programs to read. Its presence means "finished"."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

RESULT = "result.json"


def write_result(directory: Path, values: dict[str, Any]) -> None:
    """Write result.json into a run directory, all or nothing. `values` needs "step". Raises OSError."""
    temporary = directory / "result.tmp"
    with temporary.open("w", encoding="utf-8") as stream:
        stream.write(json.dumps(values, indent=2) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(directory / RESULT)


def read_result(directory: Path) -> dict[str, Any] | None:
    """What result.json of a run directory says; None if there is none, or none that can be read."""
    try:
        values = json.loads((directory / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def forget_result(directory: Path) -> None:
    """Remove result.json: the run goes on, so it is no longer finished. Raises OSError."""
    (directory / RESULT).unlink(missing_ok=True)
