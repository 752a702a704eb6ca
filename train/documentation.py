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
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from configs.command import exit_on_bad_input
from configs.loader import load_config
from configs.schema import TrackingConfig, fields
from data.config import (
    ClassWeights,
    CourseStep,
    DataConfig,
    Drills,
    FilesSource,
    HubSource,
    MixPart,
    MixSource,
    RecallDocuments,
    StoryworldSource,
    TokenizerConfig,
)
from eval.config import AttentionConfig, EvalConfig, HookConfig
from model.adapters.config import LoraConfig
from model.config import ModelConfig
from model.positions.scaling import RopeScaling
from train.config import IDENTITY, OptimizerConfig, RunConfig, TrainConfig
from train.method_config import DistillConfig, DPOConfig, GRPOConfig

ROOT = Path(__file__).resolve().parents[1]
BASE = ROOT / "configs/base.yaml"
WIDTH = 120  # columns of base.yaml
COLUMN = 32  # of a comment behind a value
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


def sections() -> list[tuple[str, type[BaseModel], str]]:
    """(heading, model, dotted key under which it stands in YAML), in the order of the page."""
    from eval.attention.probes import ProbeFile, ProbeText  # torch

    return [
        ("The run", RunConfig, ""),
        ("model", ModelConfig, "model"),
        ("model.rope_scaling", RopeScaling, "model.rope_scaling"),
        ("data", DataConfig, "data"),
        ("data.source, kind: storyworld", StoryworldSource, "data.source"),
        ("data.source.class_weights", ClassWeights, "data.source.class_weights"),
        ("data.source.drills", Drills, "data.source.drills"),
        ("data.source.course, each step", CourseStep, "data.source.course.N"),
        ("data.source.recall", RecallDocuments, "data.source.recall"),
        ("data.source, kind: files", FilesSource, "data.source"),
        ("data.source, kind: hub", HubSource, "data.source"),
        ("data.source, kind: mix", MixSource, "data.source"),
        ("data.source.parts, each part of a mix", MixPart, "data.source.parts.N"),
        ("data.tokenizer", TokenizerConfig, "data.tokenizer"),
        ("train", TrainConfig, "train"),
        ("train.optimizer", OptimizerConfig, "train.optimizer"),
        ("dpo", DPOConfig, "dpo"),
        ("distill", DistillConfig, "distill"),
        ("grpo", GRPOConfig, "grpo"),
        ("eval", EvalConfig, "eval"),
        ("eval.hooks, each hook that is more than a name", HookConfig, "eval.hooks.N"),
        ("eval.attention", AttentionConfig, "eval.attention"),
        ("lora", LoraConfig, "lora"),
        ("tracking", TrackingConfig, "tracking"),
        ("The file that eval.attention.probe_file names", ProbeFile, ""),
        ("texts, each text of that file", ProbeText, ""),
    ]


def page() -> str:
    """The whole page, as Markdown."""
    base = load_config(BASE).values
    identity = [f"`{key}`" for key in _identity_of_train()]
    parts = [INTRODUCTION.replace("IDENTITY", ", ".join(identity[:-1]) + " and " + identity[-1])]
    for heading, model, prefix in sections():
        parts.append(f"\n## {heading}\n\n{_introduction(model)}\n\n" + "\n".join(_table(model, prefix, base)) + "\n")
    return "".join(parts)


def _identity_of_train() -> list[str]:
    return [key for key in TrainConfig.model_fields if f"train.{key}" in IDENTITY]


def _introduction(model: type[BaseModel]) -> str:
    return _first_paragraph(inspect.cleandoc(model.__doc__ or ""))


def _first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def _table(model: type[BaseModel], prefix: str, base: dict[str, Any]) -> Iterator[str]:
    schema = model.model_json_schema()
    # what base.yaml says about a source is about the built-in world
    said = base if prefix != "data.source" or model is StoryworldSource else {}
    yield "| key | takes | default | in base.yaml | meaning |"
    yield "|---|---|---|---|---|"
    if model is RunConfig:
        shipped = "Where there is none, a config of this name that Headlight brings along."
        yield f"| `extends` | text | | | Another YAML file that this one changes, relative to this file. {shipped} |"
    for name, field in sorted(schema["properties"].items(), key=lambda item: item[0] != "kind"):
        key = f"{prefix}.{name}" if prefix else name
        default, differs = _default(field, name in schema.get("required", [])), ""
        is_there, value = _look_up(said, key)
        if is_there and not isinstance(value, dict) and value != field.get("default"):
            differs = _code(value)
        cells = (f"`{key}`", _takes(field, schema), default, differs, _sentence(field))
        yield "".join(f"| {cell} ".replace("  ", " ") for cell in (c.replace("|", "\\|") for c in cells)) + "|"


def _sentence(field: dict[str, Any]) -> str:
    examples = [f"`{_flow(value)}`" for value in field.get("examples", [])]
    return field["description"] + (f" For example {' or '.join(examples)}." if examples else "")


def _flow(value: Any) -> str:
    """A value on one line of YAML."""
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000).removesuffix("...\n").strip()


def _default(field: dict[str, Any], required: bool) -> str:
    value = field.get("default")
    return "*required*" if required else "" if isinstance(value, dict) else _code(value)


def _code(value: Any) -> str:
    """A value as one would write it in YAML."""
    shown = json.dumps(value, ensure_ascii=False)
    return f"`{value}`" if isinstance(value, str) and value else f"`{shown}`"


def _look_up(values: Any, key: str) -> tuple[bool, Any]:
    for part in key.split("."):
        if not isinstance(values, dict) or part not in values:
            return False, None
        values = values[part]
    return True, values


def _takes(field: dict[str, Any], schema: dict[str, Any]) -> str:
    """Type and allowed values of a field of a JSON Schema, in words."""
    if "$ref" in field:
        target = schema["$defs"][field["$ref"].rsplit("/", 1)[1]]
        return _takes(target, schema)
    if options := field.get("anyOf") or field.get("oneOf"):
        return ", or ".join(dict.fromkeys(option.get("description") or _takes(option, schema) for option in options))
    if "enum" in field or "const" in field:
        return ", ".join(_code(value) for value in field.get("enum", [field.get("const")]))
    kind = field.get("type")
    if kind == "array":
        return "a list" + _count(field) + f" of: {_takes(field.get('items', {}), schema)}"
    if kind == "object":
        return "a mapping" if field.get("additionalProperties") else "a mapping (below)"
    words = {"integer": "integer", "number": "number", "boolean": "`true`, `false`", "null": "`null`"}
    return words.get(str(kind), "text") + _range(field)


def _count(field: dict[str, Any]) -> str:
    least, most = field.get("minItems"), field.get("maxItems")
    return (
        "" if least is None else f" of {least}" if least == most else " (not empty)" if least == 1 else f" of ≥ {least}"
    )


def _range(field: dict[str, Any]) -> str:
    words = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {_number(field[name])}" for name, sign in words.items() if name in field]
    return " " + " and ".join(bounds) if bounds else ""


def _number(value: float) -> str:
    return "2^63" if value == 2**63 else f"{value:,}"


# ---------------------------------------------------------------------------------------------------------
# base.yaml: its order and its values are its own, the comments are the fields' sentences


def base() -> str:
    """configs/base.yaml as it should be."""
    text = BASE.read_text(encoding="utf-8")
    head = "".join(takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True)))
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    sentences = {".".join(path): field for path, field in reversed(list(fields(RunConfig)))}  # storyworld comes first
    return head + "\n" + "\n".join(_base_lines(root, "", text, sentences)) + "\n"


def _base_lines(node: yaml.MappingNode, prefix: str, text: str, known: dict[str, FieldInfo]) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for key_node, value in node.value:
        key = prefix + key_node.value
        comment = str(known[key].description)
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield from ["", f"{key}:  # {comment}"] if not indent and not prefix else [f"{indent}{key_node.value}:"]
            yield from _base_lines(value, f"{key}.", text, known)
            continue
        line = f"{indent}{key_node.value}: {text[value.start_mark.index : value.end_mark.index]}"
        examples = [f"{indent}# for example {_flow(example)}" for example in known[key].examples or []]
        behind = f"{line:<{COLUMN - 2}}  # {comment}"
        if len(behind) > WIDTH or examples or key in DRAWN:
            yield from textwrap.wrap(comment, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
            yield from (f"{indent}# {line}".rstrip() for line in DRAWN.get(key, []))
            yield from examples
            behind = line
        yield behind


def _drawing(model: type[BaseModel]) -> list[str]:
    """The indented paragraph of a docstring."""
    paragraphs = inspect.cleandoc(model.__doc__ or "").split("\n\n")
    return next(part for part in paragraphs if part.startswith(" ")).splitlines()


DRAWN = {"model.num_key_value_heads": _drawing(ModelConfig)}


# ---------------------------------------------------------------------------------------------------------
# schema.json


def json_schema() -> str:
    """The JSON Schema of a YAML config, for editors. What a file extends may hold the rest, so no key is required."""
    schema = RunConfig.model_json_schema()
    schema["properties"]["extends"] = {"type": "string", "description": "Another YAML file that this one changes."}
    for section in schema["$defs"].values():
        section["description"] = _first_paragraph(section["description"])
    for model in (FilesSource, HubSource, MixSource, RopeScaling, DistillConfig):
        schema["$defs"][model.__name__].pop("required")
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
