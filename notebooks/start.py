"""What every notebook begins with: a run to look at, something to play with, and checks that can fail.

    from notebooks.start import check, demo, play, same

Importing it makes the repository the working directory, so that `runs/demo` is the same from everywhere, and shows an
error of a kind that people can mend as its one sentence, without a traceback.
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
from configs.loader import parse_yaml
from eval.run_files import read_metrics
from notebooks.checks.compare import is_value
from notebooks.checks.compare import same as same
from notebooks.checks.verdict import judged

ROOT = Path(__file__).resolve().parents[1]
HINTS = parse_yaml((ROOT / "notebooks/hints.yaml").read_text(encoding="utf-8"), "hints.yaml")  # "01.2" -> a hint
if Path.cwd().name == "zh" and not os.environ.get("HEADLIGHT_LANG"):
    os.environ["HEADLIGHT_LANG"] = "zh"  # who reads a notebook in Chinese is answered in Chinese
if language() == "zh":
    HINTS |= parse_yaml((ROOT / "notebooks/hints.zh.yaml").read_text(encoding="utf-8"), "hints.zh.yaml")
CONFIG = "configs/small.yaml"
LADDER, RECALL = "configs/ladder.yaml", "configs/recall.yaml"
LADDER_STEPS = 1400  # of one run in notebook 12: fewer than the recorded ones have, so it ends in a minute
TAUGHT = ["data.source.documents=1500", "train.max_steps=120", "data.source.validation_documents=40"]
TAUGHT += ["train.checkpoint_every=0", "eval.every=0", "eval.questions=0"]
TAUGHT += ["eval.attention.every=0"]  # what notebook 13 trains in half a minute
YOUR_CELL = "Your cell"  # what a sentence calls it
PROGRESS_SECONDS = 2  # between two looks at how far a training is


def demo() -> Path:
    """The run that you trained, runs/demo or else runs/small; where there is neither, the demo that comes with us."""
    run = None if is_finished("small") and not is_finished("demo") else finished("demo")
    return named(run) if run else small()


def small() -> Path:
    """runs/small, the small config as it is (MHA), or the one that comes with us; without both it is trained now."""
    return named(finished("small") or trained("small", "train.pretrain", CONFIG))


def shipped(name: str) -> Path:
    """pretrained/<name>: the run whose numbers a notebook tells. Those of `demo()` and `small()` may be others."""
    return described(Path("pretrained") / name)


def finished(name: str) -> Path | None:
    """runs/<name> if it was trained to its end, else pretrained/<name>; None where there is neither."""
    own, shipped = Path("runs") / name, Path("pretrained") / name
    return own if is_finished(name) else shipped if (ROOT / shipped / "result.json").is_file() else None


def named(run: Path) -> Path:
    """The run, after lines that say which one it is."""
    if run.parent.name == "pretrained":
        print(translated(f"runs/{run.name} is not trained yet: using {run.as_posix()}"))
    return described(run)


def described(run: Path) -> Path:
    """The run, after a line that says which model a notebook's outputs show: a test compares it with today's config."""
    from train.config import load_run_config

    result = json.loads((ROOT / run / "result.json").read_text(encoding="utf-8"))
    train = load_run_config(ROOT / run / "config.yaml").train
    size = f"{result['parameters']:,} parameters, {result['step']:,} steps of {train.tokens_per_step:,} tokens"
    print(f"{run.as_posix()}: {size}")
    return run


def rung(name: str, seed: int) -> Path:
    """A run of one rung of configs/ladder.yaml ("baseline": none) in LADDER_STEPS steps, trained where it is missing.

    Raises InputError for a name that is not a rung.
    """
    from train.run.sweep import plan

    own = [f"seed={seed}", f"train.max_steps={LADDER_STEPS}", "train.cooldown=0.2", "train.processes=auto"]
    runs = {run.label: run for run in plan(LADDER, own, seeds=1)}
    if name not in runs:
        raise InputError(f"{name!r} is not a rung: choose {', '.join(runs)}.")
    return trained(f"ladder-yours-{name}-seed{seed}", "train.pretrain", LADDER, *runs[name].overrides[:-1])


def taught(name: str, *changes: str) -> Path:
    """small() after a few steps of fine-tuning on questions, trained where it is missing. changes: of its config."""
    base = finished("small") or trained("small", "train.pretrain", CONFIG)
    start = [f"{key}={base.as_posix()}" for key in ("init_from", "data.tokenizer.path")]
    return trained(f"small-{name}", "train.sft", "configs/sft_demo.yaml", *start, *TAUGHT, *changes)


def train_point(kv_heads: int, head_dim: int) -> Any:
    """A model of configs/recall.yaml with this many key/value heads of this size, as a point for the figure of notebook
    03. It is trained once, then read again. Raises InputError for what the figure has no place for."""
    from eval.compare.pictures import Point
    from eval.lookups import half_at

    if kv_heads not in (1, 2, 4, 8) or head_dim % 2 or not 4 <= head_dim <= 32:
        raise InputError("8 query heads share 1, 2, 4 or 8 key/value heads; a head has an even size from 4 to 32.")
    inner, parameters, numbers = balanced(kv_heads, head_dim)
    sizes = {"num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": inner}
    overrides = [f"model.{key}={value}" for key, value in sizes.items()]
    run = trained(f"recall-yours-{kv_heads}x{head_dim}", "train.pretrain", RECALL, *overrides)
    looks = [line for line in read_metrics(run, lambda problem: None) if line["split"] == "recall"]
    ends, halves = [looks[-1]["accuracy"]], [half_at(looks)]
    return Point(str(kv_heads), head_dim, 2 * numbers, parameters, ends, halves, looks[-1]["step"])


def balanced(kv_heads: int, head_dim: int) -> tuple[int, int, int]:
    """(intermediate_size, parameters, numbers of a token in the cache): what heads save, feed-forward layers get.

    The parameters are those of the config as it is, to within one unit of the feed-forward layers. Raises InputError
    where the heads alone take more.
    """
    from data.tokenizer import DEFAULT_VOCAB_SIZE
    from model.transformer import on_meta
    from train.config import load_run_config

    run = load_run_config(RECALL)
    base = run.model.model_copy(update={"vocab_size": run.data.tokenizer.vocab_size or DEFAULT_VOCAB_SIZE})
    model = base.model_copy(update={"num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": 8})
    unit = 3 * model.hidden_size * model.num_hidden_layers  # a row or a column of three matrices in every layer
    inner = 8 + round((on_meta(base).num_parameters() - on_meta(model).num_parameters()) / unit)
    if inner < 8:
        raise InputError(f"{kv_heads} heads of {head_dim} have more parameters than any model of the figure.")
    model = model.model_copy(update={"intermediate_size": inner})
    return inner, on_meta(model).num_parameters(), model.num_hidden_layers * model.cache_numbers


def is_finished(name: str) -> bool:
    """Whether runs/<name> was trained to its end: result.json is the last file that a run writes."""
    return (ROOT / "runs" / name / "result.json").is_file()


def trained(name: str, *command: str) -> Path:
    """The directory of a run, which `python -m command` trains where it is missing. Raises InputError if it cannot."""
    run = Path("runs") / name
    if not is_finished(name):
        print(translated(f"training {run.as_posix()}: a minute or so …"))
        train([*command, f"name={name}"], run)
    return run


def train(command: list[str], run: Path) -> None:
    """Train a run in a process of its own; a line says how far it is. It does not outlive its cell."""
    began, output = time.perf_counter(), None
    process = subprocess.Popen(
        [sys.executable, "-m", *command], cwd=ROOT, env=os.environ | {"PYTHONUTF8": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
    )  # fmt: skip
    try:
        while output is None:
            try:
                output, _ = process.communicate(timeout=PROGRESS_SECONDS)
            except subprocess.TimeoutExpired:
                lines = read_metrics(ROOT / run, lambda problem: None)
                print(f"\r{run.name}: step {lines[-1]['step'] if lines else 0:,}", end=" … ", flush=True)
    finally:
        if process.poll() is None:  # it saves its step and ends (on Windows it ends); another call continues
            process.terminate()
            process.communicate()
    if process.returncode:
        words = output.strip().splitlines() or ["it output nothing"]
        reason = next((line for line in reversed(words) if "error: " in line), words[-1])
        raise InputError(f"training {run.as_posix()} stopped with code {process.returncode}: {reason}")
    print("\r" + translated(f"done in {time.perf_counter() - began:.0f} seconds"))


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


def check(exercise: str, answer: Any, judge: Any, within: float = 0.0) -> None:
    """Say that an answer is right; raises InputError with what differs and a hint if it is not. None: no answer yet.

    - exercise: such as "01.2". Its hint is in hints.yaml, so nobody reads it before the first try
    - judge: the right value, or a function of the answer that asserts what must be (`same` helps)
    - within: how far a number may be off
    """
    hints = HINTS[exercise]
    if answer is None:
        print(translated("No answer yet: change the cell above, and run it and this one."))
        return
    code = getattr(answer, "__code__", None)  # of a function: each cell is a file of its own
    test = judge if callable(judge) else partial(is_value, wanted=judge, tolerance=within)
    file = Path(code.co_filename if code else YOUR_CELL)
    is_right, sentence, hint = judged(test, answer, hints, file, YOUR_CELL)
    if not is_right:
        raise InputError(translated(f"Not yet. {sentence}\nHint: {hint}"))
    print(translated("Right."))


def predicted(guess: float | str | None, truth: float | str, unit: str = "") -> None:
    """Show the reader's guess, made before they saw anything, beside the truth: a number, or one of a few words.

    Raises InputError for a guess that is no number where the truth is one.
    """
    if isinstance(truth, str):
        said, shown = f'"{guess}"', f'it is "{truth}"'
        verdict = "as you said" if str(guess).strip().lower() == truth.lower() else "a surprise"
    else:
        try:
            number, truth = float(guess or 0), float(truth)
        except (TypeError, ValueError):
            raise InputError(f"A guess is a number here, not {guess!r}.") from None
        said, shown = in_words(number), f"it is {in_words(truth)} {unit}".rstrip()
        if number == truth:
            verdict = "exactly"
        elif number * truth <= 0:
            verdict = "far from it"
        elif truth / number >= 1.25:
            verdict = f"{in_words(truth / number)} times as much"
        else:
            verdict = "close" if truth / number > 0.8 else f"you said {in_words(number / truth)} times as much"
    if guess is None:
        line = f"You made no guess; {shown}. Go back to `guess = None`: what you guess first, you remember."
    else:
        line = f"You said {said}, {shown}: {verdict}."
    print(translated(line))


def in_words(number: float) -> str:
    """A number with two or three digits that count: 0.0412, 3.6, 12, 1,234."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


os.chdir(ROOT)
with suppress(ModuleNotFoundError):
    from IPython import get_ipython

    if get_ipython() is not None:  # an InputError, which a command line prints as one line, is one line here too
        InputError._render_traceback_ = lambda error: [str(error)]  # type: ignore[attr-defined]
