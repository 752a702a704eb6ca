"""`model.attn_implementation: mine`: a function of the user's own file computes attention, and only
in training.
"""

import json
from pathlib import Path

import pytest
import torch

from eval.attention import snapshots
from model import load
from model.backends import mine as backend
from model.files.checkpoint import save
from notebooks.check import SOLUTIONS
from tests.conftest import random_model, tiny_config
from tests.train.helpers import REPOSITORY, metrics, pretrain, refusal, write_config

ATTENTION = (REPOSITORY / SOLUTIONS / "attention.py").read_text(encoding="utf-8")
HEADS = {"head_dim": 16}  # a root of 4, by which one can divide without rounding


def mine(folder: Path, code: str = ATTENTION) -> tuple[str, str]:
    """Overrides that train with this code."""
    (folder / "own.py").write_text(code, encoding="utf-8")
    return "model.attn_implementation=mine", f"model.my_attention={folder / 'own.py'}"


def test_the_formula_of_ones_own_has_the_losses_of_ours_and_its_weights_are_shown(tmp_path, no_pictures):
    config = write_config(tmp_path, model=HEADS, eval={"attention": {"every": 6, "max_tokens": 12}})
    done = pretrain(config, "name=mine", *mine(tmp_path))
    assert "own.py; it gives the formula's numbers and gradients" in done.stdout
    assert "hook is off" not in done.stdout
    pretrain(config, "name=eager", "model.attn_implementation=eager")
    runs = tmp_path / "runs"
    mine_losses, losses = ([line["loss"] for line in metrics(runs / name, "train")] for name in ("mine", "eager"))
    assert mine_losses == losses  # 4 query heads share 2 key/value heads; documents are apart
    assert len(losses) == 12
    assert [snapshot.step for snapshot in snapshots.read_all(runs / "mine")[0]][-1] == 12

    # what it has trained knows nothing of the file
    (tmp_path / "own.py").unlink()
    assert load(runs / "mine").attn_implementation == "sdpa"
    pretrain(config, "name=mine", "train.max_steps=14")
    assert metrics(runs / "mine", "train")[-1]["step"] == 14


@pytest.mark.slow
def test_in_the_small_config_the_losses_are_those_of_the_formula(tmp_path):
    common = [f"output_dir={tmp_path}", "train.max_steps=20", "train.precision=fp32", "train.log_every=1"]
    common += ["model.head_dim=16", "data.source.documents=1500", "eval.hooks=[]", "tracking.wandb=disabled"]
    for name, own in (("mine", mine(tmp_path)), ("eager", ["model.attn_implementation=eager"])):
        pretrain(REPOSITORY / "configs/small.yaml", f"name={name}", *common, *own)
    losses = [[line["loss"] for line in metrics(tmp_path / name, "train")] for name in ("mine", "eager")]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 20


def test_another_attention_trains_and_one_line_says_that_its_weights_cannot_be_shown(tmp_path, no_pictures):
    config = write_config(tmp_path, eval={"attention": {"every": 6, "max_tokens": 12}})
    done = pretrain(config, *mine(tmp_path, ATTENTION.replace(" * q.shape[-1] ** -0.5", "")))
    lines = [line for line in done.stdout.splitlines() if "warning" in line]
    assert len(lines) == 2
    assert "own.py, which differs from the formula by" in lines[0]
    assert "the attention hook is off from here: RuntimeError: layer 0: the recomputed attention weights" in lines[1]


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("def attention(q, k, v, mask):\n    return q @ k", "own.py, line 2: `return q @ k` raises RuntimeError"),
        ("def attention(q, k, v, mask)\n    return q", "own.py, line 1: SyntaxError: expected ':'"),
        ("def attend(q, k, v, mask):\n    return v", "own.py has no `attention`"),
        ("def attention(q, k, v, mask):\n    return v[0]", "own.py returned something of shape (2, 6, 8) for queries"),
        ("def attention(q, k, v, mask):\n    v + 1", "own.py returned something of type NoneType for queries"),
        ("def attention(q, k, v, mask):\n    return v.detach()", "has no gradient, so nothing could be learned"),
        ("import nowhere", "own.py, line 1: `import nowhere` raises ModuleNotFoundError"),
    ],
)  # fmt: skip
def test_code_that_fails_is_one_line_before_anything_is_written(tmp_path, code, complaint):
    assert complaint in refusal(write_config(tmp_path), *mine(tmp_path, code))
    assert not list(tmp_path.rglob("metrics.jsonl"))


@pytest.mark.parametrize(
    ("complaint", "overrides"),
    [
        ("go together", ["model.attn_implementation=mine"]),
        ("go together", ["model.my_attention=own.py"]),
        ("own.py: FileNotFoundError", ["model.attn_implementation=mine", "model.my_attention=own.py"]),
        ("must end in .py", ["model.attn_implementation=mine", "model.my_attention=tests"]),
        ("has no dropout", ["MINE", "model.attention_dropout=0.1"]),
        ("is not compiled: set train.compile=false", ["MINE", "train.compile=true"]),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_is_one_line(tmp_path, complaint, overrides):
    given = mine(tmp_path) if overrides[0] == "MINE" else ()
    assert complaint in refusal(write_config(tmp_path), *given, *(each for each in overrides if each != "MINE"))


def test_opening_a_model_runs_no_code_that_its_config_names(tmp_path, monkeypatch):
    monkeypatch.setattr(backend, "_opened", {})  # what tests before this one trained with
    (tmp_path / "payload.py").write_text("raise SystemExit('it ran')", encoding="utf-8")
    save(random_model(tiny_config(loadable_elsewhere=False)), tmp_path)
    file = tmp_path / "config.json"
    named = {"attn_implementation": "mine", "my_attention": str(tmp_path / "payload.py")}
    file.write_text(json.dumps(json.loads(file.read_text()) | named), encoding="utf-8")
    lm = load(tmp_path)
    assert backend._opened == {}
    lm.set_attn_implementation("mine")
    with pytest.raises(ValueError, match="mine is for training with a file of your own"):
        lm(torch.zeros(1, 4, dtype=torch.long))
