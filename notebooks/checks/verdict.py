"""Judge an answer, for the notebooks and for `python -m notebooks.check`."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from configs.language import translated
from model.backends.mine import blame


class Verdict(NamedTuple):
    is_right: bool
    sentence: str  # about the success; or what was given, what came and what must come
    hint: str = ""

    @property
    def is_begun(self) -> bool:
        """Return False if the reader has not filled the gap yet: then a hint is too early."""
        return not self.sentence.endswith("still to be written.")

    def text(self) -> str:
        """Return what the reader sees, in a notebook and in a terminal."""
        if self.is_right:
            return translated(f"Right. {self.sentence}".strip())
        hint = f"\nHint: {self.hint}" if self.hint and self.is_begun else ""
        return translated(f"Not yet. {self.sentence}{hint}")


Check = Callable[[Any], Any]
Hints = str | Mapping[str, str]
UNKNOWN_NAME = (
    "Is this name misspelt? In a notebook, first run the cell above that makes it. "
    "In a file, import it at the top."
)


def judged(check: Check, answer: Any, hints: Hints, file: Path, name: str) -> Verdict:
    """Run a check. It raises AssertionError with a sentence if something differs.

    - hints: one for every mistake, or hints by symptom: a piece of the sentence or a wrong answer
      in Python, and "else"
    - file: the reader's code; name: its name in a sentence
    """
    try:
        return Verdict(True, check(answer) or "")
    except (Exception, SystemExit) as error:  # the reader's code may raise anything
        sentence = explain(error, file, name)
        if type(error) is NameError:  # a cell above has not run: hints about the answer mislead
            return Verdict(False, sentence, translated(UNKNOWN_NAME))
        return Verdict(False, sentence, hint_for(sentence, str(error), check, hints))


def explain(error: BaseException, file: Path, name: str) -> str:
    """Return the sentence of a check, or the error with its line in the reader's file."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if frame.filename == str(file)]
    if isinstance(error, AssertionError) and frames[-1] not in theirs:
        return str(error)
    if isinstance(error, NotImplementedError) and theirs:
        return f"{name}, line {theirs[-1].lineno} is still to be written."
    return blame(error, file).replace(str(file), name)


def hint_for(sentence: str, problem: str, check: Check, hints: Hints) -> str:
    """Return the hint whose key is in the sentence, or is a wrong answer with the same problem."""
    if isinstance(hints, str):
        return hints
    for wrong, hint in hints.items():
        if wrong == "else":
            continue
        if wrong in sentence:
            return hint
        try:
            check(eval(wrong, {"torch": torch, "math": math}))
        except Exception as error:
            if str(error) == problem:
                return hint
    return hints["else"]
