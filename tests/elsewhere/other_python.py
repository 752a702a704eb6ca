"""What a program in an environment of its own makes of the models that Headlight wrote."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any


def ask_other(python: str, script: str, request: dict[str, Any], timeout: float = 600) -> dict[str, Any]:
    """The answer of a script of this folder, run by another Python. request["answer"]: the file that it writes."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}  # its own packages alone
    done = subprocess.run(
        [python, Path(__file__).with_name(script)],
        input=json.dumps(request),
        capture_output=True,
        encoding="utf-8",
        timeout=timeout,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(Path(request["answer"]).read_text("utf-8"))
