"""Key-value caches: decoding in chunks equals the formula; each kind reports what it holds and
forgets what it may.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model import generate
from model.kv_cache import KVCache
from model.variants.caches import CACHES, QuantisedCache, StaticCache, make_cache, quantise
from tests.conftest import LATENT, random_model, tiny_config
from tests.model import reference
from tests.model.test_attention import CPU_BACKENDS, STEADY

ROPE = [
    None,
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
]


@st.composite
def cases(draw):
    """A small model, a batch with padding on either side or none, and the chunks in which it is
    read.
    """
    heads, kv_heads = draw(st.sampled_from([(4, 4), (4, 2), (4, 1), (6, 3), (3, 1)]))
    chunks = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    window = draw(st.none() | st.integers(1, sum(chunks) + 2))
    backend = draw(st.sampled_from(CPU_BACKENDS))
    kinds = draw(st.sampled_from([["sliding_attention", "full_attention"], ["sliding_attention"]]))
    own = {
        "num_key_value_heads": kv_heads,
        "head_dim": draw(st.sampled_from([4, 8, 10])),
        "qk_norm": draw(st.booleans()),
    }
    if window is None:
        own["smear_keys"] = draw(st.booleans())
    if draw(st.integers(0, 3)) == 0:
        own = LATENT | {
            "head_dim": 10,
            # flash: as large as keys
            "v_head_dim": 10 if backend == "flash" else draw(st.sampled_from([10, 14])),
            "kv_lora_rank": draw(st.sampled_from([4, 12])),
            "q_lora_rank": draw(st.sampled_from([None, 6])),
            "qk_rope_head_dim": draw(st.sampled_from([2, 6])),
            "rope_interleave": draw(st.booleans()),
        }
    own |= {"sliding_window": window, "layer_types": window and kinds, "rope_scaling": draw(st.sampled_from(ROPE))}
    return {
        "config": tiny_config(hidden_size=24, num_attention_heads=heads, **own),
        "chunks": chunks,
        "padding": draw(st.sampled_from([None, "left", "right"])),
        "cache": draw(st.sampled_from(CACHES)),
        "block_size": draw(st.sampled_from([1, 4, 256])),
        "backend": backend,
        "seed": draw(st.integers(0, 10**6)),
    }


@pytest.mark.parametrize("examples", [25, pytest.param(120, marks=pytest.mark.slow)])
def test_decoding_in_chunks_equals_the_formula(examples):
    settings(STEADY, max_examples=examples)(given(cases())(equals_the_formula))()


def equals_the_formula(case) -> None:
    """float32 against float64, whole model; allowed is twice what eager without a cache is off, in
    the same units.
    """
    torch.manual_seed(case["seed"])
    lm = random_model(case["config"])
    length = sum(case["chunks"])
    ids = torch.randint(0, 192, (2, length))
    real = None
    if case["padding"]:
        real = torch.arange(length) < torch.tensor([[length], [max(1, length - 3)]])
        real = real.flip(1) if case["padding"] == "left" else real
    expected = reference.logits(lm, ids, attention_mask=real)
    cache = make_cache(case["cache"], lm.config, 2, length + 3, next(lm.parameters()))
    cache.block_size = case["block_size"]
    lm.set_attn_implementation("eager")
    with torch.no_grad():
        eager = lm(ids, attention_mask=real)
        lm.set_attn_implementation(case["backend"])
        pieces = []
        read = 0
        for piece in ids.split(case["chunks"], dim=1):
            read += piece.shape[1]
            pieces.append(lm(piece, attention_mask=None if real is None else real[:, :read], kv_cache=cache))
    assert cache.length == length
    unit = max(1.0, expected.abs().max().item())
    eager_error, error = ((x.double() - expected).abs().max().item() / unit for x in (eager, torch.cat(pieces, 1)))
    assert eager_error <= 1e-4  # else what is wrong in eager too would allow every error
    assert error <= 2 * eager_error + 1e-6


@pytest.mark.parametrize("kind", [*CACHES, "int8"])
def test_bytes_are_counted_exactly(kind):
    config = tiny_config(num_hidden_layers=4, sliding_window=6, layer_types=["sliding_attention", "full_attention"])
    lm = random_model(config)
    cache = make_cache(kind, config, 3, 40, next(lm.parameters()))
    with torch.no_grad():
        lm(torch.randint(0, 192, (3, 20)), kv_cache=cache)
    # a byte a number and a scale
    of_head = config.head_size + 4 if kind == "int8" else 4 * config.head_size
    a_token = 2 * 3 * config.kv_heads * of_head  # k and v, rows, heads
    full, sliding = (40, 40) if kind == "static" else (20, 5)
    assert cache.nbytes == 2 * a_token * (full + sliding)


@pytest.mark.parametrize("pieces", [[7] * 100, [900, 1]], ids=["pieces", "a long prompt"])
def test_a_window_bounds_the_memory_that_is_really_held(pieces):
    config = tiny_config(sliding_window=6, max_position_embeddings=4096)
    lm = random_model(config)
    cache = KVCache(config, block_size=16)
    ids = torch.randint(0, 192, (1, sum(pieces)))
    with torch.no_grad():
        for piece in ids.split(pieces, dim=1):
            last = lm(piece, kv_cache=cache)
        assert torch.allclose(last[:, -1], lm(ids)[:, -1], atol=1e-4)
    assert cache.length == sum(pieces)
    assert max(keys.shape[2] for keys, _ in cache.buffers.values()) <= 32


@pytest.mark.parametrize("kind", CACHES)
def test_a_cache_works_under_autocast(kind):
    lm = random_model(tiny_config())
    ids = torch.randint(0, 192, (1, 9))
    cache = make_cache(kind, lm.config, 1, 20, next(lm.parameters()))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        pieces = [lm(piece, kv_cache=cache) for piece in ids.split([5, 1, 3], dim=1)]
        full = lm(ids)
    assert (torch.cat(pieces, 1) - full).abs().max() < 0.05 * full.abs().max()


@pytest.mark.parametrize("length", [0, 4])
def test_a_cropped_cache_forgets_whose_tokens_it_holds(length):
    """Other tokens are read in place of those that were cropped; generation must not take them for
    its prompt.
    """
    lm = random_model(tiny_config())
    cache = KVCache()
    prompt, other = torch.randint(0, 192, (2, 1, 6))
    expected = generate(lm, prompt, 4, temperature=0, kv_cache=cache)
    cache.crop(length)
    with torch.no_grad():
        lm(other, kv_cache=cache)
    assert torch.equal(generate(lm, prompt, 4, temperature=0, kv_cache=cache), expected)


@pytest.mark.parametrize("kind", CACHES)
def test_a_cropped_cache_continues_as_if_nothing_had_been_read(kind):
    lm = random_model(tiny_config())
    ids = torch.randint(0, 192, (2, 12))
    other = torch.randint(0, 192, (2, 5))
    cache = make_cache(kind, lm.config, 2, 40, next(lm.parameters()))
    with torch.no_grad():
        lm(ids, kv_cache=cache)
        cache.crop(7)
        assert cache.length == 7
        again = lm(other, kv_cache=cache)
        assert torch.allclose(again, lm(torch.cat((ids[:, :7], other), 1))[:, 7:], atol=1e-5)


def test_a_window_that_has_forgotten_forgets_everything():
    config = tiny_config(sliding_window=4)
    lm = random_model(config)
    cache = KVCache(config, block_size=1)
    with torch.no_grad():
        for _ in range(20):
            lm(torch.randint(0, 192, (1, 1)), kv_cache=cache)
    cache.crop(19)
    assert cache.length == 19
    cache.crop(5)
    assert cache.length == cache.nbytes == 0


def test_a_full_static_cache_says_so_before_anything_is_computed():
    lm = random_model(tiny_config())
    cache = StaticCache(lm.config, 1, 10, "cpu", torch.float32)
    with torch.no_grad():
        lm(torch.randint(0, 192, (1, 8)), kv_cache=cache)
        with pytest.raises(ValueError, match=r"room for 10 tokens, and 8 \+ 3 are needed"):
            lm(torch.randint(0, 192, (1, 3)), kv_cache=cache)
    assert cache.length == 8


# --------------------------------------------------------------------------------------------------
# int8: what it gives back, how much it holds, and that its scales go where its numbers go


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_number_is_off_by_half_a_scale_at_most(dtype):
    # sizes 10,000 times apart
    x = torch.randn(2, 3, 50, 16).mul(10 ** torch.linspace(-2, 2, 50)[:, None]).to(dtype)
    kept, scale = quantise(x)
    assert kept.dtype == torch.int8
    assert scale.shape == (2, 3, 50, 1)
    error = (kept.double() * scale.double() - x.double()).abs()
    # half a step, and the rounding of x / scale in the dtype, which is 127 of its units in the last
    # place at most
    assert (error <= scale.double() * (0.5 + 127 * torch.finfo(dtype).eps)).all()
    assert error.max() > 0
    zeros, no_scale = quantise(torch.zeros(1, 1, 2, 4, dtype=dtype))
    assert not (zeros * no_scale).any()


SHAPES = [{}, LATENT | {"kv_lora_rank": 16}, {"sliding_window": 6, "layer_types": ["sliding_attention"] * 2}]


@pytest.mark.parametrize("changes", SHAPES)
def test_what_is_read_does_not_depend_on_the_pieces(changes):
    lm = random_model(tiny_config(**changes))
    ids = torch.randint(0, 192, (2, 20))
    at_once = QuantisedCache(lm.config, block_size=4)
    in_pieces = QuantisedCache(lm.config, block_size=4)
    with torch.no_grad():
        whole = lm(ids, kv_cache=at_once)
        parts = torch.cat([lm(piece, kv_cache=in_pieces) for piece in ids.split([7, 1, 1, 8, 3], dim=1)], dim=1)
        exact = lm(ids)
    # a product of another shape adds in another order, so that a number may be rounded the other
    # way: one step of 127
    assert (whole - parts).abs().max() <= 0.02 * exact.abs().max()
    assert 0 < (whole - exact).abs().max() <= 0.1 * exact.abs().max()
    assert in_pieces.length == 20


def test_scales_are_cropped_and_repeated_with_their_numbers():
    lm = random_model(tiny_config())
    ids = torch.randint(0, 192, (2, 9))
    cache = QuantisedCache(lm.config)
    fresh = QuantisedCache(lm.config)
    with torch.no_grad():
        lm(torch.cat((ids, ids), dim=1), kv_cache=cache)
        cache.crop(9)
        cache.repeat_interleave(2)
        lm(ids.repeat_interleave(2, dim=0), kv_cache=fresh)
        following = torch.randint(0, 192, (4, 3))
        again = lm(following, kv_cache=cache)
        expected = lm(following, kv_cache=fresh)
    # one step of 127, as above
    assert (again - expected).abs().max() <= 0.02 * expected.abs().max()
    cache.crop(0)
    assert cache.nbytes == cache.length == 0
