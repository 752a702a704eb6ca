"""Latent attention (MLA): the absorbed form, a cache of latents, and the sizes. Its formula:
test_kv_cache.py; parity with transformers: test_families.py.
"""

import pytest
import torch

from model import ModelConfig
from model.variants.caches import CACHES, make_cache
from tests.conftest import LATENT, random_model, tiny_config
from tests.model.files.test_families import drawn


@pytest.mark.parametrize("number", range(8))
def test_absorbed_matrices_give_what_the_plain_form_gives(number):
    """One layer in float64, where nothing but the order of the sums differs."""
    config = drawn("deepseek_v3", number)
    attention = random_model(config).double().attention_modules()[0]
    H = config.num_attention_heads
    S = 13
    rank = config.kv_lora_rank
    rotary = config.qk_rope_head_dim
    shapes = [(2, H, 1, config.qk_nope_head_dim), (2, H, 1, rotary), (2, 1, S, rank), (2, 1, S, rotary)]
    given = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    for mask in (None, torch.rand(2, 1, 1, S) > 0.4):
        with torch.no_grad():
            plain = attention.plain(*given, mask)
            absorbed = attention.absorbed(*given, mask)
        assert plain.shape == (2, H, 1, config.v_head_dim)
        assert torch.allclose(plain, absorbed, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", CACHES)
def test_the_cache_holds_the_latent_and_the_rotary_part_alone(kind):
    config = tiny_config(**LATENT, kv_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=14)
    lm = random_model(config)
    cache = make_cache(kind, config, 3, 20, torch.zeros(()))
    with torch.no_grad():
        lm(torch.randint(0, 192, (3, 9)), kv_cache=cache)
    tokens = 20 if kind == "static" else 9
    assert cache.nbytes == config.num_hidden_layers * 3 * tokens * (12 + 4) * 4
    cache.repeat_interleave(2)
    cache.crop(5)
    assert cache.nbytes == config.num_hidden_layers * 6 * (20 if kind == "static" else 5) * (12 + 4) * 4


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({"hidden_size": 64}, (32, 8, 8, 16)),  # half of hidden_size, for 4 heads of 16 would be 64
        ({"hidden_size": 256}, (128, 32, 32, 64)),
        ({"hidden_size": 256, "num_attention_heads": 16}, (64, 8, 8, 16)),  # four heads' worth
        ({"head_dim": 24}, (16, 12, 12, 24)),
        ({"head_dim": 24, "qk_rope_head_dim": 4}, (16, 20, 4, 24)),
        ({"qk_nope_head_dim": 12, "qk_rope_head_dim": 6, "v_head_dim": 5}, (16, 12, 6, 5)),
    ],
)
def test_sizes_follow_from_the_head(changes, sizes):
    config = tiny_config(**LATENT | changes)
    assert (config.kv_lora_rank, config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim) == sizes
    assert config.head_size == sizes[1] + sizes[2]
    assert ModelConfig(**config.model_dump()) == config
