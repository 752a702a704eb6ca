"""docs/configuration.md, from the config models: `python -m train.documentation > docs/configuration.md`

Every key with what it takes, its default and its sentence. Nothing is written by hand, and a test compares the page.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from configs.loader import load_config
from configs.run_keys import TrackingConfig
from data.config import (
    DataConfig,
    FilesSource,
    HubSource,
    MixPart,
    MixSource,
    StoryworldSource,
    TokenizerConfig,
)
from eval.config import AttentionConfig, EvalConfig, HookConfig
from model.config import ModelConfig, RopeScaling
from train.config import OptimizerConfig, RunConfig, TrainConfig

BASE = Path(__file__).resolve().parents[1] / "configs" / "base.yaml"
INTRODUCTION = """\
# Configuration: every key

<!-- Written by `python -m train.documentation > docs/configuration.md` from the config models. Do not edit. -->

A YAML file is one run (`configs/`). It says what differs from the file that it `extends`, as a rule `base.yaml`; the
command line changes single keys: `python -m train.pretrain configs/demo.yaml model.num_key_value_heads=2 seed=1`. Lists
and mappings are YAML there too: `"data.source={kind: files, path: my.txt}"`. An unknown key is an error that names the
nearest one; so is a value out of its range. `runs/<name>/config.yaml` is the resolved config: what a run was made with.

*Default* is what holds where no file says anything. `configs/base.yaml` gives other values to some keys, and every
config that we ship extends it; these values are in the column beside. `null` means *not set*; the sentence says what
happens then. `configs/schema.json` is the same as a JSON Schema: editors complete and check YAML with it.

What makes a run itself, so that a run of the same name refuses another value: `seed`, `init_from`, all of `model` but
`attn_implementation`, all of `data` (files by their contents, wherever they lie), and of `train`
IDENTITY.
The rest may change when a run goes on, and its limit may grow.
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
        ("data.source, kind: files", FilesSource, "data.source"),
        ("data.source, kind: hub", HubSource, "data.source"),
        ("data.source, kind: mix", MixSource, "data.source"),
        ("data.source.parts, each part of a mix", MixPart, "data.source.parts.N"),
        ("data.tokenizer", TokenizerConfig, "data.tokenizer"),
        ("train", TrainConfig, "train"),
        ("train.optimizer", OptimizerConfig, "train.optimizer"),
        ("eval", EvalConfig, "eval"),
        ("eval.hooks, each hook that is more than a name", HookConfig, "eval.hooks.N"),
        ("eval.attention", AttentionConfig, "eval.attention"),
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
    keys = [key.removeprefix("train.") for key in RunConfig().identity() if key.startswith("train.")]
    return list(dict.fromkeys(key.split(".")[0] for key in keys))


def _introduction(model: type[BaseModel]) -> str:
    """The first paragraph of the model's docstring, which is also its description in the schema."""
    return " ".join(inspect.cleandoc(model.__doc__ or "").split("\n\n")[0].split())


def _table(model: type[BaseModel], prefix: str, base: dict[str, Any]) -> Iterator[str]:
    schema = model.model_json_schema()
    # what base.yaml says about a source is about the built-in world
    said = base if prefix != "data.source" or model is StoryworldSource else {}
    yield "| key | takes | default | in base.yaml | meaning |"
    yield "|---|---|---|---|---|"
    if model is RunConfig:
        yield "| `extends` | text | | | Another YAML file that this one changes; its path is relative to this file. |"
    for name, field in sorted(schema["properties"].items(), key=lambda item: item[0] != "kind"):
        key = f"{prefix}.{name}" if prefix else name
        default, differs = _default(field, name in schema.get("required", [])), ""
        is_there, value = _look_up(said, key)
        if is_there and not isinstance(value, dict) and value != field.get("default"):
            differs = _code(value)
        cells = (f"`{key}`", _takes(field, schema), default, differs, field["description"])
        yield "".join(f"| {cell} ".replace("  ", " ") for cell in (c.replace("|", "\\|") for c in cells)) + "|"


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
        return ", or ".join(dict.fromkeys(_takes(option, schema) for option in options))
    if "enum" in field or "const" in field:
        return ", ".join(_code(value) for value in field.get("enum", [field.get("const")]))
    kind = field.get("type")
    if kind == "array":
        return "a list" + _count(field) + f" of: {_takes(field.get('items', {}), schema)}"
    if kind == "object":
        return "a mapping (below)"
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


def main() -> None:
    argparse.ArgumentParser(description="Print docs/configuration.md.").parse_args()
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    print(page(), end="")


if __name__ == "__main__":
    main()
