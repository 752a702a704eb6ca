"""Turn the object of `python -m notebooks.check --json` into results.json of Gradescope.

    python -m notebooks.check --json > report.json
    python -m notebooks.classroom.gradescope report.json > results.json

An exercise is a test, and its minutes are its points.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from configs.command import exit_on_bad_input


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m notebooks.classroom.gradescope")
    parser.add_argument("report", type=Path, help="what `python -m notebooks.check --json` printed")
    path = parser.parse_args().report
    print(json.dumps(results(path.read_text(encoding="utf-8")), ensure_ascii=False, indent=1))
    return 0


def results(report: str) -> dict[str, Any]:
    """Return Gradescope's object: a score for each test, or 0 if there is no readable report."""
    try:
        graded = json.loads(report)
    except json.JSONDecodeError:
        return {"score": 0, "output": "The check ended before it could report: look at the log."}
    tests = []
    for row in graded["exercises"]:
        is_done = row["state"] == "done"
        tests.append(
            {
                "name": row["exercise"],
                "score": row["minutes"] if is_done else 0,
                "max_score": row["minutes"],
                "status": "passed" if is_done else "failed",
                "output": row["sentence"],
            }
        )
    source = f"Headlight {graded['headlight']}, variant {graded['variant'] or 'none'}"
    return {"output": source, "tests": tests}


if __name__ == "__main__":
    exit_on_bad_input(main)
