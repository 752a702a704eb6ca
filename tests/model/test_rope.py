"""Rotary embedding: equal to complex rotation at any position, with and without scaling."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.rope import RopeScaling, RotaryEmbedding, apply_rotary
from tests.conftest import random_model, tiny_config
from tests.model import reference

SCALINGS = st.one_of(
    st.none(),
    st.builds(lambda f: {"rope_type": "linear", "factor": f}, st.floats(1, 32)),
    st.builds(
        lambda f, n, a: {
            "rope_type": "yarn",
            "factor": f,
            "original_max_position_embeddings": n,
            "attention_factor": a,
        },
        st.floats(1, 32),
        st.integers(16, 4096),
        st.none() | st.floats(0.5, 2.0),
    ),
    st.builds(
        lambda f, n, low, wider: {
            "rope_type": "llama3",
            "factor": f,
            "original_max_position_embeddings": n,
            "low_freq_factor": low,
            "high_freq_factor": low * wider,
        },
        st.floats(1, 32),
        st.integers(16, 4096),
        st.floats(0.5, 4.0),
        st.floats(1.1, 8.0),
    ),
)


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


def test_yarn_keeps_fast_pairs_and_slows_the_others():
    plain = RotaryEmbedding(64, 1e4).inv_freq
    scaling = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096}
    yarn = RotaryEmbedding(64, 1e4, RopeScaling(**scaling))
    ratio = plain / yarn.inv_freq
    assert torch.allclose(ratio[:10], torch.ones(10))
    assert torch.allclose(ratio[-8:], torch.full((8,), 8.0))
    assert (ratio.diff() >= -1e-5).all()
    assert yarn.attention_factor == pytest.approx(1.2079, abs=1e-4)  # 0.1 ln 8 + 1


def test_positions_beyond_the_longest_sequence_are_right():
    """`position_ids` may lie anywhere; only their differences count."""
    lm = random_model(tiny_config())
    ids = torch.randint(0, 192, (1, 20))
    with torch.no_grad():
        here, there = lm(ids), lm(ids, position_ids=torch.arange(5000, 5020)[None])
    assert torch.allclose(here, there, atol=2e-2)  # float32 angles of 5000 radians are off by 3e-4
