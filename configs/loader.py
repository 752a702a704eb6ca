"""YAML + `extends` + `section.key=value` -> a plain dict that remembers file and line of every key.

PyYAML scans and parses. What it takes a word for is YAML 1.1's: `no` is false, `12:30` is 750, `1e-3` is text. So the
words are those of YAML 1.2 here (yaml.org/spec/1.2.2, 10.3.2).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from configs.command import InputError
from configs.files import read_text
from configs.text import did_you_mean, shortened

KeyPath = tuple[str, ...]
Model = TypeVar("Model", bound=BaseModel)
SHIPPED = Path(__file__).parent
MOST_PROBLEMS = 5  # that one error names
RANK = {"extends": 0, "init_from": 1, "kind": 2}  # keys that are read first: they change what the others mean
WORDS = {  # YAML 1.2's, by the tag whose value PyYAML then makes, with their first letters
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    "float": (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", list("-+.0123456789")),
}


class Key(str):
    """A key of a YAML mapping, and its line."""

    line: int


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: Any, index: Any) -> Any:
        if isinstance(event := self.peek_event(), yaml.AliasEvent):  # a few of them can stand for gigabytes
            _refuse("it uses an alias: write the value out, or use `extends`", event)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        values = dict[Any, Any]()
        for key_node, value in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.value in ("", "<<"):
                _refuse("keys must be plain words (use `extends` to reuse another file)", key_node)
            key = Key(key_node.value)
            key.line = key_node.start_mark.line + 1
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


def parse_yaml(text: str, where: str) -> Any:
    """The value of a text, None if it is empty; keys are `Key`s. where: its file. Raises InputError."""
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{where}{line}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ArithmeticError, ValueError, RecursionError) as error:  # "\Uffffffff", nested too deep
        raise InputError(f"{where}: not valid YAML: {shortened(str(error).splitlines()[0])}") from None


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


# a path, with `~` as a home
PathText = Annotated[str, AfterValidator(lambda text: text and str(Path(text).expanduser()))]


# ---------------------------------------------------------------------------------------------------------
# files and overrides -> values


@dataclass
class LoadedConfig:
    """The merged values of a config. origins: the place that set a key last, `file:line` or the override on the command
    line, for every key, in the order of setting."""

    path: Path
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)

    def where(self, key: KeyPath) -> str:
        """The place of a key, or of its nearest parent that was written."""
        while key and key not in self.origins:
            key = key[:-1]
        return self.origins.get(key, str(self.path))

    def said_of_start(self, *section: str) -> set[str]:
        """The keys of a section that say something about the model of init_from, and must agree with it.

        They stand in the same file as init_from, or above it: on the command line, or in a file that extends that one.
        These were set later, because `extends` and then init_from come first. What stands below was written for another
        model.
        """
        keys, written = _get(self.values, section), list(self.origins)
        later = {self.origins[key] for key in written[written.index(("init_from",)) :]}
        return {key for key in keys if self.where((*section, key)) in later} if isinstance(keys, dict) else set()

    def set(self, key: KeyPath, value: Any, place: str) -> None:
        """Put a value under its key, in place of all that was there. A section of another `kind` inherits nothing."""
        if key == ("data", "source") and isinstance(value, str | list):  # a path, or several, for a section
            value = {"kind": "files", "path": value}
        parent = self.values
        for depth, part in enumerate(key[:-1], start=1):
            if not isinstance(parent.get(part), dict):
                self.set(key[:depth], {}, place)
            parent = parent[part]
        if key[-1] == "kind" and parent.get("kind", value) != value:
            self.set(key[:-1], parent := {}, self.where(key[:-1]))
        self.origins = {old: at for old, at in self.origins.items() if old[: len(key)] != key} | {key: place}
        parent[key[-1]] = value


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read a YAML file, what it `extends` (beside itself, or a shipped config), and `section.key=value` overrides.

    Raises InputError for a file that is missing or is not YAML, for a circle of `extends`, for a bad override.
    """
    loaded = LoadedConfig(Path(path).expanduser())
    _read_file(loaded.path, loaded, seen=())
    for override in sorted(overrides, key=lambda text: RANK.get(text.partition("=")[0].rpartition(".")[2], 3)):
        name, equals, text = override.partition("=")
        place, key = f"command line `{shortened(override)}`", tuple(name.split("."))
        if not equals or not all(key):
            raise InputError(f"{place}: write section.key=value, for example model.hidden_size=256")
        loaded.set(key, parse_yaml(text, place) if text else "", place)
    # The tokenizer is that of the model which training starts from, unless something else is said about it.
    start, tokenizer = loaded.values.get("init_from"), _get(loaded.values, ("data", "tokenizer")) or {}
    if start and isinstance(tokenizer, dict) and tokenizer.get("path") is None:
        own = tokenizer if tokenizer.get("kind") == "pretrained" else {}
        if own or not loaded.said_of_start("data", "tokenizer"):
            place = loaded.where(("init_from",))
            loaded.set(("data", "tokenizer"), own | {"kind": "pretrained", "path": start}, place)
    return loaded


def _read_file(path: Path, into: LoadedConfig, seen: tuple[Path, ...], place: str = "") -> None:
    if not path.exists():
        there = [file for folder in (SHIPPED, path.parent) for file in folder.glob("*.y*ml")]
        hint = did_you_mean(path.name, {file.name: str(file).removeprefix(f"{Path.cwd()}/") for file in there})
        raise InputError(f"{place + ': ' if place else ''}no such config file: {path}{hint}")
    if path.resolve() in seen:
        raise InputError(f"{place}: `extends` goes in a circle through {path}")
    values = parse_yaml(read_text(path), str(path))
    if not isinstance(values, dict):
        raise InputError(f"{path}:1: a config must be a mapping of keys to values")
    _merge(values, path, (), into, (*seen, path.resolve()))


def _merge(values: dict[Key, Any], path: Path, prefix: KeyPath, into: LoadedConfig, seen: tuple[Path, ...]) -> None:
    for name in sorted(values, key=lambda name: RANK.get(name, 3)):
        place, key, value = f"{path}:{name.line}", (*prefix, str(name)), values[name]
        if key == ("extends",):
            if not isinstance(value, str) or not value:
                raise InputError(f"{place}: extends takes one file name")
            beside = path.parent / Path(value).expanduser()
            is_shipped = "/" not in value and (SHIPPED / value).is_file() and not beside.exists()
            _read_file(SHIPPED / value if is_shipped else beside, into, seen, place)
        elif isinstance(value, dict) and (value or isinstance(_get(into.values, key), dict)):
            _merge(value, path, key, into, seen)
            into.origins[key] = place
        else:
            into.set(key, value, place)


def _get(values: Any, key: KeyPath, missing: Any = None) -> Any:
    for part in key:
        if isinstance(values, list) and part.isdecimal() and int(part) < len(values):
            values = values[int(part)]
        elif isinstance(values, dict) and part in values:
            values = values[part]
        else:
            return missing
    return values


# ---------------------------------------------------------------------------------------------------------
# values -> a checked pydantic model, with errors that say what to do


def validate(schema: type[Model], loaded: LoadedConfig, section: str | None = None) -> Model:
    """Check the values (or one section of them) against a pydantic model.

    Raises InputError with one line: every problem found, each with its file and line.
    """
    if section:  # a command that reads one section still refuses a top-level key that no section has
        sections = json.loads((SHIPPED / "schema.json").read_text(encoding="utf-8"))["properties"]
        for name in sorted(loaded.values.keys() - sections.keys()):
            known = [*((key,) for key in sections), *((section, *path) for path, _ in fields(schema))]
            raise InputError(f"{loaded.where((name,))}: unknown key `{name}`{_nearest((name,), known)}")
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
        if (*_plain(key), part) in known or _get(loaded.values, (*key, part), ...) is not ...:
            key = (*key, part)
    message = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if kind == "value_error":  # a check that sees several keys names them: the one set last is the one to look at
        words = set(re.findall(r"\w+", message))
        named = [one for one in loaded.origins if one[: len(key)] == key and one[-1] in words and one in known]
        return f"{loaded.where(named[-1] if named else key)}: ", message
    place, name = f"{loaded.where(key)}: ", ".".join(key)
    if kind == "extra_forbidden":
        if _plain(key) in known:
            return f"{place}`{name}` belongs to another kind: set `{'.'.join((*key[:-1], 'kind'))}` as well", ""
        return f"{place}unknown key `{name}`{_nearest(key, known)}", ""
    if kind in ("missing", "union_tag_not_found"):
        return f"{place}`{name}{'' if kind == 'missing' else '.kind'}` is missing", ""
    if kind in ("model_attributes_type", "model_type", "dict_type"):
        message = "must be {key: value, …}"
    return f"{place}`{name}` is {_get(loaded.values, key)!r:.200}: ", message


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
