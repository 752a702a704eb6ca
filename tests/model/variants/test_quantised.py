"""Weights of 8 and 4 bits: near the ones that were saved, smaller, and refused where they cannot be
had.
"""

import copy

import pytest
import torch

from model import generate
from model.variants.config import LoraConfig
from model.variants.lora import add_adapters
from model.variants.quantised import quantisable, quantise_weights, weight_bytes
from tests.conftest import GPT2, LATENT, random_model, tiny_config

pytest.importorskip("torchao")

EXPERTS = {"num_experts": 4, "moe_intermediate_size": 16}
# how far a product may be off, as a share of its size: half a step of 127, and half a step of 15
NEAR = {"int8": 0.02, "int4": 0.2}


def wide(**changes):
    return random_model(tiny_config(**({"hidden_size": 64, "intermediate_size": 128} | changes)), scale=0.05)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_layer_computes_nearly_what_it_did(kind):
    lm = wide()
    small = wide()
    small.load_state_dict(lm.state_dict())
    quantise_weights(small, kind)
    for name, layer in quantisable(lm, kind).items():
        x = torch.randn(5, layer.in_features)
        theirs = small.get_submodule(name)(x.to(next(small.parameters()).dtype)).float()
        expected = layer(x)
        error = (theirs - expected).norm() / expected.norm()
        assert 0 < error < NEAR[kind], name


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("changes", [{}, EXPERTS, LATENT | {"kv_lora_rank": 32}, GPT2, {"tie_word_embeddings": True}])
def test_every_architecture_still_writes(kind, changes):
    lm = wide(**changes)
    before = weight_bytes(lm)
    like = copy.deepcopy(lm)
    quantise_weights(lm, kind)
    assert weight_bytes(lm) < before
    ids = torch.randint(0, 192, (1, 6))
    with torch.no_grad():
        expected = like(ids)
        # another expert may be chosen
        near = {"int8": 0.05, "int4": 0.5}[kind] if changes is not EXPERTS else 0.8
        assert (lm(ids).float() - expected).norm() < near * expected.norm()
    assert generate(lm, ids, 8, temperature=0, stop_ids=()).shape == (1, 14)
    assert not any(weight.requires_grad for weight in lm.parameters())


def test_bytes_are_what_the_formats_take():
    lm = wide()
    small = wide()
    layers = quantisable(lm, "int8").values()
    numbers = sum(layer.weight.numel() for layer in layers)
    rows = sum(layer.out_features for layer in layers)
    rest = weight_bytes(lm) - 4 * numbers
    quantise_weights(lm, "int8")
    # a scale and a zero point, which is zero, for each row
    assert weight_bytes(lm) == numbers + (4 + 1) * rows + rest
    quantise_weights(small, "int4")
    # half a byte a number; scale and zero point of every 32 numbers, and the rest of the model, are
    # of two bytes each
    assert weight_bytes(small) == numbers // 2 + 4 * numbers // 32 + rest // 2


def test_what_cannot_be_quantised_is_refused_and_left_alone(monkeypatch):
    lm = wide()
    narrow = random_model(tiny_config(hidden_size=24, num_attention_heads=2, intermediate_size=40))
    before = copy.deepcopy(lm.state_dict())
    add_adapters(lm, LoraConfig(rank=2))
    with pytest.raises(ValueError, match="this model has adapters: merge them first"):
        quantise_weights(lm, "int8")
    for name, weight in before.items():
        assert torch.equal(weight, lm.state_dict()[name])
    with pytest.raises(ValueError, match="no linear layer that can be quantised"):
        quantise_weights(narrow, "int4")
    assert next(narrow.parameters()).dtype == torch.float32
    monkeypatch.setattr("model.variants.quantised.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="torchao is not installed: pip install"):
        quantise_weights(wide(), "int8")
