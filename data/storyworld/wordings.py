"""How questions and conversations are worded: `questions.yaml` and `conversations.yaml`, read once."""

from functools import cache
from typing import Any

from .lexicon import HERE, read_yaml


@cache
def wordings(file: str) -> dict[str, Any]:
    """Everything in `file`.yaml; a text of several lines is a list of wordings."""
    return {key: split(value) for key, value in read_yaml(HERE / f"{file}.yaml").items()}


def split(value: Any) -> Any:
    """Texts of several lines as lists of lines, however deep they stand."""
    if isinstance(value, dict):
        return {key: split(inner) for key, inner in value.items()}
    return value.splitlines() if isinstance(value, str) and "\n" in value else value


@cache
def feelings() -> tuple[str, ...]:
    """All feelings that can be asked for."""
    return tuple(wordings("questions")["feelings"].split(", "))
