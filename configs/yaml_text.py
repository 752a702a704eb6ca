"""How is YAML read and written? With the values of YAML 1.2, and with no more of its syntax than a config needs.

    node = compose(text)      keys are plain words and none comes twice; one document, no alias, no tag, not too deep
    value = construct(node)   null, true, 3, 0x1f, 1e-3, text; `yes`, `12:30`, `1_000` and `2020-01-02` are text
    text = dump(values)       what both YAML 1.1 and 1.2 read back as these values

PyYAML scans, parses and writes. What it takes a word for is YAML 1.1's: `no` is false, `12:30` is 750, `010` is 8. So
the core schema of YAML 1.2 (yaml.org/spec/1.2.2, 10.3.2) stands here, as a table.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import yaml
from yaml import MappingNode, Node, ScalarNode, SequenceNode

MOST_DEPTH = 20  # of mappings and lists in one another; a mix of sources, the deepest config, has 6
MOST_DIGITS = 400  # of a number; the largest that a float holds has 309
LONGEST_KEY = 100  # letters
CORE: dict[
    str, tuple[str, str, Callable[[str], Any]]
] = {  # tag -> (what it looks like, the letters it begins with, its value)
    "null": (r"~|null|Null|NULL|", "~nN", lambda text: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text.lower() == "true"),
    "int": (r"[-+]?[0-9]+", "-+0123456789", int),
    "octal": (r"0o[0-7]+", "0", lambda text: int(text, 8)),
    "hexadecimal": (r"0x[0-9a-fA-F]+", "0", lambda text: int(text, 16)),
    "float": (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789", float),
    "infinity": (r"[-+]?\.(inf|Inf|INF)", "-+.", lambda text: float(text.replace(".", ""))),
    "nan": (r"\.(nan|NaN|NAN)", ".", lambda text: float("nan")),
}
VALUES = {tag: value for tag, (_, _, value) in CORE.items()}


class NotAConfig(ValueError):
    """Text that is not YAML, or more of YAML than a config needs. line: counted from 1, where it is known."""

    def __init__(self, problem: str, line: int | None = None):
        super().__init__(problem)
        self.line = line


def compose(text: str) -> Node | None:
    """The tree of a text; None if it is empty. Raises NotAConfig."""
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise NotAConfig(f"not valid YAML: the character U+{error.character:04X} is in it", line) from None
    except yaml.composer.ComposerError as error:
        problem = str(error.problem).replace("but found another document", "has several documents (---): give one")
        raise NotAConfig(problem, _line(error)) from None
    except yaml.MarkedYAMLError as error:
        raise NotAConfig(f"not valid YAML: {error.problem}", _line(error)) from None
    except (ValueError, OverflowError):
        raise NotAConfig("not valid YAML: it has a character that does not exist") from None  # "\Uffffffff"


def construct(node: Node) -> Any:
    """The value of a tree. Raises NotAConfig."""
    if isinstance(node, MappingNode):
        return {key.value: construct(value) for key, value in node.value}
    if isinstance(node, SequenceNode):
        return [construct(value) for value in node.value]
    if node.tag not in VALUES:
        return node.value
    if len(node.value) > MOST_DIGITS:
        raise NotAConfig(f"has a number of {len(node.value):,} digits", node.start_mark.line + 1)
    return VALUES[node.tag](node.value)


def load(text: str) -> Any:
    """The value of a text. Raises NotAConfig."""
    node = compose(text)
    return None if node is None else construct(node)


def dump(values: Any, **options: Any) -> str:
    """The text of values, mappings in their order. Words that YAML 1.1 or 1.2 would take for a number are quoted."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, **options)


class _Loader(yaml.SafeLoader):
    """Composes a tree of plain mappings, lists and words, and refuses the rest of YAML while it reads."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            _refuse(f"uses an alias (*{event.anchor}): write the value out, or use `extends`", event)
        if event.tag is not None:
            _refuse(f"has a tag ({event.tag[:40]}): leave it out", event)
        if self.depth == MOST_DEPTH:
            _refuse(f"is nested more than {MOST_DEPTH} levels deep", event)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        if isinstance(node, ScalarNode) and any("\ud800" <= letter <= "\udfff" for letter in node.value):
            _refuse('holds half a character ("\\ud800" to "\\udfff")', event)
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        node, lines = super().compose_mapping_node(anchor), dict[str, int]()
        for key, _ in node.value:
            if not isinstance(key, ScalarNode) or len(key.value) > LONGEST_KEY or key.value in ("", "<<"):
                _refuse("keys must be plain words (use `extends` to reuse another file)", key)
            if key.value in lines:
                _refuse(f"`{key.value}` is given twice (first in line {lines[key.value]})", key)
            lines[key.value] = key.start_mark.line + 1
        return node


def _line(error: yaml.MarkedYAMLError) -> int | None:
    return error.problem_mark.line + 1 if error.problem_mark else None


def _refuse(problem: str, at: Any) -> None:
    raise yaml.composer.ComposerError(None, None, problem, at.start_mark)


class _Dumper(yaml.SafeDumper):
    """SafeDumper that also quotes what YAML 1.2 takes for a number."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Loader.yaml_implicit_resolvers = {}  # assigned, so that PyYAML's own loaders stay as they are
for _tag, (_pattern, _letters, _) in CORE.items():
    _compiled = re.compile(rf"(?:{_pattern})\Z")
    _Loader.add_implicit_resolver(_tag, _compiled, list(_letters) + [""] * (_tag == "null"))
    _Dumper.add_implicit_resolver(f"{_tag}, which only YAML 1.2 has", _compiled, list(_letters))
