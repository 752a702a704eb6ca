"""Tokens of each expert are counted right, an idle expert is named, and other choices are priced."""

import numpy as np
import pytest
import torch

from configs.files import append_line
from data.batches import Batch
from data.config import TokenizerConfig
from data.tokenizer import train_tokenizer
from eval import experts as log
from eval.experts import Routing, at_random, loss_with, routers, routing
from tests.conftest import random_model, tiny_config

PAD = 191
BYTES = train_tokenizer(TokenizerConfig(kind="byte"), [])


@pytest.fixture
def lm():
    return random_model(tiny_config(num_experts=4, moe_intermediate_size=24, num_hidden_layers=3, mlp_only_layers=[1]))


def batches(number=2):
    ids = torch.randint(0, 150, (number, 3, 20))
    ids[:, 2, 15:] = PAD
    return [Batch({"input_ids": one, "labels": one}, [0, 1, 2]) for one in ids]


def test_the_counts_are_those_of_the_tokens_one_by_one(lm):
    texts = batches()
    inside = {}
    measured = routing(lm, texts, PAD)
    assert measured.layers == [0, 2]
    counts = np.zeros((2, 4, 192))
    weights = np.zeros((2, 4))
    for i, layer in enumerate(measured.layers):
        lm.model.layers[layer].mlp.register_forward_pre_hook(lambda _, x, i=i: inside.update({i: x[0]}))
    for batch in texts:
        with torch.no_grad():
            lm(batch["input_ids"])
        for i, layer in enumerate(measured.layers):
            for token, x in zip(batch["input_ids"].flatten(), inside[i].flatten(0, 1), strict=True):
                best = (lm.model.layers[layer].mlp.gate.weight @ x).softmax(0).topk(2)
                if token != PAD:
                    counts[i, best.indices, token] += 1
                    weights[i, best.indices] += (best.values / best.values.sum()).detach().numpy()
    assert np.array_equal(measured.ids, counts)
    assert measured.share == pytest.approx(counts.sum(-1) / (2 * 2 * 55))
    assert measured.weight == pytest.approx(weights / counts.sum(-1), rel=1e-4)


def test_dead_experts_are_named(lm):
    """Send every token of layer 0 to experts 1 and 2."""
    routers(lm)[0].register_forward_hook(lambda _, x, routes: (*routes[:2], torch.tensor([1, 2]).expand_as(routes[2])))
    measured = routing(lm, batches(), PAD)
    assert measured.share[0].tolist() == [0, 0.5, 0.5, 0]
    assert np.isnan(measured.weight[0, [0, 3]]).all()
    use = log.use_of(measured, 7, 700, BYTES)
    assert all("dead: L0 E0, L0 E3" in text for text in (use.in_words(), "\n".join(log.findings(use))))


def test_tokens_that_tell_an_expert_from_the_others():
    """Expert 0 gets all of id 3, which is rare, and half of id 5, which is everywhere; expert 1
    gets id 4 and id 5.
    """
    ids = np.zeros((1, 2, 8), dtype=int)
    ids[0, 0, [3, 5]], ids[0, 1, [4, 5]] = [10, 50], [20, 50]
    best = log.characteristic_ids(Routing([0], np.array([[60, 70]]) / 130, np.ones((1, 2)), ids))
    assert best[0, :, 0].tolist() == [3, 4]
    assert 4 not in best[0, 0]
    assert best[0, 0, -1] == -1  # not so many


def test_another_choice_is_the_choice_that_was_made(lm):
    """At random: other experts, the same weights, never one twice."""
    seen = {}
    texts = batches(1)
    plain = loss_with(lm, texts)
    assert loss_with(lm, texts, lambda layer, routes: routes) == plain
    assert loss_with(lm, texts, at_random()) == loss_with(lm, texts, at_random()) != plain
    loss_with(lm, texts, lambda layer, routes: seen.setdefault(layer, at_random()(layer, routes)))
    for _, weights, experts in seen.values():
        assert (experts[:, 0] != experts[:, 1]).all()
        assert set(experts.flatten().tolist()) == {0, 1, 2, 3}
        assert torch.allclose(weights.sum(-1), torch.ones(1))
    assert loss_with(lm, texts) == plain  # nothing stays


def test_lines_are_written_and_read_back(lm, tmp_path):
    lines = [log.use_of(routing(lm, batches(1), PAD), step, 10 * step, BYTES) for step in (0, 5)]
    problems = []
    for line in [line.model_dump(exclude_defaults=True) for line in lines] + [{"step": 7}]:
        append_line(tmp_path / "experts.jsonl", line)
    assert log.read(tmp_path, problems.append) == lines
    assert len(problems) == 1
