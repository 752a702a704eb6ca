"""Check the cause of a fault, or list causes: `python -m notebooks.check broken 3 [CAUSE]`."""

from __future__ import annotations

from base64 import b64decode
from hashlib import shake_256
from pathlib import Path
from typing import Any

from configs.command import InputError
from configs.parse import parse_yaml

SEAL = b"Right"  # A reason that was opened with the right letter begins with this.


def answers() -> dict[str, Any]:
    """Read answers.yaml: causes and signs by letter, and trainings by number."""
    text = Path(__file__).with_name("answers.yaml").read_text(encoding="utf-8")
    return parse_yaml(text, "answers.yaml")


def judge(number: str = "", cause: str = "", *more: str) -> int:
    """Print whether the cause is right, and why. Return 0 (right, or only listed) or 1 (not yet).

    Raises InputError for an unknown number or letter.
    """
    causes = answers()["causes"]
    trainings = answers()["trainings"]
    if (number and number not in trainings) or more:
        raise InputError(f"name a training, {', '.join(trainings)}, and the letter of a cause")
    if not cause:
        print("What may be wrong with a training:\n")
        for letter, description in causes.items():
            print(f"    {letter}   {description}")
        print(f"\nYour answer:  python -m notebooks.check broken {number or 'NUMBER'} LETTER")
        return 0
    letter = cause.lower()
    if letter not in causes:
        raise InputError(f"{cause!r} is no cause: choose {', '.join(causes)}")
    training = trainings[number]
    reason = reason_of(training, number, letter)
    if reason is None:
        print(f"Not yet. The signs do not fit this cause: {causes[letter]}.")
        print(answers()["signs"][letter])
        print(f"Look next: {training['look']}")
        return 1
    print(f"Right: {causes[letter]}.\n\n{reason.strip()}")
    print(f"\nThe fault is in notebooks/broken/{number}.py.")
    return 0


def reason_of(training: dict[str, Any], number: str, letter: str) -> str | None:
    """Return why this letter is the cause, or None if it is not. A class gets sealed reasons."""
    if "sealed" not in training:
        return training["why"] if letter == training["cause"] else None
    opened = scrambled(b64decode(training["sealed"]), number + letter)
    return opened.removeprefix(SEAL).decode() if opened.startswith(SEAL) else None


def scrambled(text: bytes, key: str) -> bytes:
    """Make a text unreadable, or readable again with the same key. It is no encryption."""
    stream = shake_256(key.encode()).digest(len(text))
    return bytes(a ^ b for a, b in zip(text, stream, strict=True))
