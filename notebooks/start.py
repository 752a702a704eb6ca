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
from contextlib import suppress
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


class Sentence(Exception):
    """An error of which a notebook shows the sentence alone."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def demo() -> Path:
    """runs/demo where `make story` made it, else runs/small, which is trained now, in about a minute."""
    if is_finished("demo"):
        return trained("demo")
    if not is_finished("small"):
        print("There is no runs/demo here (`make story` trains it): taking a smaller one")
    return small()


def small() -> Path:
    """runs/small, the small config as it is (MHA); if it is missing it is trained now, in about a minute."""
    return trained("small", "train.pretrain", CONFIG)


def rung(name: str, seed: int) -> Path:
    """A run of one rung of configs/ladder.yaml ("baseline": none) in LADDER_STEPS steps, trained where it is missing.

    Raises Sentence for a name that is not a rung.
    """
    from train.sweep import plan

    own = [f"seed={seed}", f"train.max_steps={LADDER_STEPS}", "train.cooldown=0.2", "train.processes=auto"]
    runs = {run.label: run for run in plan(LADDER, own, seeds=1)}
    if name not in runs:
        raise Sentence(f"{name!r} is not a rung: choose {', '.join(runs)}.")
    return trained(f"ladder-yours-{name}-seed{seed}", "train.pretrain", LADDER, *runs[name].overrides[:-1])


def taught(name: str, *changes: str) -> Path:
    """runs/small after a few steps of fine-tuning on questions, trained where it is missing. changes: of its config."""
    small()
    return trained(f"small-{name}", "train.sft", QUESTIONS, *TAUGHT, *changes)


def is_finished(name: str) -> bool:
    """Whether runs/<name> was trained to its end: result.json is the last file that a run writes."""
    return (ROOT / "runs" / name / "result.json").is_file()


def trained(name: str, *command: str) -> Path:
    """The directory of a run, as a path from the repository. `python -m command` trains it where it is missing.

    Raises Sentence where training ends in an error, and where the run cannot be read, for example because an older
    Headlight wrote it.
    """
    from eval.load_model import open_model

    run = Path("runs") / name
    if command and not is_finished(name):
        print(f"training {run.as_posix()}: a minute or so …")
        train([*command, f"name={name}"], run)
    try:
        open_model(run, "cpu")
    except InputError as error:
        raise Sentence(
            f"{error}. If an older Headlight wrote it: rename {run.as_posix()} and run this cell again."
        ) from error
    return run


def train(command: list[str], run: Path) -> None:
    """Train a run in a process of its own; a line says how far it is. It does not outlive its cell."""
    began, environment = time.perf_counter(), os.environ | {"PYTHONUTF8": "1"}
    output: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    output |= {"text": True, "encoding": "utf-8", "errors": "replace"}
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, env=environment, **output)
    said = None
    try:
        while said is None:
            try:
                said, _ = process.communicate(timeout=PROGRESS_SECONDS)
            except subprocess.TimeoutExpired:
                lines = read_metrics(ROOT / run, lambda problem: None)
                print(f"\r{run.name}: step {lines[-1]['step'] if lines else 0:,}", end=" … ", flush=True)
    finally:
        if process.poll() is None:  # it saves its step and ends (on Windows it ends); another call continues
            process.terminate()
            process.communicate()
    if process.returncode:
        lines = said.strip().splitlines() or ["it said nothing"]
        reason = next((line for line in reversed(lines) if "error: " in line), lines[-1])
        raise Sentence(f"training {run.as_posix()} stopped with code {process.returncode}: {reason}")
    print(f"\rdone in {time.perf_counter() - began:.0f} seconds")


def play(draw: Callable[..., Any], **controls: Any) -> None:
    """ipywidgets' `interact`: a control for each argument of `draw`, which is called again when one moves.

    Without ipywidgets, one sentence says what to install; the figures above stay.
    """
    try:
        from ipywidgets import interact
    except ModuleNotFoundError:
        print("To play with this: `.venv/bin/python -m pip install ipywidgets`, then start the notebook again.")
    else:
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


os.chdir(ROOT)
with suppress(ModuleNotFoundError):
    from IPython import get_ipython

    if get_ipython() is not None:  # an InputError, which a command line prints as one line, is one line here too
        InputError._render_traceback_ = lambda error: [str(error)]  # type: ignore[attr-defined]
