"""Read YAML, `extends` and `section.key=value` into a dict that knows where each key is from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from configs.command import InputError
from configs.files import read_text
from configs.parse import Key, parse_yaml
from configs.text import did_you_mean

KeyPath = tuple[str, ...]
Model = TypeVar("Model", bound=BaseModel)
SHIPPED = Path(__file__).parent
# Text in quotes, as YAML reads it.
QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\']|\'\')*\'')
# One error lists at most this many problems.
MOST_PROBLEMS = 5


class Section(BaseModel):
    """A part of a config. Unknown keys are errors, nothing is converted, and nothing changes later.

    The string below a key is its description in docs/configuration.md and configs/base.yaml.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @field_validator("*")
    @classmethod
    def _check_size(cls, value: Any) -> Any:
        # PyTorch would fail far from here, without the name of the key
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and abs(number) >= 2**63:
                raise PydanticCustomError("too_large", "must be below 2**63, PyTorch's limit")
        return value


class Tag(Enum):
    """The right of a key to change when a run is resumed. Without a tag, its section's holds."""

    IDENTITY = "no: it makes a run what it is"
    RUNTIME = "yes, although its section is tagged IDENTITY: it names a file, a backend or an id"


def fields(schema: type[BaseModel], prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, FieldInfo]]:
    """Yield every key path with its field: sections before their keys, all members of unions."""
    for name, info in schema.model_fields.items():
        yield (*prefix, name), info
        for part in _sections_in(info.annotation):
            yield from fields(part, (*prefix, name))


def _sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _sections_in(part)


def identity_keys(schema: type[BaseModel]) -> frozenset[str]:
    """Return the dotted keys that make a run what it is."""
    tags: dict[KeyPath, Tag | None] = {}
    for path, info in fields(schema):
        own_tags = (tag for tag in info.metadata if isinstance(tag, Tag))
        # a key without a tag has that of its section, which `fields` yields before its keys
        tags[path] = next(own_tags, tags.get(path[:-1]))
    # with dots, as `flatten` writes them: so the values of a run are compared by these keys
    return frozenset(".".join(path) for path, tag in tags.items() if tag is Tag.IDENTITY)


def _check_path(text: str) -> str:
    try:
        if b"\0" in os.fsencode(text):
            raise ValueError
        return text and str(Path(text).expanduser())
    except ValueError:  # os.fsencode, too, raises it: for half of a surrogate pair
        message = "must not have a character that no file name can hold"
    except RuntimeError:
        message = "must not begin with ~ and a user that does not exist (a file of this name: ./~…)"
    raise PydanticCustomError("path", message)


# The type of a key for a path. `~` is replaced by the home directory.
PathText = Annotated[str, AfterValidator(_check_path)]


@dataclass
class LoadedConfig:
    """The merged values of a config. Their keys are `Key`s, which remember their place."""

    path: Path
    values: dict[str, Any]

    def find(self, path: KeyPath) -> tuple[Key, Any]:
        """Return the key at this path, and its value.

        If nobody wrote this key: the nearest parent that was written, and `...`.
        """
        key = Key("", str(self.path))
        value: Any = self.values
        for part in path:
            if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                value = value[int(part)]
            elif isinstance(value, dict) and part in value:
                # a lookup gives the value only; the key that remembers its place is in the dict
                for written in value:
                    if written == part and isinstance(written, Key):
                        key = written
                value = value[part]
            else:
                return key, ...
        return key, value

    def where(self, path: KeyPath) -> str:
        """Return the place of a key, or of its nearest written parent."""
        return self.find(path)[0].place

    def keys_of_start(self, *section: str) -> set[str]:
        """Return the keys of a section that were written for the model of init_from.

        They are in the file that sets init_from, or override it. The files that this one extends
        were written for another model.
        """
        keys = self.find(section)[1]
        layer = self.find(("init_from",))[0].order[0]
        if not isinstance(keys, dict):
            return set()
        return {str(key) for key in keys if key.order[0] >= layer}


def load_config(
    path: str | Path, overrides: Sequence[str] = (), schema: type[BaseModel] = BaseModel
) -> LoadedConfig:
    """Read a YAML file, the files that it `extends`, and overrides. Raises InputError.

    If x.yaml or configs/x.yaml is not in the working directory, the shipped config is read.
    """
    # Path.expanduser raises if there is no such home.
    path = Path(os.path.expanduser(path))  # noqa: PTH111
    shipped = SHIPPED / path.name
    if str(path.parent) in (".", "configs") and not path.exists() and shipped.is_file():
        path = shipped
    loaded = LoadedConfig(path, _read_file(path))
    set_keys(loaded, overrides, schema)
    init_from = loaded.values.get("init_from")
    if not init_from:
        return loaded
    # the tokenizer is that of the model in init_from, unless the config names another one
    data = loaded.values.setdefault("data", {})
    tokenizer = (data.get("tokenizer") or {}) if isinstance(data, dict) else None
    if isinstance(tokenizer, dict) and tokenizer.get("path") is None:
        if tokenizer.get("kind") == "pretrained":
            tokenizer["path"] = init_from
        elif not loaded.keys_of_start("data", "tokenizer"):
            data["tokenizer"] = {"kind": "pretrained", "path": init_from}
    return loaded


def set_keys(loaded: LoadedConfig, overrides: Sequence[str], schema: type[BaseModel]) -> None:
    """Set keys as on the command line, `section.key=value` each. Raises InputError."""
    splits = [override.partition("=") for override in overrides]
    # `kind` goes first: a section of another kind inherits nothing, and would drop the others
    for name, equals, text in sorted(splits, key=lambda split: not split[0].endswith(".kind")):
        override = name + equals + text
        place = f"command line `{override:.100}`"
        keys = tuple(name.split("."))
        if not equals or not all(keys):
            raise InputError(f"{place}: write section.key=value, for example model.hidden_size=256")
        value = _read_override(text, keys, place, schema)
        # a.b.c=1 becomes {a: {b: {c: 1}}}, which is merged like another file
        for key in reversed(keys):
            value = {Key(key, place, (1, 0)): value}
        loaded.values = _merge(loaded.values, value)


def _read_override(text: str, keys: KeyPath, place: str, schema: type[BaseModel]) -> Any:
    """Return an override's value: YAML, or text as it was typed if the key takes text.

    So `name=run #2` and `name=2024` need no quotes.
    """
    # A key that two kinds of a section have may take the types of both.
    kinds = set().union(*(_kinds(info.annotation) for path, info in fields(schema) if path == keys))
    takes_text = any(isinstance(kind, type) and issubclass(kind, str | BaseModel) for kind in kinds)
    # these are YAML also for a key that takes text
    is_null = text == "null" and NoneType in kinds
    is_nested = text[:1] + text[-1:] in ("[]", "{}") and kinds - {str, NoneType}
    is_quoted = QUOTED.fullmatch(text)
    if text and (not takes_text or is_null or is_nested or is_quoted):
        try:
            return parse_yaml(text, place, 1)
        except InputError:
            if kinds and not takes_text:  # an unknown key has its own error, later
                raise
    return text


def _kinds(annotation: Any) -> set[Any]:
    # list[str] | None -> {list, NoneType}
    if get_origin(annotation) is Annotated:
        return _kinds(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return set().union(*map(_kinds, get_args(annotation)))
    return {get_origin(annotation) or annotation}


def _read_file(path: Path, above: tuple[Path, ...] = (), prefix: str = "") -> dict[str, Any]:
    """Return the values of a file, merged over those of the files that it extends.

    above:  the files that extend this one
    prefix: the place of their `extends`, with which an error begins
    """
    if not path.exists():
        names = {}
        for file in (*SHIPPED.glob("*.y*ml"), *path.parent.glob("*.y*ml")):
            names[file.name] = str(file).removeprefix(f"{Path.cwd()}/")
        hint = did_you_mean(path.name, names)
        raise InputError(f"{prefix}no such config file: {path}{hint}")
    # resolved, because a link may lead to a file of the circle
    if path.resolve() in above:
        raise InputError(f"{prefix}`extends` goes in a circle through {path}")
    # the file on the command line is layer 0, the one that it extends layer -1, and so on
    values = parse_yaml(read_text(path), str(path), -len(above))
    if not isinstance(values, dict):
        raise InputError(f"{path}:1: a config must be a mapping of keys to values")
    if "extends" not in values:
        return _merge({}, values)  # writes out `data.source: my.txt`
    prefix = f"{LoadedConfig(path, values).where(('extends',))}: "
    extends = values.pop("extends")
    if not isinstance(extends, str) or not extends:
        raise InputError(f"{prefix}extends takes one file name")
    file = path.parent / os.path.expanduser(extends)  # noqa: PTH111
    if "/" not in extends and (SHIPPED / extends).is_file() and not file.exists():
        file = SHIPPED / extends
    return _merge(_read_file(file, (*above, path.resolve()), prefix), values)


def _merge(below: Any, above: Any, path: KeyPath = ()) -> Any:
    """Merge mappings key by key; any other value above replaces the one below."""
    # a path alone is a source of files
    if path == ("data", "source") and isinstance(above, str | list):
        above = {"kind": "files", "path": above}
    if not isinstance(above, dict):
        return above
    if not isinstance(below, dict):
        below = {}
    elif "kind" in below and "kind" in above and below["kind"] != above["kind"]:
        below = {}  # a section of another kind inherits nothing
    # keys of `above` come last, and as they are there: each remembers its own place
    merged = {key: value for key, value in below.items() if key not in above}
    for key, value in above.items():
        merged[key] = _merge(below.get(key), value, (*path, str(key)))
    return merged


def validate(schema: type[Model], loaded: LoadedConfig, section: str | None = None) -> Model:
    """Check the values, or one section, against a pydantic model, and return it.

    Raises InputError: one line with the problems and the place of each.
    """
    try:
        return schema.model_validate(loaded.values.get(section, {}) if section else loaded.values)
    except ValidationError as error:
        prefix = (section,) if section else ()
        known = [(*prefix, *path) for path, _ in fields(schema)]
        # each member of a union complains about the same key: their messages are joined by "or"
        problems: dict[str, list[str]] = {}
        for problem in error.errors():
            place, message = _explain(problem, known, prefix, loaded)
            problems.setdefault(place, []).append(message)
        lines = [place + " or ".join(dict.fromkeys(problems[place])) for place in problems]
        raise InputError("; ".join(lines[:MOST_PROBLEMS])) from None


def _explain(
    problem: Any, known: list[KeyPath], prefix: KeyPath, loaded: LoadedConfig
) -> tuple[str, str]:
    """Return the beginning of an error (its place and key), and its message."""
    key = prefix
    error_type = problem["type"]
    # pydantic's path also has kinds ("source", "files", "path") and the members of unions
    for part in map(str, problem["loc"]):
        if (*_without_indices(key), part) in known or loaded.find((*key, part))[1] is not ...:
            key = (*key, part)
    message = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if error_type == "value_error":
        # a check of several keys names them in its message; the one that was set last is to blame
        words = set(re.findall(r"\w+", message))
        inside = [path for path in known if path[: len(key)] == key]
        nearest = [loaded.find(path)[0] for path in inside if path[-1] in words]
        named = [each for each in nearest if each in words]  # without parents of unwritten keys
        last = max(named, key=lambda each: each.order, default=loaded.find(key)[0])
        return f"{last.place}: ", message
    place = f"{loaded.where(key)}: "
    name = ".".join(key)
    if error_type == "extra_forbidden":
        parent = key[:-1]
        if _without_indices(key) in known:
            remedy = f"set `{'.'.join((*parent, 'kind'))}` as well"
            return f"{place}`{name}` belongs to another kind: {remedy}", ""
        beside = [path for path in known if path[:-1] == _without_indices(parent)]
        names = {path[-1]: f"`{'.'.join((*parent, path[-1]))}`" for path in beside}
        # reversed, so that of several keys with one name the first remains
        anywhere = {path[-1]: f"`{'.'.join(path)}`" for path in reversed(known)}
        hint = did_you_mean(key[-1], names) or did_you_mean(key[-1], anywhere)
        return f"{place}unknown key `{name}`{hint}", ""
    if error_type == "missing":
        return f"{place}`{name}` is missing", ""
    if error_type == "union_tag_not_found":
        return f"{place}`{name}.kind` is missing", ""
    if error_type in ("model_attributes_type", "model_type", "dict_type"):
        message = "must be {key: value, …}"
    elif error_type == "string_type":
        message = "must be text, in quotes"
    return f"{place}`{name}` is {loaded.find(key)[1]!r:.200}: ", message


def _without_indices(key: KeyPath) -> KeyPath:
    # parts.0.weight -> parts.weight, as in `fields`
    return tuple(part for part in key if not part.isdecimal())


def flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by dotted key; a list is a value."""
    if not isinstance(values, dict):
        return {prefix: values}
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat
