"""Attention: every backend equals the formula, no token sees the future, only relative positions
count.
"""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eval.attention import capture
from model import LanguageModel, ModelConfig
from model.attention import repeat_kv, smear_keys
from model.backends.choice import BACKENDS, Situation, why_not
from model.kv_cache import KVCache
from model.masks import MaskSpec
from tests.conftest import random_model, tiny_config
from tests.model import reference

CPU_BACKENDS = [name for name in BACKENDS if why_not(name, Situation("cpu", torch.float32, 16)) is None]
# half a unit in the last place of 1, and twice that for 16 bits: what the last rounding alone may
# cost
SLACK = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}


def test_the_backends_that_need_no_gpu_are_all_tested():
    assert CPU_BACKENDS == ["eager", "flash", "flex", "sdpa", "blocked"]


@st.composite
def cases(draw):
    """Heads, groups, head size, lengths, window, documents, padding and dtype of one attention
    call.
    """
    batch = draw(st.integers(1, 3))
    queries = draw(st.integers(1, 20))
    kind = draw(st.sampled_from(["plain", "documents", "left padding", "right padding"]))
    cached = draw(st.integers(0, 12)) if kind != "documents" else 0
    keys = queries + cached
    documents = real = None
    if kind == "documents":
        documents = torch.tensor(draw(st.lists(st.lists(st.integers(0, 2), min_size=keys, max_size=keys).map(sorted),
                                               min_size=batch, max_size=batch)))  # fmt: skip
    elif kind != "plain":
        lengths = draw(st.lists(st.integers(0, keys), min_size=batch, max_size=batch))
        real = torch.stack([torch.arange(keys) < n for n in lengths])
        real = real.flip(1) if kind == "left padding" else real
    return {
        "batch": batch,
        "queries": queries,
        "keys": keys,
        "kv_heads": draw(st.integers(1, 3)),
        "groups": draw(st.sampled_from([1, 2, 3, 4])),
        "head_dim": draw(st.sampled_from([2, 8, 16, 24, 64])),
        "value_dim": draw(st.sampled_from([None, None, 8, 12])),
        "window": draw(st.none() | st.integers(1, keys + 2)),
        "documents": documents,
        "real": real,
        "dtype": draw(st.sampled_from(list(SLACK))),
        "scale": draw(st.sampled_from([0.1, 1.0, 3.0])),
        "seed": draw(st.integers(0, 10**6)),
    }


def errors(name, inputs, spec, expected):
    """Largest error of the output and of each gradient against float64, in units of the largest
    number of the case (but at least 1): a gradient of MQA keys is a sum over all heads and rows and
    reaches 60, so its rounding does too, and a flash kernel takes exp(score - logsumexp), which
    inherits the rounding of a score of 100.
    """
    backend = BACKENDS[name]
    gradients = name != "flex"  # FlexAttention has no gradients on a CPU
    leaves = [x.clone().requires_grad_(gradients) for x in inputs]
    out = backend.compute(*leaves, backend.mask(spec), 0.0)
    found = [out.detach()]
    if gradients:
        found += torch.autograd.grad(out, leaves, weighting(out))
    assert all(torch.isfinite(x).all() for x in found)
    q = inputs[0].float()
    k = repeat_kv(inputs[1].float(), inputs[0].shape[1] // inputs[1].shape[1])
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    unit = max(1.0, *[x.abs().max().item() for x in (scores, *inputs, *expected)])
    error = [(a.double() - b).abs().max().item() / unit for a, b in zip(found, expected, strict=False)]
    # eager is the yardstick of the others: a mask that is wrong in all of them must not pass
    assert name != "eager" or inputs[0].dtype != torch.float32 or max(error) <= 1e-5
    return error


def weighting(out):
    """A gradient from above that differs from entry to entry."""
    return torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape).to(out.dtype)


STEADY = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("examples", [25, pytest.param(150, marks=pytest.mark.slow)])
def test_every_backend_equals_the_formula_forward_and_backward(examples):
    settings(STEADY, max_examples=examples)(given(cases())(equals_the_formula))()


def equals_the_formula(case) -> None:
    """The measure is float64; a kernel may be at most twice as far from it as eager in the same
    dtype.
    """
    torch.manual_seed(case["seed"])
    c = case
    cached = case["keys"] - case["queries"]
    value_dim = c["value_dim"] or c["head_dim"]
    of_keys, of_values = ((c["batch"], c["kv_heads"], c["keys"], size) for size in (c["head_dim"], value_dim))
    shapes = [(c["batch"], c["kv_heads"] * c["groups"], c["queries"], c["head_dim"]), of_keys, of_values]
    exact = [(c["scale"] * torch.randn(s)).to(c["dtype"]).double().requires_grad_() for s in shapes]

    def visible(b, i, j):
        documents, real = (x[b] if x is not None else None for x in (c["documents"], c["real"]))
        return reference.may_see(i + cached, j, window=c["window"], documents=documents, real=real)

    out = reference.attention(*exact, visible)
    expected = [out.detach(), *torch.autograd.grad(out, exact, weighting(out), allow_unused=True)]
    expected = [torch.zeros_like(x) if e is None else e for e, x in zip(expected, [out, *exact], strict=True)]
    inputs = [x.detach().to(c["dtype"]) for x in exact]
    places = torch.arange(c["keys"])
    plain = c["window"] is None and c["documents"] is None and c["real"] is None and c["queries"] in (1, c["keys"])
    spec = MaskSpec(places[cached:], places, c["batch"], c["real"], c["documents"], c["window"], plain)
    eager_errors = errors("eager", inputs, spec, expected)
    here = Situation("cpu", c["dtype"], c["head_dim"], value_dim=value_dim)
    for name in [name for name in CPU_BACKENDS if why_not(name, here) is None]:
        for found, eager_error in zip(errors(name, inputs, spec, expected), eager_errors, strict=False):
            assert found <= 2 * eager_error + SLACK[c["dtype"]], name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", CPU_BACKENDS)
def test_a_row_that_sees_nothing_is_zero_and_so_are_its_gradients(name, dtype):
    places = torch.arange(6)
    real = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0]])
    backend = BACKENDS[name]
    spec = MaskSpec(places, places, 2, real)
    inputs = [torch.randn(2, heads, 6, 8, dtype=dtype).requires_grad_(name != "flex") for heads in (4, 2, 2)]
    out = backend.compute(*inputs, backend.mask(spec), 0.0)
    assert (out[0, :, :3] == 0).all()
    assert (out[1] == 0).all()
    assert (out[0, :, 3:] != 0).all()
    if name != "flex":
        for grad in torch.autograd.grad(out.sum(), inputs):
            assert torch.isfinite(grad).all()
            assert (grad[1] == 0).all()


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_no_position_sees_its_future(backend):
    lm = random_model(tiny_config())
    lm.set_attn_implementation(backend)
    ids = torch.randint(0, 192, (1, 20))
    changed = ids.clone()
    changed[0, 12:] = (changed[0, 12:] + 1) % 192
    with torch.no_grad():
        before = lm(ids)
        after = lm(changed)
    assert torch.equal(before[0, :12], after[0, :12])
    assert not torch.allclose(before[0, 12:], after[0, 12:], atol=1e-2)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_scores_that_are_not_divided_are_those_of_queries_longer_by_the_root(backend):
    """Heads of 16: a root of 4, by which one can multiply without rounding."""
    parts = {"head_dim": 16, "qk_norm": False}
    lm = random_model(tiny_config(**parts, scale_attn_weights=False, loadable_elsewhere=False))
    longer = random_model(tiny_config(**parts))
    longer.load_state_dict(lm.state_dict())
    ids = torch.randint(0, 192, (2, 20))
    for model in (lm, longer):
        model.set_attn_implementation(backend)
    with torch.no_grad():
        assert not torch.allclose(lm(ids), longer(ids), atol=0.1)
        for attention in longer.attention_modules():
            attention.q_proj.weight *= 4
        assert torch.equal(lm(ids), longer(ids))
        cache = KVCache(lm.config)
        cached = torch.cat([lm(part, kv_cache=cache) for part in ids.split([7, 12, 1], dim=1)], dim=1)
        assert torch.allclose(cached, lm(ids), atol=1e-3)  # logits of size ~5
    # weights @ v is what the backend returned
    seen = capture(lm, ids)
    expected = capture(longer, ids)
    assert torch.equal(seen.weights, expected.weights)
    assert torch.equal(seen.max_logits, expected.max_logits)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize(("shared", "cached_numbers"), [("keys", (1 + 4) * 16), ("values", (4 + 1) * 16)])
def test_keys_alone_or_values_alone_are_shared(backend, shared, cached_numbers):
    """The model equals one of four heads of each kind whose rows are copies."""
    parts = {"num_attention_heads": 4, "head_dim": 16, "loadable_elsewhere": False}
    lm = random_model(tiny_config(**parts, num_key_value_heads=1, kv_sharing=shared))
    assert lm.config.cache_numbers == cached_numbers
    own = random_model(tiny_config(**parts, num_key_value_heads=4))
    weights = lm.state_dict()
    for name, weight in weights.items():
        if name.endswith(f"{shared[0]}_proj.weight"):
            weights[name] = weight.repeat(4, 1)
    own.load_state_dict(weights)
    ids = torch.randint(0, 192, (2, 20))
    for model in (lm, own):
        model.set_attn_implementation(backend)
    with torch.no_grad():
        assert torch.allclose(lm(ids), own(ids), atol=1e-5)
        cache = KVCache(lm.config)
        cached = torch.cat([lm(part, kv_cache=cache) for part in ids.split([7, 12, 1], dim=1)], dim=1)
        assert torch.allclose(cached, lm(ids), atol=1e-4)
    assert torch.allclose(capture(lm, ids).weights, capture(own, ids).weights, atol=1e-5)


@pytest.mark.parametrize("heads", [{"num_key_value_heads": 2}, {"num_key_value_heads": 1, "kv_sharing": "values"}])
@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_keys_are_smeared_within_their_document_and_scores_are_those_of_the_keys(backend, heads):
    lm = random_model(tiny_config(smear_keys=True, loadable_elsewhere=False, **heads), scale=0.5)
    lm.set_attn_implementation(backend)
    first, second = torch.randint(0, 192, (2, 1, 9))
    packed = torch.cat((first, second), dim=1)
    documents = torch.arange(2).repeat_interleave(9)[None]
    with torch.no_grad():
        logits = lm(packed, document_ids=documents)
        alone = torch.cat((lm(first), lm(second)), dim=1)
        mixed = lm(packed)
        for layer in lm.attention_modules():
            layer.smear.fill_(40.0)  # the sigmoid of which is 1
        unsmeared = lm(packed)
    assert torch.allclose(logits, alone, atol=1e-5)
    assert not torch.allclose(logits, mixed, atol=1e-2)
    assert not torch.allclose(unsmeared, mixed, atol=1e-2)
    # capture raises unless weights @ v is what the backend returned
    assert capture(lm, packed).weights.shape == (2, 1, 4, 18, 18)
    plain = LanguageModel(ModelConfig(**lm.config.model_dump() | {"smear_keys": False})).eval()
    plain.load_state_dict({name: x for name, x in lm.state_dict().items() if not name.endswith("smear")})
    plain.set_attn_implementation(backend)
    with torch.no_grad():
        assert torch.allclose(plain(packed), unsmeared, atol=1e-6)


def test_smeared_scores_mix_those_of_a_token_and_the_one_before():
    k = torch.randn(2, 2, 7, 8)
    q = torch.randn(2, 4, 7, 8)
    share = torch.tensor([0.3, 1.0])
    marked = torch.tensor([[False, True, True, False, True, True, True]])
    scores = q @ repeat_kv(k, 2).mT
    mixed = q @ repeat_kv(smear_keys(k, share, marked), 2).mT
    expected = scores.clone()
    for head in (0, 1):
        for j in (1, 2, 4, 5, 6):
            expected[:, head, :, j] = 0.3 * scores[:, head, :, j] + 0.7 * scores[:, head, :, j - 1]
    assert torch.allclose(mixed, expected, atol=1e-5)


def test_the_share_of_a_smeared_key_is_learned():
    lm = random_model(tiny_config(smear_keys=True, loadable_elsewhere=False)).train()
    ids = torch.randint(0, 192, (2, 12))
    loss_sum, _ = lm(ids, labels=ids)
    loss_sum.backward()
    for layer in lm.attention_modules():
        assert layer.smear.shape == (2,)
        assert (layer.smear.grad != 0).all()


def test_attention_dropout_drops_in_training_only():
    lm = random_model(tiny_config(attention_dropout=0.5))
    ids = torch.randint(0, 192, (1, 20))
    with torch.no_grad():
        assert torch.equal(lm(ids), lm(ids))
        lm.train()
        assert not torch.allclose(lm(ids), lm(ids))
        lm.eval().set_attn_implementation("flash")  # which has none
        lm(ids)
