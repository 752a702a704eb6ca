"""Start a notebook: find a run, show controls, check answers.

    from notebooks.start import check, demo, play, same

The import makes the repository the working directory, so a notebook in any folder finds
`runs/demo`. A notebook shows an InputError as one sentence, without a traceback.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from configs.command import InputError
from configs.language import language, translated
from configs.parse import parse_yaml
from eval.run_files import read_metrics
from notebooks.checks.compare import is_value
from notebooks.checks.compare import same as same
from notebooks.checks.verdict import judged

ROOT = Path(__file__).resolve().parents[1]
CONFIG = "configs/small.yaml"
PROGRESS_SECONDS = 2  # A training prints its step at this interval.
YOUR_CELL = "Your cell"  # Sentences call the reader's code by this name.
if Path.cwd().name == "zh" and not os.environ.get("HEADLIGHT_LANG"):
    os.environ["HEADLIGHT_LANG"] = "zh"  # a notebook in Chinese answers in Chinese
HINTS: dict[str, Any] = {}  # from exercise, such as "01.2", to hint
for name in ("hints.yaml", "hints.zh.yaml") if language() == "zh" else ("hints.yaml",):
    HINTS |= parse_yaml((ROOT / "notebooks" / name).read_text(encoding="utf-8"), name)


def demo() -> Path:
    """Return your runs/demo, else your runs/small, else the demo in pretrained/."""
    run = None
    if is_finished("demo") or not is_finished("small"):
        run = finished("demo")
    return described(run) if run else small()


def small() -> Path:
    """Return runs/small or pretrained/small. Train runs/small if neither exists."""
    return described(finished("small") or trained("small", "train.pretrain", CONFIG))


def shipped(name: str) -> Path:
    """Return pretrained/<name>, for text with fixed numbers. `demo()` may return another run."""
    return described(Path("pretrained") / name)


def is_finished(name: str) -> bool:
    """Return True if runs/<name> has result.json, the last file that a run writes."""
    return (ROOT / "runs" / name / "result.json").is_file()


def finished(name: str) -> Path | None:
    """Return runs/<name> if it is finished, else pretrained/<name> if it exists, else None."""
    if is_finished(name):
        return Path("runs") / name
    run = Path("pretrained") / name
    if not (ROOT / run / "result.json").is_file():
        return None
    print(translated(f"runs/{name} is not trained yet: using {run.as_posix()}"))
    return run


def described(run: Path) -> Path:
    """Print the run and its size. A test compares this line with today's config."""
    from train.config import load_run_config

    result = json.loads((ROOT / run / "result.json").read_text(encoding="utf-8"))
    tokens = load_run_config(ROOT / run / "config.yaml").train.tokens_per_step
    size = f"{result['parameters']:,} parameters, {result['step']:,} steps of {tokens:,} tokens"
    print(translated(f"{run.as_posix()}: {size}"))
    return run


def trained(name: str, *command: str) -> Path:
    """Return runs/<name>. Train it with `python -m command` if missing. Raises InputError."""
    run = Path("runs") / name
    if not is_finished(name):
        print(translated(f"training {run.as_posix()}: a minute or so …"))
        train([*command, f"name={name}"], run)
    return run


def train(command: list[str], run: Path) -> None:
    """Train a run in a process that ends with the cell, and print its steps."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONUTF8": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    output = None
    try:
        while output is None:
            try:
                output, _ = process.communicate(timeout=PROGRESS_SECONDS)
            except subprocess.TimeoutExpired:
                metrics = read_metrics(ROOT / run, lambda problem: None)
                step = metrics[-1]["step"] if metrics else 0
                print(f"\r{run.name}: step {step:,}", end=" … ", flush=True)
    finally:
        if process.poll() is None:  # it saves its step and ends; the next call continues
            process.terminate()
            process.communicate()
    if process.returncode:
        lines = output.strip().splitlines() or ["it output nothing"]
        errors = [line for line in lines if "error: " in line]
        reason = (errors or lines)[-1]
        code = process.returncode
        raise InputError(f"training {run.as_posix()} stopped with code {code}: {reason}")
    print("\r" + translated(f"done in {time.perf_counter() - began:.0f} seconds"))


def play(draw: Callable[..., Any], **controls: Any) -> None:
    """Show a control for each argument of `draw`. A change of a control calls `draw` again.

    If ipywidgets is missing, print how to install it. The figures above stay.
    """
    try:
        from ipywidgets import interact, interactive
    except ModuleNotFoundError:
        install = "`.venv/bin/python -m pip install ipywidgets`"
        print(f"To play with this: {install}, then start the notebook again.")
        return
    if os.environ.get("HEADLIGHT_PLAY") != "once":
        interact(draw, **controls)
        return
    # notebooks.execute stores the first drawing for pages, where no control works
    from IPython.display import display

    widgets = interactive(draw, {"manual": True}, **controls).kwargs_widgets
    result = draw(**{widget._kwarg: widget.get_interact_value() for widget in widgets})
    if result is not None:
        display(result)


def check(exercise: str, answer: Any, judge: Any, within: float = 0.0, *, ours: Any = None) -> Any:
    """Print that an answer is right, or raise InputError with the difference and a hint.

    - exercise: such as "01.2". Its hint is in hints.yaml, and unseen before the first try
    - answer: None means no answer yet
    - judge: the right value, or a function of the answer with asserts (`same` helps)
    - within: the largest error of a number
    - ours: our function; then `check` returns the reader's, or ours until there is an answer
    """
    hints = HINTS[exercise]
    if answer is None:
        print(translated("No answer yet: change the cell above, and run it and this one."))
        if ours is not None:
            print(translated("Until then, the cells below use Headlight's function."))
        return ours
    code = getattr(answer, "__code__", None)  # of a function: each cell is a file of its own
    test = judge if callable(judge) else partial(is_value, expected=judge, tolerance=within)
    file = Path(code.co_filename if code else YOUR_CELL)
    verdict = judged(test, answer, hints, file, YOUR_CELL)
    if not verdict.is_right:
        raise InputError(verdict.text())
    print(verdict.text())
    return None if ours is None else answer  # without `ours`, Jupyter would print the answer


def predicted(guess: float | str | None, truth: float | str, unit: str = "") -> None:
    """Print the reader's guess and the truth: a number, or one of a few words.

    Raises InputError for a guess that is no number if the truth is one.
    """
    if isinstance(truth, str):
        right = f'it is "{truth}"'
        your_guess = f'"{guess}"'
    else:
        right = f"it is {in_words(truth)} {unit}".rstrip()
        try:
            your_guess = in_words(float(guess or 0))
        except (TypeError, ValueError):
            raise InputError(f"A guess is a number here, not {guess!r}.") from None
    line = f"You said {your_guess}, {right}."
    if guess is None:
        line = (
            f"You made no guess; {right}. "
            "Go back to `guess = None`: what you guess first, you remember."
        )
    print(translated(line))


def in_words(number: float) -> str:
    """Write a number with three significant digits: 0.0412, 3.6, 12, 1,234."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


os.chdir(ROOT)
with suppress(ModuleNotFoundError):
    from IPython import get_ipython

    if get_ipython() is not None:  # show an InputError as one line, as a command line does
        InputError._render_traceback_ = lambda error: [str(error)]  # type: ignore[attr-defined]
