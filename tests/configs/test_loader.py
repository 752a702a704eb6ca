"""YAML in, a plain dict out, and every key remembers where it came from."""

from pathlib import Path
from typing import get_args

import pytest
import yaml

from configs.command import InputError
from configs.loader import fields, load_config, validate
from configs.parse import dump_yaml, parse_yaml
from data.config import CorpusConfig
from train.config import RunConfig, load_run_config


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


@pytest.fixture
def child(tmp_path):
    write(tmp_path, "base.yaml", "seed: 1\nmodel:\n  hidden_size: 64\n  num_hidden_layers: 3\n")
    return write(tmp_path, "child.yaml", "extends: base.yaml\nmodel:\n  hidden_size: 128\n")


def test_a_child_changes_what_it_names_and_keeps_the_rest(child, tmp_path):
    loaded = load_config(child)
    assert loaded.values == {"seed": 1, "model": {"hidden_size": 128, "num_hidden_layers": 3}}
    assert loaded.where(("model", "hidden_size")) == f"{child}:3"
    assert loaded.where(("model", "num_hidden_layers")) == f"{tmp_path / 'base.yaml'}:4"


def test_overrides_come_last_and_say_so(child):
    loaded = load_config(child, ["model.hidden_size=256", "train.optimizer.lr=1e-3", "name=x"])
    assert loaded.values["model"] == {"hidden_size": 256, "num_hidden_layers": 3}
    assert loaded.values["train"]["optimizer"]["lr"] == 0.001
    assert loaded.where(("model", "hidden_size")) == "command line `model.hidden_size=256`"


def test_numbers_are_read_as_people_write_them_and_words_of_old_yaml_are_text():
    words = "yes no on off y 12:30 1_000 2020-01-02 0b11 = << 1.2.3 0o8 .INf 1e".split()
    read = parse_yaml(f"[1e-3, 2.5, 3, true, -.5, {', '.join(words)}]", "here")
    assert [(type(value), value) for value in read[:5]] == [
        (float, 0.001), (float, 2.5), (int, 3), (bool, True), (float, -0.5)
    ]  # fmt: skip
    assert read[5:] == words


def test_what_is_written_is_read_back_by_old_and_new_yaml():
    words = ["yes", "12:30", "1e3", "0o17", "0x1f", "1_000", "010", "null", "~", "", "2020-01-02"]
    values = [*words, 1e-10, 1e22, 3, None]
    assert parse_yaml(dump_yaml(values), "here") == yaml.safe_load(dump_yaml(values)) == values


def test_a_path_alone_is_a_source_of_files(tmp_path):
    write(tmp_path, "base.yaml", "data:\n  source: {kind: storyworld, documents: 7}\n")
    child = write(tmp_path, "x.yaml", "extends: base.yaml\ndata:\n  source: books/\n")
    assert load_config(child).values["data"]["source"] == {"kind": "files", "path": "books/"}
    given = load_config(tmp_path / "base.yaml", ["data.source=my.jsonl.gz", "data.source.text_field=body"])
    assert given.values["data"]["source"] == {"kind": "files", "path": "my.jsonl.gz", "text_field": "body"}
    several = load_config(child, ["data.source=[a.txt, b.csv]"]).values["data"]["source"]
    assert several == {"kind": "files", "path": ["a.txt", "b.csv"]}
    with_limit = load_config(child, ["data.source.max_records=3"]).values["data"]["source"]
    assert with_limit == {"kind": "files", "path": "books/", "max_records": 3}


def test_another_kind_of_source_inherits_nothing(tmp_path):
    write(tmp_path, "base.yaml", "data:\n  source: {kind: storyworld, documents: 7}\n")
    child = write(tmp_path, "x.yaml", "extends: base.yaml\ndata:\n  source: {path: a.txt, kind: files}\n")
    assert load_config(child).values["data"]["source"] == {"kind": "files", "path": "a.txt"}
    flags = ["data.source.path=a.txt", "data.source.kind=files"]
    assert load_config(tmp_path / "base.yaml", flags).values["data"]["source"] == {"kind": "files", "path": "a.txt"}


# ⏎ ends a line of the file; behind the arrow, what the message matches
MISTAKES = """
model:⏎  hiden_size: 3 => x.yaml:2: unknown key `model.hiden_size`, did you mean `model.hidden_size`?
train:⏎  num_key_value_heads: 1 => x.yaml:2: .*did you mean `model.num_key_value_heads`?
modle: {} => x.yaml:1: unknown key `modle`, did you mean `model`?
train:⏎  max_steps: many => x.yaml:2: `train.max_steps` is 'many'
train:⏎  max_steps: true => x.yaml:2: `train.max_steps` is True
train:⏎  max_steps: 12:30 => x.yaml:2: `train.max_steps` is '12:30'
train: {trace: yes} => x.yaml:1: `train.trace` is 'yes'
train:⏎  optimizer: {betas: [0.9, 1.5]} => x.yaml:2: `train.optimizer.betas.1` is 1.5: must be less than 1
train:⏎  tokens_per_step: 1000 => x.yaml:2: train.tokens_per_step .* use 768 or 1024
train:⏎  micro_batch_size: 7 => x.yaml:2: train.micro_batch_size .7. must divide the 32 rows
model:⏎  hidden_size: 6⏎  num_attention_heads: 2⏎  num_key_value_heads: mha => x.yaml:3: head_dim .3. must be even
model:⏎  num_attention_heads: 8⏎  num_key_value_heads: 3 => x.yaml:3: .*use 1, 2, 4, 8
model: {num_key_value_heads: gga} => `model.num_key_value_heads` is 'gga': .*'mha', 'gqa' or 'mqa'$
data:⏎  sequence_length: 1024 => x.yaml:2: data.sequence_length .1024. is longer than model.max
data:⏎  source: {kind: files} => x.yaml:2: `data.source.path` is missing
data:⏎  source: {kind: files, pth: a} => x.yaml:2: unknown key `data.source.pth`, did you mean `data.source.path`
data:⏎  source: {kind: file} => x.yaml:2: `data.source` is .*'file' .*'storyworld', 'files', 'hub'
data:⏎  source: {kind: mix, parts: [{sorce: {}}]} => unknown key `data.source.parts.0.sorce`, did you mean `data.s
data:⏎  source: {kind: mix, parts: [{source: {path: a}}]} => `data.source.parts.0.source.kind` is missing$
data: {source: {kind: hub, name: x, document_start: '('}} => document_start.*is not a regular expression
data: {source: {path: a.txt, kind: storyworld}} => `data.source.path` belongs to another kind: set
data: {source: 3} => `data.source` is 3: must be
data: {source: ''} => `data.source.path` is ''
eval: {attention: {max_tokens: 256}}⏎model: {max_position_embeddings: 64}⏎data: {sequence_length: 64} => x.yaml:2: .*256
eval:⏎  hooks:⏎  - name: samples⏎    every: 1⏎    every: 2 => x.yaml:5: .*`every` is given twice
name: &a b⏎seed: *a => x.yaml:2: .*uses an alias: write the value out
name: a/b => x.yaml:1: the name of the run is 'a/b'
seed: !!python/object/apply:os.getpid [] => x.yaml:1: .*tag:yaml.org,2002:python/object
seed: 1⏎---⏎seed: 2 => x.yaml:2: .*another document
seed: [1 => x.yaml:.*not valid YAML
? [1, 2]⏎: 3 => x.yaml:1: .*keys must be plain words
- 1 => x.yaml:1: a config must be a mapping
extends: nowhere.yaml => x.yaml:1: no such config file: .*nowhere.yaml
extends: x.yaml => x.yaml:1: `extends` goes in a circle
extends: small.yaml⏎extends: small.yaml => x.yaml:2: .*`extends` is given twice
extends: [a, b] => x.yaml:1: extends takes one file name
"""
LONG_MISTAKES = [("", "a config must be a mapping"), ("seed: " + "9" * 5000, "4300 digits"), ("name: a\0b", "#x0000")]


@pytest.mark.parametrize(
    ("text", "message"), [*(line.split(" => ") for line in MISTAKES.strip().splitlines()), *LONG_MISTAKES]
)
def test_every_mistake_is_one_line_that_says_where(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as caught:
        load_run_config(write(tmp_path, "x.yaml", text.replace("⏎", "\n")))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sed=2", "command line `sed=2`: unknown key `sed`, did you mean `seed`"),
        ("modle.x=1", "command line `modle.x=1`: unknown key `modle`, did you mean `model`"),
        ("model.num_key_value_heads=3", "command line `model.num_key_value_heads=3`: .*use 1, 2, 4, 8"),
        ("seed", "write section.key=value"),
    ],
)
def test_a_mistake_on_the_command_line_is_named_too(tmp_path, override, message):
    with pytest.raises(InputError, match=message):
        load_run_config(write(tmp_path, "x.yaml", "seed: 1\n"), [override])


# an override, and the value that it gives; of text what was typed, whatever YAML would make of it
TYPED = [
    ("name=2024", "2024"),
    ("name=1e3", "1e3"),
    ("output_dir=[old]", "[old]"),
    ("output_dir=a: b", "a: b"),
    ("output_dir=c # d", "c # d"),
    ('output_dir="c # d"', "c # d"),
    ("init_from=null", None),
    ("init_from=@x", "@x"),
    ("tracking.project=true", "true"),
    ("data.source=c #1.jsonl", {"kind": "files", "path": "c #1.jsonl"}),
    ("data.source=*.jsonl", {"kind": "files", "path": "*.jsonl"}),
    ("data.source=[old] a.txt", {"kind": "files", "path": "[old] a.txt"}),
    ("data.source=@x.txt", {"kind": "files", "path": "@x.txt"}),
    ("data.source=2024", {"kind": "files", "path": "2024"}),
    ("data.source=- a", {"kind": "files", "path": "- a"}),
    ("data.source=[a.txt, '2024']", {"kind": "files", "path": ["a.txt", "2024"]}),
    ("data.source={kind: hub, name: x}", {"kind": "hub", "name": "x"}),
    ("data.source.document_start=[A-Z]", "[A-Z]"),
    ("data.source.document_start=null", None),
    (r'data.source.separator="\n\n"', "\n\n"),
    ("eval.prompts=[a, 'b # c']", ["a", "b # c"]),
    ("lora=null", None),
    ("train.max_steps=5 # or more", 5),
]


@pytest.mark.parametrize(("override", "value"), TYPED)
@pytest.mark.parametrize("schema", [RunConfig, CorpusConfig])
def test_an_override_for_text_is_what_was_typed(tmp_path, override, value, schema):
    config = write(tmp_path, "x.yaml", "extends: base.yaml\ndata: {source: {path: a.txt, kind: files}}\n")
    key = tuple(override.partition("=")[0].split("."))
    loaded = load_config(config, [override], schema)
    if schema is RunConfig or key[0] in schema.model_fields:
        assert loaded.find(key)[1] == value
    validate(schema, loaded)


def integers(annotation: object) -> bool:
    return annotation is int or any(map(integers, get_args(annotation)))


def test_no_whole_number_is_larger_than_pytorch_counts(tmp_path):
    keys = {".".join(path) for path, info in fields(RunConfig) if integers(info.annotation)}
    assert len(keys) > 60
    for key in keys:
        with pytest.raises(InputError):
            load_run_config("configs/base.yaml", [f"{key}={2**63}"])
        with pytest.raises(InputError):  # in a list, where the key takes one
            load_run_config("configs/base.yaml", [f"{key}=[{2**63}]"])
    with pytest.raises(InputError, match=r"`seed` is 9\d+: must be"):
        load_run_config(write(tmp_path, "x.yaml", f"seed: {2**63}\n"))


def test_the_nearest_file_is_named():
    with pytest.raises(InputError, match=r"no such config file: smal.yaml, did you mean configs/small.yaml.$"):
        load_run_config("smal.yaml")


@pytest.mark.parametrize("path", sorted(Path("configs").rglob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_config_is_valid_and_its_resolved_form_gives_the_same_run(path, tmp_path):
    config = load_run_config(path)
    assert load_run_config(write(tmp_path, "resolved.yaml", dump_yaml(config.model_dump()))) == config


def test_an_empty_section_changes_nothing_and_a_value_gives_way_to_a_section(tmp_path):
    write(tmp_path, "base.yaml", "model: {hidden_size: 64}\ntrain: 3\n")
    loaded = load_config(write(tmp_path, "x.yaml", "model: {}\ntrain: {max_steps: 1}\neval: {}\nextends: base.yaml\n"))
    assert loaded.values == {"model": {"hidden_size": 64}, "train": {"max_steps": 1}, "eval": {}}
    assert loaded.where(("model",)) == f"{tmp_path / 'x.yaml'}:1"
    assert loaded.where(("train", "max_steps")) == loaded.where(("train",)) == f"{tmp_path / 'x.yaml'}:2"


def test_a_shipped_config_is_extended_from_anywhere_unless_one_of_its_name_is_beside(tmp_path):
    child = write(tmp_path, "x.yaml", "extends: small.yaml\nseed: 3\n")
    assert load_config(child).values == load_config("configs/small.yaml").values | {"seed": 3}
    write(tmp_path, "small.yaml", "name: mine\n")
    assert load_config(child).values == {"name": "mine", "seed": 3}
    with pytest.raises(InputError, match=r"no such config file: .*configs/small.yaml"):
        load_config(write(tmp_path, "y.yaml", "extends: configs/small.yaml\n"))


@pytest.mark.parametrize("name", ["small.yaml", "configs/small.yaml"])
def test_a_shipped_config_is_opened_from_anywhere_unless_one_of_its_name_is_there(tmp_path, monkeypatch, name):
    shipped = load_config("configs/small.yaml").values
    monkeypatch.chdir(tmp_path)
    assert load_config(name).values == shipped
    assert load_run_config(name, ["eval.hooks=['a.b:c']"], trust_hooks=False).name == "small"
    (tmp_path / "configs").mkdir()
    write(tmp_path, name, "name: mine\n")
    assert load_config(name).values == {"name": "mine"}
    with pytest.raises(InputError, match="no such config file"):
        load_config(f"elsewhere/{name}")


def test_a_pretrained_tokenizer_without_a_path_is_that_of_init_from(tmp_path):
    file = tmp_path / "fine.yaml"
    file.write_text("init_from: runs/one\ndata: {tokenizer: {kind: pretrained}}\n", encoding="utf-8")
    named = [load_config(file, overrides) for overrides in ([], ["init_from=runs/two"], ["data.tokenizer.path=three"])]
    assert [one.values["data"]["tokenizer"]["path"] for one in named] == ["runs/one", "runs/two", "three"]
    assert load_config(file, ["data.tokenizer.kind=bpe"]).values["data"]["tokenizer"] == {"kind": "bpe"}
