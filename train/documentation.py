"""What is written about the config keys, from the fields themselves: `python -m train.documentation`

Writes docs/configuration.md and configs/schema.json from the descriptions of the fields, in the config.py of each room.
A test compares both files with this, and the comments of configs/base.yaml with the descriptions.
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel

from configs.command import exit_on_bad_input
from configs.loader import load_config
from eval.attention.probes import ProbeFile
from train.config import IDENTITY, RunConfig, TrainConfig

ROOT = Path(__file__).resolve().parents[1]
HEADINGS: dict[type[BaseModel], str] = {
    RunConfig: "The run",
    ProbeFile: "The file that eval.attention.probe_file names",
}
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

*Default* holds if no file sets the key. `configs/base.yaml`, which all shipped configs extend, shows the defaults.
`null` means *not set*; the last column says what happens then. Editors complete and check your YAML with
`configs/schema.json`. Words mean what YAML 1.2 says: `yes`, `1_000` and `12:30` are text.

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
    order, tables = ["", *load_config(ROOT / "configs/base.yaml").values], dict[type[BaseModel], str]()
    in_order = sorted(sections(RunConfig), key=lambda section: order.index(section[0].partition(".")[0]))
    for prefix, model in [*in_order, *sections(ProbeFile)]:
        tables.setdefault(model, prefix)  # what stands in several places has a table in the first
    identity = [f"`{key}`" for key in TrainConfig.model_fields if f"train.{key}" in IDENTITY]
    parts = [INTRODUCTION.replace("IDENTITY", ", ".join(identity[:-1]) + " and " + identity[-1])]
    for model, prefix in tables.items():
        kinds = get_args(model.model_fields["kind"].annotation) if "kind" in model.model_fields else ()
        heading = HEADINGS.get(model) or prefix.removesuffix(".").replace(".N", ", each one")
        heading += f", kind: {kinds[0]}" if len(kinds) == 1 else ""
        lines = ["", f"## {heading}", "", _first_paragraph(model.__doc__), "", *_table(model, prefix), ""]
        parts.append("\n".join(lines))
    return "".join(parts)


def _first_paragraph(docstring: str | None) -> str:
    return " ".join(inspect.cleandoc(docstring or "").split("\n\n")[0].split())


def _table(model: type[BaseModel], prefix: str) -> Iterator[str]:
    schema = model.model_json_schema()
    yield "| key | takes | default | meaning |"
    yield "|---|---|---|---|"
    if model is RunConfig:
        shipped = "Where there is none, a config of this name that Headlight brings along."
        yield f"| `extends` | text | | Another YAML file that this one changes, relative to this file. {shipped} |"
    for name, field in sorted(schema["properties"].items(), key=lambda item: item[0] != "kind"):
        value = field.get("default", "*required*")
        default = value if value == "*required*" else "" if isinstance(value, dict) else _code(value)
        examples = " or ".join(f"`{_flow(example)}`" for example in field.get("examples", []))
        meaning = field["description"] + (f" For example {examples}." if examples else "")
        cells = (f"`{prefix}{name}`", _takes(field, schema), default, meaning)
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
    return {ROOT / "docs/configuration.md": page(), ROOT / "configs/schema.json": json_schema()}


def main() -> None:
    argparse.ArgumentParser(description="Write docs/configuration.md and configs/schema.json.").parse_args()
    for file, text in written().items():
        file.write_text(text, encoding="utf-8", newline="\n")
        print(f"wrote {file.relative_to(ROOT)}")


if __name__ == "__main__":
    exit_on_bad_input(main)
