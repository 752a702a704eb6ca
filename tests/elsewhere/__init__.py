"""Programs that open what Headlight wrote, each in an environment of its own."""

import json
import os
import subprocess
from pathlib import Path


def ask_other(python: str, script: str, request: dict, answer: Path, timeout: float = 600) -> dict:
    """Run a script of this folder with another Python, and return its answer to the request."""
    # its own packages alone
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [python, Path(__file__).with_name(script)]
    given = json.dumps(request | {"answer": str(answer)})
    done = subprocess.run(command, input=given, capture_output=True, encoding="utf-8", timeout=timeout, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(answer.read_text("utf-8"))
