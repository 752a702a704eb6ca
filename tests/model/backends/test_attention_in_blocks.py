"""Attention block by block: sliding windows in chunks (sdpa on a CPU), and `blocked`.
test_attention.py compares short rows with the formula; here they have several blocks.
"""

import pytest
import torch

from model.attention import eager
from model.backends import kernels
from model.backends.kernels import FEWEST, SMALLEST, blocked, chunks_or_mask, sdpa
from model.masks import MaskSpec, boolean_mask

HALF = torch.bfloat16
LENGTH = FEWEST * SMALLEST


def spec(length=LENGTH, window=None, documents=None, **changes):
    places = torch.arange(length)
    return MaskSpec(places, places, 2, document_ids=documents, sliding_window=window, **changes)


def inputs(length, heads=4, kv_heads=2, head_dim=16, dtype=torch.float32):
    q = torch.randn(2, heads, length, head_dim).to(HALF).to(dtype)
    k, v = torch.randn(2, 2, kv_heads, length, head_dim).to(HALF).to(dtype)
    return q, k, v


def results(compute, tensors, mask):
    """The output and the three gradients."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    out = compute(*leaves, mask, 0.0)
    weighting = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.dtype)
    return [out, *torch.autograd.grad(out, leaves, weighting)]


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("window", "chunk"), [(1, SMALLEST), (5, SMALLEST), (SMALLEST + 1, 2 * SMALLEST)])
def test_windows_in_chunks_give_the_numbers_and_gradients_of_the_formula(window, chunk, packed, kv_heads):
    length = FEWEST * chunk
    documents = torch.stack([torch.arange(length) // 50, torch.arange(length) // 31]) if packed else None
    band, mask = (form(spec(length, window, documents)) for form in (chunks_or_mask, boolean_mask))
    assert band.shape[2:] == (chunk, 2 * chunk)
    tensors = inputs(length, kv_heads=kv_heads, head_dim=8)
    for ours, exact in zip(results(sdpa, tensors, band), results(eager, tensors, mask), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-5)


OTHERS = {
    "no whole chunks": spec(LENGTH - 1, 5),
    "few chunks": spec(LENGTH // 2, 5),
    "a long window": spec(LENGTH, LENGTH),
    "no window": spec(LENGTH),
    "padding": spec(LENGTH, 5, attention_mask=torch.ones(2, LENGTH)),
    "cached tokens": MaskSpec(torch.arange(LENGTH), torch.arange(2 * LENGTH), 2, sliding_window=5),
}


@pytest.mark.parametrize("name", OTHERS)
def test_where_chunks_do_not_serve_the_mask_is_written_out(name):
    assert torch.equal(chunks_or_mask(OTHERS[name]), boolean_mask(OTHERS[name]))


@pytest.mark.parametrize("kind", ["causal", "documents", "padding", "window"])
@pytest.mark.parametrize(("length", "block"), [(20, 8), (24, 8), (5, 8), (150, 64), (9, 1)])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("dtype", [HALF, torch.float32])
def test_blocked_is_as_near_to_float64_as_eager_is(kind, length, block, kv_heads, dtype, monkeypatch):
    monkeypatch.setattr(kernels, "BLOCK", block)
    tensors = inputs(length, kv_heads=kv_heads)
    # left padding in the second row
    real = torch.arange(length)[None] >= torch.tensor([[0], [length // 3]])
    changes = {
        "documents": {"documents": torch.randint(0, 3, (2, length)).sort().values},
        "padding": {"attention_mask": real},
        "window": {"window": 7},
    }
    mask = None if kind == "causal" else boolean_mask(spec(length, **changes[kind]))
    exact = results(eager, [x.double() for x in tensors], mask)
    rounded = [x.to(dtype) for x in tensors]
    found = results(blocked, rounded, mask)
    if kind == "padding":  # a row that sees nothing is zero, in whatever block it is
        assert not found[0][1, :, : length // 3].any()
    for ours, theirs, expected in zip(found, results(eager, rounded, mask), exact, strict=True):
        allowed = 1.5 * (theirs.double() - expected).norm() + torch.finfo(dtype).eps * expected.norm()
        assert (ours.double() - expected).norm() <= allowed


def test_under_autocast_it_computes_in_bfloat16_and_answers_in_the_values_dtype():
    q, k, v = inputs(20)
    with torch.autocast("cpu", dtype=HALF):
        out = blocked(q, k, v.to(HALF), None, 0.0)
    assert out.dtype == HALF
    assert torch.allclose(out.float(), eager(q, k, v, None, 0.0), atol=2e-2)


def test_queries_are_scaled_before_they_are_rounded_to_bfloat16():
    # 1 / sqrt(10) is no power of two: rounding twice would show
    q, k, v = torch.randn(3, 2, 4, 20, 10).unbind()
    with torch.autocast("cpu", dtype=HALF):
        out = blocked(q, k, v.to(HALF), None, 0.0)
    rows, keys, values = (x.to(HALF).flatten(0, 1) for x in (q * 10**-0.5, k, v))
    weights = (rows @ keys.mT + torch.full((20, 20), kernels.HIDDEN, dtype=HALF).triu(1)).softmax(dim=-1)
    assert torch.equal(out.flatten(0, 1), weights @ values)
