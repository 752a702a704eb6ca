"""What is written about the config keys, from the fields themselves: `python -m docs.tools.configuration`

Writes the tables of docs/configuration.md and configs/schema.json from the descriptions of the fields, in the config.py
of each room. A test compares both files with this, and the comments of configs/base.yaml with the descriptions.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel

from configs.command import exit_on_bad_input
from configs.loader import fields, load_config
from eval.attention.probes import ProbeFile
from train.config import RunConfig

ROOT = Path(__file__).resolve().parents[2]
PAGE, SCHEMA = ROOT / "docs/configuration.md", ROOT / "configs/schema.json"
# headings: the introduction and the rules are written by hand, the rest is generated
MATTER, RULES, TABLES = "\n## Twelve keys that matter\n", "\n## How a config is read\n", "\n## The run\n"
TWELVE = (
    "data.source data.sequence_length model.hidden_size model.num_hidden_layers model.num_attention_heads "
    "model.num_key_value_heads train.max_steps train.tokens_per_step train.optimizer.lr init_from name seed"
).split()
HEADINGS: dict[type[BaseModel], str] = {
    RunConfig: "The run",
    ProbeFile: "The file that eval.attention.probe_file names",
}
WORDS = {"integer": "integer", "number": "number", "boolean": "`true`, `false`", "null": "`null`"}
SECTION = "a section"
SIGNS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


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


def tables() -> str:
    """A table for every section, as Markdown. What several kinds of a section share has a row in the first of them."""
    base, prefixes = load_config(ROOT / "configs/base.yaml").values, dict[type[BaseModel], str]()
    order = ["", *sorted(base, key=lambda name: base[name] is None)]  # what a run may do without comes last
    in_order = sorted(sections(RunConfig), key=lambda section: order.index(section[0].partition(".")[0]))
    for prefix, model in [*in_order, *sections(ProbeFile)]:
        prefixes.setdefault(model, prefix)  # what stands in several places has a table in the first
    parts, written = [], set[str]()
    for model, prefix in prefixes.items():
        kinds = get_args(model.model_fields["kind"].annotation) if "kind" in model.model_fields else ()
        heading = HEADINGS.get(model) or prefix.removesuffix(".").replace(".N", ", each one")
        heading += f", kind: {kinds[0]}" if len(kinds) == 1 else ""
        shared = [name for name in model.model_fields if prefix + name in written]
        written |= {prefix + name for name in model.model_fields}
        also = ", ".join(f"`{name}`" for name in shared if name != "kind")
        about = first_paragraph(model) + (f" Also {also}, as above." if also else "")
        parts.append("\n".join(["", f"## {heading}", "", about, "", *table(model, prefix, shared), ""]))
    return "".join(parts)


def twelve() -> str:
    """The keys that matter most, each with the first sentence of its description."""
    described = {".".join(path): one_line(field.description or "") for path, field in reversed([*fields(RunConfig)])}
    lines = ["", "| key | meaning |", "|---|---|"]
    for key in TWELVE:
        sentence = re.split(r"(?<=\.) (?=[A-Z]|null)", described[key])[0].replace("|", "\\|")
        lines.append(f"| `{key}` | {sentence} |")
    return "\n".join([*lines, ""])


def first_paragraph(model: type[BaseModel]) -> str:
    """What its docstring begins with, on one line."""
    return one_line(inspect.cleandoc(model.__doc__ or "").split("\n\n")[0])


def one_line(text: str) -> str:
    """A description without the line ends that it has in the source."""
    return " ".join(text.split())


def table(model: type[BaseModel], prefix: str, left_out: Sequence[str] = ()) -> Iterator[str]:
    """The lines of a table: a row for each key of a section."""
    schema = model.model_json_schema()
    yield "| key | takes | default | meaning |"
    yield "|---|---|---|---|"
    if model is RunConfig:
        shipped = "Where there is none, a config of this name that Headlight brings along."
        yield f"| `extends` | text | | Another YAML file that this one changes, relative to this file. {shipped} |"
    for name, field in sorted(schema["properties"].items(), key=lambda item: item[0] != "kind"):
        if name in left_out:
            continue
        value, takes, meaning = field.get("default", "*required*"), _takes(field, schema), field["description"]
        if value is None:  # may be set as well, which the page says once
            takes = takes.removesuffix(", or `null`")
        words = [{*re.findall(r"\w+", text)} for text in (takes, meaning)]
        if re.fullmatch(r"`\w+`(, `\w+`){2,}", takes) and words[0] <= words[1]:
            takes = "a choice"  # the meaning explains its words
        if takes != SECTION or value is not None:  # the keys of a section have a table
            examples = []
            for example in field.get("examples", []):  # each on one line
                line = yaml.safe_dump(example, default_flow_style=True, sort_keys=False, width=1000).split("\n")[0]
                examples.append(f"`{line}`")
            meaning += f" For example {' or '.join(examples)}." if examples else ""
        default = value if value == "*required*" else "" if isinstance(value, dict) else _code(value)
        cells = (f"`{prefix}{name}`", takes, default, one_line(meaning))
        yield "".join(f"| {cell} ".replace("  ", " ") for cell in (c.replace("|", "\\|") for c in cells)) + "|"


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
        is_free = field.get("additionalProperties") or "patternProperties" in field
        return "a mapping" if is_free else SECTION
    word = WORDS.get(str(kind), "text")
    if "minimum" in field and "maximum" in field:
        return f"{word} {field['minimum']:,} to {field['maximum']:,}"
    bounds = [f"{SIGNS[key]} {'2^63' if field[key] == 2**63 else f'{field[key]:,}'}" for key in SIGNS if key in field]
    return " ".join([word, " and ".join(bounds)]).strip()


def json_schema() -> str:
    """The JSON Schema of a YAML config, for editors. What a file extends may hold the rest, so no key is required."""
    schema = RunConfig.model_json_schema()
    schema["properties"]["extends"] = {"type": "string", "description": "Another YAML file that this one changes."}
    for prefix, model in sections(RunConfig):
        if prefix:
            section = schema["$defs"][model.__name__]
            section["description"] = first_paragraph(model)
            if "N." not in prefix:  # an item of a list extends nothing
                section.pop("required", None)
    source = schema["$defs"]["DataConfig"]["properties"]["source"]
    source["anyOf"] = source.pop("oneOf")  # without its kind, a part of a source may be of several
    source["anyOf"] += schema["$defs"]["FilesSource"]["properties"]["path"][
        "anyOf"
    ]  # a path alone is a source of files
    del source["discriminator"]
    return json.dumps(schema, indent=2).replace("\\n", " ") + "\n"


def written() -> dict[Path, str]:
    """The files that are made here, and what they should hold."""
    introduction, _, rest = PAGE.read_text(encoding="utf-8").partition(MATTER)
    rules = RULES + rest.partition(RULES)[2].partition(TABLES)[0]
    return {PAGE: introduction + MATTER + twelve() + rules + tables(), SCHEMA: json_schema()}


def main() -> None:
    argparse.ArgumentParser(description="Write docs/configuration.md and configs/schema.json.").parse_args()
    for file, text in written().items():
        file.write_text(text, encoding="utf-8", newline="\n")
        print(f"wrote {file.relative_to(ROOT)}")


if __name__ == "__main__":
    exit_on_bad_input(main)
