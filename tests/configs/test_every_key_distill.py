"""Every key of `distill:` changes what the student is compared with, how, or on which text."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

from data.batches import IGNORED
from model import load
from tests.configs.every_key import shows
from tests.train.distill_helpers import begun, last_line, own_text, student_config
from tests.train.helpers import pretrain
from train.distill import divergence, main


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return begun(tmp_path_factory.mktemp("teacher"))


@shows("distill.beta", "distill.temperature")
def test_beta_and_temperature_change_how_two_distributions_are_compared():
    ours, theirs = torch.tensor([[0.0, 0.0]]), torch.tensor([[4.0, 0.0]])
    p, q = theirs.softmax(-1), ours.softmax(-1)
    assert float(divergence(ours, theirs, 0.0)) == pytest.approx(float((p * (p / q).log()).sum()))
    assert float(divergence(ours, theirs, 1.0)) == pytest.approx(float((q * (q / p).log()).sum()))
    m = (p + q) / 2
    middle = ((p * (p / m).log()).sum() + (q * (q / m).log()).sum()) / 2
    assert float(divergence(ours, theirs, 0.5)) == pytest.approx(float(middle))
    assert float(divergence(ours, theirs, 0.0, temperature=4.0)) == pytest.approx(
        float(F.kl_div(ours.log_softmax(-1), (theirs / 4).softmax(-1), reduction="sum"))
    )


@shows("distill", "distill.teacher", "distill.hard_share")
def test_the_teacher_and_its_share_decide_what_is_learned(tmp_path):
    """A teacher that knows little: alone with it, the student learns as little; from the text it learns more."""
    config = student_config(tmp_path, begun(tmp_path / "novice", steps=1), train={"max_steps": 30, "trace": False})
    done = pretrain(config, "name=teacher", "distill.hard_share=0", script=main)
    assert re.search(r"step 0: loss [\d.]+\n", done.stdout)  # ln(vocabulary) is no yardstick here
    pretrain(config, "name=text", "distill.hard_share=1", script=main)
    near, far = (last_line(tmp_path / "runs" / name) for name in ("teacher", "text"))
    assert near["divergence"] < 0.5 < far["divergence"]
    assert near["text_loss"] > far["text_loss"] + 0.5
    assert near["loss"] == pytest.approx(near["divergence"], rel=1e-5)
    assert far["loss"] == pytest.approx(far["text_loss"], rel=1e-5)
    assert 0 < near["agreement"] <= 1
    assert "`python -m train.distill`" in (tmp_path / "runs/teacher/report.md").read_text()


@shows("distill.on_policy", "distill.max_new_tokens")
def test_a_share_of_the_steps_is_the_students_own_text(tmp_path, teacher):
    config = student_config(tmp_path, teacher, {"on_policy": 0.5, "max_new_tokens": 7})
    source, lm = own_text(config), load(teacher).eval()
    batches = [source.batch(k, lm) for k in range(40)]
    own = [batch for batch in batches if "is_own" in batch.tensors]
    assert 10 < len(own) < 30
    for batch in own:
        trained = (batch["labels"] != IGNORED).sum(1)
        assert int(trained.max()) <= 7
        assert int(trained.min()) >= 1
        where = batch["labels"] != IGNORED
        assert torch.equal(batch["labels"][where], batch["input_ids"][where])
    again = source.batch(batches.index(own[0]), lm)
    assert torch.equal(again["input_ids"], own[0]["input_ids"])  # a function of (seed, k, weights)
    never = own_text(config, **{"distill.on_policy": 0.0})
    assert not any("is_own" in never.batch(k, lm).tensors for k in range(10))
