"""`python -m notebooks.broken 3` trains the third of the broken models; 0 is healthy."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from configs.command import InputError, exit_on_bad_input

SCRIPTS = sorted(path.stem for path in Path(__file__).parent.glob("[0-9].py"))


def main() -> int:
    if not sys.argv[1:] or sys.argv[1] not in SCRIPTS:
        raise InputError(f"name one of the trainings: python -m notebooks.broken {' | '.join(SCRIPTS)}")
    del sys.argv[0]  # what is left is the script's own command line
    runpy.run_module(f"notebooks.broken.{sys.argv[0]}", run_name="__main__")
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
