"""What a run logs, line by line, and how far it had logged when it saved: a resumed run continues there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from configs.read_back import DamagedFile, keep_lines
from configs.shown_text import escape
from eval.run_files import EXPERTS, METRICS, SAMPLES, STEPPED

LOGS = (METRICS, SAMPLES, EXPERTS, "trace.jsonl", "attention/index.jsonl")


def log_sizes(directory: Path) -> dict[str, int]:
    """Bytes of each log of a run directory, 0 where there is none yet; a checkpoint keeps them."""
    files = {name: directory / name for name in LOGS}
    return {name: file.stat().st_size if file.is_file() else 0 for name, file in files.items()}


def truncate_after(file: Path, step: int, size: int | None = None) -> None:
    """Drop the lines of a .jsonl file that are later than `step`, or beyond its first `size` bytes. Raises OSError.

    The step alone does not say enough: an evaluation may have logged at the step where the run resumes and been killed
    before it was saved, and it comes again. A damaged line is reported and stays; a file that cannot be read at all is
    reported and left alone.
    """

    def warn(problem: str) -> None:
        print(escape(f"warning: {problem}"), file=sys.stderr)

    try:
        if size is not None and file.is_file() and file.stat().st_size > size:
            os.truncate(file, size)
        keep_lines(file, lambda record: record["step"] <= step, warn, STEPPED)
    except DamagedFile as error:
        warn(f"{error}: training continues without it")
