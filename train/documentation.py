"""What is written about the config keys, from the fields themselves: `python -m train.documentation`

Writes docs/configuration.md, the comments of configs/base.yaml and configs/schema.json. The sentence about a key stands
in one place: beside its field, in the config.py of its room. A test compares the three files with this.
"""

from __future__ import annotations

import argparse
import inspect
import json
import textwrap
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel

from configs.command import exit_on_bad_input
from configs.loader import flatten, load_config
from configs.schema import fields
from eval.attention.probes import ProbeFile
from model.config import ModelConfig
from train.config import IDENTITY, RunConfig, TrainConfig

ROOT = Path(__file__).resolve().parents[1]
BASE = ROOT / "configs/base.yaml"
WIDTH = 120  # columns of base.yaml
COLUMN = 32  # of a comment behind a value
HEADINGS: dict[type[BaseModel], str] = {
    RunConfig: "The run",
    ProbeFile: "The file that eval.attention.probe_file names",
}
KEYS = {".".join(path): field for path, field in reversed(list(fields(RunConfig)))}  # of a union, the first one's
INTRODUCTION = """\
# Configuration: every key

<!-- Written by `python -m train.documentation` from the config models. Do not edit. -->

A run is described by a YAML file in `configs/`. The file names another one that it `extends`, usually `base.yaml`, and
says only what differs from it. On the command line you change single keys:

```
python -m train.pretrain configs/demo.yaml model.num_key_value_heads=2 seed=1
```

Lists and mappings are written as in YAML: `"data.source={kind: files, path: my.txt}"`. If you misspell a key, the error
names the nearest one. `runs/<name>/config.yaml` keeps every value that a run was made with.

*Default* holds if no file sets the key. `configs/base.yaml`, which all shipped configs extend, sets some keys to other
values: the next column has them. `null` means *not set*; the last column says what happens then. Editors complete and
check your YAML with `configs/schema.json`. Words mean what YAML 1.2 says: `yes`, `1_000` and `12:30` are text.

If you start a run again under its name, it continues. It must then be the same run, so these keys must not change:
`seed`, `init_from`, all of `lora`, all of `model` but `attn_implementation`, all of `data` (files may move: their
contents count), and of `train` IDENTITY.
All other keys may change, and the run may become longer.
"""


# ---------------------------------------------------------------------------------------------------------
# docs/configuration.md: a table for every section


def sections(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """A section and all in it, each with what stands before its keys: `data.source.`; N is a place in a list."""
    yield prefix, model
    for name, field in model.model_fields.items():
        for part, is_in_list in _parts(field.annotation):
            yield from sections(part, f"{prefix}{name}." + "N." * is_in_list)


def _parts(annotation: Any, is_in_list: bool = False) -> Iterator[tuple[type[BaseModel], bool]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, is_in_list
    for part in get_args(annotation):
        yield from _parts(part, is_in_list or get_origin(annotation) is list)


def page() -> str:
    """The whole page, as Markdown."""
    values, tables = load_config(BASE).values, dict[type[BaseModel], str]()
    base, order = flatten(values), ["", *values]
    in_order = sorted(sections(RunConfig), key=lambda section: order.index(section[0].partition(".")[0]))
    for prefix, model in [*in_order, *sections(ProbeFile)]:
        tables.setdefault(model, prefix)  # what stands in several places has a table in the first
    identity = [f"`{key}`" for key in TrainConfig.model_fields if f"train.{key}" in IDENTITY]
    parts = [INTRODUCTION.replace("IDENTITY", ", ".join(identity[:-1]) + " and " + identity[-1])]
    for model, prefix in tables.items():
        kinds = get_args(model.model_fields["kind"].annotation) if "kind" in model.model_fields else ()
        heading = HEADINGS.get(model) or prefix.removesuffix(".").replace(".N", ", each one")
        heading += f", kind: {kinds[0]}" if len(kinds) == 1 else ""
        said = base if len(kinds) != 1 or base.get(f"{prefix}kind") == kinds[0] else {}  # of a source of this kind
        parts.append(f"\n## {heading}\n\n{_introduction(model)}\n\n" + "\n".join(_table(model, prefix, said)) + "\n")
    return "".join(parts)


def _introduction(model: type[BaseModel]) -> str:
    return _first_paragraph(inspect.cleandoc(model.__doc__ or ""))


def _first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def _table(model: type[BaseModel], prefix: str, base: dict[str, Any]) -> Iterator[str]:
    schema = model.model_json_schema()
    yield "| key | takes | default | in base.yaml | meaning |"
    yield "|---|---|---|---|---|"
    if model is RunConfig:
        shipped = "Where there is none, a config of this name that Headlight brings along."
        yield f"| `extends` | text | | | Another YAML file that this one changes, relative to this file. {shipped} |"
    for name, field in sorted(schema["properties"].items(), key=lambda item: item[0] != "kind"):
        value = field.get("default")
        default = (
            "*required*" if name in schema.get("required", []) else "" if isinstance(value, dict) else _code(value)
        )
        set_there = base.get(prefix + name, value)
        examples = " or ".join(f"`{_flow(example)}`" for example in field.get("examples", []))
        meaning = field["description"] + (f" For example {examples}." if examples else "")
        cells = (
            f"`{prefix}{name}`",
            _takes(field, schema),
            default,
            _code(set_there) if set_there != value else "",
            meaning,
        )
        yield "".join(f"| {cell} ".replace("  ", " ") for cell in (c.replace("|", "\\|") for c in cells)) + "|"


def _flow(value: Any) -> str:
    """A value on one line of YAML."""
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000).removesuffix("...\n").strip()


def _code(value: Any) -> str:
    """A value as one would write it in YAML."""
    return f"`{value}`" if isinstance(value, str) and value else f"`{json.dumps(value, ensure_ascii=False)}`"


def _takes(field: dict[str, Any], schema: dict[str, Any]) -> str:
    """Type and allowed values of a field of a JSON Schema, in words."""
    if "$ref" in field:
        return _takes(schema["$defs"][field["$ref"].rsplit("/", 1)[1]], schema)
    if options := field.get("anyOf") or field.get("oneOf"):
        return ", or ".join(dict.fromkeys(option.get("description") or _takes(option, schema) for option in options))
    if "enum" in field or "const" in field:
        return ", ".join(_code(value) for value in field.get("enum", [field.get("const")]))
    kind, least, most = field.get("type"), field.get("minItems"), field.get("maxItems")
    if kind == "array":
        count = "" if least is None else f" of {least}" if least == most else " (not empty)"
        return f"a list{count} of: {_takes(field.get('items', {}), schema)}"
    if kind == "object":
        return "a mapping" if field.get("additionalProperties") else "a mapping (below)"
    words = {"integer": "integer", "number": "number", "boolean": "`true`, `false`", "null": "`null`"}
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{signs[key]} {'2^63' if field[key] == 2**63 else f'{field[key]:,}'}" for key in signs if key in field]
    return " ".join([words.get(str(kind), "text"), " and ".join(bounds)]).strip()


# ---------------------------------------------------------------------------------------------------------
# base.yaml: its order and its values are its own, the comments are the fields' sentences


def base() -> str:
    """configs/base.yaml as it should be."""
    text = BASE.read_text(encoding="utf-8")
    head = "".join(takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True)))
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    return head + "\n" + "\n".join(_base_lines(root, "", text)) + "\n"


def _base_lines(node: yaml.MappingNode, prefix: str, text: str) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for key_node, value in node.value:
        key = prefix + key_node.value
        comment, examples = str(KEYS[key].description), KEYS[key].examples or []
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield from [f"{indent}{key_node.value}:"] if prefix else ["", f"{key}:  # {comment}"]
            yield from _base_lines(value, f"{key}.", text)
            continue
        line = f"{indent}{key_node.value}: {text[value.start_mark.index : value.end_mark.index]}"
        behind = f"{line:<{COLUMN - 2}}  # {comment}"
        drawn = _drawing(ModelConfig) if key == "model.num_key_value_heads" else []
        if len(behind) > WIDTH or examples or drawn:
            yield from textwrap.wrap(comment, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
            yield from (f"{indent}# {each}".rstrip() for each in drawn)
            yield from (f"{indent}# for example {_flow(example)}" for example in examples)
            behind = line
        yield behind


def _drawing(model: type[BaseModel]) -> list[str]:
    """The indented paragraph of a docstring."""
    paragraphs = inspect.cleandoc(model.__doc__ or "").split("\n\n")
    return next(part for part in paragraphs if part.startswith(" ")).splitlines()


# ---------------------------------------------------------------------------------------------------------
# schema.json


def json_schema() -> str:
    """The JSON Schema of a YAML config, for editors. What a file extends may hold the rest, so no key is required."""
    schema = RunConfig.model_json_schema()
    schema["properties"]["extends"] = {"type": "string", "description": "Another YAML file that this one changes."}
    for section in schema["$defs"].values():
        section["description"] = _first_paragraph(section["description"])
    for prefix, model in sections(RunConfig):
        if prefix and "N." not in prefix:  # an item of a list extends nothing
            schema["$defs"][model.__name__].pop("required", None)
    source = schema["$defs"]["DataConfig"]["properties"]["source"]
    source["anyOf"] = source.pop("oneOf")  # without its kind, a part of a source may be of several
    paths = schema["$defs"]["FilesSource"]["properties"]["path"]["anyOf"]
    source["anyOf"] += paths  # configs/loader.py: a path alone is a source of files
    del source["discriminator"]
    return json.dumps(schema, indent=2) + "\n"


def written() -> dict[Path, str]:
    """The files that are made here, and what they should hold."""
    return {ROOT / "docs/configuration.md": page(), BASE: base(), ROOT / "configs/schema.json": json_schema()}


def main() -> None:
    argparse.ArgumentParser(
        description="Write docs/configuration.md, the comments of configs/base.yaml, and configs/schema.json."
    ).parse_args()
    for file, text in written().items():
        file.write_text(text, encoding="utf-8", newline="\n")
        print(f"wrote {file.relative_to(ROOT)}")


if __name__ == "__main__":
    exit_on_bad_input(main)
