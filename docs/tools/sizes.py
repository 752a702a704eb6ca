"""Print the size of the code, and of the part that one training run executes: `make sizes`

The run is two steps of the demo on prepared text.
"""

import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from configs.command import exit_on_bad_input
from docs.tools.plain import figures_of
from train.pretrain import main

ROOT = Path(__file__).resolve().parents[2]
ROOMS = "configs model storyworld data train eval serve benchmarks notebooks".split()
# One process and no hooks: the path of the training itself.
TWO_STEPS = [str(ROOT / "configs/demo.yaml")]
TWO_STEPS += "train.max_steps=2 train.processes=1 eval.hooks=[] tracking.wandb=disabled".split()
TWO_STEPS += "data.source.documents=60 data.source.validation_documents=8".split()


def lines_run(run: Callable[[], object]) -> dict[str, set[int]]:
    """Return the files whose functions `run` calls, in the order of the calls: file -> lines.

    Imports do not count: call `run` once before, so that it imports nothing.
    """
    lines: dict[str, set[int]] = defaultdict(set)
    files: dict[CodeType, str | None] = {}  # a cache: `trace` is called for every line

    def file_of(code: CodeType) -> str | None:
        path = Path(code.co_filename)
        is_function = code.co_flags & 0x2  # CO_NEWLOCALS: not the body of a module or a class
        if not (is_function and path.is_relative_to(ROOT)):
            return None
        file = path.relative_to(ROOT).as_posix()
        return file if file.split("/")[0] in ROOMS else None

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code not in files:
            files[code] = file_of(code)
        file = files[code]
        if file is not None and event == "line":
            lines[file].add(frame.f_lineno)
        return trace if file is not None else None

    # coverage and debuggers set a function, too: they get it back
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return dict(lines)


def two_steps(folder: Path) -> dict[str, set[int]]:
    """Return files and lines of two steps of the demo. A first run prepares the text."""

    def train(name: str) -> None:
        sys.argv = ["pretrain", *TWO_STEPS, f"output_dir={folder}", f"name={name}"]
        try:
            exit_on_bad_input(main)
        except SystemExit as end:
            if end.code:
                raise

    # the first run imports and prepares; only the second one is a path that readers follow
    train("first")
    return lines_run(lambda: train("second"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        # first, because both runs print lines of their own
        path = two_steps(Path(folder))
    columns = ("lines", "files", "characters", "a line", "packed", "relative", "comments")
    print("\na line: characters; relative: docstrings that begin with What, Whether, Where …")
    print("packed (`a, b = x, y`), comments: per 1,000 lines that are not blank\n")
    print(f"{'room':12s}" + "".join(f"{name:>11s}" for name in columns))
    for room in (*ROOMS, "tests"):
        files = list((ROOT / room).rglob("*.py"))
        lines = sum(file.read_text(encoding="utf-8").count("\n") for file in files)
        plain = figures_of(files)
        per_thousand = 1000 / plain.lines
        print(
            f"{room:12s}{lines:11,}{len(files):11,}{plain.characters:11,}"
            f"{plain.characters / plain.lines:11.1f}{plain.packed * per_thousand:11.1f}"
            f"{plain.relative:11,}{plain.comments * per_thousand:11.1f}"
        )
    print(f"\ntwo steps of the demo: {len(path)} files, {sum(map(len, path.values())):,} lines")
    for file, numbers in path.items():
        print(f"{len(numbers):8,}  {file}")
