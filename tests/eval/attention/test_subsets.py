"""Every subset of the heads: exact against brute force, on models made by hand."""

from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pytest
import torch

from data import load_tokenizer
from eval.attention.controls import ablated, ablation, copy_gain, second_copy_loss
from eval.attention.inside import passing
from eval.attention.probes import Probe, repeated_probe
from eval.attention.subsets import (
    ABLATIONS,
    Subsets,
    copy_value,
    halves,
    is_quick,
    measure_subsets,
    named_pair,
    replacement,
    summary,
)
from eval.language_modeling import predictions
from eval.pictures.scores import draw_subsets
from model import LanguageModel, load
from tests.conftest import random_model, tiny_config
from tests.eval.attention.test_controls import repeated


@pytest.fixture
def lm() -> LanguageModel:
    return random_model(tiny_config(num_attention_heads=2, num_key_value_heads=1, head_dim=8, num_hidden_layers=2))


@pytest.fixture
def probe() -> Probe:
    return repeated(4, 6)


def brute_force(lm: LanguageModel, probe: Probe, ablation: str) -> dict[tuple, float]:
    """Copy gain of every set of heads, one forward pass each: the other heads' outputs are replaced
    by hand, in the input of o_proj.
    """
    value = copy_value(probe)
    o_projs = [module.o_proj for module in lm.attention_modules()]
    with torch.no_grad():
        outputs = [z.unflatten(-1, (2, -1)) for z, _ in passing(lm, probe.input_ids, o_projs)]
    heads = [(layer, head) for layer in range(2) for head in range(2)]
    gains = {}
    for size in range(5):
        for on in combinations(heads, size):
            hooks = []
            for layer, module in enumerate(lm.attention_modules()):
                other = replacement(outputs[layer], ablation)

                def replace(_module, inputs, layer=layer, other=other, on=on):
                    x = inputs[0].unflatten(-1, (2, -1)).clone()
                    for head in range(2):
                        if (layer, head) not in on:
                            x[:, :, head] = other[:, :, head]
                    return (x.flatten(-2),)

                hooks.append(module.o_proj.register_forward_pre_hook(replace))
            losses = predictions(lm, probe.input_ids)[0]
            gains[on] = float((losses.nan_to_num(0) * value.weights).double().sum())
            for hook in hooks:
                hook.remove()
    return gains


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_shapley_values_are_the_mean_contribution_over_all_orders(lm, probe, ablation):
    subsets = measure_subsets(lm, copy_value(probe), [ablation])
    gains = brute_force(lm, probe, ablation)
    for number, value in enumerate(subsets.values[ablation]):
        on = tuple(head for i, head in enumerate(subsets.heads) if number >> i & 1)
        assert value == pytest.approx(gains[on], abs=1e-5)
    contributions = {head: [] for head in subsets.heads}
    for order in permutations(subsets.heads):
        for i, head in enumerate(order):
            contributions[head].append(gains[tuple(sorted(order[: i + 1]))] - gains[tuple(sorted(order[:i]))])
    expected = [np.mean(contributions[head]) for head in subsets.heads]
    shapley = subsets.shapley(ablation)
    assert shapley.tolist() == pytest.approx(expected, abs=1e-5)
    assert np.abs(shapley).max() > 0.01
    values = subsets.values[ablation]
    assert shapley.sum() == pytest.approx(values[-1] - values[0], abs=1e-6)


def test_all_heads_are_the_model_itself_and_zero_is_ablation(lm, probe):
    subsets = measure_subsets(lm, copy_value(probe), ["zero"])
    assert subsets.values["zero"][-1] == pytest.approx(copy_gain(lm, probe), abs=1e-5)
    with ablated(lm, [(0, 1), (1, 0)]):
        assert subsets.values["zero"][0b1001] == pytest.approx(copy_gain(lm, probe), abs=1e-5)
    assert ablation(lm, probe, []) == 0  # nothing is left behind
    assert second_copy_loss(lm, probe) == pytest.approx(second_copy_loss(lm, probe))


def made_up(*values: float) -> Subsets:
    heads = [(0, 0), (0, 1), (1, 0), (1, 1)]
    return Subsets(heads, {"zero": np.array(values)})


def test_the_smallest_set_and_the_rank_of_a_pair_of_a_known_game():
    """Heads 0 and 3 copy together: 4 nats. Head 1 adds 0.1, and head 2 takes 0.5 away."""

    def value(subset: int) -> float:
        return 4.0 * (subset & 0b1001 == 0b1001) + 0.1 * (subset >> 1 & 1) - 0.5 * (subset >> 2 & 1)

    subsets = made_up(*map(value, range(16)))
    assert subsets.shapley("zero").tolist() == pytest.approx([2.0, 0.1, -0.5, 2.0])
    assert subsets.smallest("zero") == [(0, 0), (1, 1)]
    assert subsets.rank("zero", [(1, 1), (0, 0)], is_on=True) == (1, 6)
    assert subsets.rank("zero", [(0, 1), (1, 0)], is_on=False) == (6, 6)
    # without 0 and 1, as without 3 and 1, even more is lost than without 0 and 3
    assert subsets.rank("zero", [(1, 1), (0, 0)], is_on=False) == (3, 6)
    assert made_up(*[1.0] * 16).smallest("zero") == []


def test_the_pair_is_chosen_on_other_rows_than_it_is_measured_on(probe):
    chosen_on, measured_on = halves(probe)
    assert torch.equal(torch.cat([chosen_on.input_ids, measured_on.input_ids]), probe.input_ids)
    assert len(chosen_on.input_ids) == 2


def test_the_shipped_models_copying_is_that_of_its_pair():
    lm = load("pretrained/small")
    chosen_on, measured_on = halves(repeated_probe(load_tokenizer("pretrained/small"), 2, 64))
    pair = named_pair(lm, chosen_on)
    assert pair == [(0, 2), (1, 1)]
    subsets = measure_subsets(lm, copy_value(measured_on), ["zero"])
    assert set(subsets.smallest("zero")) == set(pair)
    assert subsets.rank("zero", pair, is_on=True) == (1, 28)


def test_one_layer_has_no_pair_and_many_heads_are_refused(probe, tmp_path):
    one = random_model(tiny_config(num_hidden_layers=1))
    assert named_pair(one, probe) == []
    many = random_model(tiny_config(num_hidden_layers=7, num_attention_heads=2))
    with pytest.raises(ValueError, match="14 heads have 16,384 subsets"):
        measure_subsets(many, copy_value(probe))
    assert not is_quick(many, probe)
    two = random_model(tiny_config(num_hidden_layers=2, num_attention_heads=2))
    assert is_quick(two, probe)
    value = copy_value(probe)
    subsets = measure_subsets(two, value)
    text = summary(subsets, value, [(0, 1), (1, 0)])
    assert text.count("(named)") == 2
    picture = draw_subsets(subsets, Path(tmp_path / "subsets.png"), "tiny")
    assert picture.stat().st_size > 5000
