"""A trained model, read with other positions: the same as one that was loaded with them."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from model import generate, load, save
from tests.conftest import random_model, tiny_config

LATENT = {"attention": "mla", "num_key_value_heads": 4, "qk_norm": False, "kv_lora_rank": 8, "qk_rope_head_dim": 4}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8}
IDS = torch.arange(3, 43)[None]


@torch.no_grad()
def logits(lm):
    return lm(IDS)


@pytest.mark.parametrize("kind", ["linear", "yarn"])
@pytest.mark.parametrize("more", [{}, LATENT, {"tie_word_embeddings": False}], ids=["qwen3", "mla", "untied"])
def test_scaled_when_it_is_opened_is_scaled_when_it_was_saved(kind, more, tmp_path):
    lm = random_model(tiny_config(max_position_embeddings=16, **more))
    with pytest.raises(ValueError, match="max_position_embeddings"):
        logits(lm)
    scaled = lm.with_rope_scaling(kind, 4, trained=16)
    assert scaled.config.max_position_embeddings == 64
    save(scaled, tmp_path)
    assert torch.equal(logits(scaled), logits(load(tmp_path)))
    there = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa").eval()
    with torch.no_grad():
        assert torch.equal(logits(scaled), there(IDS).logits)
    assert not torch.allclose(logits(scaled), logits(lm.with_config(max_position_embeddings=64)), atol=1e-3)


def test_the_weights_are_shared_and_the_first_model_stays_as_it_was():
    lm = random_model(tiny_config(rope_scaling=YARN))
    before = logits(lm)
    plain = lm.with_rope_scaling("none", 1, trained=8)
    assert all(one is other for one, other in zip(lm.parameters(), plain.parameters(), strict=True))
    assert lm.num_parameters() == plain.num_parameters()  # a tied matrix is still one
    assert torch.equal(logits(lm), before)
    assert lm.config.rope_scaling is not None
    never_scaled = random_model(tiny_config())
    never_scaled.load_state_dict(lm.state_dict())
    assert torch.equal(logits(plain), logits(never_scaled))


def test_a_factor_of_one_changes_nothing():
    lm = random_model(tiny_config())
    for kind in ("linear", "yarn"):
        assert torch.equal(logits(lm), logits(lm.with_rope_scaling(kind, 1, trained=16)))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_cache_keeps_what_was_rotated_with_the_new_angles(cache):
    lm = random_model(tiny_config(max_position_embeddings=32)).with_rope_scaling("yarn", 2, trained=32)
    written = [generate(lm, IDS, 20, temperature=0, stop_ids=(), kv_cache=kind) for kind in (cache, None)]
    assert torch.equal(*written)


def test_a_window_set_afterwards_is_the_window_of_the_config():
    lm = random_model(tiny_config())
    windowed = lm.with_config(sliding_window=5, layer_types=["sliding_attention"])
    built = random_model(tiny_config(sliding_window=5))
    built.load_state_dict(lm.state_dict())
    assert torch.equal(logits(windowed), logits(built))
    assert not torch.equal(logits(windowed), logits(lm))
    assert windowed.flops_per_token(40) == built.flops_per_token(40) < lm.flops_per_token(40)


@pytest.mark.parametrize(
    ("kind", "factor", "more", "message"),
    [
        ("yarn", 0.5, {}, "the factor is 0.5: for texts of 16 tokens use 1 to 1"),
        ("linear", float("nan"), {}, "the factor is nan"),
        ("yarn", 1e9, {}, "the factor is 1e"),
        ("yarn", 2, {"position_embedding": "learned", "qk_norm": False}, "no RoPE .position_embedding: learned."),
    ],
)
def test_refused_with_one_line(kind, factor, more, message):
    more = more and {**more, "loadable_elsewhere": False}
    with pytest.raises(ValueError, match=message) as refused:
        random_model(tiny_config(**more)).with_rope_scaling(kind, factor, trained=16)
    assert "\n" not in str(refused.value)
