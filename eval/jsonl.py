"""How is metrics.jsonl read back? One JSON object a line; a line cut off by a kill is skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The records of a .jsonl file that have a step; none without the file. Broken lines are skipped."""
    records = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else []:
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return [record for record in records if isinstance(record, dict) and "step" in record]
