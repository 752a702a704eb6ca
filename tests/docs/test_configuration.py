"""docs/configuration.md, base.yaml and schema.json agree with the fields of the config."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from pydantic import BaseModel, Field

from configs.loader import fields, load_config
from docs.tools import configuration
from train.config import RunConfig

BASE = Path("configs/base.yaml")
SCHEMA = json.loads(Path("configs/schema.json").read_text(encoding="utf-8"))
CONFIGS = sorted(Path("configs").rglob("*.yaml"))


def test_the_committed_files_are_the_generated_ones():
    for file, text in configuration.written().items():
        assert file.read_text(encoding="utf-8") == text, f"{file}: run python -m docs.tools.configuration"


def test_every_key_of_a_run_has_a_row_with_a_sentence_and_what_it_takes():
    rows = re.findall(r"^\| `([a-z_.N]+)` \| (.*?) \|.*?\| (.*) \|$", configuration.tables(), re.MULTILINE)
    known = {".".join(path) for path, _ in fields(RunConfig)}
    # what stands in a list has N in its path; parts of a mix and drills of a course are as those
    # outside of it
    like_others = ("data.source.parts.source.", "data.source.course.drills.")
    assert {key for key in known if not key.startswith(like_others)} <= {key.replace(".N", "") for key, _, _ in rows}
    assert [key for key, takes, sentence in rows if not takes or len(sentence.split()) < 2] == []


def test_a_row_says_type_range_and_default():
    class Example(BaseModel):
        some: int = Field(3, ge=1, lt=9, description="A number | none.", examples=[5, 6])
        many: list[float] | None = Field(None, min_length=2, max_length=2, description="Two of them.")

    assert list(configuration.table(Example, "x."))[2:] == [
        "| `x.some` | integer ≥ 1 and < 9 | `3` | A number \\| none. For example `5` or `6`. |",
        "| `x.many` | a list of 2 of: number | `null` | Two of them. |",
    ]


def test_base_yaml_has_every_key_that_a_person_sets_and_says_of_it_what_its_field_says():
    """Left out: what follows from other keys, what the tokenizer fills in, and what is of one run
    only.
    """
    base = load_config(BASE)
    comments = " ".join(re.findall(r"(?:^|\s)# ?(.*)", BASE.read_text("utf-8"), re.MULTILINE))
    derived = {f"model.{key}_id" for key in ("bos_token", "eos_token", "pad_token")} | {"model.vocab_size"}
    derived |= {"model.intermediate_size", "model.head_dim", "name", "resume"}
    for path, field in fields(RunConfig):
        key = ".".join(path)
        above = (
            path[0] in ("dpo", "lora", "distill", "grpo", "outcome", "forked_from", "changes") or "rope_scaling" in path
        )
        if key.startswith(("data.source.", "eval.hooks.")) or (above and path[1:] and path[-1] != "rope_scaling"):
            continue  # kinds of a source, and sections that are null: they have no keys there
        if base.find(path)[1] is ...:
            assert key in derived, f"base.yaml has no {key}"
        elif not isinstance(base.find(path)[1], dict):
            assert " ".join((field.description or "").split()) in comments, f"the comment of {key}"


# the schema, which editors check YAML with


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_every_shipped_config_fits_the_schema_and_names_it(file):
    text = file.read_text(encoding="utf-8")
    # 1e-6 is a number for our loader and for editors
    jsonschema.validate(yaml.safe_load(re.sub(r"(?<=\d)e(?=-\d)", ".0e", text)), SCHEMA)
    schema = "../schema.json" if file.parent.name == "cards" else "schema.json"
    assert f"# yaml-language-server: $schema={schema}\n" in text


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("modle: {}", False),
        ("model: {hidden_size: 0}", False),
        ("data: {source: {kind: file}}", False),
        ("data: {source: {kind: files, documents: 3}}", False),
        ("data: {source: {pth: a.txt}}", False),
        ("data: {source: {kind: mix, parts: [{weight: 1.0}]}}", False),
        ("eval: {hooks: [{every: 3}]}", False),
        ("data: {source: {max_records: 3}}", True),  # of a section that it extends
        ("model: {rope_scaling: {factor: 8.0}}", True),
        ("data: {source: {level: 2}}", True),
    ],
)
def test_what_the_schema_takes(text, fits):
    assert jsonschema.Draft202012Validator(SCHEMA).is_valid(yaml.safe_load(text)) == fits
