"""Each check of the guides finds what is wrong in a made-up text, and nothing in the same text put right."""

import pytest

from tests.docs import tree
from tests.docs.checks import CHECKS
from tests.docs.page import parse, read, slugs

pytestmark = pytest.mark.slow

# (check, a right text, the same with one mistake, what is said about it)
MISTAKES = [
    ("links", "[a](README.md)", "[a](READ.md)", "the link READ.md leads nowhere"),
    ("links", "[a](docs/sft.md#what-is-evaluated)", "[a](docs/sft.md#what-is-evaluate)", "did you mean what-is-evalu"),
    ("links", "# One two\n[a](#one-two)", "# One two\n[a](#one-too)", "no heading makes #one-too"),
    ("links", "![a](docs/images/live.png)", "![a](docs/images/lives.png)", "leads nowhere"),
    ("links", '<img src="docs/images/live.png">', '<img src="docs/live.png">', "leads nowhere"),
    ("links", '<a href="docs/sft.md">x</a>', 'text <a href="docs/sfd.md">x</a>', "leads nowhere"),
    ("paths", "`model/attention.py`", "`model/atention.py`", "did you mean model/attention.py?"),
    ("paths", "`attention.py`", "`atention.py`", "there is no file `atention.py`"),
    ("paths", "`eval/attention/`", "`eval/atention/`", "there is no file"),
    ("paths", "`configs/*.yaml`", "`configs/*.yml`", "there is no file"),
    ("paths", "`runs/demo/metrics.jsonl`", "`runs/demo/metric.jsonl`", "there is no file"),
    ("paths", "`step_*.npz` `step_00000130.png`", "`steps_*.npz`", "there is no file"),
    ("paths", "`runs/demo`", "`model/metrics.jsonl`", "there is no file"),
    ("keys", "`model.num_key_value_heads`", "`model.num_kv_heads`", "is no key"),
    ("keys", "`data.source.path`", "`data.sourc.path`", "is no key"),
    ("keys", "`train.optimizer.lr=0.01`", "`train.lr=0.01`", "is no key"),
    ("keys", "`eval.hooks.0.every: 3`", "`eval.hooks.0.ever: 3`", "is no key"),
    ("keys", "`eval.attention.viewer.notebook`", "`eval.attention.viewer.notebok`", "is no key and no name"),
    ("keys", "`train.budget`", "`train.budget=3`", "`train.budget` is no key"),
    ("identifiers", "`lm.set_attn_implementation()`", "`lm.set_attention_implementation()`", "nothing is called"),
    ("identifiers", "`LanguageModel`", "`LanguageModle`", "did you mean LanguageModel?"),
    ("commands", "`python -m train.budget configs/demo.yaml`", "`python -m train.budgets`", "runs nothing"),
    ("commands", "`python -m data.prepare configs/x.yaml`", "`python -m data.packing configs/x.yaml`", "runs nothing"),
    ("commands", "`python -m eval.tasks runs/x --limit 3`", "`python -m eval.tasks runs/x --limits 3`", "--limits"),
    ("commands", "```\npython -m eval.attention runs/x \\\n --svg\n```",
     "```\npython -m eval.attention runs/x \\\n --pdf\n```", "eval.attention has no option --pdf"),
    ("commands", "`torchrun --nproc_per_node=2 -m train.pretrain configs/demo.yaml`",
     "`torchrun --nproc_per_node=2 -m train.pretrain configs/demos.yaml`", "there is no configs/demos.yaml"),
    ("commands", "```\n.venv/bin/python -m train.pretrain configs/demo.yaml seed=1  # --no\n```",
     "```\n.venv/bin/python -m train.pretrain configs/demo.yaml seeds=1\n```", "`seeds=1`: there is no such key"),
    ("commands", "`python -m train.pretrain configs/demo.yaml model.num_key_value_heads=2`",
     "`python -m train.pretrain configs/demo.yaml model.num_key_value_heads=4`", "use 1, 2, 3, 6"),
    ("commands", "`python -m train.sweep configs/demo.yaml model.num_key_value_heads=6,2 --seeds 3`",
     "`python -m train.sweep configs/demo.yaml model.kv_heads=6,2 --seeds 3`", "there is no such key"),
    ("commands", "`make demo`", "`make demos`", "make has no target demos: did you mean demo?"),
    ("commands", "`--versus`", "`--versuss`", "no command has the option --versuss"),
    ("yaml_blocks", "```yaml\nmodel: {hidden_size: 64}\n```", "```yaml\nmodel: {hidden: 64}\n```", "unknown key"),
    ("yaml_blocks", "```yaml\nextends: demo.yaml\nseed: 1\n```", "```yaml\nextends: dem.yaml\nseed: 1\n```", "no such"),
    ("yaml_blocks", "```yaml\n{kind: files, path: …}\n```", "```yaml\n{kind: file, path: …}\n```", "does not match"),
    ("yaml_blocks", "```yaml\ntexts: [{name: a, text: b}]\n```", "```yaml\ntexts: [{name: a}]\n```", "Field required"),
    ("tables", "| a | b |\n|---|---|\n| `x\\|y` | 2 |", "| a | b |\n|---|---|\n| `x|y` | 2 |", "3 cells in a"),
    ("tables", "| a | b |\n|---|---|\n| 1 | |", "| a | b |\n|---|---|\n| 1 |", "1 cells in a table of 2"),
    ("imports", "```python\nfrom model import load\n```", "```python\nfrom model import loads\n```", "model.loads"),
    ("imports", "```python\nimport eval.tasks\n```", "```python\nimport eval.task\n```", "eval.task cannot"),
    ("imports", "```python\nx = 1\n```", "```python\nx = = 1\n```", "not Python"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "right", "wrong", "message"), MISTAKES, ids=[f"{m[0]}-{m[3]}" for m in MISTAKES])
def test_a_mistake_is_found(check, right, wrong, message):
    assert list(CHECKS[check](parse(right))) == []
    found = list(CHECKS[check](parse(wrong)))
    assert len(found) == 1, found
    assert message in found[0]
    assert found[0].startswith("made_up.md:")


def test_every_check_has_a_text_on_which_it_fails():
    assert {mistake[0] for mistake in MISTAKES} == set(CHECKS)


def test_anchors_are_githubs():
    headings = ["Where text comes from: `data.source`", "A & B", "A & B", "你好，世界", "What's it_for? (1)"]
    assert slugs(headings) == {
        "where-text-comes-from-datasource", "a--b", "a--b-1", "你好世界", "whats-it_for-1"
    }  # fmt: skip


def test_a_notebook_is_read_cell_by_cell(tmp_path, monkeypatch):
    text = '{"cells": [{"cell_type": "code", "source": ["my_name = 1"]}, {"cell_type": "markdown", "source": '
    (tmp_path / "a.ipynb").write_text(text + '["# Why?\\n", "[a](#why) `my_name` `my_nam`"]}]}', encoding="utf-8")
    monkeypatch.setattr("tests.docs.page.ROOT", tmp_path)
    page = read((tmp_path / "a.ipynb").relative_to(tmp_path))
    assert (page.headings, page.links) == (["Why?"], [(1, "#why")])
    assert [mistake.split(":")[1] for mistake in CHECKS["identifiers"](page)] == ["1"]


def test_the_options_of_a_program_are_what_its_help_says():
    assert {"--seeds", "--out", "--trust-hooks", "--help"} == tree.options("train.sweep")
    assert tree.options("train.config") == frozenset()  # prints the schema, takes nothing
