"""What every section of the YAML is built from, and what a key means besides its value: `Annotated[int, Tag.X]`."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from configs.command import InputError
from configs.files import resolve


class Section(BaseModel):
    """A part of a config: an unknown key is an error, nothing is converted, nothing changes afterwards.

    A string below a key describes it, for docs/configuration.md and the comments of configs/base.yaml.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class Tag(Enum):
    """What a key means to a run. A section's tag holds for every key in it, but RUNTIME overrides IDENTITY."""

    IDENTITY = "makes a run what it is: a run of the same name refuses another value"
    RUNTIME = "where and how it runs, or filled in by what is compared itself: may change from start to start"


def fields(schema: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Every key path of a section with its field, sections before what they hold; of a union, all members."""
    for name, field in schema.model_fields.items():
        yield (*prefix, name), field
        for part in _sections_in(field.annotation):
            yield from fields(part, (*prefix, name))


def _sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _sections_in(part)


@cache
def keys_with(schema: type[BaseModel], tag: Tag) -> tuple[str, ...]:
    """The dotted keys that have this tag, by themselves or by a section around them, in the section's order."""
    keys = dict[str, None]()
    for path, field in fields(schema):
        if tag in field.metadata or ".".join(path[:-1]) in keys:
            keys[".".join(path)] = None
    return tuple(keys)


def _expanded(text: str) -> str:
    try:
        return str(resolve(text, "no file has such a name")) if text else text
    except InputError as error:
        raise ValueError(str(error)) from None


PathText = Annotated[str, AfterValidator(_expanded)]  # `~` is a home


# ---------------------------------------------------------------------------------------------------------
# the keys of a run that belong to no section: its name, its place, its seed, and where its figures go


class TrackingConfig(Section):
    """The `tracking:` section; metrics.jsonl is always written."""

    wandb: Literal["offline", "online", "disabled"] = Field(
        "offline", description="offline: written to disk, for `wandb sync` later | online | disabled."
    )
    project: str = Field("headlight", description="Name of the project in wandb.")
    tensorboard: bool = Field(False, description="Write event files for TensorBoard, in the run's directory.")


class RunKeys(Section):
    """What RunConfig (train/config.py) adds its sections to. Rooms below `train` know these keys too."""

    name: Annotated[str, Tag.RUNTIME] = Field(
        "",
        description="Name of the run and of its directory, in letters, digits, spaces and `_ . + = -`. "
        "Empty = the YAML file's name.",
    )
    output_dir: Annotated[PathText, Tag.RUNTIME] = Field(
        "runs", description="Folder that holds all run directories, and the prepared data."
    )
    seed: Annotated[int, Tag.IDENTITY] = Field(
        0, ge=0, lt=2**63, description="Decides all random choices: first weights, order of the rows, dropout."
    )
    resume: Annotated[PathText, Tag.RUNTIME] = Field(
        "auto",
        description="auto: continue the run of this name | never: refuse a directory that exists | or a checkpoint "
        "directory to continue from.",
    )
    allow_mismatch: Annotated[bool, Tag.RUNTIME] = Field(
        False, description="true: continue a run although its data or settings have changed."
    )
    rungs: Annotated[dict[str, dict[str, Any]] | None, Tag.RUNTIME] = Field(
        None,
        description="Variants for train.sweep: a name, and the keys that it changes. train.pretrain takes no notice: "
        "it trains the config itself, the baseline.",
        examples=[{"learned-positions": {"model.position_embedding": "learned"}}],
    )
    tracking: Annotated[TrackingConfig, Tag.RUNTIME] = Field(
        TrackingConfig(), description="Where figures go, besides metrics.jsonl."
    )


def problem_of_name(name: str) -> str:
    """What is wrong with the name of a run, "" for nothing. It must do as a folder's name on every system."""
    is_plain = all(c in " _.+=-" or unicodedata.category(c)[0] in "LMN" for c in name)  # letters, their marks, numbers
    if is_plain and 0 < len(name.encode()) <= 200 and name[0] not in " .-+=" and name[-1] not in " .":
        return ""
    return "must be 1 to 100 letters, digits, spaces and _ . + = -, begin with a letter or digit and not end in a dot"
