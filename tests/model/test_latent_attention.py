"""Latent attention (MLA): transformers' logits to the last bit, a cache of latents, and the absorbed form."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from model import ModelConfig, generate, save
from model.kv_cache import CACHES, make_cache
from tests.conftest import LATENT, random_model, tiny_config
from tests.model import reference
from tests.model.test_attention import CPU_BACKENDS
from tests.model.test_families import YARN, drawn


def latent_config(**changes) -> ModelConfig:
    """Values are larger than keys, so that nothing can take the one for the other."""
    fields = {"kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 14}
    return tiny_config(**LATENT | fields | changes)


@torch.no_grad()
def read_in(lm, pieces, cache) -> torch.Tensor:
    return torch.cat([lm(piece, kv_cache=cache) for piece in pieces], dim=1)


@pytest.mark.parametrize("changes", [{}, {"q_lora_rank": 7, "rope_interleave": False}, {"rope_scaling": YARN}])
@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_it_is_its_formula(backend, changes):
    """Against the formulas in float64; flash wants values as large as keys."""
    lm = random_model(latent_config(**({"v_head_dim": 10} if backend == "flash" else {}), **changes))
    ids, documents = torch.randint(0, 192, (2, 13)), torch.tensor([[0] * 5 + [1] * 8] * 2)
    lm.set_attn_implementation(backend)
    for given in ({}, {"document_ids": documents}, {"attention_mask": (torch.arange(13) > 2).expand(2, 13)}):
        expected = reference.logits(lm, ids, **given)
        with torch.no_grad():
            assert (lm(ids, **given) - expected).abs().max() < 1e-4 * expected.abs().max()


# decoding


@pytest.mark.parametrize("number", range(8))
def test_absorbed_matrices_give_what_the_plain_form_gives(number):
    """One layer in float64, where nothing but the order of the sums differs."""
    config = drawn("deepseek_v3", number)
    attention = random_model(config).double().attention_modules()[0]
    H, S, rank, rotary = config.num_attention_heads, 13, config.kv_lora_rank, config.qk_rope_head_dim
    shapes = [(2, H, 1, config.qk_nope_head_dim), (2, H, 1, rotary), (2, 1, S, rank), (2, 1, S, rotary)]
    given = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    for mask in (None, torch.rand(2, 1, 1, S) > 0.4):
        with torch.no_grad():
            plain, absorbed = attention.plain(*given, mask), attention.absorbed(*given, mask)
        assert plain.shape == (2, H, 1, config.v_head_dim)
        assert torch.allclose(plain, absorbed, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("window", [None, 6])
def test_tokens_read_one_by_one_are_the_same_in_both_forms(kind, window):
    """The whole model in float32, with padding, and with windows."""
    windows = {"sliding_window": window, "layer_types": ["sliding_attention", "full_attention"]} if window else {}
    lm = random_model(latent_config(**windows))
    ids, real = torch.randint(0, 192, (2, 17)), torch.arange(17) >= torch.tensor([[0], [3]])
    for given in ({}, {"attention_mask": real}):
        with torch.no_grad():
            whole = lm(ids, **given)[real]
        for absorbs in (True, False):
            for attention in lm.attention_modules():
                attention.absorbs = absorbs
            cache, pieces = make_cache(kind, lm.config, 2, 20, lm.lm_head.weight), []
            for start, end in [(0, 8), *((i, i + 1) for i in range(8, 17))]:
                masks = {name: mask[:, :end] for name, mask in given.items()}
                with torch.no_grad():
                    pieces.append(lm(ids[:, start:end], kv_cache=cache, **masks))
            assert (torch.cat(pieces, 1)[real] - whole).abs().max() < 1e-5 * whole.abs().max()


@pytest.mark.parametrize("kind", [*CACHES, None])
def test_greedy_text_is_that_of_transformers(tmp_path, kind):
    lm = random_model(latent_config(q_lora_rank=9))
    save(lm, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.randint(0, 192, (2, 7))
    expected = theirs.generate(ids, max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert torch.equal(generate(lm, ids, 40, temperature=0, stop_ids=(), kv_cache=kind), expected)


@pytest.mark.parametrize("kind", CACHES)
def test_the_cache_holds_the_latent_and_the_rotary_part_alone(kind):
    config = latent_config()
    lm, cache = random_model(config), make_cache(kind, config, 3, 20, torch.zeros(()))
    read_in(lm, torch.randint(0, 192, (3, 9)).split([7, 2], dim=1), cache)
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
