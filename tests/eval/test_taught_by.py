"""Gradients of groups of documents, beside the steps that they stand for."""

import json
import sys

import pytest
import torch

from configs.command import InputError
from data.tokenizer import train_tokenizer
from eval import taught_by
from tests.conftest import random_model, tiny_config
from tests.train.helpers import pretrain
from train.config import load_run_config


def test_the_product_of_two_gradients_is_what_a_small_step_on_one_changes_in_the_other():
    lm = random_model(tiny_config()).double()
    ids = torch.randint(0, 192, (4, 12))
    others = torch.randint(0, 192, (3, 12))
    counted = torch.rand(3, 12) < 0.5

    def loss():
        with torch.no_grad():
            losses = -lm(others)[:, :-1].log_softmax(-1).gather(2, others[:, 1:, None])[..., 0]
        return losses[counted[:, 1:]].mean()

    slope = taught_by.gradient(lm, ids)
    product = slope @ taught_by.gradient(lm, others, counted)
    before = loss()
    with torch.no_grad():
        start = 0
        for parameter in lm.parameters():
            parameter -= 1e-4 * slope[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
    assert start == len(slope)
    assert float((before - loss()) / 1e-4) == pytest.approx(float(product), rel=0.01)


def test_documents_of_a_group_have_blocks_of_its_lengths():
    config = load_run_config(taught_by.CARD)
    groups = taught_by.groups_of_the_card()
    assert sorted(length for lengths in groups.values() for length in lengths) == [*range(2, 21)]
    tokenizer = train_tokenizer(config.data.tokenizer, ["".join(map(chr, range(48, 123)))])
    ids = taught_by.documents(config.data.source.blocks, tokenizer, groups["without-2-to-3"])
    assert ids.shape == (128, 48)
    again = ids[:, 1:2] == ids[:, 1:]  # the first character of a block, wherever it comes again
    distances = {int(row.nonzero()[1]) for row in again}
    assert {2, 3} <= distances <= {2, 3, 4, 5, 6}


def test_the_table_compares_the_order_of_the_groups_with_the_cards(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(taught_by, "STEPS", (1, 2))
    small = ["data.source.documents=300", "data.source.validation_documents=20", "eval.hooks=[]", "train.max_steps=2"]
    pretrain(taught_by.CARD, *small, f"output_dir={tmp_path}", "name=run", "train.checkpoint_every=1")
    groups = taught_by.groups_of_the_card()
    estimates = taught_by.estimate(tmp_path / "run", groups)
    assert all(abs(value) <= 1 for value in estimates.values())
    order = sorted(groups, key=estimates.get)

    def variant(name, step):
        return {"name": name, "runs": [{"seed": 0, "steps": [step], "values": [2.0]}]}

    late = [variant(name, 100 * place) for place, name in enumerate(order)]
    card = {"outcome": {"score": "copy_gain", "at_least": 1.5}, "variants": [variant("baseline", 50), *late]}
    truth = tmp_path / "truth.json"
    truth.write_text(json.dumps(card))
    monkeypatch.setattr(sys, "argv", ["taught_by", str(tmp_path / "run"), "--truth", str(truth)])
    taught_by.main()
    said = capsys.readouterr().out
    assert f"| {order[3]} " in said
    assert said.endswith("rank correlation of estimate and delay: +1.00 (one run)\n")
    monkeypatch.setattr(taught_by, "STEPS", (1, 9))
    with pytest.raises(InputError, match="has no checkpoint of step 9"):
        taught_by.main()
