"""YAML + `extends` + `section.key=value` -> a plain dict that remembers file and line of every key."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from configs.command import InputError
from configs.meaning import fields

KeyPath = tuple[str, ...]
Model = TypeVar("Model", bound=BaseModel)


@dataclass
class LoadedConfig:
    """The merged values of a config, and for every key the place that set it last."""

    path: Path
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)

    def where(self, key: KeyPath) -> str:
        """`file:line` (or the command-line override) of a key, or of its nearest parent that was written."""
        while key and key not in self.origins:
            key = key[:-1]
        return self.origins.get(key, str(self.path))

    def set(self, key: KeyPath, value: Any, place: str) -> None:
        """Put a value under its key, in place of all that was there. A section of another `kind` inherits nothing."""
        parent = self.values
        for depth, part in enumerate(key[:-1], start=1):
            if not isinstance(parent.get(part), dict):
                self.set(key[:depth], {}, place)
            self.origins.setdefault(key[:depth], place)
            parent = parent[part]
        if key[-1] == "kind" and parent.get("kind", value) != value:
            self.set(key[:-1], parent := {}, self.where(key[:-1]))
        self.origins = {old: at for old, at in self.origins.items() if old[: len(key)] != key} | {key: place}
        parent[key[-1]] = value


class _YamlLoader(yaml.SafeLoader):
    """SafeLoader that also reads `1e-3` as a number, as YAML 1.2 does."""


_YamlLoader.yaml_implicit_resolvers = {  # a copy, so that PyYAML's own loaders stay as they are
    first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:float"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*(\.[\d_]*)?([eE][-+]?\d+)?|\.\d+([eE][-+]?\d+)?|\.(inf|nan))$"),
    list("-+0123456789."),
)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read a YAML file, what it `extends` (relative to itself), and `section.key=value` overrides.

    Raises InputError for a file that is missing or is not YAML, for a circle of `extends`, for a bad override.
    """
    loaded = LoadedConfig(Path(path))
    _read_file(loaded.path, loaded, seen=())
    for override in sorted(overrides, key=lambda text: ".kind=" not in text):  # a new kind starts without old keys
        name, equals, text = override.partition("=")
        if not equals or not name:
            raise InputError(f"override `{override}`: write section.key=value, for example model.hidden_size=256")
        place = f"command line `{override}`"
        try:
            value = yaml.load(text, Loader=_YamlLoader) if text else ""
        except (yaml.YAMLError, ValueError) as error:
            hint = ": put the whole argument in quotes" if text.count("{") > text.count("}") else ""
            raise InputError(
                f"{place}: not valid YAML: {_first_line(getattr(error, 'problem', error))}{hint}"
            ) from None
        loaded.set(tuple(name.split(".")), value, place)
    return loaded


def _read_file(path: Path, into: LoadedConfig, seen: tuple[Path, ...], asked_by: str = "") -> None:
    if path.resolve() in seen:
        raise InputError(f"{asked_by}: `extends` goes in a circle through {path}")
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=_YamlLoader)
    except FileNotFoundError:
        raise InputError(f"{asked_by + ': ' if asked_by else ''}no such config file: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise InputError(f"{path}{line}: not valid YAML: {getattr(error, 'problem', error)}") from None
    if root is None:
        raise InputError(f"{path}: is empty")
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=_YamlLoader)):
        raise InputError(f"{path}: uses an alias (*name): write the value out, or use `extends`")
    if not isinstance(root, yaml.MappingNode):
        raise InputError(f"{path}:{root.start_mark.line + 1}: a config must be a mapping of keys to values")
    _merge(root, path, (), into, (*seen, path.resolve()))


def _merge(node: yaml.MappingNode, path: Path, prefix: KeyPath, into: LoadedConfig, seen: tuple[Path, ...]) -> None:
    here: dict[KeyPath, str] = {}
    first = ("extends", "kind")  # other keys change what these bring
    for key_node, value_node in sorted(node.value, key=lambda pair: pair[0].value not in first):
        place = f"{path}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
            raise InputError(f"{place}: keys must be plain words (use `extends` to reuse another file)")
        key = (*prefix, key_node.value)
        if key in here:
            raise InputError(f"{place}: `{'.'.join(key)}` is given twice (first at {here[key]})")
        here[key] = place
        if key == ("extends",):
            if not isinstance(value_node, yaml.ScalarNode):
                raise InputError(f"{place}: extends takes one file name")
            _read_file(path.parent / value_node.value, into, seen, place)
        elif isinstance(value_node, yaml.MappingNode) and (
            value_node.value or isinstance(_get(into.values, key), dict)
        ):
            _merge(value_node, path, key, into, seen)
            into.origins[key] = place
        else:
            try:
                value = _YamlLoader("").construct_object(value_node, deep=True)
            except (yaml.YAMLError, ValueError) as error:
                raise InputError(f"{place}: cannot be read as a value: {_first_line(error)}") from None
            into.set(key, value, place)


def _first_line(error: object) -> str:
    return str(error).splitlines()[0] if str(error) else "unknown"


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
        raise InputError(f"{loaded.where(prefix)}: `{section}` must hold keys, not {values!r}")
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        problems: dict[str, list[str]] = {}  # what is wrong with one key, by where it stands
        for problem in error.errors():
            place, message = _explain(problem, schema, prefix, loaded)
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
        close = "".join(f", did you mean {name}?" for name in difflib.get_close_matches(tag, tags, 1))
        return f"{loaded.where(key)}: `{'.'.join(key)}.kind` is {tag!r}: must be {' | '.join(tags)}{close}", ""
    if problem["type"] in ("model_attributes_type", "model_type", "dict_type"):
        return f"{loaded.where(key)}: `{'.'.join(key)}` is {_get(loaded.values, key)!r}: ", "must be {key: value, …}"
    if problem["type"] == "union_tag_not_found":
        return f"{loaded.where(key)}: `{'.'.join(key)}.kind` is missing", ""
    message = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if problem["type"] == "value_error":
        return f"{loaded.where(_blamed_key(message, known, key, loaded))}: ", message
    while len(key) > 1 and _without_places(key) not in known and _get(loaded.values, key) is None:
        key = key[:-1]  # the member of a union ("int", "list[str]"), or what is not there
    return f"{loaded.where(key)}: `{'.'.join(key)}` is {_get(loaded.values, key)!r}: ", message


def _without_places(key: KeyPath) -> KeyPath:
    """parts.0.weight -> parts.weight, as key_paths writes it."""
    return tuple(part for part in key if not part.isdecimal())


def _blamed_key(message: str, known: list[KeyPath], section: KeyPath, loaded: LoadedConfig) -> KeyPath:
    """A check that sees several keys names them in its message: the one changed last is the one to look at."""
    words = set(re.findall(r"[a-z_]+(?:\.[a-z_]+)*", message))
    named = [key for key in known if key[: len(section)] == section and key in loaded.origins]
    named = [key for key in named if ".".join(key) in words] or [key for key in named if key[-1] in words]
    by_hand = [key for key in named if loaded.origins[key].startswith("command line")]
    in_this_file = [key for key in named if loaded.origins[key].startswith(f"{loaded.path}:")]
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
    siblings = [path for path in known if path[:-1] == _without_places(key[:-1])]
    close = difflib.get_close_matches(key[-1], [path[-1] for path in siblings], n=1, cutoff=0.6)
    if close:
        return f", did you mean `{'.'.join((*key[:-1], close[0]))}`?"
    elsewhere = [".".join(path) for path in known if path[-1] == key[-1]]
    close = elsewhere[:1] or difflib.get_close_matches(".".join(key), [".".join(p) for p in known], 1, 0.0)
    return f", did you mean `{close[0]}`?" if close else ""
