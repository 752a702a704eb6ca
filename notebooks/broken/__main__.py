"""Train a broken model: `python -m notebooks.broken 3`; 0 is healthy."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from configs.command import exit_on_bad_input

SCRIPTS = sorted(path.stem for path in Path(__file__).parent.glob("[0-9].py"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m notebooks.broken", description=__doc__)
    parser.add_argument("training", choices=SCRIPTS)
    parser.add_argument("changes", nargs="*", metavar="section.key=value", help="config changes")
    args = parser.parse_args()
    sys.argv = [args.training, *args.changes]  # the script's own command line
    runpy.run_module(f"notebooks.broken.{args.training}", run_name="__main__")
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
