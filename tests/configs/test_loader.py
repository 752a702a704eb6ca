"""YAML in, a plain dict out, and every key remembers where it came from."""

from pathlib import Path

import pytest
import yaml

from configs.command import InputError
from configs.loader import dump_yaml, load_config, parse_yaml
from train.config import load_run_config

CONFIGS = sorted(Path("configs").glob("*.yaml"))


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


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 0.001), ("2.5", 2.5), ("3", 3), ("true", True), ("1e", "1e"), ("-.5", -0.5)],
)
def test_numbers_are_read_as_people_write_them(tmp_path, text, value):
    loaded = load_config(write(tmp_path, "x.yaml", f"key: {text}\n"))
    assert loaded.values["key"] == value
    assert type(loaded.values["key"]) is type(value)


def test_words_that_only_old_yaml_takes_for_something_else_are_text(tmp_path):
    words = ["yes", "no", "on", "off", "y", "12:30", "1_000", "2020-01-02", "0b11", "=", "<<", "1.2.3", "0o8", ".INf"]
    loaded = load_config(write(tmp_path, "x.yaml", f"key: [{', '.join(words)}]\n"))
    assert loaded.values["key"] == words


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
train:⏎  max_steps: many => x.yaml:2: `train.max_steps` is 'many': must be a valid integer
train:⏎  max_steps: true => x.yaml:2: `train.max_steps` is True
train:⏎  optimizer: {lr: -1} => x.yaml:2: `train.optimizer.lr` is -1: must be greater than 0
data:⏎  source: {kind: files, pth: a} => x.yaml:2: unknown key `data.source.pth`, did you mean `data.source.path`
data:⏎  source: {kind: files} => x.yaml:2: `data.source.path` is missing
model:⏎  hidden_size: 6⏎  num_attention_heads: 2⏎  num_key_value_heads: mha => x.yaml:3: head_dim .3. must be even
model:⏎  num_attention_heads: 8⏎  num_key_value_heads: 3 => x.yaml:3: .*use 1, 2, 4, 8
data:⏎  sequence_length: 1024 => x.yaml:2: data.sequence_length .1024. is longer than model.max
train:⏎  tokens_per_step: 1000 => x.yaml:2: train.tokens_per_step .* multiple of .* use 768 or 1024
train:⏎  micro_batch_size: 7 => x.yaml:2: train.micro_batch_size .7. must divide the 32 rows
model: {num_key_value_heads: gga} => `model.num_key_value_heads` is 'gga': .*'mha', 'gqa' or 'mqa'$
model: {num_key_value_heads: [1, 2]} => `model.num_key_value_heads` is .1, 2.: must be a valid integer or
train:⏎  optimizer: {betas: [0.9, 1.5]} => x.yaml:2: `train.optimizer.betas.1` is 1.5: must be less than 1
model: &a {hidden_size: *a} => x.yaml:1: .*uses an alias
name: &a b⏎seed: *a => x.yaml:2: .*uses an alias: write the value out
train:⏎  max_steps: 12:30 => x.yaml:2: `train.max_steps` is '12:30': must be a valid integer
train: {trace: yes} => x.yaml:1: `train.trace` is 'yes': must be a valid boolean
eval:⏎  hooks:⏎  - name: samples⏎    every: 1⏎    every: 2 => x.yaml:5: .*`every` is given twice
seed: !!python/object/apply:os.getpid [] => x.yaml:1: .*tag:yaml.org,2002:python/object
seed: 1⏎---⏎seed: 2 => x.yaml:2: .*another document
? [1, 2]⏎: 3 => x.yaml:1: .*keys must be plain words
extends: [a, b] => x.yaml:1: extends takes one file name
data:⏎  source: {kind: file} => x.yaml:2: `data.source` is .*'file' .* expected tags: 'storyworld', 'files', 'hub'
eval: {attention: {max_tokens: 256}}⏎model: {max_position_embeddings: 64}⏎data: {sequence_length: 64} => x.yaml:2: .*256
data:⏎  source: {kind: mix, parts: [⏎    {weight: heavy, source: 3}]} => `data.source.parts.0.weight` is 'heavy': must
data:⏎  source: {kind: mix, parts: [{sorce: {}}]} => unknown key `data.source.parts.0.sorce`, did you mean `data.s
data:⏎  source: {kind: mix, parts: [{source: {path: a}}]} => `data.source.parts.0.source.kind` is missing$
data: {source: {kind: hub, name: x, document_start: '('}} => document_start.*is not a regular expression
data: {source: {path: a.txt, kind: storyworld}} => `data.source.path` belongs to another kind: set
data: {source: 3} => `data.source` is 3: must be {key: value, …}
data: {source: ''} => `data.source.path` is ''
name: a/b => x.yaml:1: the run would be called 'a/b'
seed: 1⏎seed: 2 => x.yaml:2: .*`seed` is given twice
seed: [1 => x.yaml:.*not valid YAML
- 1 => x.yaml:1: a config must be a mapping
extends: nowhere.yaml => x.yaml:1: no such config file: .*nowhere.yaml
extends: x.yaml => x.yaml:1: `extends` goes in a circle
"""
LONG_MISTAKES = [
    ("", "x.yaml:1: a config must be a mapping"),
    ("seed: " + "9" * 5000, "x.yaml: .*4300 digits"),
    ("name: a\0b", "x.yaml: not valid YAML: .*#x0000"),
]


@pytest.mark.parametrize(
    ("text", "message"), [*(line.split(" => ") for line in MISTAKES.strip().splitlines()), *LONG_MISTAKES]
)
def test_every_mistake_is_one_line_that_says_where(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as caught:
        load_run_config(write(tmp_path, "x.yaml", text.replace("⏎", "\n")))
    assert "\n" not in str(caught.value)


def test_a_mistake_on_the_command_line_is_named_too(tmp_path):
    config = write(tmp_path, "x.yaml", "seed: 1\n")
    with pytest.raises(InputError, match="command line `sed=2`: unknown key `sed`, did you mean `seed`"):
        load_run_config(config, ["sed=2"])
    with pytest.raises(InputError, match="command line `modle.x=1`: unknown key `modle`, did you mean `model`"):
        load_run_config(config, ["modle.x=1"])
    with pytest.raises(InputError, match="command line `model.num_key_value_heads=3`: .*use 1, 2, 4, 8"):
        load_run_config(config, ["model.num_key_value_heads=3"])
    with pytest.raises(InputError, match="write section.key=value"):
        load_run_config(config, ["seed"])
    for name, meant in ((tmp_path / "y.yaml", config), ("smal.yaml", "configs/small.yaml")):
        with pytest.raises(InputError, match=f"no such config file: {name}, did you mean {meant}.$"):
            load_run_config(name)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_shipped_config_is_valid_and_its_resolved_form_gives_the_same_run(path, tmp_path):
    config = load_run_config(path)
    again = load_run_config(write(tmp_path, "resolved.yaml", dump_yaml(config.model_dump())))
    assert again == config


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


def test_extends_may_stand_anywhere_but_only_once(tmp_path):
    write(tmp_path, "base.yaml", "seed: 1\n")
    assert load_config(write(tmp_path, "x.yaml", "seed: 2\nextends: base.yaml\n")).values == {"seed": 2}
    with pytest.raises(InputError, match="x.yaml:2: .*`extends` is given twice"):
        load_config(write(tmp_path, "x.yaml", "extends: base.yaml\nextends: base.yaml\n"))


def test_a_pretrained_tokenizer_without_a_path_is_that_of_init_from(tmp_path):
    file = tmp_path / "fine.yaml"
    file.write_text("init_from: runs/one\ndata: {tokenizer: {kind: pretrained}}\n", encoding="utf-8")
    named = [load_config(file, overrides) for overrides in ([], ["init_from=runs/two"], ["data.tokenizer.path=three"])]
    assert [one.values["data"]["tokenizer"]["path"] for one in named] == ["runs/one", "runs/two", "three"]
    assert load_config(file, ["data.tokenizer.kind=bpe"]).values["data"]["tokenizer"] == {"kind": "bpe"}
