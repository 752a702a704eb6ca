"""YAML + `extends` + `section.key=value` -> a plain dict that remembers file and line of every key.

PyYAML scans and parses. What it takes a word for is YAML 1.1's: `no` is false, `12:30` is 750, `1e-3` is text. So the
words are those of YAML 1.2 here (yaml.org/spec/1.2.2, 10.3.2).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from configs.command import InputError
from configs.files import read_text, resolve
from configs.schema import fields
from configs.text import did_you_mean, shortened

KeyPath = tuple[str, ...]
Model = TypeVar("Model", bound=BaseModel)
MOST_PROBLEMS = 5  # that one error names
SHORT_FORMS = {("data", "source"): lambda path: {"kind": "files", "path": path}}  # a path, or a list, for a section
WORDS = {  # YAML 1.2's, by the tag whose value PyYAML then makes, with their first letters
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    "float": (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", list("-+.0123456789")),
}


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: Any, index: Any) -> Any:
        if isinstance(event := self.peek_event(), yaml.AliasEvent):
            _refuse("it uses an alias: write the value out, or use `extends`", event)
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> Any:
        node, lines = super().compose_mapping_node(anchor), dict[str, int]()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in ("", "<<"):
                _refuse("keys must be plain words (use `extends` to reuse another file)", key)
            if key.value in lines:
                _refuse(f"`{key.value}` is given twice (first in line {lines[key.value]})", key)
            lines[key.value] = key.start_mark.line + 1
        return node


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


_Loader.yaml_implicit_resolvers = {}  # assigned, so that PyYAML's own loader stays as it is
for _tag, (_pattern, _letters) in WORDS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _letters)
    _Dumper.add_implicit_resolver(f"{_tag} of YAML 1.2", re.compile(rf"(?:{_pattern})\Z"), _letters)  # so it is quoted


def _refuse(problem: str, at: Any) -> None:
    raise yaml.composer.ComposerError(None, None, problem, at.start_mark)


def parse_yaml(text: str, where: str) -> yaml.Node | None:
    """The tree of a text; None if it is empty. where: its file, for the error. Raises InputError."""
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{where}{line}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ArithmeticError, ValueError, RecursionError) as error:  # "\Uffffffff", nested too deep
        raise InputError(f"{where}: not valid YAML: {shortened(str(error).splitlines()[0])}") from None


def construct(node: yaml.Node | None, where: str) -> Any:
    """The value of a tree. Raises InputError."""
    try:
        return None if node is None else _Loader("").construct_object(node, deep=True)
    except (yaml.YAMLError, ValueError) as error:  # a tag that names code, a number of 5,000 digits
        raise InputError(f"{where}: not valid YAML: {shortened(str(error).splitlines()[0])}") from None


def dump_yaml(values: Any) -> str:
    """The text of values, mappings in their order, which YAML 1.1 and 1.2 read back as these values."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


# ---------------------------------------------------------------------------------------------------------
# files and overrides -> values


class Place(str):
    """Where a key is written: `file:line`, or the override. file: None for the command line."""

    file: Path | None = None


@dataclass
class LoadedConfig:
    """The merged values of a config, and for every key the place that set it last."""

    path: Path
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, Place] = field(default_factory=dict)

    def where(self, key: KeyPath) -> str:
        """`file:line` (or the command-line override) of a key, or of its nearest parent that was written."""
        return self.place(key) or str(self.path)

    def place(self, key: KeyPath) -> Place | None:
        """The same; None for a key that is nowhere written."""
        while key and key not in self.origins:
            key = key[:-1]
        return self.origins.get(key)

    def said_of_start(self, *section: str) -> set[str]:
        """The keys of a section that say something about the model of init_from, and must agree with it.

        They stand in the same file as init_from, or above it: on the command line, or in the file that extends that
        one. What stands below was written for another model.
        """
        start, values = self.place(("init_from",)), _get(self.values, section)
        files = {None, start.file, self.path} if start is not None and start.file is not None else {None}
        places = {key: self.place((*section, key)) for key in values} if isinstance(values, dict) else {}
        return {key for key, place in places.items() if place is not None and place.file in files}

    def set(self, key: KeyPath, value: Any, place: Place) -> None:
        """Put a value under its key, in place of all that was there. A section of another `kind` inherits nothing."""
        if key in SHORT_FORMS and isinstance(value, str | list):
            value = SHORT_FORMS[key](value)
        parent = self.values
        for depth, part in enumerate(key[:-1], start=1):
            if not isinstance(parent.get(part), dict):
                self.set(key[:depth], {}, place)
            self.origins.setdefault(key[:depth], place)
            parent = parent[part]
        if key[-1] == "kind" and parent.get("kind", value) != value:
            self.set(key[:-1], parent := {}, self.place(key[:-1]) or place)
        if isinstance(parent.get(key[-1]), dict):
            self.origins = {old: at for old, at in self.origins.items() if old[: len(key)] != key}
        self.origins[key] = place
        parent[key[-1]] = value


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read a YAML file, what it `extends` (beside itself, or a shipped config), and `section.key=value` overrides.

    Raises InputError for a file that is missing or is not YAML, for a circle of `extends`, for a bad override.
    """
    loaded = LoadedConfig(resolve(path, "the config"))
    _read_file(loaded.path, loaded, seen=())
    for override in sorted(overrides, key=lambda text: ".kind=" not in text):  # a new kind starts without old keys
        name, equals, text = override.partition("=")
        place, key = Place(f"command line `{shortened(override)}`"), tuple(name.split("."))
        if not equals or not all(key):
            raise InputError(f"{place}: write section.key=value, for example model.hidden_size=256")
        if text.count("{") > text.count("}"):
            raise InputError(f"{place}: put the whole argument in quotes")
        loaded.set(key, construct(parse_yaml(text, place), place) if text else "", place)
    _name_tokenizer(loaded)
    return loaded


def _name_tokenizer(loaded: LoadedConfig) -> None:
    """The tokenizer is that of the model which training starts from, unless something else is said about it."""
    start, data = loaded.values.get("init_from"), loaded.values.get("data", {})
    tokenizer = data.get("tokenizer", {}) if isinstance(data, dict) else None
    if not start or not isinstance(tokenizer, dict) or tokenizer.get("path") is not None:
        return
    if tokenizer.get("kind") == "pretrained" or not loaded.said_of_start("data", "tokenizer"):
        place = loaded.place(("init_from",)) or Place(loaded.path)
        if tokenizer.get("kind") != "pretrained":
            loaded.set(("data", "tokenizer"), {"kind": "pretrained"}, place)
        loaded.set(("data", "tokenizer", "path"), start, place)


def _read_file(path: Path, into: LoadedConfig, seen: tuple[Path, ...], asked_by: str = "") -> None:
    if not path.exists():
        shipped = Path(__file__).parent
        shipped = Path(shipped.name) if shipped.parent == Path.cwd() else shipped
        files = {file.name: file for folder in (shipped, path.parent) for file in folder.glob("*.y*ml")}
        hint = did_you_mean(path.name, files)
        raise InputError(f"{asked_by + ': ' if asked_by else ''}no such config file: {path}{hint}")
    if path.resolve() in seen:
        raise InputError(f"{asked_by}: `extends` goes in a circle through {path}")
    root = parse_yaml(read_text(path), str(path))
    if not isinstance(root, yaml.MappingNode):
        raise InputError(f"{path}:1: a config must be a mapping of keys to values")
    _merge(root, path, (), into, (*seen, path.resolve()))


def _merge(node: yaml.MappingNode, path: Path, prefix: KeyPath, into: LoadedConfig, seen: tuple[Path, ...]) -> None:
    first = ("extends", "kind")  # other keys change what these bring
    for key_node, value_node in sorted(node.value, key=lambda pair: pair[0].value not in first):
        place, key = Place(f"{path}:{key_node.start_mark.line + 1}"), (*prefix, key_node.value)
        place.file = path
        if key == ("extends",):
            if not isinstance(value_node.value, str) or not value_node.value:
                raise InputError(f"{place}: extends takes one file name")
            beside, shipped = resolve(value_node.value, place, path.parent), Path(__file__).parent / value_node.value
            is_shipped = Path(value_node.value).name == value_node.value and shipped.is_file() and not beside.exists()
            _read_file(shipped if is_shipped else beside, into, seen, place)
        elif isinstance(value_node, yaml.MappingNode) and (
            value_node.value or isinstance(_get(into.values, key), dict)
        ):
            _merge(value_node, path, key, into, seen)
            into.origins[key] = place
        else:
            into.set(key, construct(value_node, place), place)


def _get(values: Any, key: KeyPath) -> Any:
    for part in key:
        if isinstance(values, list) and part.isdecimal() and int(part) < len(values):
            values = values[int(part)]
        elif isinstance(values, dict) and part in values:
            values = values[part]
        else:
            return None
    return values


# ---------------------------------------------------------------------------------------------------------
# values -> a checked pydantic model, with errors that say what to do


def validate(schema: type[Model], loaded: LoadedConfig, section: str | None = None) -> Model:
    """Check the values (or one section of them) against a pydantic model.

    Raises InputError with one line: every problem found, each with its file and line.
    """
    prefix, known = (section,) if section else (), [path for path, _ in fields(schema)]
    if section:  # a command that reads one section still refuses a top-level key that no section has
        sections = json.loads(Path(__file__).with_name("schema.json").read_text(encoding="utf-8"))["properties"]
        known = [*[(name,) for name in sections], *[(section, *path) for path in known]]
        for name in sorted(loaded.values.keys() - sections.keys()):
            raise InputError(f"{loaded.where((name,))}: unknown key `{name}`{_nearest((name,), known)}")
    values = loaded.values.get(section, {}) if section else loaded.values
    if not isinstance(values, dict):
        raise InputError(f"{loaded.where(prefix)}: `{section}` must hold keys, not {values!r:.200}")
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        problems: dict[str, list[str]] = {}  # what is wrong with one key, by where it stands
        for problem in error.errors():
            place, message = _explain(problem, known, prefix, loaded)
            if len(problems) == MOST_PROBLEMS and place not in problems:
                break
            if message not in problems.setdefault(place, []):
                problems[place].append(message)
        raise InputError("; ".join(place + " or ".join(parts) for place, parts in problems.items())) from None


def _explain(problem: Any, known: list[KeyPath], prefix: KeyPath, loaded: LoadedConfig) -> tuple[str, str]:
    """(where and which key, what is wrong with it); apart, so that the members of a union can share a line."""
    # pydantic puts the tag of a discriminated union into the location ("source", "files", "path"): leave it out
    key, kind = prefix, problem["type"]
    for part in map(str, problem["loc"]):
        parent = _get(loaded.values, key)
        is_tag = isinstance(parent, dict) and parent.get("kind") == part and part not in parent
        key = key if is_tag else (*key, part)
    message = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if kind == "value_error":
        return f"{loaded.where(_blamed_key(message, known, key, loaded))}: ", message
    if kind == "union_tag_invalid":
        key, tags = (*key, "kind"), re.findall(r"'(\w+)'", problem["ctx"]["expected_tags"])
        close = did_you_mean(problem["ctx"]["tag"], dict(zip(tags, tags, strict=True)))
        message = f"must be {' | '.join(tags)}{close}"
    elif kind in ("model_attributes_type", "model_type", "dict_type"):
        message = "must be {key: value, …}"
    elif kind not in ("extra_forbidden", "missing", "union_tag_not_found"):
        while len(key) > 1 and _plain(key) not in known and _get(loaded.values, key) is None:
            key = key[:-1]  # the member of a union ("int", "list[str]"), or what is not there
    name = ".".join(key)
    place = f"{loaded.where(key)}: "
    if kind == "extra_forbidden" and _plain(key) in known:
        return f"{place}`{name}` belongs to another kind: set `{'.'.join((*key[:-1], 'kind'))}` as well", ""
    if kind == "extra_forbidden":
        return f"{place}unknown key `{name}`{_nearest(key, known)}", ""
    if kind in ("missing", "union_tag_not_found"):
        return f"{place}`{name}{'' if kind == 'missing' else '.kind'}` is missing", ""
    return f"{place}`{name}` is {_get(loaded.values, key)!r:.200}: ", message


def _plain(key: KeyPath) -> KeyPath:
    """parts.0.weight -> parts.weight, as `fields` writes it."""
    return tuple(part for part in key if not part.isdecimal())


def _blamed_key(message: str, known: list[KeyPath], section: KeyPath, loaded: LoadedConfig) -> KeyPath:
    """A check that sees several keys names them in its message: the one changed last is the one to look at."""
    words = set(re.findall(r"[a-z_]+(?:\.[a-z_]+)*", message))
    named = [key for key in known if key[: len(section)] == section and key in loaded.origins]
    named = [key for key in named if ".".join(key) in words] or [key for key in named if key[-1] in words]
    by_hand = [key for key in named if loaded.origins[key].file is None]
    in_this_file = [key for key in named if loaded.origins[key].file == loaded.path]
    return next(iter([*by_hand, *reversed(in_this_file), *named]), section)


def _nearest(key: KeyPath, known: list[KeyPath]) -> str:
    beside = {path[-1]: f"`{'.'.join((*key[:-1], path[-1]))}`" for path in known if path[:-1] == _plain(key[:-1])}
    anywhere = [".".join(path) for path in known if path[-1] == key[-1]][:1] or [".".join(path) for path in known]
    anywhere_else = {name: f"`{name}`" for name in anywhere}
    return did_you_mean(key[-1], beside) or did_you_mean(".".join(key), anywhere_else, likeness=0)


def flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings by dotted key; a list is a value."""
    if not isinstance(values, dict):
        return {prefix: values}
    parts = (flatten(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in values.items())
    return {key: value for part in parts for key, value in part.items()}
