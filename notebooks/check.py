"""Build the parts of a language model yourself: `python -m notebooks.check NAME`.

The first call writes notebooks/build/NAME.py, a file with a gap, and explains the task. Fill the
gap and run the same command again. It compares the results of your code with float64 numbers.
Without a NAME it lists the exercises. `--again` restarts an exercise, and keeps your old file.

    python -m notebooks.check --json [NAME …]

prints one JSON object for a class: what is done, what is open, and why. It names nobody.
HEADLIGHT_VARIANT=7 gives the checks other random numbers, and the object holds the variant.

    python -m notebooks.check assemble

builds notebooks/mine/my_model.py from your parts, a language model that trains and writes.

    0      your code is right
    1      not yet
    2      bad input: there is no such exercise

The files with gaps come from notebooks/solutions/, so they always fit the checks.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tomllib
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

from configs.command import InputError, exit_on_bad_input
from configs.text import did_you_mean
from model.backends.mine import run_file
from notebooks import assemble
from notebooks.broken.judge import judge
from notebooks.checks import attention, backward, parts, training
from notebooks.checks.examples import variant
from notebooks.checks.verdict import Verdict, judged
from notebooks.labels import BUILD as LABELS
from notebooks.start import HINTS, ROOT

CHECKS: dict[str, Callable[[ModuleType], str]] = (
    attention.CHECKS | backward.CHECKS | parts.CHECKS | training.CHECKS
)
# The exercises are in this order: the model first, in the order in which its parts need each other.
ORDER = (
    "softmax causal_mask attention repeat_kv rope kv_cache tokenizer embedding autograd rmsnorm "
    "mlp block loss attention_backward model batches loop sampling bpe masks online_softmax "
    "linear_attention optimizer_step muon label_mask lora preference_loss group_advantage"
)
CHECKS = {name: CHECKS[name] for name in ORDER.split()}
# notebooks.start makes the repository the working directory.
BUILD = Path("notebooks/build")
SOLUTIONS = Path("notebooks/solutions")
MY_MODEL = Path("notebooks/mine/my_model.py")
GAP_ENDS = "# your code"
GAP = re.compile(r"^( *)# <solution>\n.*?^ *# </solution>$", re.DOTALL | re.MULTILINE)


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    command = "python -m notebooks.check"
    parser = argparse.ArgumentParser(prog=command, description=__doc__, formatter_class=form)
    parser.add_argument("name", nargs="?", help="an exercise; without it, list all")
    answer = "after `broken`: the number of a training, and the letter of a cause"
    parser.add_argument("answer", nargs="*", help=answer)
    again = "start again; your old file is kept beside the new one"
    parser.add_argument("--again", action="store_true", help=again)
    parser.add_argument("--json", action="store_true", help="print one JSON object, for a class")
    args = parser.parse_args()
    if args.json:
        names = [args.name, *args.answer] if args.name else [*CHECKS]
        return print_report([known(name) for name in names])
    if args.name is None:
        return list_exercises()
    if args.name == "broken":  # the break-it lab, notebooks/broken/README.md
        return judge(*args.answer)
    if args.name == "assemble":
        return assemble_model()
    if args.answer:
        raise InputError(f"an exercise has one name: {command} {args.name}")
    path = BUILD / f"{known(args.name)}.py"
    if args.again and path.exists():
        old = assemble.set_aside(path)
        print(f"Your old file is now {old.as_posix()}.\n")
    return try_it(args.name, path) if path.exists() else begin(args.name, path)


def known(name: str) -> str:
    """Return the name of an exercise. Raises InputError if there is none of this name."""
    if name not in CHECKS:
        hint = did_you_mean(name, {name: name for name in CHECKS})
        names = ", ".join(CHECKS)
        raise InputError(f"there is no exercise {name!r}{hint}. There are: {names}")
    return name


def list_exercises() -> int:
    """List all exercises. An exercise is done if its check accepts the current file."""
    unfinished = []
    print("The numbers are difficulty (1 to 5), importance (1 to 5) and minutes.\n")
    for name in CHECKS:
        is_right = current(name).is_right
        if not is_right:
            unfinished.append(name)
        difficulty, importance, minutes = LABELS[name]
        label = f"{name:<18} {difficulty}  {importance}  {minutes:>2}"
        print(f"{'done' if is_right else 'open'}   {label}   {title_of(name)}")
    print(f"\n{len(CHECKS) - len(unfinished)} of {len(CHECKS)} are done.", end=" ")
    if unfinished:
        print(f"Next: python -m notebooks.check {unfinished[0]}")
    else:
        print("All of this is yours now.")
    return 0


def print_report(names: list[str]) -> int:
    """Print one JSON object about these exercises. It holds no name, no path and no code."""
    rows = []
    for name in names:
        verdict = current(name)
        rows.append(
            {
                "exercise": name,
                "state": "done" if verdict.is_right else "open",
                # an error may name a file of the reader's
                "sentence": verdict.sentence.replace(str(Path.home()), "~"),
                "minutes": LABELS[name].minutes,
            }
        )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    report = {"headlight": project["version"], "variant": variant(), "exercises": rows}
    print(json.dumps(report, ensure_ascii=False, indent=1))
    return 0


def begin(name: str, path: Path) -> int:
    path.write_text(stub(name), encoding="utf-8")
    difficulty, importance, _ = LABELS[name]
    print(f"Difficulty {difficulty} of 5, importance {importance} of 5.\n")
    print(f"{text_of(name)}\n\nNow open {path.as_posix()} in an editor.", end=" ")
    print(f"Replace each line that ends in `{GAP_ENDS}`.")
    print(f"Then run the same command again:  python -m notebooks.check {name}")
    return 1


def try_it(name: str, path: Path) -> int:
    verdict = attempt(name, path)
    print(verdict.text())
    if not verdict.is_right:
        return 1
    solution = SOLUTIONS / path.name
    if GAP.search(solution.read_text(encoding="utf-8")):  # a class gets files with gaps
        print(f"Compare with {solution.as_posix()}.")
    names = list(CHECKS)
    later = names[names.index(name) + 1 :]
    if later:
        print(f"Next: python -m notebooks.check {later[0]}")
    else:
        print("This is the last one. To see what is open: python -m notebooks.check")
    return 0


def attempt(name: str, path: Path) -> Verdict:
    """Run the reader's file and its check. The parts that it imports must be right, too."""
    build = ModuleType("notebooks.build")
    build.__path__ = [str(path.parent)]
    for module in [key for key in sys.modules if key.startswith("notebooks.build")]:
        del sys.modules[module]  # the reader may have changed it
    sys.modules["notebooks.build"] = build
    for part in sorted(needs(path), key=list(CHECKS).index):
        file = path.with_name(f"{part}.py")
        if not file.exists() or not attempt(part, file).is_right:
            command = f"python -m notebooks.check {part}"
            return Verdict(False, f"{name} uses your {part}, which is not right yet: {command}")

    def check(file: Path) -> str:
        return CHECKS[name](run_file(file))

    return judged(check, path.absolute(), HINTS[f"build.{name}"], path.absolute(), path.as_posix())


def needs(path: Path) -> list[str]:
    """Return the exercises whose code this file imports from the same folder."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError:
        return []  # the check reports it, with its line
    return [name for name in assemble.imported_parts(tree) if name in CHECKS]


def assemble_model() -> int:
    """Write notebooks/mine/my_model.py from the reader's parts, and compare it with one_file.py."""
    ending = SOLUTIONS / "ending.py"
    needed = assemble.needed_parts(ending)
    is_right = {name: current(name).is_right for name in CHECKS}
    missing = [name for name in CHECKS if name in needed and not is_right[name]]
    if missing:
        print(f"Not yet. A model needs {len(needed)} parts. These are open: {', '.join(missing)}.")
        print(f"Next: python -m notebooks.check {missing[0]}")
        return 1
    # yours may import other parts than ours do
    used = {part for name in needed for part in (name, *needs(BUILD / f"{name}.py"))}
    files = {name: BUILD / f"{name}.py" for name in CHECKS if name in used}
    lines = assemble.write_model({**files, "ending": ending}, MY_MODEL)
    print(f"{MY_MODEL.as_posix()}: {lines} lines, from {len(files)} parts of yours.\n")
    try:
        print(*assemble.compare(run_file(MY_MODEL.absolute())), sep="\n")
    except AssertionError as error:
        print(f"Not yet. {error}")
        return 1
    module = "python -m notebooks.mine.my_model"
    print("\nThis is one_file.py's model, and every part of it is yours. Now:\n")
    print(f"    {module} write pretrained/small/checkpoints/step_00001200")
    print(f"    {module} train README.md")
    return 0


def current(name: str) -> Verdict:
    """Judge the reader's current file of an exercise."""
    path = BUILD / f"{name}.py"
    if not path.exists():
        return Verdict(False, f"{name} is not begun: python -m notebooks.check {name}")
    with redirect_stdout(io.StringIO()):  # the reader's code may print
        return attempt(name, path)


def text_of(name: str) -> str:
    """Return the text of an exercise: the docstring of its solution, with a title and minutes."""
    code = (ROOT / SOLUTIONS / f"{name}.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(code)) or ""


def title_of(name: str) -> str:
    """Return the title in the first line of an exercise's text: `Softmax: …. 5 minutes.`"""
    return text_of(name).splitlines()[0].rsplit(". ", 1)[0]


def stub(name: str) -> str:
    """Return the solution with a gap for the reader's code."""
    code = (SOLUTIONS / f"{name}.py").read_text(encoding="utf-8")
    code = code.replace("from notebooks.solutions.", "from notebooks.build.")
    code = GAP.sub(rf"\1raise NotImplementedError  {GAP_ENDS}", code)
    if "\nimport torch\n" not in code:  # readers may use torch itself
        code = code.replace("\nfrom torch import", "\nimport torch\nfrom torch import")
    return code


if __name__ == "__main__":
    exit_on_bad_input(main)
