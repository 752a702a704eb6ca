"""What every notebook begins with: a run to look at, something to play with, and checks that can fail.

    from notebooks.start import check, demo, play

Importing it makes the repository the working directory, so that `runs/demo` is the same from everywhere, and shows an
error of a kind that people can mend as its one sentence, without a traceback.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from configs.command import InputError
from eval.run_files import read_metrics
from notebooks.hints import HINTS

ROOT = Path(__file__).resolve().parents[1]
CONFIG = "configs/small.yaml"
LADDER = "configs/ladder.yaml"
LADDER_STEPS = 1400  # of one run in notebook 08: fewer than the recorded ones have, so it ends in a minute
QUESTIONS = "configs/sft_demo.yaml"
TAUGHT = ["init_from=runs/small", "data.tokenizer.path=runs/small", "data.source.documents=1500", "train.max_steps=120"]
TAUGHT += ["data.source.validation_documents=40", "train.checkpoint_every=0", "eval.every=0", "eval.questions=0"]
TAUGHT += ["eval.attention.every=0"]  # what notebook 09 trains in half a minute
PROGRESS_SECONDS = 2  # between two looks at how far a training is
SAVING_SECONDS = 60  # that a training which is stopped has for its last step and its checkpoint


class Sentence(Exception):
    """An error of which a notebook shows the sentence alone."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def demo() -> Path:
    """runs/demo where `make story` made it, else runs/small, which is trained now, in about a minute.

    Raises Sentence where a run cannot be read, for example because an older Headlight wrote it.
    """
    if is_finished("demo"):
        return checked("demo")
    if not is_finished("small"):
        print("There is no runs/demo here (`make story` trains it): taking a smaller one")
    return small()


def small() -> Path:
    """runs/small, the small config as it is (MHA); if it is missing it is trained now, in about a minute.

    Raises Sentence where it cannot be read.
    """
    if not is_finished("small"):
        print("training runs/small: a minute or so …")
        train("runs/small", ["small"], ["train.pretrain", CONFIG, "name=small"])
    return checked("small")


def rung(name: str, seed: int) -> Path:
    """A run of one rung of configs/ladder.yaml ("baseline": none) in LADDER_STEPS steps, trained where it is missing.

    Raises Sentence for a name that is not a rung.
    """
    from train.sweep import plan

    own = [f"seed={seed}", f"train.max_steps={LADDER_STEPS}", "train.cooldown=0.2", "train.processes=auto"]
    runs = {run.label: run for run in plan(LADDER, own, seeds=1)}
    if name not in runs:
        raise Sentence(f"{name!r} is not a rung: choose {', '.join(runs)}.")
    run = f"ladder-yours-{name}-seed{seed}"
    if not is_finished(run):
        print(f"training runs/{run}: a minute or so …")
        train(f"runs/{run}", [run], ["train.pretrain", LADDER, *runs[name].overrides[:-1], f"name={run}"])
    return checked(run)


def taught(name: str, *changes: str) -> Path:
    """runs/small after a few steps of fine-tuning on questions, trained where it is missing. changes: of its config."""
    run = f"small-{name}"
    if not is_finished(run):
        small()
        print(f"training runs/{run}: half a minute or so …")
        train(f"runs/{run}", [run], ["train.sft", QUESTIONS, f"name={run}", *TAUGHT, *changes])
    return checked(run)


def train(what: str, names: list[str], command: list[str]) -> None:
    """`python -m command` trains the runs of these names; a line says how far it is."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONUTF8": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    try:
        said = _wait(process, names)
        if process.returncode:
            lines = said.strip().splitlines() or ["it said nothing"]
            reason = next((line for line in reversed(lines) if "error: " in line), lines[-1])
            raise Sentence(f"training {what} stopped with code {process.returncode}: {reason}")
    finally:
        _stop(process)
    print(f"\rdone in {time.perf_counter() - began:.0f} seconds")


def _wait(process: subprocess.Popen[str], names: list[str]) -> str:
    """What the training said when it has ended; until then one line says how far it is."""
    while True:
        try:
            said, _ = process.communicate(timeout=PROGRESS_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"\r{_how_far(names)}", end=" … ", flush=True)
        else:
            return said


def _how_far(names: list[str]) -> str:
    """Such as `small-2-seed0 (2 of 3): step 340`; the first run that is not finished."""
    trains = next((name for name in names if not is_finished(name)), None)
    if trains is None:
        return "comparing" if len(names) > 1 else "finishing"
    place = f" ({names.index(trains) + 1} of {len(names)})" if len(names) > 1 else ""
    return f"{trains}{place}: step {_last_step(trains):,}"


def _last_step(name: str) -> int:
    """The last step in the run's metrics; 0 where there is none yet."""
    lines = read_metrics(ROOT / "runs" / name, lambda problem: None)
    return lines[-1]["step"] if lines else 0


def _stop(process: subprocess.Popen[str]) -> None:
    """No training outlives its cell: it saves its step and ends (on Windows it ends), and another call continues."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.communicate(timeout=SAVING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def is_finished(name: str) -> bool:
    """Whether runs/<name> was trained to its end: result.json is the last file that a run writes."""
    return (ROOT / "runs" / name / "result.json").is_file()


def checked(name: str) -> Path:
    """The run's directory, as a path from the repository; raises Sentence where its checkpoint cannot be read."""
    from eval.load_model import open_model

    run = Path("runs") / name
    try:
        open_model(run, "cpu")
    except InputError as error:
        raise Sentence(
            f"{error}. If an older Headlight wrote it: rename {run.as_posix()} and run this cell again."
        ) from error
    return run


def play(draw: Callable[..., Any], **controls: Any) -> None:
    """ipywidgets' `interact`: a control for each argument of `draw`, which is called again when one moves.

    Without ipywidgets, one sentence says what to install; the figures above stay.
    """
    try:
        from ipywidgets import interact
    except ModuleNotFoundError:
        print("To play with this: `.venv/bin/python -m pip install ipywidgets`, then start the notebook again.")
        return
    interact(draw, **controls)


def check(answer: Any, is_right: Callable[[Any], Any], exercise: str) -> None:
    """Say that the reader's answer is right; raises Sentence with the hint if it is not. None: no answer yet.

    exercise: such as "01.2". Its hint is in notebooks/hints.py, so nobody reads it before the first try.
    """
    hint = HINTS[exercise]
    if answer is None:
        print("No answer yet: change the cell above, and run it and this one.")
        return
    try:
        right = bool(is_right(answer))
    except Exception:  # whatever a wrong answer does to the check
        right = False
    if not right:
        raise Sentence(f"Not yet. {hint}")
    print("Right.")


def _show_sentences() -> None:
    """Let IPython show an InputError, which a command line would print as one line, as one line too."""
    try:
        from IPython import get_ipython
    except ModuleNotFoundError:
        return
    shell = get_ipython()
    if shell is not None:
        InputError._render_traceback_ = lambda error: [str(error)]  # type: ignore[attr-defined]


os.chdir(ROOT)
_show_sentences()
