"""docs/tour.md names at most twelve files, and a run of the demo enters each of them."""

import re
import sys
from pathlib import Path

from tests.docs.page import ROOT
from tests.train.helpers import pretrain

TOUR = (ROOT / "docs/tour.md").read_text(encoding="utf-8")
ROWS = set(re.findall(r"^\| `([\w/]+\.py)` \|", TOUR, re.MULTILINE))


def entered(run) -> set[str]:
    """The files of the repository in which `run` calls a function; what an import statement calls does not count."""
    found: set[str] = set()

    def importing(frame) -> bool:
        while frame is not None:
            if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith("<frozen importlib"):
                return True
            if frame.f_code.co_name == "_find_and_load":
                return True
            frame = frame.f_back
        return False

    def tracer(frame, event, _):
        file = frame.f_code.co_filename
        if file not in seen:
            path = Path(file)
            inside = path.is_absolute() and path.is_relative_to(ROOT) and ".venv" not in path.parts
            seen[file] = path.relative_to(ROOT).as_posix() if inside else ""
        name, function = seen[file], frame.f_code.co_flags & 0x2
        is_called = function and not frame.f_code.co_name.startswith("<")
        if name and is_called and name not in found and not name.startswith("tests/") and not importing(frame):
            found.add(name)

    seen: dict[str, str] = {}
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        run()
    finally:
        sys.settrace(before)
    return found


def test_a_run_enters_every_file_of_the_tour(tmp_path):
    """The demo, but fewer stories."""
    few = ["data.source.documents=60", "data.source.validation_documents=8", "tracking.wandb=disabled"]
    shape = ["train.max_steps=2", "eval.hooks=[]", f"output_dir={tmp_path}"]
    demo = ROOT / "configs/demo.yaml"
    found = entered(lambda: pretrain(demo, "name=tour", *few, *shape))
    assert len(ROWS) <= 12
    assert ROWS - found == set(), "files that docs/tour.md names and a run does not enter"
