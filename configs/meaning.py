"""What a config key means besides its value, said once, beside the field: `Annotated[int, Meaning.TENSORS]`.

class Section     what every section of the YAML is built from
class Meaning     the vocabulary
meanings()        every dotted key of a section, and what it means
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo


class Section(BaseModel):
    """A part of a config: an unknown key is an error, nothing is converted, nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Meaning(Enum):
    """A meaning of a section holds for every key in it; MAY_CHANGE makes an exception to IDENTITY."""

    IDENTITY = "makes a run what it is: a run of the same name refuses another value"
    MAY_CHANGE = "does not belong to the run's identity, although the section around it does"
    TENSORS = "decides the tensors of a checkpoint: with another value none would fit, or none would mean the same"
    TOKENIZER = "is filled in by the tokenizer, which is compared itself"
    FREE_AT_START = "may differ from the model of init_from: its weights mean the same with another value"
    ADDED_AT_START = "may be added to the model of init_from: a model that is trained on learns to live with it"
    BOOKKEEPING = "changes neither what is trained nor what is measured: neither swept nor compared"
    SAME_NAME = "has the same name and the same values in the config.json of Hugging Face's models"
    STRUCTURE = "a part that not every architecture of transformers has: one that does not name it has the default"
    REPETITION = "is all in which two runs of one variant differ"
    ROWS = "says how text becomes tokens and rows, not which text it is"


@cache
def meanings(schema: type[BaseModel]) -> dict[str, frozenset[Meaning]]:
    """What each key of a section means, by dotted key; sections are keys too. What a list holds has its list's name."""
    found: dict[str, frozenset[Meaning]] = {"": frozenset()}
    for path, field in fields(schema):
        inherited = found[".".join(path[:-1])]
        own = frozenset(one for one in field.metadata if isinstance(one, Meaning))
        key = ".".join(path)
        found[key] = found.get(key, frozenset()) | inherited | own
    del found[""]
    return found


def keys_that(schema: type[BaseModel], *any_of: Meaning) -> list[str]:
    """The dotted keys of a section that have one of these meanings, in the section's order."""
    return [key for key, found in meanings(schema).items() if found.intersection(any_of)]


def identity_keys(schema: type[BaseModel]) -> list[str]:
    """The dotted keys that make a run what it is."""
    free = keys_that(schema, Meaning.MAY_CHANGE, Meaning.TOKENIZER)
    return [key for key in keys_that(schema, Meaning.IDENTITY) if key not in free]


def fields(schema: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Every key path of a section with its field, sections before what they hold; of a union, all members."""
    for name, field in schema.model_fields.items():
        yield (*prefix, name), field
        for part in sections_in(field.annotation):
            yield from fields(part, (*prefix, name))


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections that a field may hold: itself, or inside a list, a union or an optional."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from sections_in(part)
