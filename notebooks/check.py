"""Build the parts of a language model yourself: `python -m notebooks.check NAME`.

The first call writes notebooks/build/NAME.py, a file with a gap, and prints what belongs into it. Fill the gap and run
the same command again: it compares your code with float64 numbers and says what differs. Without a NAME it lists the
exercises. `--again` starts one anew and keeps your old file beside it.

    0      your code is right
    1      not yet
    2      bad input: there is no such exercise

The files with gaps are made from notebooks/solutions/, so that they cannot drift from what the checks accept.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

from configs.command import InputError, exit_on_bad_input
from configs.text import did_you_mean
from model.backends.mine import run_file
from notebooks.broken.judge import judge
from notebooks.checks import attention, training
from notebooks.checks.verdict import Verdict, judged
from notebooks.start import HINTS, ROOT

CHECKS: dict[str, Callable[[ModuleType], str]] = {**attention.CHECKS, **training.CHECKS}  # in their order
BUILD, SOLUTIONS = Path("notebooks/build"), Path("notebooks/solutions")  # notebooks.start works in the repository
GAP_ENDS = "# your code"
GAP = re.compile(r"^( *)# <solution>\n.*?^ *# </solution>$", re.DOTALL | re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m notebooks.check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", help="an exercise; without it, all of them are listed")
    parser.add_argument("answer", nargs="*", help="after `broken`: the number of a training, and a cause")
    parser.add_argument("--again", action="store_true", help="start anew; your old file is kept beside the new one")
    given = parser.parse_args()
    if given.name is None:
        return list_exercises()
    if given.name == "broken":  # the break-it lab, notebooks/broken/README.md
        return judge(*given.answer)
    if given.answer:
        raise InputError(f"an exercise has one name: python -m notebooks.check {given.name}")
    if given.name not in CHECKS:
        meant = did_you_mean(given.name, {name: name for name in CHECKS})
        raise InputError(f"there is no exercise {given.name!r}{meant}. There are: {', '.join(CHECKS)}")
    path = BUILD / f"{given.name}.py"
    if given.again and path.exists():
        numbers = (number for number in range(1, 1000) if not path.with_suffix(f".{number}.py").exists())
        print(f"Your old file is now {path.rename(path.with_suffix(f'.{next(numbers)}.py')).as_posix()}.\n")
    return try_it(given.name, path) if path.exists() else begin(given.name, path)


def list_exercises() -> int:
    """All exercises, in order. An exercise is done when its check takes what stands in the file now."""
    open_ones = []
    for name in CHECKS:
        path = BUILD / f"{name}.py"
        with redirect_stdout(io.StringIO()):  # what the reader's code prints
            is_done = path.exists() and attempt(name, path).is_right
        open_ones += [] if is_done else [name]
        print(f"{'done' if is_done else 'open'}   {name:<16} {text_of(name).splitlines()[0]}")
    print(f"\n{len(CHECKS) - len(open_ones)} of {len(CHECKS)} are done.", end=" ")
    print(f"Next: python -m notebooks.check {open_ones[0]}" if open_ones else "All of this is yours now.")
    return 0


def begin(name: str, path: Path) -> int:
    path.write_text(stub(name), encoding="utf-8")
    print(f"{text_of(name)}\n\nNow open {path.as_posix()} in an editor. Replace what ends in `{GAP_ENDS}`.")
    print(f"Then run the same command again:  python -m notebooks.check {name}")
    return 1


def try_it(name: str, path: Path) -> int:
    is_right, sentence, hint = attempt(name, path)
    if not is_right:
        is_written = not sentence.endswith("still to be written.")  # before the first try, no hint
        print(f"Not yet. {sentence}" + f"\nHint: {hint}" * is_written)
        return 1
    names = list(CHECKS)
    following = names[names.index(name) + 1 :]
    print(f"Right. {sentence}\nCompare with {(SOLUTIONS / path.name).as_posix()}.")
    print(f"Next: python -m notebooks.check {following[0]}" if following else "That was the last exercise.")
    return 0


def attempt(name: str, path: Path) -> Verdict:
    """Run the reader's file and its check."""

    def check(file: Path) -> str:
        return CHECKS[name](run_file(file))

    return judged(check, path.absolute(), HINTS[f"build.{name}"], path.absolute(), path.as_posix())


def text_of(name: str) -> str:
    """What the exercise is about: one screen, the docstring of its solution. Its first line is a title with minutes."""
    return ast.get_docstring(ast.parse((ROOT / SOLUTIONS / f"{name}.py").read_text(encoding="utf-8"))) or ""


def stub(name: str) -> str:
    """The solution with a gap where the reader's code goes; torch is imported also where only the reader needs it."""
    code = GAP.sub(rf"\1raise NotImplementedError  {GAP_ENDS}", (SOLUTIONS / f"{name}.py").read_text(encoding="utf-8"))
    return (
        code if "\nimport torch\n" in code else code.replace("\nfrom torch import", "\nimport torch\nfrom torch import")
    )


if __name__ == "__main__":
    exit_on_bad_input(main)
