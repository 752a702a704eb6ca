"""Parse and write YAML by version 1.2, and remember the line of each key.

PyYAML scans and parses, but by YAML 1.1: `no` is false, `12:30` is 750, `1e-3` is text. Here the
words are those of YAML 1.2 (yaml.org/spec/1.2.2, 10.3.2).
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from configs.command import InputError

NUMBER = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
# For each tag: the plain words of YAML 1.2 that have it, and the letters that begin them. PyYAML
# looks up a word's first letter, and tries only the patterns that are listed under it.
WORDS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    "float": (rf"{NUMBER}|[-+]?\.inf|\.nan", list("-+.0123456789")),
}


class Key(str):
    """A key of a YAML mapping with its place: `file:line`, or the override on the command line.

    It equals plain text, so dicts and pydantic take it as such.
    """

    place: str
    # (layer, line): the greater one was set later; the command line is the top layer
    order: tuple[float, int]

    def __new__(cls, name: str, place: str = "", order: tuple[float, int] = (-math.inf, 0)) -> Key:
        # text cannot change, so its attributes are set on the new object, here
        key = super().__new__(cls, name)
        key.place = place
        key.order = order
        return key


class _Loader(yaml.SafeLoader):
    layer = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):  # a few of them can expand to gigabytes
            _refuse("it uses an alias: write the value out, or use `extends`", event)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        values = dict[Any, Any]()
        for key_node, value in node.value:
            # `<<` merges mappings in YAML 1.1
            if not isinstance(key_node, yaml.ScalarNode) or key_node.value in ("", "<<"):
                _refuse("keys must be plain words (use `extends` to reuse another file)", key_node)
            line = key_node.start_mark.line + 1
            key = Key(key_node.value, f"{self.name}:{line}", (self.layer, line))
            if key in values:  # PyYAML would take the last one
                _refuse(f"`{key}` is given twice", key_node)
            values[key] = self.construct_object(value, deep=True)
        return values


class _Dumper(yaml.SafeDumper):  # PyYAML stores the words in the class
    pass


_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.construct_mapping)
_Dumper.add_representer(Key, _Dumper.represent_str)
_Loader.yaml_implicit_resolvers = {}  # assigned, so that PyYAML's own loader does not change
for _tag, (_pattern, _letters) in WORDS.items():
    _word = re.compile(rf"(?:{_pattern})\Z")
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _word, _letters)
    _Dumper.add_implicit_resolver(f"{_tag} of YAML 1.2", _word, _letters)  # text "12" gets quotes


def _refuse(problem: str, node: Any) -> None:
    raise yaml.composer.ComposerError(None, None, problem, node.start_mark)


def parse_yaml(text: str, where: str, layer: int = 0) -> Any:
    """Return the value of a text, with `Key`s; None if it is empty. Raises InputError."""
    try:
        loader = _Loader(text)
        loader.name = where
        loader.layer = layer
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{where}{line}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ArithmeticError, ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid YAML: {str(error).splitlines()[0]:.100}") from None


def dump_yaml(values: Any) -> str:
    """Write values as YAML that both 1.1 and 1.2 read back; mappings keep their order."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
