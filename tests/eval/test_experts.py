"""Where the tokens go is counted right, an expert that gets none is named, and another choice costs what it costs."""

import numpy as np
import pytest
import torch

from configs.files import append_line
from data.batches import Batch
from eval.experts import log, loss_with, routers, routing
from eval.experts.log import findings, in_a_line
from eval.experts.routing import Routing, all_alike, at_random
from model.experts import MixtureOfExperts
from tests.conftest import random_model, tiny_config

PAD = 191


@pytest.fixture
def lm():
    return random_model(tiny_config(num_experts=4, moe_intermediate_size=24, num_hidden_layers=3, mlp_only_layers=[1]))


def batches(number=2):
    ids = torch.randint(0, 150, (number, 3, 20))
    ids[:, 2, 15:] = PAD
    return [Batch({"input_ids": one, "labels": one}, [0, 1, 2]) for one in ids]


def collapsed(lm):
    """Of layer 0 every token goes to experts 1 and 2."""
    router = routers(lm)[0]

    def only(module, x, routes):
        probabilities, weights, experts = routes
        return probabilities, weights, torch.tensor([1, 2]).expand_as(experts)

    router.register_forward_hook(only)
    return lm


def test_the_counts_are_those_of_the_tokens_one_by_one(lm):
    texts = batches()
    found = routing(lm, texts, PAD)
    assert found.layers == [0, 2]
    counts, weights = np.zeros((2, 4, 192)), np.zeros((2, 4))
    for batch in texts:
        inside: dict[int, torch.Tensor] = {}
        handles = [
            lm.model.layers[layer].mlp.register_forward_pre_hook(
                lambda _, x, i=i, inside=inside: inside.update({i: x[0]})
            )
            for i, layer in enumerate((0, 2))
        ]
        with torch.no_grad():
            lm(batch["input_ids"])
        for handle in handles:
            handle.remove()
        for i, layer in enumerate((0, 2)):
            for token, x in zip(batch["input_ids"].flatten(), inside[i].flatten(0, 1), strict=True):
                chances = (lm.model.layers[layer].mlp.gate.weight @ x).softmax(0)
                best = chances.topk(2)
                if token != PAD:
                    counts[i, best.indices, token] += 1
                    weights[i, best.indices] += (best.values / best.values.sum()).detach().numpy()
    assert np.array_equal(found.ids, counts)
    assert found.share == pytest.approx(counts.sum(-1) / (2 * 2 * 55))
    assert found.weight == pytest.approx(weights / counts.sum(-1), rel=1e-4)


def test_dead_experts_are_named(lm):
    found = routing(collapsed(lm), batches(), PAD)
    assert found.share[0].tolist() == [0, 0.5, 0.5, 0]
    assert np.isnan(found.weight[0, [0, 3]]).all()
    look = log.use_of(found, 7, 700)
    assert look.under(log.DEAD) == {0: [0, 3]}
    assert "dead: L0 E0, E3" in in_a_line(look)
    assert "dead: L0 E0, E3" in "\n".join(findings([look]))


def test_tokens_that_tell_an_expert_from_the_others():
    """Expert 0 gets all of id 3, which is rare, and half of id 5, which is everywhere; expert 1 gets id 4 and id 5."""
    ids = np.zeros((1, 2, 8), dtype=int)
    ids[0, 0, [3, 5]], ids[0, 1, [4, 5]] = [10, 50], [20, 50]
    found = Routing([0], np.array([[60, 70]]) / 130, np.ones((1, 2)), ids)
    best = log.characteristic_ids(found)
    assert best[0, 0, 0] == 3
    assert best[0, 1, 0] == 4
    assert 4 not in best[0, 0]
    assert best[0, 0, -1] == -1  # not so many


def test_another_choice_is_the_choice_that_was_made(lm):
    """At random: other experts, the same weights, never one twice. All alike: the mean of all experts."""
    seen = {}

    def note(layer, routes):
        return seen.setdefault(layer, at_random()(layer, routes))

    texts = batches(1)
    plain = loss_with(lm, texts)
    assert loss_with(lm, texts, lambda layer, routes: routes) == plain
    assert loss_with(lm, texts, at_random()) == loss_with(lm, texts, at_random()) != plain
    loss_with(lm, texts, note)
    for _, weights, experts in seen.values():
        assert (experts[:, 0] != experts[:, 1]).all()
        assert set(experts.flatten().tolist()) == {0, 1, 2, 3}
        assert torch.allclose(weights.sum(-1), torch.ones(1))
    mixture = lm.model.layers[0].mlp
    assert isinstance(mixture, MixtureOfExperts)
    x = torch.randn(5, 32)
    with torch.no_grad():
        _, weights, experts = all_alike(0, mixture.gate(x))
        one_by_one = [mixture.experts(x, torch.ones(5, 1), torch.full((5, 1), e)) for e in range(4)]
        torch.testing.assert_close(mixture.experts(x, weights, experts), sum(one_by_one) / 4)
    assert loss_with(lm, texts) == plain  # nothing stays


def test_lines_are_written_and_read_back(lm, tmp_path):
    lines = [log.use_of(routing(lm, batches(1), PAD), step, 10 * step) for step in (0, 5)]
    for line in lines:
        append_line(tmp_path / "experts.jsonl", line.model_dump(exclude_defaults=True))
    assert log.read(tmp_path, pytest.fail) == lines
    problems = []
    with (tmp_path / "experts.jsonl").open("a") as file:
        file.write('{"step": 7, "tokens": 70, "layers": [], "share": [], "weight": []}\n')
    assert log.read(tmp_path, problems.append) == lines
    assert len(problems) == 1
