"""`python -m notebooks.student`: a copy of the repository without solutions, in which the checks work; and the files
that grade it at GitHub Classroom and Gradescope, as far as they run without their servers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml

from configs.command import InputError
from notebooks import check
from notebooks.broken import judge
from notebooks.classroom.gradescope import results
from notebooks.labels import BUILD as LABELS
from notebooks.student import copy_for_students
from tests.notebooks.making import ROOT

SOLUTIONS = ROOT / check.SOLUTIONS


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy for GitHub Classroom."""
    folder = tmp_path_factory.mktemp("student") / "copy"
    copy_for_students(folder, for_classroom=True)
    return folder


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the copy, and not of this repository."""
    environment = {**os.environ, "PYTHONPATH": ".", "HEADLIGHT_LANG": "en", **variables}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def check_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(folder, sys.executable, "-m", "notebooks.check", *arguments)


def test_no_solution_is_in_the_copy(copy):
    solved = [path for path in copy.rglob("*.py") if "    # <solution>\n" in path.read_text(encoding="utf-8")]
    assert solved == []
    for name in check.CHECKS:
        assert (copy / check.SOLUTIONS / f"{name}.py").read_text(encoding="utf-8") == check.stub(name)
    assert not (copy / "tests").exists()
    notebooks = list((copy / "notebooks").rglob("*.ipynb"))
    assert len(notebooks) == len(list((ROOT / "notebooks").glob("[0-9]*.ipynb"))) + len(
        list((ROOT / "notebooks" / "zh").glob("*.ipynb"))
    )
    for path in notebooks:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        original = nbformat.read(ROOT / path.relative_to(copy), as_version=4)
        assert not any("<details>" in cell.source or "wrong" in cell.metadata for cell in notebook.cells)
        assert [cell.source for cell in notebook.cells if cell.cell_type == "code"] == [
            cell.source for cell in original.cells if cell.cell_type == "code"
        ]
    assert "solutions" not in (copy / "notebooks" / "build" / "README.md").read_text(encoding="utf-8")


def test_the_answers_of_the_broken_trainings_are_sealed_and_the_right_letter_opens_one(copy, capsys, monkeypatch):
    path = copy / "notebooks" / "broken" / "answers.yaml"
    sealed = yaml.safe_load(path.read_text(encoding="utf-8"))
    plain = judge.answers()
    for number, training in sealed["trainings"].items():
        assert set(training) == {"look", "sealed"}
        for letter in sealed["causes"]:
            expected = judge.reason_of(plain["trainings"][number], number, letter)
            assert judge.reason_of(training, number, letter) == expected
    monkeypatch.setattr(judge, "answers", lambda: sealed)
    assert judge.judge("1", "a") == 1
    assert judge.judge("1", "e") == 0
    assert plain["trainings"]["1"]["why"].strip() in capsys.readouterr().out


def test_a_check_runs_in_the_copy_and_gives_no_solution_away(copy):
    begun = check_in(copy, "softmax")
    assert begun.returncode == 1
    file = copy / "notebooks" / "build" / "softmax.py"
    assert file.read_text(encoding="utf-8") == check.stub("softmax")
    assert check_in(copy, "softmax").stdout.endswith("is still to be written.\n")
    shutil.copy(SOLUTIONS / "softmax.py", file)
    done = check_in(copy, "softmax")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Compare with" not in done.stdout
    file.unlink()


def test_git_ignores_what_is_the_students_own(copy, tmp_path):
    plain = tmp_path / "plain"
    plain.mkdir()
    shutil.copy(ROOT / ".gitignore", plain)
    for folder, own_files in ((plain, True), (copy, False)):
        run(folder, "git", "init", "-q")
        ignored = {
            name: run(folder, "git", "check-ignore", "-q", name).returncode == 0
            for name in ("notebooks/mine/my_model.py", "notebooks/build/softmax.py")
        }
        # at GitHub Classroom students push these files
        assert ignored == {"notebooks/mine/my_model.py": True, "notebooks/build/softmax.py": own_files}
    shutil.rmtree(copy / ".git")


def test_a_folder_with_files_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="is not empty"):
        copy_for_students(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


# --------------------------------------------------------------------------------------------------
# servers of others


@pytest.mark.slow
def test_classrooms_tests_are_commands_that_pass_and_fail_as_their_exit_code_says(copy):
    tests = json.loads((copy / ".github" / "classroom" / "autograding.json").read_text(encoding="utf-8"))["tests"]
    assert [test["name"] for test in tests] == list(check.CHECKS)
    assert [test["points"] for test in tests] == [LABELS[name].minutes for name in check.CHECKS]
    file = copy / "notebooks" / "build" / "mlp.py"
    (mlp,) = [test for test in tests if test["name"] == "mlp"]
    codes = []
    for code in ("class MLP:\n    pass\n", (SOLUTIONS / "mlp.py").read_text(encoding="utf-8")):
        file.write_text(code, encoding="utf-8")
        command = mlp["run"].replace("python ", f"{sys.executable} ", 1)
        codes.append(run(copy, "bash", "-c", command).returncode)
    assert codes == [1, 0]
    file.unlink()
    workflow = yaml.safe_load((copy / ".github" / "workflows" / "classroom.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["build"]["steps"]
    assert steps[-1]["uses"] == "education/autograding@v1"
    for step in steps:
        assert all((copy / name).is_file() for name in step.get("run", "").split() if name.endswith(".txt"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Gradescope runs bash")
def test_gradescope_grades_a_submission(copy, tmp_path):
    """The folders are those of Gradescope's container: source is the unpacked zip file."""
    shutil.copytree(copy, tmp_path / "source", ignore=shutil.ignore_patterns("pretrained"))
    (tmp_path / "results").mkdir()
    submitted = tmp_path / "submission" / "anyfolder"
    submitted.mkdir(parents=True)
    shutil.copy(SOLUTIONS / "softmax.py", submitted)
    (submitted / "rope.py").write_text("def angles(", encoding="utf-8")
    script = str(tmp_path / "source" / "notebooks" / "classroom" / "run_autograder")
    options = {"AUTOGRADER": str(tmp_path), "PYTHON": sys.executable, "EXERCISES": "softmax causal_mask rope"}
    graded = run(tmp_path, "bash", script, **options)
    assert graded.returncode == 0, graded.stderr
    found = json.loads((tmp_path / "results" / "results.json").read_text(encoding="utf-8"))
    rows = [(test["name"], test["score"], test["max_score"], test["status"]) for test in found["tests"]]
    assert rows == [("softmax", 5, 5, "passed"), ("causal_mask", 0, 5, "failed"), ("rope", 0, 25, "failed")]
    assert "SyntaxError" in found["tests"][2]["output"]
    assert found["output"].startswith("Headlight 0.2.0, variant 1")  # the seconds of the clock
    (submitted / "softmax.py").write_text("import os\nos._exit(0)", encoding="utf-8")
    run(tmp_path, "bash", script, **options)
    found = json.loads((tmp_path / "results" / "results.json").read_text(encoding="utf-8"))
    assert found["score"] == 0


def test_the_scripts_of_gradescope_are_bash_and_may_be_run():
    for name in ("setup.sh", "run_autograder"):
        path = ROOT / "notebooks" / "classroom" / name
        assert subprocess.run(["bash", "-n", path], check=False).returncode == 0
        listed = subprocess.run(["git", "ls-files", "-s", path], cwd=ROOT, capture_output=True, text=True, check=True)
        assert listed.stdout.startswith("100755")


def test_a_report_that_is_cut_off_has_no_points():
    assert results("")["score"] == 0
    assert results('{"headlight": "0.1')["score"] == 0
