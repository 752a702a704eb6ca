"""The int8 cache: what it gives back, how much it holds, and that its scales go where its numbers go."""

import pytest
import torch

from model import generate
from model.decoding.caches import make_cache
from model.decoding.quantised_cache import QuantisedCache, quantise
from tests.conftest import random_model, tiny_config

LATENT = {"attention": "mla", "num_key_value_heads": 4, "head_dim": None, "kv_lora_rank": 16, "qk_nope_head_dim": 8}
LATENT |= {"qk_rope_head_dim": 4, "v_head_dim": 8}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_number_is_off_by_half_a_scale_at_most(dtype):
    x = torch.randn(2, 3, 50, 16).mul(10 ** torch.linspace(-2, 2, 50)[:, None]).to(dtype)  # sizes 10,000 times apart
    kept, scale = quantise(x)
    assert kept.dtype == torch.int8
    assert scale.shape == (2, 3, 50, 1)
    error = (kept.double() * scale.double() - x.double()).abs()
    # half a step, and the rounding of x / scale in the dtype, which is 127 of its units in the last place at most
    assert (error <= scale.double() * (0.5 + 127 * torch.finfo(dtype).eps)).all()
    assert error.max() > 0


def test_zeros_stay_zeros():
    kept, scale = quantise(torch.zeros(1, 1, 2, 4))
    assert not (kept * scale).any()


@pytest.mark.parametrize("changes", [{}, LATENT, {"sliding_window": 6, "layer_types": ["sliding_attention"] * 2}])
def test_what_is_read_does_not_depend_on_the_pieces(changes):
    lm = random_model(tiny_config(**changes))
    ids = torch.randint(0, 192, (2, 20))
    at_once, in_pieces = QuantisedCache(lm.config, block_size=4), QuantisedCache(lm.config, block_size=4)
    with torch.no_grad():
        whole = lm(ids, kv_cache=at_once)
        parts = torch.cat([lm(piece, kv_cache=in_pieces) for piece in ids.split([7, 1, 1, 8, 3], dim=1)], dim=1)
        exact = lm(ids)
    # a product of another shape adds in another order, so that a number may be rounded the other way: one step of 127
    assert (whole - parts).abs().max() <= 0.02 * exact.abs().max()
    assert 0 < (whole - exact).abs().max() <= 0.1 * exact.abs().max()
    assert in_pieces.length == 20


def test_bytes_are_counted_with_their_scales():
    config = tiny_config(num_hidden_layers=4, sliding_window=6, layer_types=["sliding_attention", "full_attention"])
    lm = random_model(config)
    cache = make_cache("int8", config, 3, 40, next(lm.parameters()))
    with torch.no_grad():
        lm(torch.randint(0, 192, (3, 20)), kv_cache=cache)
    a_token = 2 * 3 * config.kv_heads * (config.head_size + 4)  # k and v, rows, heads, a byte a number and a scale
    assert cache.nbytes == 2 * a_token * (20 + 5)


def test_scales_are_cropped_and_repeated_with_their_numbers():
    lm = random_model(tiny_config())
    ids = torch.randint(0, 192, (2, 9))
    cache, fresh = QuantisedCache(lm.config), QuantisedCache(lm.config)
    with torch.no_grad():
        lm(torch.cat((ids, ids), dim=1), kv_cache=cache)
        cache.crop(9)
        cache.repeat_interleave(2)
        lm(ids.repeat_interleave(2, dim=0), kv_cache=fresh)
        following = torch.randint(0, 192, (4, 3))
        again, expected = lm(following, kv_cache=cache), lm(following, kv_cache=fresh)
    assert (again - expected).abs().max() <= 0.02 * expected.abs().max()  # one step of 127, as above
    cache.clear()
    assert cache.nbytes == cache.length == 0


def test_generate_takes_it_for_several_continuations_and_padding():
    lm = random_model(tiny_config())
    ids = torch.randint(0, 192, (2, 5))
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    settings = {"max_new_tokens": 12, "stop_ids": (), "attention_mask": mask, "num_return_sequences": 2, "seed": 1}
    rounded, exact = (generate(lm, ids, kv_cache=kind, **settings) for kind in ("int8", "dynamic"))
    assert rounded.shape == exact.shape == (4, 17)
    assert rounded[:, 5].tolist() == exact[:, 5].tolist()  # one token of each row: later ones may part
