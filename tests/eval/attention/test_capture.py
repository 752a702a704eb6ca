"""Capture under everything that a model can be run with, and the check that bites: no wrong kernel
gets through.
"""

import sys

import pytest
import torch

from eval.attention import capture
from model.backends.choice import BACKENDS
from model.rope import RotaryEmbedding, apply_rotary
from model.variants.caches import make_cache
from tests.conftest import random_model, tiny_config

SDPA = BACKENDS["sdpa"].compute
CONFIG = tiny_config(num_attention_heads=8, num_key_value_heads=2, head_dim=8)
IDS = torch.randint(0, 192, (2, 12), generator=torch.Generator().manual_seed(1))
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 7] * 2)
PADDED = torch.tensor([[0] * 3 + [1] * 9, [1] * 12])
MASKS = {"plain": {}, "padding": {"attention_mask": PADDED}, "documents": {"document_ids": DOCUMENTS}}


@pytest.fixture
def lm():
    """A model whose attention is peaked, so that no tolerance can hide another kernel."""
    lm = random_model(CONFIG)
    for module in lm.attention_modules():
        module.q_norm.weight.data.fill_(3.0)
        module.k_norm.weight.data.fill_(3.0)
    return lm


@pytest.fixture
def latent():
    """Keys and values of every head from one latent; values are larger than keys."""
    sizes = {"kv_lora_rank": 12, "v_head_dim": 14, "head_dim": 10, "qk_rope_head_dim": 4}
    return random_model(tiny_config(attention="mla", num_key_value_heads="mha", **sizes))


@pytest.mark.parametrize("backend", ["eager", "flash", "sdpa", "blocked", "flex"])
@pytest.mark.parametrize("kind", MASKS)
def test_weights_are_causal_distributions_and_the_same_for_every_backend_and_mask(lm, backend, kind):
    masks = MASKS[kind]
    lm.set_attn_implementation("eager")
    expected = capture(lm, IDS, **masks).weights
    assert expected.shape == (2, 2, 8, 12, 12)
    assert expected.dtype == torch.float32
    assert (expected.triu(1) == 0).all()
    lm.set_attn_implementation(backend)
    weights = capture(lm, IDS, **masks).weights
    assert torch.allclose(weights, expected, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (capture(lm, IDS, **masks).weights - expected).abs().mean() < 0.01
    padding = 3 if kind == "padding" else 0  # looks at nothing, and is not looked at
    assert torch.allclose(weights[:, 0, :, padding:].sum(-1), torch.ones(()), atol=1e-6)
    assert (weights[:, 0, :, :padding] == 0).all()
    assert (weights[:, 0, ..., :padding] == 0).all()
    assert (weights[..., 5:, :5].sum() == 0) == ("document_ids" in masks)


@pytest.mark.parametrize("steep", [3.0, 20.0])
def test_large_scores_that_the_kernel_rounds_to_bf16_are_no_error(steep):
    """`blocked` keeps scores in bfloat16: of 60, a quarter may be lost.

    Another kernel is found all the same.
    """
    sizes = {"num_key_value_heads": 4, "head_dim": 16, "qk_norm": False, "max_position_embeddings": 96}
    lm = random_model(tiny_config(num_attention_heads=4, **sizes))
    for module in lm.attention_modules():
        module.q_proj.weight.data *= steep
    lm.set_attn_implementation("blocked")
    ids = torch.randint(0, 192, (2, 96), generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = capture(lm, ids)
        assert rounded.max_logits.max() > steep
        assert torch.allclose(rounded.weights.sum(-1), torch.ones(()), atol=1e-5)
        right = lm.attention_modules()[1].attend
        lm.attention_modules()[1].attend = lambda q, k, v, *more: right(q, k.roll(1, 1), v, *more)
        with pytest.raises(RuntimeError, match="layer 1"):
            capture(lm, ids)


def test_chosen_layers_and_heads_keep_their_numbers(lm):
    everything = capture(lm, IDS)
    some = capture(lm, IDS, layers=[1], heads=[2, 7])
    assert torch.equal(some.weights[0], everything.weights[1][:, [2, 7]])
    assert (some.layers, some.heads) == ([1], [2, 7])
    for wrong in ({"layers": [2]}, {"layers": []}, {"heads": [-1]}):
        with pytest.raises(ValueError, match="does not exist: there are"):
            capture(lm, IDS, **wrong)


def test_capture_leaves_everything_as_it_was(lm):
    lm.train()
    lm.model.layers[1].eval()  # one part in another mode
    modes = [module.training for module in lm.modules()]
    state = torch.get_rng_state()
    capture(lm, IDS)
    assert [module.training for module in lm.modules()] == modes
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.recorder is None for module in lm.attention_modules())
    assert all(p.grad is None for p in lm.parameters())


def without_rope(x):
    cos, sin = RotaryEmbedding(CONFIG.head_size, CONFIG.rope_theta)(torch.arange(x.shape[2])[None], x.dtype)
    return apply_rotary(x, cos, -sin)


def everything(q, k):
    return torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool)


def nudged(out):
    out = out.clone()
    out[:, 3, -1] += 0.01 * out.abs().max()
    return out


WRONG_KERNELS = {
    "keys of two groups swapped": lambda q, k, v, m, d: SDPA(q, k.flip(1), v, m, d),
    "heads tiled": lambda q, k, v, m, d: SDPA(q, k.repeat(1, 4, 1, 1), v.repeat(1, 4, 1, 1), m, d),
    "no RoPE": lambda q, k, v, m, d: SDPA(without_rope(q), without_rope(k), v, m, d),
    "queries without RoPE": lambda q, k, v, m, d: SDPA(without_rope(q), k, v, m, d),
    "no mask": lambda q, k, v, m, d: SDPA(q, k, v, everything(q, k), d),
    "scale 1": lambda q, k, v, m, d: SDPA(q * 8**0.5, k, v, m, d),
    "half the scale": lambda q, k, v, m, d: SDPA(q * 0.5, k, v, m, d),
    "one head a little off": lambda q, k, v, m, d: nudged(SDPA(q, k, v, m, d)),
    "not a number": lambda q, k, v, m, d: SDPA(q, k, v, m, d) * torch.nan,
}


def attend_by(lm, compute):
    for module in lm.attention_modules():
        module.attend = compute


@pytest.mark.parametrize(
    ("kind", "name"),
    [("heads", name) for name in WRONG_KERNELS]
    + [("latent", name) for name in ("no mask", "half the scale", "one head a little off")],
)
def test_a_kernel_that_does_something_else_is_caught(lm, latent, kind, name):
    lm = lm if kind == "heads" else latent
    for module in latent.attention_modules():
        module.kv_a_proj_with_mqa.weight.data.mul_(3)  # a peaked attention, as above
    assert capture(lm, IDS).weights.isfinite().all()
    attend_by(lm, WRONG_KERNELS[name])
    with pytest.raises(RuntimeError, match="^layer 0: the recomputed attention weights do not give"):
        capture(lm, IDS)
    assert all(module.recorder is None for module in lm.attention_modules())


def test_a_packed_row_that_leaks_is_caught_and_only_the_wrong_layer_is_named(lm):
    lm.attention_modules()[1].attend = lambda q, k, v, m, d: SDPA(q, k, v, everything(q, k).tril(), d)
    capture(lm, IDS)  # one document: nothing is wrong
    with pytest.raises(RuntimeError, match="^layer 1"):
        capture(lm, IDS, document_ids=DOCUMENTS)
    capture(lm, IDS, document_ids=DOCUMENTS, layers=[0])


def test_rows_in_chunks_are_the_same_and_so_is_the_check(lm, monkeypatch):
    everything = capture(lm, IDS)
    monkeypatch.setattr(sys.modules[capture.__module__], "CHUNK", 1)
    in_chunks = capture(lm, IDS)
    assert torch.allclose(in_chunks.weights, everything.weights, atol=1e-6)
    assert torch.allclose(in_chunks.max_logits, everything.max_logits, atol=1e-5)
    last_row = torch.tensor([1.0, 1.1])[:, None, None, None]
    attend_by(lm, lambda q, k, v, m, d: SDPA(q, k, v, m, d) * last_row)
    with pytest.raises(RuntimeError, match="layer 0"):
        capture(lm, IDS)


@pytest.mark.parametrize("form", ["full", "windows", "latent", "latent, absorbed"])
@pytest.mark.parametrize("kind", ["dynamic", "static", "offloaded"])
def test_with_a_cache_the_rows_are_those_of_the_whole_text(latent, kind, form):
    """A latent read in the absorbed form, one token behind a cache, has other queries and keys: the
    same weights.
    """
    windows = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]} if form == "windows" else {}
    lm = random_model(tiny_config(num_attention_heads=8, num_key_value_heads=2, head_dim=8, **windows))
    if form.startswith("latent"):
        lm = latent
        for module in latent.attention_modules():
            module.absorbs = form.endswith("absorbed")
    whole = capture(lm, IDS).weights
    far = torch.arange(12)[:, None] - torch.arange(12) >= 4
    assert (whole[0][..., far] == 0).all() == (form == "windows")
    assert (whole[1][..., far] > 0).all()
    cache = make_cache(kind, lm.config, 2, 16, lm.lm_head.weight)
    for start, end in ((0, 5), (5, 6), (6, 7), (7, 9)):
        maps = capture(lm, IDS[:, start:end], kv_cache=cache)
        assert maps.weights.shape[-2:] == (end - start, end)
        assert torch.allclose(maps.weights, whole[..., start:end, :end], atol=1e-5)
    assert cache.length == 9


def test_a_compiled_model_is_captured_and_stays_compiled(lm):
    compiled = torch.compile(lm, backend="eager")
    assert torch.equal(capture(compiled, IDS).weights, capture(lm, IDS).weights)
    with torch.no_grad():
        assert torch.allclose(compiled(IDS), lm(IDS), atol=1e-5)
    with pytest.raises(TypeError, match="a LanguageModel, not a Linear"):
        capture(lm.lm_head, IDS)
