"""Attention: backends agree, nobody sees the future, only relative positions count."""

import pytest
import torch

from model.attention import repeat_kv
from model.attention_backends import BACKENDS, resolve_attention
from model.kv_cache import KVCache
from tests.conftest import random_model, tiny_config

B, H, T, D = 2, 8, 33, 16


def reference(q, k, v, mask):
    """Straight from the formula, one row at a time, in float64."""
    groups = q.shape[1] // k.shape[1]
    out = torch.zeros_like(q)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                seen = [j for j in range(k.shape[2]) if (mask[b, 0, i, j] if mask is not None else j <= i)]
                if not seen:
                    continue
                scores = torch.stack([q[b, h, i] @ k[b, h // groups, j] for j in seen]) / q.shape[-1] ** 0.5
                out[b, h, i] = scores.softmax(0) @ v[b, h // groups, seen]
    return out


def errors(backend, inputs, expected, mask):
    """Largest error of the output and of each gradient against float64, in units of the largest entry (but at
    least 1): a gradient of MQA keys is a sum over all heads and rows and reaches 60, so its rounding does too."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = BACKENDS[backend](*leaves, mask, 0.0)
    out.backward(torch.ones_like(out))
    found = [out, *[leaf.grad for leaf in leaves]]
    pairs = zip(found, expected, strict=True)
    return [(a.double() - b).abs().max().item() / max(1.0, b.abs().max().item()) for a, b in pairs]


@pytest.mark.parametrize("masked", [False, True], ids=["causal", "documents"])
@pytest.mark.parametrize("kv_heads", [8, 2, 1], ids=["mha", "gqa", "mqa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_backends_agree_forward_and_backward(dtype, kv_heads, masked):
    """The measure is float64; a kernel may be at most twice as far from it as eager in the same dtype."""
    shapes = [(B, H, T, D), (B, kv_heads, T, D), (B, kv_heads, T, D)]
    exact = [(2 * torch.randn(s)).to(dtype).double().requires_grad_() for s in shapes]
    mask = None
    if masked:
        documents = torch.randint(0, 3, (B, T)).sort().values
        mask = (documents[:, :, None] == documents[:, None])[:, None] & torch.ones(T, T).tril().bool()
    out = reference(*exact, mask)
    out.backward(torch.ones_like(out))
    expected = [out.detach(), *[x.grad for x in exact]]
    inputs = [x.detach().to(dtype) for x in exact]
    eager_errors = errors("eager", inputs, expected, mask)
    slack = 1e-6 if dtype == torch.float32 else 4e-3  # bf16 has 8 bits: half a unit in the last place of 1
    for backend in ("flash", "sdpa"):
        for error, eager_error in zip(errors(backend, inputs, expected, mask), eager_errors, strict=True):
            assert error <= 2 * eager_error + slack


def test_repeat_kv_gives_neighbouring_query_heads_the_same_head():
    k = torch.arange(3.0)[None, :, None, None]
    assert repeat_kv(k, 2).flatten().tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("backend", ["eager", "flash", "sdpa"])
def test_no_position_sees_its_future(backend):
    lm = random_model(tiny_config())
    lm.set_attn_implementation(backend)
    ids = torch.randint(0, 192, (1, 20))
    changed = ids.clone()
    changed[0, 12:] = (changed[0, 12:] + 1) % 192
    with torch.no_grad():
        before, after = lm(ids), lm(changed)
    assert torch.equal(before[0, :12], after[0, :12])
    assert not torch.allclose(before[0, 12:], after[0, 12:], atol=1e-2)


def test_attention_depends_on_relative_positions_only():
    lm = random_model(tiny_config())
    ids = torch.randint(0, 192, (1, 20))
    positions = torch.arange(20)[None]
    with torch.no_grad():
        here, there, stretched = (lm(ids, position_ids=p) for p in (positions, positions + 40, positions * 2))
    assert torch.allclose(here, there, atol=2e-4)  # float32 angles, logits of size ~5
    assert not torch.allclose(here, stretched, atol=1e-1)


def test_documents_packed_into_one_row_do_not_see_each_other():
    lm = random_model(tiny_config())
    first, second = torch.randint(0, 192, (1, 9)), torch.randint(0, 192, (1, 14))
    documents = torch.tensor([[0] * 9 + [1] * 14])
    with torch.no_grad():
        packed = lm(torch.cat((first, second), 1), document_ids=documents)
        assert torch.allclose(packed[:, :9], lm(first), atol=1e-5)
        assert torch.allclose(packed[:, 9:], lm(second), atol=2e-4)
        leaking = lm(torch.cat((first, second), 1))
    assert not torch.allclose(packed[:, 9:], leaking[:, 9:], atol=1e-1)


@pytest.mark.parametrize("backend", ["eager", "flash", "sdpa"])
def test_padding_is_invisible_on_either_side_and_never_nan(backend):
    lm = random_model(tiny_config())
    lm.set_attn_implementation(backend)
    ids = torch.randint(0, 192, (1, 10))
    junk = torch.randint(0, 192, (1, 5))
    ones, zeros = torch.ones(1, 10), torch.zeros(1, 5)
    with torch.no_grad():
        alone = lm(ids)
        left = lm(torch.cat((junk, ids), 1), attention_mask=torch.cat((zeros, ones), 1))
        right = lm(torch.cat((ids, junk), 1), attention_mask=torch.cat((ones, zeros), 1))
    assert torch.isfinite(left).all()
    assert torch.allclose(left[:, 5:], alone, atol=2e-4)
    assert torch.allclose(right[:, :10], alone, atol=1e-5)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("chunks", [[1] * 20, [7, 1, 1, 5, 6], [20]])
def test_cached_decoding_equals_a_full_forward(kv_heads, chunks):
    lm = random_model(tiny_config(num_key_value_heads=kv_heads))
    ids = torch.randint(0, 192, (2, 20))
    cache, pieces = KVCache(block_size=8), []
    with torch.no_grad():
        for piece in ids.split(chunks, dim=1):
            pieces.append(lm(piece, kv_cache=cache))
        full = lm(ids)
    assert cache.length == 20
    assert cache.nbytes == 2 * 2 * 2 * kv_heads * 20 * 8 * 4  # k and v, layers, batch, heads, tokens, head_dim, fp32
    assert torch.allclose(torch.cat(pieces, 1), full, atol=1e-5)


def test_an_explicit_backend_that_cannot_serve_says_why():
    lm = random_model(tiny_config(attention_dropout=0.1, attn_implementation="flash")).train()
    with pytest.raises(ValueError, match="flash has no dropout on CPU: use sdpa"):
        lm(torch.randint(0, 192, (1, 8)))
    with pytest.raises(ValueError, match="'flashy'.*auto, eager, flash, sdpa"):
        lm.set_attn_implementation("flashy")


def test_auto_is_sdpa_and_says_why():
    backend, reason = resolve_attention("auto")
    assert backend == "sdpa"
    assert "PyTorch picks" in reason


def test_attention_dropout_drops_in_training_only():
    lm = random_model(tiny_config(attention_dropout=0.5))
    ids = torch.randint(0, 192, (1, 20))
    with torch.no_grad():
        assert torch.equal(lm(ids), lm(ids))
        lm.train()
        assert not torch.allclose(lm(ids), lm(ids))
