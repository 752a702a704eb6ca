"""Positions: RoPE with every scaling, learned ones, and models that are read with others."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from model import generate, load, save
from model.kv_cache import KVCache
from model.rope import RotaryEmbedding, apply_rotary, sinusoidal_positions
from model.variants.surgery import with_config, with_rope_scaling
from tests.conftest import GPT2, LATENT, random_model, tiny_config
from tests.model import reference

FACTOR = {"factor": st.floats(1, 32)}
TRAINED = {"original_max_position_embeddings": st.integers(16, 4096)}
YARN = {"rope_type": st.just("yarn"), "attention_factor": st.none() | st.floats(0.5, 2.0)} | FACTOR | TRAINED
LLAMA3 = {"rope_type": st.just("llama3"), "low_freq_factor": st.floats(0.5, 4.0)} | FACTOR | TRAINED
SCALINGS = st.none() | st.one_of(
    st.fixed_dictionaries({"rope_type": st.just("linear")} | FACTOR),
    st.fixed_dictionaries(YARN),
    st.fixed_dictionaries(LLAMA3 | {"high_freq_factor": st.floats(4.1, 32.0)}),
)
IDS = torch.arange(3, 43)[None]


@torch.no_grad()
def logits(lm):
    return lm(IDS)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(SCALINGS, st.sampled_from([2, 8, 32, 64]), st.sampled_from([100.0, 10000.0, 1e6]), st.integers(0, 100_000))
def test_turning_equals_complex_multiplication_far_beyond_the_training_length(scaling, head_dim, theta, start):
    config = tiny_config(head_dim=head_dim, rope_theta=theta, rope_scaling=scaling)
    positions = torch.arange(start, start + 5)[None]
    x = torch.randn(1, 2, 5, head_dim)
    found = apply_rotary(x, *RotaryEmbedding(head_dim, theta, config.rope_scaling)(positions, torch.float32))
    expected = reference.rotate(x.double(), positions, config)
    # a float32 angle is off by position * 2^-24 or so, relative to a turn of 1 radian a position
    allowed = 1e-5 + 4 * (start + 5) * 2**-24 * x.abs().max().item()
    assert (found - expected).abs().max() <= allowed


def test_attention_depends_on_relative_positions_only():
    lm = random_model(tiny_config())
    ids = torch.randint(0, 192, (1, 20))
    places = torch.arange(20)[None]
    with torch.no_grad():
        here, there, far, stretched = (
            lm(ids, position_ids=p) for p in (places, places + 40, places + 5000, places * 2)
        )
    assert torch.allclose(here, there, atol=2e-4)  # float32 angles, logits of size ~5
    assert torch.allclose(here, far, atol=2e-2)  # angles of 5000 radians are off by 3e-4
    assert not torch.allclose(here, stretched, atol=1e-1)


def gpt2(**changes):
    return random_model(tiny_config(**GPT2 | {"max_position_embeddings": 20} | changes))


def test_a_text_that_is_longer_than_the_positions_is_refused():
    lm = gpt2()
    assert lm(IDS[:, :20]).shape == (1, 20, 192)
    with pytest.raises(ValueError, match="the sequence has 21 tokens, more than max_position_embeddings"):
        lm(IDS[:, :21])
    assert generate(lm, IDS[:, :15], 30, stop_ids=()).shape == (1, 20)
    for place in (-1, 20):
        with pytest.raises(IndexError):
            lm(IDS[:, :1], position_ids=torch.tensor([[place]]))


def test_packed_documents_count_from_their_own_beginning():
    """A row of two documents, longer than the positions: each document is what it is alone."""
    lm = gpt2()
    lengths = (18, 12)
    ids = IDS[:, :30]
    documents = torch.tensor([[0] * 18 + [1] * 12])
    places = torch.cat([torch.arange(length) for length in lengths])[None]
    with torch.no_grad():
        packed = lm(ids, document_ids=documents, position_ids=places)
        alone = [lm(part) for part in ids.split(lengths, dim=1)]
    torch.testing.assert_close(packed, torch.cat(alone, dim=1), rtol=1e-4, atol=1e-4)


# --------------------------------------------------------------------------------------------------
# a trained model, read with other positions: the same as one that was loaded with them

PARTS = [{}, LATENT | {"kv_lora_rank": 8, "qk_rope_head_dim": 4}, {"tie_word_embeddings": False}]


@pytest.mark.parametrize("kind", ["linear", "yarn"])
@pytest.mark.parametrize("more", PARTS, ids=["qwen3", "mla", "untied"])
def test_scaled_when_it_is_opened_is_scaled_when_it_was_saved(kind, more, tmp_path):
    lm = random_model(tiny_config(max_position_embeddings=16, **more))
    with pytest.raises(ValueError, match="max_position_embeddings"):
        logits(lm)
    scaled = with_rope_scaling(lm, kind, 4, trained=16)
    assert scaled.config.max_position_embeddings == 64
    save(scaled, tmp_path)
    assert torch.equal(logits(scaled), logits(load(tmp_path)))
    there = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa").eval()
    with torch.no_grad():
        assert torch.equal(logits(scaled), there(IDS).logits)
    assert not torch.allclose(logits(scaled), logits(with_config(lm, max_position_embeddings=64)), atol=1e-3)


def test_the_weights_are_shared_and_the_first_model_stays_as_it_was():
    scaling = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8}
    lm, never_scaled = (random_model(tiny_config(rope_scaling=x)) for x in (scaling, None))
    never_scaled.load_state_dict(lm.state_dict())
    before = logits(lm)
    plain = with_rope_scaling(lm, "none", 1, trained=8)
    # also a tied one
    assert all(one is other for one, other in zip(lm.parameters(), plain.parameters(), strict=True))
    assert torch.equal(logits(lm), before)
    for same in (plain, *(with_rope_scaling(plain, kind, 1, trained=16) for kind in ("linear", "yarn"))):
        assert torch.equal(logits(same), logits(never_scaled))  # a factor of one changes nothing


def test_sinusoidal_positions_are_added_and_a_cache_continues_them():
    """The paper's formula: sin and cos of position / 10000^(2i / size)."""
    vectors = sinusoidal_positions(torch.tensor([[0, 3, 511]]), 8)
    assert vectors[0, 0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    for row, position in enumerate((0, 3, 511)):
        for i in range(4):
            angle = position / 10000 ** (2 * i / 8)
            assert vectors[0, row, i].item() == pytest.approx(math.sin(angle), abs=1e-4)
            assert vectors[0, row, 4 + i].item() == pytest.approx(math.cos(angle), abs=1e-4)
    parts = {"qk_norm": False, "loadable_elsewhere": False, "tie_word_embeddings": False}
    lm = random_model(tiny_config(position_embedding="sinusoidal", **parts))
    without = random_model(tiny_config(position_embedding="none", **parts))
    without.load_state_dict(lm.state_dict())
    cache = KVCache(lm.config)
    with torch.no_grad():
        cached = torch.cat([lm(part, kv_cache=cache) for part in IDS.split([7, 32, 1], dim=1)], dim=1)
    assert torch.allclose(cached, logits(lm), atol=1e-4)
    assert not torch.allclose(logits(without), logits(lm), atol=0.01)


def test_a_window_set_afterwards_is_the_window_of_the_config():
    lm, built = (random_model(tiny_config(sliding_window=window)) for window in (None, 5))
    built.load_state_dict(lm.state_dict())
    assert torch.equal(logits(with_config(lm, sliding_window=5, layer_types=["sliding_attention"])), logits(built))
    assert not torch.equal(logits(built), logits(lm))


@pytest.mark.parametrize(
    ("kind", "factor", "more", "message"),
    [
        ("yarn", 0.5, {}, "the factor is 0.5: for texts of 16 tokens use 1 to 1"),
        ("linear", float("nan"), {}, "the factor is nan"),
        ("yarn", 2, {"position_embedding": "learned", "qk_norm": False, "loadable_elsewhere": False}, "no RoPE"),
    ],
)
def test_scaling_that_cannot_be_is_refused(kind, factor, more, message):
    with pytest.raises(ValueError, match=message):
        with_rope_scaling(random_model(tiny_config(**more)), kind, factor, trained=16)
