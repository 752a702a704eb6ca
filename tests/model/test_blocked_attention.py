"""Blocked attention where it has several blocks; test_attention.py compares it with the formula inside one."""

import pytest
import torch

from model.attention import eager
from model.backends import blocked as blocked_attention
from model.backends.blocked import blocked
from model.backends.sdpa import sdpa
from model.masks import MaskSpec, boolean_mask

HALF = torch.bfloat16


def inputs(length, heads=4, kv_heads=2, head_dim=16, dtype=torch.float32):
    q = torch.randn(2, heads, length, head_dim).to(HALF).to(dtype)
    k, v = torch.randn(2, 2, kv_heads, length, head_dim).to(HALF).to(dtype)
    return q, k, v


def results(compute, tensors, mask):
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    out = compute(*leaves, mask, 0.0)
    weighting = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.dtype)
    return [out, *torch.autograd.grad(out, leaves, weighting)]


def masks(length):
    places = torch.arange(length)
    documents = torch.randint(0, 3, (2, length)).sort().values
    real = places[None] >= torch.tensor([[0], [length // 3]])  # left padding in the second row
    return {
        "causal": None,
        "documents": boolean_mask(MaskSpec(places, places, 2, None, documents)),
        "padding": boolean_mask(MaskSpec(places, places, 2, real)),
        "window": boolean_mask(MaskSpec(places, places, 2, None, None, 7)),
    }


@pytest.mark.parametrize("kind", ["causal", "documents", "padding", "window"])
@pytest.mark.parametrize(("length", "block"), [(20, 8), (24, 8), (5, 8), (150, 64), (9, 1)])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_it_is_as_near_to_float32_as_eager_in_bfloat16_is(kind, length, block, kv_heads, monkeypatch):
    monkeypatch.setattr(blocked_attention, "BLOCK", block)
    tensors, mask = inputs(length, kv_heads=kv_heads), masks(length)[kind]
    exact = results(eager, tensors, mask)
    halves = [x.to(HALF) for x in tensors]
    for ours, theirs, expected in zip(results(blocked, halves, mask), results(eager, halves, mask), exact, strict=True):
        size = expected.norm()
        assert (ours.float() - expected).norm() <= 1.5 * (theirs.float() - expected).norm() + 2**-8 * size


def test_a_row_that_sees_nothing_is_zero_in_every_block(monkeypatch):
    monkeypatch.setattr(blocked_attention, "BLOCK", 8)
    real = torch.arange(20)[None] >= torch.tensor([[10], [20]])
    mask = boolean_mask(MaskSpec(torch.arange(20), torch.arange(20), 2, real))
    out, *grads = results(blocked, inputs(20, dtype=HALF), mask)
    assert (out[0, :, :10] == 0).all()
    assert (out[1] == 0).all()
    assert all(torch.isfinite(grad).all() and (grad[1] == 0).all() for grad in grads)


@pytest.mark.parametrize(
    "changes",
    [{"dtype": torch.float32}, {"dtype": torch.float16}, {"queries": 1}, {"queries": 3}, {"longest": 19}],
    ids=str,
)
def test_what_it_is_not_for_goes_to_pytorchs_kernel(changes, monkeypatch):
    monkeypatch.setattr(blocked_attention, "LONGEST", changes.get("longest", 1024))
    monkeypatch.setattr(blocked_attention._Blocked, "apply", lambda *_: pytest.fail("computed in blocks"))
    q, k, v = inputs(20, dtype=changes.get("dtype", HALF))
    q = q[:, :, -changes.get("queries", 20) :]
    places = torch.arange(20)
    mask = boolean_mask(MaskSpec(places[-q.shape[2] :], places, 2))
    assert torch.equal(blocked(q, k, v, mask, 0.0), sdpa(q, k, v, mask, 0.0))


def test_under_autocast_it_computes_in_bfloat16_and_answers_in_the_values_dtype():
    q, k, v = inputs(20)
    with torch.autocast("cpu", dtype=HALF):
        out = blocked(q, k, v.to(HALF), None, 0.0)
    assert out.dtype == HALF
    assert torch.allclose(out.float(), eager(q, k, v, None, 0.0), atol=2e-2)
