"""Build the parts of a language model yourself: `python -m notebooks.check NAME`.

The first call writes notebooks/build/NAME.py, a file with a gap, and explains the task. Fill the
gap and run the same command again: it compares your code with float64 numbers. Without a NAME it
lists the exercises. `--again` starts an exercise again, and keeps your old file.

    0      your code is right
    1      not yet
    2      bad input: there is no such exercise

The files with gaps are made from notebooks/solutions/, so they always fit the checks.
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

# The exercises are in this order.
CHECKS: dict[str, Callable[[ModuleType], str]] = {**attention.CHECKS, **training.CHECKS}
# notebooks.start makes the repository the working directory.
BUILD = Path("notebooks/build")
SOLUTIONS = Path("notebooks/solutions")
GAP_ENDS = "# your code"
GAP = re.compile(r"^( *)# <solution>\n.*?^ *# </solution>$", re.DOTALL | re.MULTILINE)


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    command = "python -m notebooks.check"
    parser = argparse.ArgumentParser(prog=command, description=__doc__, formatter_class=form)
    parser.add_argument("name", nargs="?", help="an exercise; without it, all are listed")
    answer = "after `broken`: the number of a training, and a cause"
    parser.add_argument("answer", nargs="*", help=answer)
    again = "start again; your old file is kept beside the new one"
    parser.add_argument("--again", action="store_true", help=again)
    args = parser.parse_args()
    if args.name is None:
        return list_exercises()
    if args.name == "broken":  # the break-it lab, notebooks/broken/README.md
        return judge(*args.answer)
    if args.answer:
        raise InputError(f"an exercise has one name: {command} {args.name}")
    if args.name not in CHECKS:
        hint = did_you_mean(args.name, {name: name for name in CHECKS})
        names = ", ".join(CHECKS)
        raise InputError(f"there is no exercise {args.name!r}{hint}. There are: {names}")
    path = BUILD / f"{args.name}.py"
    if args.again and path.exists():
        number = 1
        while path.with_suffix(f".{number}.py").exists():
            number += 1
        old = path.rename(path.with_suffix(f".{number}.py"))
        print(f"Your old file is now {old.as_posix()}.\n")
    return try_it(args.name, path) if path.exists() else begin(args.name, path)


def list_exercises() -> int:
    """List all exercises. An exercise is done if its check accepts the current file."""
    unfinished = []
    for name in CHECKS:
        path = BUILD / f"{name}.py"
        with redirect_stdout(io.StringIO()):  # the reader's code may print
            is_done = path.exists() and attempt(name, path).is_right
        if not is_done:
            unfinished.append(name)
        print(f"{'done' if is_done else 'open'}   {name:<16} {text_of(name).splitlines()[0]}")
    print(f"\n{len(CHECKS) - len(unfinished)} of {len(CHECKS)} are done.", end=" ")
    if unfinished:
        print(f"Next: python -m notebooks.check {unfinished[0]}")
    else:
        print("All of this is yours now.")
    return 0


def begin(name: str, path: Path) -> int:
    path.write_text(stub(name), encoding="utf-8")
    print(f"{text_of(name)}\n\nNow open {path.as_posix()} in an editor.", end=" ")
    print(f"Replace the line that ends in `{GAP_ENDS}`.")
    print(f"Then run the same command again:  python -m notebooks.check {name}")
    return 1


def try_it(name: str, path: Path) -> int:
    is_right, sentence, hint = attempt(name, path)
    if not is_right:
        print(f"Not yet. {sentence}")
        if not sentence.endswith("still to be written."):  # no hint before the first try
            print(f"Hint: {hint}")
        return 1
    print(f"Right. {sentence}\nCompare with {(SOLUTIONS / path.name).as_posix()}.")
    names = list(CHECKS)
    later = names[names.index(name) + 1 :]
    if later:
        print(f"Next: python -m notebooks.check {later[0]}")
    else:
        print("That was the last exercise.")
    return 0


def attempt(name: str, path: Path) -> Verdict:
    """Run the reader's file and its check."""

    def check(file: Path) -> str:
        return CHECKS[name](run_file(file))

    return judged(check, path.absolute(), HINTS[f"build.{name}"], path.absolute(), path.as_posix())


def text_of(name: str) -> str:
    """Return the text of an exercise: its solution's docstring, with a title and minutes."""
    code = (ROOT / SOLUTIONS / f"{name}.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(code)) or ""


def stub(name: str) -> str:
    """Return the solution with a gap for the reader's code."""
    code = (SOLUTIONS / f"{name}.py").read_text(encoding="utf-8")
    code = GAP.sub(rf"\1raise NotImplementedError  {GAP_ENDS}", code)
    if "\nimport torch\n" not in code:  # the reader may need it
        code = code.replace("\nfrom torch import", "\nimport torch\nfrom torch import")
    return code


if __name__ == "__main__":
    exit_on_bad_input(main)
