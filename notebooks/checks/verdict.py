"""Judge an answer, for the notebooks and for `python -m notebooks.check`."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from model.backends.mine import blame


class Verdict(NamedTuple):
    is_right: bool
    sentence: str  # about the success, or the difference
    hint: str = ""


Check = Callable[[Any], Any]
Hints = str | Mapping[str, str]


def judged(check: Check, answer: Any, hints: Hints, file: Path, name: str) -> Verdict:
    """Run a check. It raises AssertionError with a sentence if something differs.

    - hints: one for every mistake, or hints by symptom: a piece of the sentence or a wrong answer
      in Python, and "else"
    - file: the reader's code; name: its name in a sentence
    """
    try:
        return Verdict(True, check(answer) or "")
    except (Exception, SystemExit) as error:  # the reader's code may raise anything
        return Verdict(False, explain(error, file, name), hint_for(str(error), check, hints))


def explain(error: BaseException, file: Path, name: str) -> str:
    """Return the sentence of a check, or the error with its line in the reader's file."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if frame.filename == str(file)]
    if isinstance(error, AssertionError) and frames[-1] not in theirs:
        return str(error)
    if isinstance(error, NotImplementedError) and theirs:
        return f"{name}, line {theirs[-1].lineno} is still to be written."
    return blame(error, file).replace(str(file), name)


def hint_for(problem: str, check: Check, hints: Hints) -> str:
    """Return the hint whose key is in the sentence, or is a wrong answer with the same problem."""
    if isinstance(hints, str):
        return hints
    for wrong, hint in hints.items():
        if wrong == "else":
            continue
        if wrong in problem:
            return hint
        try:
            check(eval(wrong, {"torch": torch, "math": math}))
        except Exception as error:
            if str(error) == problem:
                return hint
    return hints["else"]
