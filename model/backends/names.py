"""The one list of attention backends. choice.py fills it, and a config checks names against it.

The list has a file of its own because kernels import configs: model/config.py cannot import them.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import PydanticKnownError

BACKENDS: dict[str, Any] = {}  # name -> model.backends.choice.Backend


def _check_name(name: str) -> str:
    names = ["auto", *BACKENDS]
    if name not in names:
        expected = ", ".join(map(repr, names[:-1])) + f" or {names[-1]!r}"
        raise PydanticKnownError("literal_error", {"expected": expected})
    return name


# Both functions read BACKENDS when they are called, so a backend that is registered later counts.
_SCHEMA = Field(json_schema_extra=lambda schema: schema.update(enum=["auto", *BACKENDS]))
AttentionImplementation = Annotated[str, AfterValidator(_check_name), _SCHEMA]
