"""Write the pages about config keys from their fields: `python -m docs.tools.configuration`

The descriptions in the config.py of each room become the tables of docs/configuration.md, and
configs/schema.json. A test compares both files, and the comments of configs/base.yaml, with them.
"""

import inspect
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel

from configs.command import command_parser, exit_on_bad_input
from configs.loader import fields, load_config
from eval.attention.probes import ProbeFile
from train.config import RunConfig

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/configuration.md"
SCHEMA = ROOT / "configs/schema.json"
# Headings of the page. Its introduction and its rules are written by hand.
MATTER = "\n## Twelve keys that matter\n"
RULES = "\n## How a config is read\n"
TABLES = "\n## The run\n"
TWELVE = (
    "data.source data.sequence_length model.hidden_size model.num_hidden_layers "
    "model.num_attention_heads model.num_key_value_heads train.max_steps train.tokens_per_step "
    "train.optimizer.lr init_from name seed"
).split()
HEADINGS: dict[type[BaseModel], str] = {
    RunConfig: "The run",
    ProbeFile: "The file that eval.attention.probe_file names",
}
WORDS = {"integer": "integer", "number": "number", "boolean": "`true`, `false`", "null": "`null`"}
# A value of this type has a table of its own.
SECTION = "a section"
SIGNS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def sections(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield a section and all in it, each with its prefix: `data.source.`; N is a list's item."""
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
    """Return a table for every section, as Markdown. Shared keys have a row in the first one."""
    base = load_config(ROOT / "configs/base.yaml").values
    order = ["", *sorted(base, key=lambda name: base[name] is None)]  # optional sections come last

    def position(section: tuple[str, type[BaseModel]]) -> int:
        return order.index(section[0].partition(".")[0])

    prefixes: dict[type[BaseModel], str] = {}
    for prefix, model in [*sorted(sections(RunConfig), key=position), *sections(ProbeFile)]:
        prefixes.setdefault(model, prefix)  # a section in several places has one table
    parts = []
    written: set[str] = set()
    for model, prefix in prefixes.items():
        kinds: tuple[Any, ...] = ()
        if "kind" in model.model_fields:
            kinds = get_args(model.model_fields["kind"].annotation)
        heading = HEADINGS.get(model) or prefix.removesuffix(".").replace(".N", ", each one")
        heading += f", kind: {kinds[0]}" if len(kinds) == 1 else ""
        shared = [name for name in model.model_fields if prefix + name in written]
        written |= {prefix + name for name in model.model_fields}
        also = ", ".join(f"`{name}`" for name in shared if name != "kind")
        about = first_paragraph(model)
        if also:
            about += f" Also {also}, as above."
        parts.append(
            "\n".join(["", f"## {heading}", "", about, "", *table(model, prefix, shared), ""])
        )
    return "".join(parts)


def twelve() -> str:
    """Return the keys that matter most, each with the first sentence of its description."""
    described = {}
    # reversed: of the members of a union (data.source), the first one describes a key
    for path, field in reversed([*fields(RunConfig)]):
        described[".".join(path)] = one_line(field.description or "")
    lines = ["", "| key | meaning |", "|---|---|"]
    for key in TWELVE:
        sentence = re.split(r"(?<=\.) (?=[A-Z]|null)", described[key])[0].replace("|", "\\|")
        lines.append(f"| `{key}` | {sentence} |")
    return "\n".join([*lines, ""])


def first_paragraph(model: type[BaseModel]) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return one_line(inspect.cleandoc(model.__doc__ or "").split("\n\n")[0])


def one_line(text: str) -> str:
    """Return a description without line ends."""
    return " ".join(text.split())


def table(model: type[BaseModel], prefix: str, left_out: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines of a table: a row for each key of a section."""
    # pydantic's own JSON Schema: types, limits and defaults are not parsed a second time
    schema = model.model_json_schema()
    yield "| key | takes | default | meaning |"
    yield "|---|---|---|---|"
    if model is RunConfig:
        # no field, because the loader merges the files before pydantic sees them
        about = "Another YAML file that this one changes, beside it or shipped with Headlight."
        yield f"| `extends` | text | | {about} |"
    for name, field in sorted(schema["properties"].items(), key=lambda item: item[0] != "kind"):
        if name in left_out:
            continue
        value = field.get("default", "*required*")
        takes = _takes(field, schema)
        meaning = field["description"]
        if value is None:  # null is the default, so it is allowed
            takes = takes.removesuffix(", or `null`")
        # the meaning may explain all words of a choice: no need to list them twice
        choices = set(re.findall(r"\w+", takes))
        is_choice = re.fullmatch(r"`\w+`(, `\w+`){2,}", takes)
        if is_choice and choices <= set(re.findall(r"\w+", meaning)):
            takes = "a choice"
        if takes != SECTION or value is not None:  # the keys of a section have a table
            examples = []
            for example in field.get("examples", []):
                text = yaml.safe_dump(example, default_flow_style=True, sort_keys=False, width=1000)
                examples.append(f"`{text.partition(chr(10))[0]}`")
            if examples:
                meaning += f" For example {' or '.join(examples)}."
        default = value
        if isinstance(value, dict):  # of a section, whose table has the defaults
            default = ""
        elif value != "*required*":
            default = _code(value)
        line = ""
        for cell in (f"`{prefix}{name}`", takes, default, one_line(meaning)):
            line += "| {} ".format(cell.replace("|", "\\|")).replace("  ", " ")
        yield line + "|"


def _code(value: Any) -> str:
    """Return a value as YAML, in the type of code."""
    is_word = isinstance(value, str) and value
    return f"`{value if is_word else json.dumps(value, ensure_ascii=False)}`"


def _takes(field: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return the type and the allowed values of a field of a JSON Schema, in words."""
    # pydantic writes sections and types with a name once, in $defs
    if "$ref" in field:
        return _takes(schema["$defs"][field["$ref"].rsplit("/", 1)[1]], schema)
    options = field.get("anyOf") or field.get("oneOf")
    if options:
        texts = [option.get("description") or _takes(option, schema) for option in options]
        return ", or ".join(dict.fromkeys(texts))
    if "enum" in field or "const" in field:
        return ", ".join(_code(value) for value in field.get("enum", [field.get("const")]))
    kind = field.get("type")
    if kind == "array":
        least = field.get("minItems")
        count = "" if least is None else " (not empty)"
        if least is not None and least == field.get("maxItems"):
            count = f" of {least}"
        return f"a list{count} of: {_takes(field.get('items', {}), schema)}"
    if kind == "object":
        is_free = field.get("additionalProperties") or "patternProperties" in field
        return "a mapping" if is_free else SECTION
    word = WORDS.get(str(kind), "text")
    if "minimum" in field and "maximum" in field:
        return f"{word} {field['minimum']:,} to {field['maximum']:,}"
    bounds = []
    for key in SIGNS:
        if key in field:
            bound = "2^63" if field[key] == 2**63 else f"{field[key]:,}"
            bounds.append(f"{SIGNS[key]} {bound}")
    return " ".join([word, " and ".join(bounds)]).strip()


def json_schema() -> str:
    """Return the JSON Schema of a YAML config, for editors."""
    schema = RunConfig.model_json_schema()
    extends = {"type": "string", "description": "Another YAML file that this one changes."}
    schema["properties"]["extends"] = extends
    for prefix, model in sections(RunConfig):
        if prefix:
            section = schema["$defs"][model.__name__]
            section["description"] = first_paragraph(model)
            # a required key may be in a file that is extended; but an item of a list is complete
            if "N." not in prefix:
                section.pop("required", None)
    source = schema["$defs"]["DataConfig"]["properties"]["source"]
    source["anyOf"] = source.pop("oneOf")  # without its kind, a part of a source fits several
    paths = schema["$defs"]["FilesSource"]["properties"]["path"]["anyOf"]
    source["anyOf"] += paths  # a path alone is a source of files
    del source["discriminator"]
    return json.dumps(schema, indent=2).replace("\\n", " ") + "\n"


def written() -> dict[Path, str]:
    """Return the generated files and their text."""
    introduction, _, rest = PAGE.read_text(encoding="utf-8").partition(MATTER)
    rules = RULES + rest.partition(RULES)[2].partition(TABLES)[0]
    return {PAGE: introduction + MATTER + twelve() + rules + tables(), SCHEMA: json_schema()}


def main() -> None:
    command_parser(__doc__).parse_args()
    for file, text in written().items():
        file.write_text(text, encoding="utf-8", newline="\n")
        print(f"wrote {file.relative_to(ROOT)}")


if __name__ == "__main__":
    exit_on_bad_input(main)
