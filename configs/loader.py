"""YAML + `extends` + `section.key=value` -> a plain dict that remembers file and line of every key."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from configs import yaml_text
from configs.command import InputError
from configs.meaning import fields
from configs.paths import resolve
from configs.read_back import read_text
from configs.shown_text import did_you_mean
from configs.yaml_text import LONGEST_KEY, MOST_DEPTH

KeyPath = tuple[str, ...]
Model = TypeVar("Model", bound=BaseModel)
MOST_BYTES = 1_000_000  # of a config; base.yaml, the longest that is written by hand, has 7,000
MOST_FILES = 20  # in a chain of `extends`
MOST_PROBLEMS = 5  # that one error names
SHORT_FORMS = {("data", "source"): lambda path: {"kind": "files", "path": path}}  # a path, or a list, for a section


class Place(str):
    """Where a key is written: `file:line`, or the override. file: None for the command line."""

    file: Path | None = None

    @classmethod
    def in_file(cls, file: Path, line: int) -> Place:
        place = cls(f"{file}:{line}")
        place.file = file
        return place


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
        place = Place(f"command line `{shortened(override)}`")
        key = tuple(name.split(".")) if len(name) < LONGEST_KEY else ()
        if not equals or not all(key) or not 0 < len(key) < MOST_DEPTH:
            raise InputError(f"{place}: write section.key=value, for example model.hidden_size=256")
        try:
            value = yaml_text.load(text) if text else ""
        except yaml_text.NotAConfig as error:
            hint = ": put the whole argument in quotes" if text.count("{") > text.count("}") else ""
            raise InputError(f"{place}: {error}{hint}") from None
        loaded.set(key, value, place)
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
    if path.resolve() in seen:
        raise InputError(f"{asked_by}: `extends` goes in a circle through {path}")
    if len(seen) == MOST_FILES:
        raise InputError(f"{asked_by}: `extends` leads through more than {MOST_FILES} files")
    if not path.exists():
        shipped = Path(__file__).parent
        shipped = Path(shipped.name) if shipped.parent == Path.cwd() else shipped
        files = {file.name: file for folder in (shipped, path.parent) for file in folder.glob("*.y*ml")}
        nearest = did_you_mean(path.name, files)
        raise InputError(f"{asked_by + ': ' if asked_by else ''}no such config file: {path}{nearest}")
    text = read_text(path, MOST_BYTES)
    try:
        root = yaml_text.compose(text)
        if root is None:
            raise yaml_text.NotAConfig("is empty")
        if not isinstance(root, yaml_text.MappingNode):
            raise yaml_text.NotAConfig("a config must be a mapping of keys to values", root.start_mark.line + 1)
        _merge(root, path, (), into, (*seen, path.resolve()))
    except yaml_text.NotAConfig as error:
        raise InputError(f"{path}{f':{error.line}' if error.line else ''}: {error}") from None


def _merge(
    node: yaml_text.MappingNode, path: Path, prefix: KeyPath, into: LoadedConfig, seen: tuple[Path, ...]
) -> None:
    first = ("extends", "kind")  # other keys change what these bring
    for key_node, value_node in sorted(node.value, key=lambda pair: pair[0].value not in first):
        place, key = Place.in_file(path, key_node.start_mark.line + 1), (*prefix, key_node.value)
        if key == ("extends",):
            if not isinstance(value_node.value, str) or not value_node.value:
                raise InputError(f"{place}: extends takes one file name")
            _read_file(_extended(value_node.value, place, path.parent), into, seen, place)
        elif isinstance(value_node, yaml_text.MappingNode) and (
            value_node.value or isinstance(_get(into.values, key), dict)
        ):
            _merge(value_node, path, key, into, seen)
            into.origins[key] = place
        else:
            into.set(key, yaml_text.construct(value_node), place)


def _extended(name: str, place: Place, folder: Path) -> Path:
    """The file that `extends` names: beside the one that says so, or else of this name among the shipped configs."""
    beside, shipped = resolve(name, place, beside=folder), Path(__file__).parent / name
    is_plain = Path(name).name == name
    return shipped if is_plain and not beside.exists() and shipped.is_file() else beside


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
    prefix = (section,) if section else ()
    if section:
        _check_top_level(loaded, [(*prefix, *path) for path in key_paths(schema)])
    values = loaded.values.get(section, {}) if section else loaded.values
    if not isinstance(values, dict):
        raise InputError(f"{loaded.where(prefix)}: `{section}` must hold keys, not {_shown(values)}")
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        problems: dict[str, list[str]] = {}  # what is wrong with one key, by where it stands
        for problem in error.errors():
            place, message = _explain(problem, schema, prefix, loaded)
            if len(problems) == MOST_PROBLEMS and place not in problems:
                problems["…"] = []
                break
            if message not in problems.setdefault(place, []):
                problems[place].append(message)
        raise InputError("; ".join(place + " or ".join(parts) for place, parts in problems.items())) from None


def _check_top_level(loaded: LoadedConfig, known: list[KeyPath]) -> None:
    """A command that reads one section still refuses a top-level key that no section has. Raises InputError."""
    sections = json.loads(Path(__file__).with_name("schema.json").read_text(encoding="utf-8"))["properties"]
    for name in sorted(loaded.values.keys() - sections.keys()):
        nearest = _nearest((name,), [*[(section,) for section in sections], *known])
        raise InputError(f"{loaded.where((name,))}: unknown key `{name}`{nearest}")


def _explain(problem: Any, schema: type[BaseModel], prefix: KeyPath, loaded: LoadedConfig) -> tuple[str, str]:
    """(where and which key, what is wrong with it); apart, so that the members of a union can share a line."""
    # pydantic puts the tag of a discriminated union into the location ("source", "files", "path"): leave it out
    key = prefix
    for part in map(str, problem["loc"]):
        parent = _get(loaded.values, key)
        is_tag = isinstance(parent, dict) and parent.get("kind") == part and part not in parent
        key = key if is_tag else (*key, part)
    known = [prefix + path for path in key_paths(schema)]
    if problem["type"] == "extra_forbidden" and _without_places(key) in known:
        name, kind = ".".join(key), ".".join((*key[:-1], "kind"))
        return f"{loaded.where(key)}: `{name}` belongs to another kind: set `{kind}` as well", ""
    if problem["type"] == "extra_forbidden":
        return f"{loaded.where(key)}: unknown key `{'.'.join(key)}`{_nearest(key, known)}", ""
    if problem["type"] == "missing":
        return f"{loaded.where(key)}: `{'.'.join(key)}` is missing", ""
    if problem["type"] == "union_tag_invalid":
        tag, tags = problem["ctx"]["tag"], re.findall(r"'(\w+)'", problem["ctx"]["expected_tags"])
        must = f"must be {' | '.join(tags)}{did_you_mean(tag, dict(zip(tags, tags, strict=True)))}"
        return f"{loaded.where(key)}: `{'.'.join(key)}.kind` is {_shown(tag)}: {must}", ""
    if problem["type"] in ("model_attributes_type", "model_type", "dict_type"):
        return (
            f"{loaded.where(key)}: `{'.'.join(key)}` is {_shown(_get(loaded.values, key))}: ",
            "must be {key: value, …}",
        )
    if problem["type"] == "union_tag_not_found":
        return f"{loaded.where(key)}: `{'.'.join(key)}.kind` is missing", ""
    message = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if problem["type"] == "value_error":
        return f"{loaded.where(_blamed_key(message, known, key, loaded))}: ", message
    while len(key) > 1 and _without_places(key) not in known and _get(loaded.values, key) is None:
        key = key[:-1]  # the member of a union ("int", "list[str]"), or what is not there
    return f"{loaded.where(key)}: `{'.'.join(key)}` is {_shown(_get(loaded.values, key))}: ", message


def _shown(value: Any) -> str:
    return shortened(repr(value), 200)


def shortened(text: str, most: int = 100) -> str:
    """The beginning of a text that is too long for a message."""
    return text if len(text) <= most else f"{text[:most]}…"


def _without_places(key: KeyPath) -> KeyPath:
    """parts.0.weight -> parts.weight, as key_paths writes it."""
    return tuple(part for part in key if not part.isdecimal())


def _blamed_key(message: str, known: list[KeyPath], section: KeyPath, loaded: LoadedConfig) -> KeyPath:
    """A check that sees several keys names them in its message: the one changed last is the one to look at."""
    words = set(re.findall(r"[a-z_]+(?:\.[a-z_]+)*", message))
    named = [key for key in known if key[: len(section)] == section and key in loaded.origins]
    named = [key for key in named if ".".join(key) in words] or [key for key in named if key[-1] in words]
    by_hand = [key for key in named if loaded.origins[key].file is None]
    in_this_file = [key for key in named if loaded.origins[key].file == loaded.path]
    return next(iter([*by_hand, *reversed(in_this_file), *named]), section)


def key_paths(schema: type[BaseModel]) -> list[KeyPath]:
    """Every key path that a pydantic model knows, sections before what they hold."""
    return [path for path, _ in fields(schema)]


def flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings by dotted key; a list is a value."""
    if not isinstance(values, dict):
        return {prefix: values}
    parts = (flatten(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in values.items())
    return {key: value for part in parts for key, value in part.items()}


def _nearest(key: KeyPath, known: list[KeyPath]) -> str:
    beside = [path[-1] for path in known if path[:-1] == _without_places(key[:-1])]
    anywhere = [".".join(path) for path in known if path[-1] == key[-1]][:1] or [".".join(path) for path in known]
    return did_you_mean(key[-1], {last: f"`{'.'.join((*key[:-1], last))}`" for last in beside}) or did_you_mean(
        ".".join(key), {name: f"`{name}`" for name in anywhere}, likeness=0
    )
