"""Files of one JSON object a line: metrics.jsonl and its like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The records of a .jsonl file; none without the file, and without the lines that were cut off by a kill."""
    records = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else []:
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return [record for record in records if isinstance(record, dict) and "step" in record]
