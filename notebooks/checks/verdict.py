"""Says whether an answer is right: the one checker of the notebooks and of `python -m notebooks.check`."""

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
    sentence: str  # what the reader has now, or what differs
    hint: str = ""


def judged(check: Callable[[Any], Any], answer: Any, hints: str | Mapping[str, str], file: Path, name: str) -> Verdict:
    """Give the answer to its check, which raises AssertionError with a sentence where something differs.

    - hints: one for every mistake, or wrong answers (Python) with a hint for each, and "else" for all others
    - file: where the reader's code is; name: what a sentence calls it
    """
    try:
        return Verdict(True, check(answer) or "")
    except (Exception, SystemExit) as error:  # it is the reader's code
        return Verdict(False, explain(error, file, name), hint_for(str(error), check, hints))


def explain(error: BaseException, file: Path, name: str) -> str:
    """What went wrong, in one sentence with the line of the reader's file; of a check, what it found."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if frame.filename == str(file)]
    if isinstance(error, AssertionError) and frames[-1] not in theirs:
        return str(error)
    if isinstance(error, NotImplementedError) and theirs:
        return f"{name}, line {theirs[-1].lineno} is still to be written."
    return blame(error, file).replace(str(file), name)


def hint_for(problem: str, check: Callable[[Any], Any], hints: str | Mapping[str, str]) -> str:
    """The hint of the wrong answer that has the same problem."""
    if isinstance(hints, str):
        return hints
    for wrong, hint in hints.items():
        try:
            if wrong != "else":
                check(eval(wrong, {"torch": torch, "math": math}))
        except Exception as error:
            if str(error) == problem:
                return hint
    return hints["else"]
