"""`python -m notebooks.check broken 3 CAUSE`: is this what is wrong with training 3? Without a CAUSE it lists them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from configs.command import InputError
from configs.loader import parse_yaml


def answers() -> dict[str, Any]:
    """answers.yaml: `causes` and `signs`, letter -> words; and for every number its cause, and what to say."""
    return parse_yaml(Path(__file__).with_name("answers.yaml").read_text(encoding="utf-8"), "answers.yaml")


def judge(number: str = "", cause: str = "", *more: str) -> int:
    """Print whether the cause is right, and why. Returns the exit code: 0 right or listed, 1 not yet.

    Raises InputError for a number or a letter that does not exist.
    """
    causes, trainings = answers()["causes"], answers()["trainings"]
    if (number and number not in trainings) or more:
        raise InputError(f"name a training, {', '.join(trainings)}, and the letter of a cause")
    if not cause:
        print("What may be wrong with a training:\n")
        for letter, words in causes.items():
            print(f"    {letter}   {words}")
        print(f"\nYour answer:  python -m notebooks.check broken {number or 'NUMBER'} LETTER")
        return 0
    if (letter := cause.lower()) not in causes:
        raise InputError(f"{cause!r} is no cause: choose {', '.join(causes)}")
    training = trainings[number]
    if letter != training["cause"]:
        print(f"Not yet. The signs do not fit this cause: {causes[letter]}.\n{answers()['signs'][letter]}")
        print(f"Look next: {training['look']}")
        return 1
    print(f"Right: {causes[letter]}.\n\n{training['why'].strip()}\n\nThe fault stands in notebooks/broken/{number}.py.")
    return 0
