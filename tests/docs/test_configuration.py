"""What is written about the config keys is what their fields say: docs/configuration.md, base.yaml, schema.json."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field

from configs.loader import fields, flatten, load_config
from docs.tools import configuration
from train.config import IDENTITY, RunConfig

PAGE = Path("docs/configuration.md")
BASE = Path("configs/base.yaml")
SCHEMA = json.loads(Path("configs/schema.json").read_text(encoding="utf-8"))
CONFIGS = sorted(Path("configs").glob("*.yaml"))


def generated() -> str:
    return PAGE.read_text(encoding="utf-8").partition(configuration.TABLES)[2]


def test_the_committed_files_are_the_generated_ones():
    for file, text in configuration.written().items():
        assert file.read_text(encoding="utf-8") == text, f"{file}: run python -m docs.tools.configuration"


def test_every_key_of_a_run_has_a_row_and_every_row_is_a_key():
    rows = re.findall(r"^\| `([a-z_.N]+)` ", generated(), re.MULTILINE)
    known = {".".join(path) for path, _ in fields(RunConfig)}
    # what stands in a list has a number in its path; a part of a mix is a source like any other, and so are the drills
    # of a step
    found = {row.replace(".N", "") for row in rows if not row.startswith(("extends", "texts"))}
    like_others = ("data.source.parts.source.", "data.source.course.drills.")
    assert {key for key in known if not key.startswith(like_others)} == found


def test_every_row_has_a_sentence_and_what_the_key_takes():
    for line in generated().splitlines():
        if line.startswith("| `"):
            _, key, takes, default, sentence, _ = (cell.strip() for cell in re.split(r"(?<!\\)\|", line))
            assert takes, f"{key} takes nothing"
            assert default or "mapping" in takes or "section" in takes or key == "`extends`", f"{key} has no default"
            assert sentence.endswith((".", "`.")), f"the sentence of {key} does not end: {sentence!r}"
            assert len(sentence.split()) >= 2, f"{key} has no sentence: {sentence!r}"


class Example(BaseModel):
    model_config = ConfigDict(extra="forbid")
    some: int = Field(3, ge=1, lt=9, description="A number | none.", examples=[5, 6])
    many: list[float] | None = Field(None, min_length=2, max_length=2, description="Two of them.")


def test_a_row_says_type_range_and_default():
    assert list(configuration.table(Example, "x."))[2:] == [
        "| `x.some` | integer ≥ 1 and < 9 | `3` | A number \\| none. For example `5` or `6`. |",
        "| `x.many` | a list of 2 of: number | `null` | Two of them. |",
    ]


def test_the_page_names_the_keys_of_train_that_make_a_run_itself():
    introduction = PAGE.read_text(encoding="utf-8").partition(configuration.TABLES)[0]
    names = [key.split(".")[1] for key in IDENTITY if re.fullmatch(r"train\.\w+", key)]
    assert names
    assert [name for name in names if f"`{name}`" not in introduction] == []


def test_base_yaml_says_of_every_key_what_its_field_says():
    comments = " ".join(re.findall(r"(?:^|\s)# ?(.*)", BASE.read_text(encoding="utf-8"), re.MULTILINE))
    texts = reversed([(path, " ".join((field.description or "").split())) for path, field in fields(RunConfig)])
    described = dict(texts)  # storyworld comes first
    values = {tuple(key.split(".")) for key in flatten(load_config(BASE).values)}
    for key in values & described.keys():
        if key[:2] != ("data", "source"):  # which stands on one line
            assert described[key] in comments, f"the comment of {'.'.join(key)}"


def test_base_yaml_has_every_key_that_a_person_sets_and_draws_the_choice_of_heads():
    """Left out: what follows from other keys, what the tokenizer fills in, and what is of one run only."""
    derived = {"intermediate_size", "head_dim", "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id"}
    base = load_config(BASE)
    set_there = {".".join(path) for path, _ in fields(RunConfig) if base.find(path)[1] is not ...}
    keys = {path for path, _ in fields(RunConfig) if path[:2] != ("data", "source") and "rope_scaling" not in path[:-1]}
    methods = {"dpo", "lora", "distill", "grpo"}  # a section that is null has no keys
    keys = {path for path in keys if path[0] not in methods or len(path) == 1}
    wanted = {".".join(path) for path in keys if path[:2] != ("eval", "hooks")} | {"data.source", "eval.hooks"}
    assert wanted - set_there == {f"model.{key}" for key in derived} - set_there | {"name", "resume"}
    text = BASE.read_text(encoding="utf-8")
    assert "mqa   q q q q q q q q" in text[: text.index("num_key_value_heads: gqa")]
    assert max(map(len, text.splitlines())) <= 120


# ---------------------------------------------------------------------------------------------------------
# the schema, which editors check YAML with


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_every_shipped_config_fits_the_schema_and_names_it(file):
    text = file.read_text(encoding="utf-8")
    jsonschema.validate(load_values(text), SCHEMA)
    assert "# yaml-language-server: $schema=schema.json\n" in text


def load_values(text: str) -> dict:
    return yaml.safe_load(re.sub(r"(?<=\d)e(?=-\d)", ".0e", text))  # 1e-6, a number for our loader and for editors


@pytest.mark.parametrize(
    "text",
    [
        "modle: {}",
        "model: {hidden_size: 0}",
        "data: {source: {kind: file}}",
        "data: {source: {kind: files, documents: 3}}",
        "data: {source: {pth: a.txt}}",
        "data: {source: {kind: mix, parts: [{weight: 1.0}]}}",
        "eval: {hooks: [{every: 3}]}",
    ],
)
def test_the_schema_refuses_a_mistake(text):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), SCHEMA)


def test_what_a_file_changes_of_a_section_that_it_extends_fits_the_schema():
    for text in (
        "data: {source: {max_records: 3}}",
        "model: {rope_scaling: {factor: 8.0}}",
        "data: {source: {level: 2}}",
    ):
        jsonschema.validate(yaml.safe_load(text), SCHEMA)
