"""notebooks.start finds or trains a run, or prints one sentence with the remedy."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path

import pytest
import torch

from configs.command import InputError
from tests.notebooks.making import FIRST_CELL, ROOT, environment, printed, run_cells, shown_error, tiny_config
from tests.train.helpers import pretrain

IMPORTS = FIRST_CELL.format(names="check, demo, play")
ELSEWHERE = """
import os, pathlib, notebooks.start as start
start.ROOT, start.CONFIG = pathlib.Path({folder!r}), "tiny.yaml"
os.chdir(start.ROOT)
"""  # the runs of a test in a folder of its own


@pytest.fixture
def start(tmp_path, monkeypatch):
    """notebooks.start, with its runs in an empty folder and a config that takes two steps."""
    from notebooks import start

    tiny_config(tmp_path)
    monkeypatch.setattr(start, "ROOT", tmp_path)
    monkeypatch.setattr(start, "CONFIG", "tiny.yaml")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return start


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A finished run of two steps; copy it before changing it."""
    folder = tmp_path_factory.mktemp("trained")
    with chdir(folder):
        pretrain(tiny_config(folder), "name=demo")
    return folder / "runs" / "demo"


@pytest.mark.slow
def test_a_notebook_finds_the_repository_from_another_folder(tmp_path):
    (cell,) = run_cells(tmp_path, f"{IMPORTS}\nimport os; print(os.getcwd())")
    assert printed(cell).strip() == str(ROOT)


# ---------------------------------------------------------------------------------------------------------
# runs


@pytest.mark.slow
def test_without_any_demo_run_a_small_one_is_trained_once(start, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(start, "PROGRESS_SECONDS", 0.5)
    assert start.demo() == Path("runs/small")
    said = capsys.readouterr().out
    assert "\rsmall: step 0 … " in said
    assert "training runs/small" in said
    report = tmp_path / "runs" / "small" / "report.md"
    before = report.stat().st_mtime_ns
    assert start.demo() == Path("runs/small")
    assert capsys.readouterr().out == "runs/small: 14,392 parameters, 2 steps of 64 tokens\n"
    assert report.stat().st_mtime_ns == before


def test_the_demo_run_is_taken_where_it_is_finished_and_left_alone_where_it_is_not(start, trained, tmp_path):
    for name in ("demo", "small"):
        shutil.copytree(trained, tmp_path / "runs" / name)
    assert start.demo() == Path("runs/demo")
    (tmp_path / "runs" / "demo" / "result.json").unlink()  # half-way: `make story` may be at it
    assert start.demo() == Path("runs/small")


def test_a_run_that_comes_with_us_is_taken_after_your_own(start, trained, tmp_path, capsys):
    for name in ("demo", "small"):
        shutil.copytree(trained, tmp_path / "pretrained" / name)
    assert (start.demo(), start.small()) == (Path("pretrained/demo"), Path("pretrained/small"))
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "runs/demo is not trained yet: using pretrained/demo"
    assert said[1].startswith("pretrained/demo: 14,392 parameters")
    shutil.copytree(trained, tmp_path / "runs" / "small")
    assert start.demo() == start.small() == Path("runs/small")  # it was watched while it learned
    shutil.copytree(trained, tmp_path / "runs" / "demo")
    assert start.demo() == Path("runs/demo")


@pytest.mark.slow
def test_what_training_complains_of_is_one_sentence(start, tmp_path):
    (tmp_path / "runs" / "small").mkdir(parents=True)
    (tmp_path / "runs" / "small" / "diary.txt").write_text("not a run", encoding="utf-8")
    with pytest.raises(InputError, match=r"training runs/\S+ stopped with code 2: error: .*exists and is not a"):
        start.small()


def stopped_while_training(folder: Path) -> tuple[int, str]:
    """SIGINT to the process that waits for a training, as an interrupted cell gets it. (pid of the training, words)"""
    program = ELSEWHERE.format(folder=str(folder)) + (
        "begin = start.subprocess.Popen\n"
        "def tell(*arguments, **options):\n"
        "    process = begin(*arguments, **options)\n"
        "    print(process.pid, flush=True)\n"
        "    return process\n"
        "start.subprocess.Popen = tell\n"
        "start.demo()\n"
    )
    command = [sys.executable, "-c", program]
    metrics = folder / "runs" / "small" / "metrics.jsonl"
    waiting = subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    while waiting.poll() is None and not (metrics.exists() and '"train"' in metrics.read_text(encoding="utf-8")):
        time.sleep(0.05)
    waiting.send_signal(signal.SIGINT)
    said, _ = waiting.communicate(timeout=300)
    pid = next(int(line) for line in said.splitlines() if line.isdecimal())
    return pid, said


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for one process alone")
def test_a_training_ends_with_its_interrupted_cell_and_the_next_call_continues(start, tmp_path):
    tiny_config(tmp_path, steps=10_000_000)
    pid, said = stopped_while_training(tmp_path)
    assert "KeyboardInterrupt" in said
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # if it still ran, it would run for hours
    run = tmp_path / "runs" / "small"
    saved = run / "checkpoints" / (run / "checkpoints" / "latest").read_text(encoding="utf-8").strip()
    step = json.loads((saved / "training/trainer_state.json").read_text(encoding="utf-8"))["step"]
    assert step > 0
    tiny_config(tmp_path, steps=step + 2)
    assert start.demo() == Path("runs/small")
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert max(row["step"] for row in logged) == step + 2
    assert [row["step"] for row in logged if row["split"] == "val"].count(0) <= 1  # it did not begin again


@pytest.mark.slow
def test_a_page_shows_what_people_can_mend_as_its_sentence(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "runs/demo")
    next(run.glob("checkpoints/*/model.safetensors")).write_bytes(b"cut off")
    load = f"from model import load\nload({str(run)!r})"
    _, cell = run_cells(tmp_path, IMPORTS, load)
    assert re.match(r"\S+model.safetensors: cannot be read: [^\n]+$", shown_error(cell))


# ---------------------------------------------------------------------------------------------------------
# play and check


def test_play_shows_controls_and_says_what_to_install_where_there_are_none(start, capsys, monkeypatch):
    start.play(lambda width: print("width", width), width=[3, 5])
    controls = capsys.readouterr().out
    assert "width 3\n" in controls
    assert "Dropdown" in controls
    monkeypatch.setenv("HEADLIGHT_PLAY", "once")  # as notebooks.execute keeps it
    start.play(lambda width, height=2: print("size", width, height), width=(0, 10), height=(0, 4))
    assert capsys.readouterr().out == "size 5 2\n"
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    start.play(lambda width: 1 / 0, width=[3, 5])
    assert capsys.readouterr().out.startswith("To play with this: `.venv/bin/python -m pip install ipywidgets`")


def refusal(start, exercise, answer, judge, **options) -> str:
    with pytest.raises(InputError) as raised:
        start.check(exercise, answer, judge, **options)
    return str(raised.value)


def test_check_takes_what_is_right_and_shows_the_hint_only_after_a_wrong_try(start, capsys):
    hint = start.HINTS["07.1"]["else"]
    start.check("07.1", 4, 4)
    assert capsys.readouterr().out == "Right.\n"
    start.check("07.1", None, lambda answer: 1 / 0)
    said = capsys.readouterr().out
    assert said.startswith("No answer yet")
    assert hint not in said
    problem, given = refusal(start, "07.1", 5, 4).split("\nHint: ")
    assert given == hint
    assert problem == "Not yet. Your answer is 5, and that is too large."
    assert capsys.readouterr().out == ""
    with pytest.raises(KeyError):
        start.check("01.99", None, 4)  # a cell that has no hint is found when it is run


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [(4, 4), (4.0, 4), (torch.tensor(4), 4), (torch.tensor([4.0]), 4), ("less", "less"), ([1, 2], (1, 2)), (71.3, 72)],
)
def test_a_value_may_be_given_in_several_forms(start, capsys, answer, wanted):
    start.check("07.1", answer, wanted, within=1 if wanted == 72 else 0)
    assert capsys.readouterr().out == "Right.\n"


@pytest.mark.parametrize(
    ("answer", "wanted", "problem"),
    [
        (3, 4, "Your answer is 3, and that is too small."),
        ((1, 2), 4, "Your answer is 2 values, and must be one number."),
        ("four", 4, "Your answer is a value of the type str, and must be one number."),
        (abs, 4, "Your answer is a function, and must be one number."),
        ("more", "less", "Your answer is 'more', and that is not it."),
        ((1, 2), (2, 1), "Your answer is (1, 2), and that is not it."),
        (1, (2, 1), "Your answer is a value of the type int, and must be 2 values."),
    ],
)
def test_a_wrong_value_is_refused_without_giving_the_right_one_away(start, answer, wanted, problem):
    assert refusal(start, "07.1", answer, wanted).split("\n")[0] == f"Not yet. {problem}"


def test_a_function_is_told_what_it_returned_and_where_it_failed(start):
    def doubles(function):
        start.same("twice(2)", function(2), 4)

    for right in (lambda n: 2 * n, lambda n: torch.tensor(2 * n), lambda n: torch.tensor(2.0 * n).item()):
        start.check("07.1", right, doubles)
    problems = {
        (lambda n: n): "twice(2) is 2, and must be 4.",
        (lambda n: print(n)): "twice(2) returns None, and must return a result",
        (lambda n: [n]): "twice(2) is 1 value, and must be one number.",
        (lambda n: n.foo): "Your cell, line ",
    }
    for wrong, problem in problems.items():
        assert refusal(start, "07.1", wrong, doubles).startswith(f"Not yet. {problem}")


def test_a_known_mistake_gets_its_own_hint(start, monkeypatch):
    hints = {"lambda n: n * n": "not the square", "lambda n: n.foo": "it has no foo", "else": "double it"}
    monkeypatch.setitem(start.HINTS, "07.1", hints)
    for wrong, hint in [(lambda n: n**2, "not the square"), (lambda n: n.foo, "it has no foo"), (abs, "double it")]:
        said = refusal(start, "07.1", wrong, lambda f: start.same("twice(3)", f(3), 6))
        assert said.split("\nHint: ")[1] == hint


@pytest.mark.parametrize(
    ("guess", "truth", "line"),
    [
        (0.4, 3.6, "You said 0.4, it is 3.6 nats.\n"),
        (0, 3.6, "You said 0, it is 3.6 nats.\n"),
        (401_856, 401_856, "You said 401,856, it is 401,856 nats.\n"),
        ("mqa", "MQA", 'You said "mqa", it is "MQA".\n'),
    ],
)
def test_a_guess_stands_beside_the_truth(start, capsys, guess, truth, line):
    start.predicted(guess, truth, "nats")
    assert capsys.readouterr().out == line


def test_no_guess_is_no_error_and_a_word_is_no_number(start, capsys):
    for truth in (3.6, "MQA"):
        start.predicted(None, truth, "nats a token")
        said = capsys.readouterr().out
        assert said.startswith("You made no guess; it is")
        assert str(truth) in said
    with pytest.raises(InputError, match="a number here, not 'many'"):
        start.predicted("many", 3.6)
