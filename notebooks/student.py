"""Copy Headlight for a class, without solutions: `python -m notebooks.student FOLDER`.

The copy has the files that git knows here, as they are now, with these differences:

- notebooks/solutions/ has files with gaps. `python -m notebooks.check` needs no more.
- The notebooks have no solutions.
- The answers in notebooks/broken/answers.yaml are sealed. The right letter opens one.
- tests/ is missing, because it has right answers to every exercise.

Headlight's own code stays, and it computes the same things. So ask for a sentence of explanation.

With `--classroom` the copy fits GitHub Classroom. It has the two files in .github/ that grade a
push, and git no longer ignores notebooks/build/*.py, because students hand these files in.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
from base64 import b64encode
from pathlib import Path

from configs.command import InputError, exit_on_bad_input
from configs.parse import parse_yaml
from notebooks.broken.judge import SEAL, scrambled
from notebooks.check import CHECKS, SOLUTIONS, stub
from notebooks.labels import BUILD as LABELS
from notebooks.start import ROOT

LEFT_OUT = (".ci/", ".github/", "tests/")
SHOWN_SOLUTION = re.compile(
    r"\s*<details>\s*<summary>(Solution|答案)</summary>.*?</details>", re.DOTALL
)
ABOUT_SOLUTIONS = re.compile(r"^- .*\.\./solutions.*\n", re.MULTILINE)
HAND_IN = "notebooks/build/*.py\n"  # a line of .gitignore


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    command = "python -m notebooks.student"
    parser = argparse.ArgumentParser(prog=command, description=__doc__, formatter_class=form)
    parser.add_argument("folder", type=Path, help="a folder that is new or empty")
    parser.add_argument("--classroom", action="store_true", help="for GitHub Classroom")
    args = parser.parse_args()
    copy_for_students(args.folder, for_classroom=args.classroom)
    print(f"{args.folder}: Headlight without solutions.")
    return 0


def copy_for_students(folder: Path, *, for_classroom: bool = False) -> None:
    """Write the copy. Raises InputError if the folder has files, or if this is no checkout."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not empty: name a new folder")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        raise InputError(f"{ROOT} is no git checkout, so there is no list of its files")
    for name in listed.stdout.decode().split("\0"):
        if (ROOT / name).is_file() and not name.startswith(LEFT_OUT):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for name in CHECKS:
        (folder / SOLUTIONS / f"{name}.py").write_text(stub(name), encoding="utf-8")
    readme = folder / "notebooks" / "build" / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(ABOUT_SOLUTIONS.sub("", text), encoding="utf-8")
    for path in (folder / "notebooks").rglob("*.ipynb"):
        remove_solutions(path)
    seal_answers(folder / "notebooks" / "broken" / "answers.yaml")
    if for_classroom:
        write_classroom_files(folder)


def remove_solutions(path: Path) -> None:
    """Remove what is under `Solution` in a notebook, and cells that are empty then."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        cell["metadata"].pop("wrong", None)
        if cell["cell_type"] == "markdown":
            without = SHOWN_SOLUTION.sub("", text)
            cell["source"] = without.splitlines(keepends=True)
            if text and not without.strip():
                continue
        cells.append(cell)
    notebook["cells"] = cells
    text = json.dumps(notebook, ensure_ascii=False, indent=1)
    path.write_text(f"{text}\n", encoding="utf-8")


def seal_answers(path: Path) -> None:
    """Replace the cause of each broken training, and its reason, by bytes that the cause opens."""
    answers = parse_yaml(path.read_text(encoding="utf-8"), path.name)
    for number, training in answers["trainings"].items():
        reason = SEAL + training.pop("why").encode()
        sealed = scrambled(reason, number + training.pop("cause"))
        training["sealed"] = b64encode(sealed).decode()
    # JSON is YAML, too
    path.write_text(json.dumps(answers, ensure_ascii=False, indent=1), encoding="utf-8")


def write_classroom_files(folder: Path) -> None:
    """Write the list of tests and the workflow of GitHub Classroom, a test for each exercise."""
    tests = [
        {
            "name": name,
            "setup": "",
            "run": f"python -m notebooks.check {name}",  # exit code 0 is a pass
            "input": "",
            "output": "",
            "comparison": "included",
            "timeout": 5,  # minutes
            "points": LABELS[name].minutes,
        }
        for name in CHECKS
    ]
    github = folder / ".github"
    for name in ("classroom", "workflows"):
        (github / name).mkdir(parents=True)
    text = json.dumps({"tests": tests}, indent=1)
    (github / "classroom" / "autograding.json").write_text(f"{text}\n", encoding="utf-8")
    workflow = ROOT / "notebooks" / "classroom" / "classroom.yml"
    shutil.copy(workflow, github / "workflows" / "classroom.yml")
    ignored = folder / ".gitignore"
    rules = ignored.read_text(encoding="utf-8")
    ignored.write_text(rules.replace(HAND_IN, ""), encoding="utf-8")


if __name__ == "__main__":
    exit_on_bad_input(main)
