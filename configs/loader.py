"""YAML + `extends` + `section.key=value` -> a plain dict that remembers file and line of every key.

PyYAML scans and parses. What it takes a word for is YAML 1.1's: `no` is false, `12:30` is 750, `1e-3` is text. So the
words are those of YAML 1.2 here (yaml.org/spec/1.2.2, 10.3.2).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from configs.command import InputError
from configs.files import read_text
from configs.text import did_you_mean

KeyPath = tuple[str, ...]
Model = TypeVar("Model", bound=BaseModel)
SHIPPED = Path(__file__).parent
QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\']|\'\')*\'')  # text in quotes, as YAML reads it
MOST_PROBLEMS = 5  # that one error names
WORDS = {  # YAML 1.2's, by the tag whose value PyYAML then makes, with their first letters
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    "float": (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", list("-+.0123456789")),
}


class Key(str):
    """A key of a YAML mapping. place: where it was written, `file:line` or the override on the command line.

    order: (layer, line); the greater one was set later. A file is a layer above the one that it extends, the command
    line is above all files.
    """

    place: str
    order: tuple[float, int]

    def __new__(cls, name: str, place: str = "", order: tuple[float, int] = (-math.inf, 0)) -> Key:
        key = super().__new__(cls, name)
        key.place, key.order = place, order
        return key


class _Loader(yaml.SafeLoader):
    layer = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if isinstance(event := self.peek_event(), yaml.AliasEvent):  # a few of them can stand for gigabytes
            _refuse("it uses an alias: write the value out, or use `extends`", event)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        values = dict[Any, Any]()
        for key_node, value in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.value in ("", "<<"):
                _refuse("keys must be plain words (use `extends` to reuse another file)", key_node)
            line = key_node.start_mark.line + 1
            key = Key(key_node.value, f"{self.name}:{line}", (self.layer, line))
            if key in values:
                _refuse(f"`{key}` is given twice", key_node)
            values[key] = self.construct_object(value, deep=True)
        return values


class _Dumper(yaml.SafeDumper):
    """A class of its own, because PyYAML keeps the words in it."""


_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.construct_mapping)
_Dumper.add_representer(Key, _Dumper.represent_str)
_Loader.yaml_implicit_resolvers = {}  # assigned, so that PyYAML's own loader stays as it is
for _tag, (_pattern, _letters) in WORDS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _letters)
    _Dumper.add_implicit_resolver(f"{_tag} of YAML 1.2", re.compile(rf"(?:{_pattern})\Z"), _letters)  # so it is quoted


def _refuse(problem: str, at: Any) -> None:
    raise yaml.composer.ComposerError(None, None, problem, at.start_mark)


def parse_yaml(text: str, where: str, layer: int = 0) -> Any:
    """The value of a text, None if it is empty; keys are `Key`s. where: its file. Raises InputError."""
    try:
        loader = _Loader(text)  # a SafeLoader
        loader.name, loader.layer = where, layer
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{where}{line}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ArithmeticError, ValueError, RecursionError) as error:  # "\Uffffffff", nested too deep
        raise InputError(f"{where}: not valid YAML: {str(error).splitlines()[0]:.100}") from None


def dump_yaml(values: Any) -> str:
    """The text of values, mappings in their order, which YAML 1.1 and 1.2 read back as these values."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


# ---------------------------------------------------------------------------------------------------------
# what the sections of a config are made of


class Section(BaseModel):
    """A part of a config: an unknown key is an error, nothing is converted, nothing changes afterwards.

    A string below a key describes it, in docs/configuration.md and in the comments of configs/base.yaml.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @field_validator("*")
    @classmethod
    def _check_size(cls, value: Any) -> Any:
        """Refuse a whole number that no tensor can count."""
        numbers = value if isinstance(value, list) else [value]
        if any(isinstance(number, int) and abs(number) >= 2**63 for number in numbers):
            raise PydanticCustomError("too_large", "must be below 2**63, the limit of whole numbers in PyTorch")
        return value


class Tag(Enum):
    """Whether a run of the same name may have another value of a key. A section's tag holds for the keys in it; a key
    without one, and in none, may change."""

    IDENTITY = "no: it makes a run what it is"
    RUNTIME = "yes, though its section says no: where it computes, or filled in by what is compared itself"


def fields(schema: type[BaseModel], prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, FieldInfo]]:
    """Every key path of a section with its field, sections before what they hold; of a union, all members."""
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
    """The dotted keys that make a run what it is."""
    tags: dict[KeyPath, Tag | None] = {}
    for path, info in fields(schema):
        own = (tag for tag in info.metadata if isinstance(tag, Tag))
        tags[path] = next(own, tags.get(path[:-1]))
    return frozenset(".".join(path) for path, tag in tags.items() if tag is Tag.IDENTITY)


def _check_path(text: str) -> str:
    """The path, with `~` as a home."""
    try:
        if b"\0" in os.fsencode(text):
            raise ValueError
        return text and str(Path(text).expanduser())
    except ValueError:  # a lone surrogate, too
        raise PydanticCustomError("path", "must not have a character that no file name can hold") from None
    except RuntimeError:
        problem = "must not begin with ~ and a user that does not exist (a file of this name: ./~…)"
        raise PydanticCustomError("path", problem) from None


PathText = Annotated[str, AfterValidator(_check_path)]  # a path, with `~` as a home


# ---------------------------------------------------------------------------------------------------------
# files and overrides -> values


@dataclass
class LoadedConfig:
    """The merged values of a config; their keys are `Key`s, which know their place."""

    path: Path
    values: dict[str, Any]

    def find(self, path: KeyPath) -> tuple[Key, Any]:
        """The key at this path, or its nearest parent that was written; and the value there, `...` if there is none."""
        key, value = Key("", str(self.path)), self.values
        for part in path:
            if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                value = value[int(part)]
            elif isinstance(value, dict) and part in value:
                key = next((each for each in value if each == part and isinstance(each, Key)), key)
                value = value[part]
            else:
                return key, ...
        return key, value

    def where(self, path: KeyPath) -> str:
        """The place of a key, or of its nearest parent that was written."""
        return self.find(path)[0].place

    def keys_of_start(self, *section: str) -> set[str]:
        """The keys of a section that say something about the model of init_from, and must agree with it.

        They stand in the same file as init_from, or above it: on the command line, or in a file that extends that one.
        What stands below was written for another model.
        """
        keys, layer = self.find(section)[1], self.find(("init_from",))[0].order[0]
        return {str(key) for key in keys if key.order[0] >= layer} if isinstance(keys, dict) else set()


def load_config(path: str | Path, overrides: Sequence[str] = (), schema: type[BaseModel] = BaseModel) -> LoadedConfig:
    """Read a YAML file, what it `extends` (beside itself, or a shipped config), and `section.key=value` overrides.

    A path x.yaml or configs/x.yaml that is not in the working directory is a shipped config. schema: says for which
    keys an override is text, taken as it was typed. Raises InputError for a file that is missing or is not YAML, for a
    circle of `extends`, for a bad override.
    """
    path = Path(os.path.expanduser(path))  # noqa: PTH111  # Path's own raises where there is no such home
    if str(path.parent) in (".", "configs") and not path.exists() and (SHIPPED / path.name).is_file():
        path = SHIPPED / path.name
    loaded = LoadedConfig(path, _read_file(path))
    # `kind` first, because a section of another kind inherits nothing
    for override in sorted(overrides, key=lambda text: not text.partition("=")[0].endswith(".kind")):
        name, equals, text = override.partition("=")
        place, keys = f"command line `{override:.100}`", name.split(".")
        if not equals or not all(keys):
            raise InputError(f"{place}: write section.key=value, for example model.hidden_size=256")
        value = _read_override(text, tuple(keys), place, schema)
        for name in reversed(keys):
            value = {Key(name, place, (1, 0)): value}
        loaded.values = _merge(loaded.values, value)
    # The tokenizer is that of the model which training starts from, unless something else is said about it.
    if (start := loaded.values.get("init_from")) and isinstance(data := loaded.values.setdefault("data", {}), dict):
        tokenizer = data.get("tokenizer") or {}
        if isinstance(tokenizer, dict) and tokenizer.get("path") is None:
            own = tokenizer if tokenizer.get("kind") == "pretrained" else {}
            if own or not loaded.keys_of_start("data", "tokenizer"):
                data["tokenizer"] = own | {"kind": "pretrained", "path": start}
    return loaded


def _read_override(text: str, keys: KeyPath, place: str, schema: type[BaseModel]) -> Any:
    """The value of an override: YAML, but a key for text or a section takes text as it was typed.

    So `run #2` and `2024` are names, `@x.txt` and `[old] a.txt` paths. YAML there: null, text in quotes, and a list or
    a mapping where the key may be one.
    """
    kinds = set().union(*(_kinds(info.annotation) for path, info in fields(schema) if path == keys))
    takes_text = any(isinstance(kind, type) and issubclass(kind, str | BaseModel) for kind in kinds)
    is_null = text == "null" and NoneType in kinds
    is_nested = text[:1] + text[-1:] in ("[]", "{}") and kinds - {str, NoneType}
    if text and (not takes_text or is_null or is_nested or QUOTED.fullmatch(text)):
        try:
            return parse_yaml(text, place, 1)
        except InputError:
            if kinds and not takes_text:  # else it is text, or its key is unknown, which is said later
                raise
    return text


def _kinds(annotation: Any) -> set[Any]:
    """What an annotation allows, without what is in lists: {str, list, NoneType}."""
    if get_origin(annotation) is Annotated:
        return _kinds(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return set().union(*map(_kinds, get_args(annotation)))
    return {get_origin(annotation) or annotation}


def _read_file(path: Path, above: tuple[Path, ...] = (), place: str = "") -> dict[str, Any]:
    """The values of a file over those of the files that it extends. above: the files that extend this one."""
    if not path.exists():
        there = [file for folder in (SHIPPED, path.parent) for file in folder.glob("*.y*ml")]
        hint = did_you_mean(path.name, {file.name: str(file).removeprefix(f"{Path.cwd()}/") for file in there})
        raise InputError(f"{place}no such config file: {path}{hint}")
    if path.resolve() in above:
        raise InputError(f"{place}`extends` goes in a circle through {path}")
    values = parse_yaml(read_text(path), str(path), -len(above))
    if not isinstance(values, dict):
        raise InputError(f"{path}:1: a config must be a mapping of keys to values")
    below = dict[str, Any]()
    if "extends" in values:
        place, extends = f"{LoadedConfig(path, values).where(('extends',))}: ", values.pop("extends")
        if not isinstance(extends, str) or not extends:
            raise InputError(f"{place}extends takes one file name")
        file, shipped = path.parent / os.path.expanduser(extends), SHIPPED / extends  # noqa: PTH111
        if "/" not in extends and shipped.is_file() and not file.exists():
            file = shipped
        below = _read_file(file, (*above, path.resolve()), place)
    return _merge(below, values)


def _merge(below: Any, above: Any, path: KeyPath = ()) -> Any:
    """Mappings are merged key by key; whatever else is above takes the place of what is below."""
    if path == ("data", "source") and isinstance(above, str | list):  # a path, or several, for a section
        above = {"kind": "files", "path": above}
    if not isinstance(above, dict):
        return above
    if not isinstance(below, dict) or ("kind" in below and "kind" in above and below["kind"] != above["kind"]):
        below = {}  # a section of another kind inherits nothing
    merged = {key: _merge(below.get(key), value, (*path, str(key))) for key, value in above.items()}
    return {key: value for key, value in below.items() if key not in above} | merged


# ---------------------------------------------------------------------------------------------------------
# values -> a checked pydantic model, with errors that say what to do


def validate(schema: type[Model], loaded: LoadedConfig, section: str | None = None) -> Model:
    """Check the values (or one section of them) against a pydantic model.

    Raises InputError with one line: every problem found, each with its file and line.
    """
    try:
        return schema.model_validate(loaded.values.get(section, {}) if section else loaded.values)
    except ValidationError as error:
        prefix = (section,) if section else ()
        known = [(*prefix, *path) for path, _ in fields(schema)]
        problems: dict[str, list[str]] = {}  # the members of a union complain about one key: they share a line
        for problem in error.errors():
            place, message = _explain(problem, known, prefix, loaded)
            problems.setdefault(place, []).append(message)
        lines = [place + " or ".join(dict.fromkeys(messages)) for place, messages in problems.items()]
        raise InputError("; ".join(lines[:MOST_PROBLEMS])) from None


def _explain(problem: Any, known: list[KeyPath], prefix: KeyPath, loaded: LoadedConfig) -> tuple[str, str]:
    """(where and which key, what is wrong with it)"""
    key, kind = prefix, problem["type"]
    for part in map(str, problem["loc"]):  # pydantic also names kinds ("source", "files", "path") and members of unions
        if (*_plain(key), part) in known or loaded.find((*key, part))[1] is not ...:
            key = (*key, part)
    message = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if kind == "value_error":  # a check that sees several keys names them: the one set last is the one to look at
        words = {*re.findall(r"\w+", message)}
        named = [loaded.find(path)[0] for path in known if path[: len(key)] == key and path[-1] in words]
        last = max((each for each in named if each in words), key=lambda each: each.order, default=loaded.find(key)[0])
        return f"{last.place}: ", message
    place, name = f"{loaded.where(key)}: ", ".".join(key)
    if kind == "extra_forbidden":
        if _plain(key) in known:
            return f"{place}`{name}` belongs to another kind: set `{'.'.join((*key[:-1], 'kind'))}` as well", ""
        return f"{place}unknown key `{name}`{_nearest(key, known)}", ""
    if kind in ("missing", "union_tag_not_found"):
        return f"{place}`{name}{'' if kind == 'missing' else '.kind'}` is missing", ""
    if kind in ("model_attributes_type", "model_type", "dict_type"):
        message = "must be {key: value, …}"
    elif kind == "string_type":
        message = "must be text, in quotes"
    return f"{place}`{name}` is {loaded.find(key)[1]!r:.200}: ", message


def _plain(key: KeyPath) -> KeyPath:
    """parts.0.weight -> parts.weight, as `fields` writes it."""
    return tuple(part for part in key if not part.isdecimal())


def _nearest(key: KeyPath, known: list[KeyPath]) -> str:
    beside = {path[-1]: f"`{'.'.join((*key[:-1], path[-1]))}`" for path in known if path[:-1] == _plain(key[:-1])}
    anywhere = {path[-1]: f"`{'.'.join(path)}`" for path in reversed(known)}  # of several, the first one
    return did_you_mean(key[-1], beside) or did_you_mean(key[-1], anywhere)


def flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings by dotted key; a list is a value."""
    if not isinstance(values, dict):
        return {prefix: values}
    parts = (flatten(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in values.items())
    return {key: value for part in parts for key, value in part.items()}
