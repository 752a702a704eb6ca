"""What a run logs, line by line, and how far it had logged when it saved: a resumed run continues there."""

from __future__ import annotations

import json
from pathlib import Path

LOGS = ("metrics.jsonl", "samples.jsonl", "trace.jsonl", "attention/index.jsonl")


def log_sizes(directory: Path) -> dict[str, int]:
    """Bytes of each log of a run directory; a checkpoint keeps them."""
    files = {name: directory / name for name in LOGS}
    return {name: file.stat().st_size for name, file in files.items() if file.is_file()}


def truncate_after(file: Path, step: int, size: int | None = None) -> None:
    """Keep of a log the lines up to `step`, and of these only what is in its first `size` bytes.

    The step alone does not say it: an evaluation may have logged some lines at the step where the run resumes, and it
    comes again. A line that is damaged, or that a kill cut off, is dropped.
    """
    if not file.is_file():
        return
    lines = file.read_bytes()[:size].splitlines(keepends=True)
    temporary = file.with_suffix(".tmp")
    temporary.write_bytes(b"".join(line for line in lines if _is_up_to(step, line)))
    temporary.replace(file)


def _is_up_to(step: int, line: bytes) -> bool:
    try:
        return bool(json.loads(line)["step"] <= step) and line.endswith(b"\n")
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
