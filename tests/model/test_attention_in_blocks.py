"""Attention block by block: sliding windows in chunks (sdpa on a CPU), and `blocked`. test_attention.py compares short
rows with the formula; here they have several blocks."""

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
@pytest.mark.parametrize("window", [1, 5, SMALLEST])
def test_windows_in_chunks_give_the_numbers_and_gradients_of_the_formula(window, packed, kv_heads):
    documents = torch.stack([torch.arange(LENGTH) // 50, torch.arange(LENGTH) // 31]) if packed else None
    band, mask = (form(spec(LENGTH, window, documents)) for form in (chunks_or_mask, boolean_mask))
    assert band.shape[2:] == (SMALLEST, 2 * SMALLEST)
    tensors = inputs(LENGTH, kv_heads=kv_heads, head_dim=8)
    for ours, exact in zip(results(sdpa, tensors, band), results(eager, tensors, mask), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-5)


def test_longer_windows_have_longer_chunks():
    band = chunks_or_mask(spec(2 * LENGTH, SMALLEST + 1))
    assert band.shape[2:] == (2 * SMALLEST, 4 * SMALLEST)


@pytest.mark.parametrize(
    "other",
    [
        spec(LENGTH - 1, 5),
        spec(LENGTH // 2, 5),
        spec(LENGTH, LENGTH),
        spec(LENGTH),
        spec(LENGTH, 5, attention_mask=torch.ones(2, LENGTH)),
        MaskSpec(torch.arange(LENGTH), torch.arange(2 * LENGTH), 2, sliding_window=5),
    ],
    ids=["no whole chunks", "few chunks", "a long window", "no window", "padding", "cached tokens"],
)
def test_where_chunks_do_not_serve_the_mask_is_written_out(other):
    assert torch.equal(chunks_or_mask(other), boolean_mask(other))


@pytest.mark.parametrize("kind", ["causal", "documents", "padding", "window"])
@pytest.mark.parametrize(("length", "block"), [(20, 8), (24, 8), (5, 8), (150, 64), (9, 1)])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_blocked_is_as_near_to_float32_as_eager_in_bfloat16_is(kind, length, block, kv_heads, monkeypatch):
    monkeypatch.setattr(kernels, "BLOCK", block)
    tensors = inputs(length, kv_heads=kv_heads)
    real = torch.arange(length)[None] >= torch.tensor([[0], [length // 3]])  # left padding in the second row
    changes = {
        "documents": {"documents": torch.randint(0, 3, (2, length)).sort().values},
        "padding": {"attention_mask": real},
        "window": {"window": 7},
    }
    mask = None if kind == "causal" else boolean_mask(spec(length, **changes[kind]))
    exact, halves = results(eager, tensors, mask), [x.to(HALF) for x in tensors]
    for ours, theirs, expected in zip(results(blocked, halves, mask), results(eager, halves, mask), exact, strict=True):
        allowed = 1.5 * (theirs.float() - expected).norm() + 2**-8 * expected.norm()
        assert (ours.float() - expected).norm() <= allowed


def test_a_row_that_sees_nothing_is_zero_in_every_block(monkeypatch):
    monkeypatch.setattr(kernels, "BLOCK", 8)
    real = torch.arange(20)[None] >= torch.tensor([[10], [20]])
    out, *grads = results(blocked, inputs(20, dtype=HALF), boolean_mask(spec(20, attention_mask=real)))
    assert (out[0, :, :10] == 0).all()
    assert (out[1] == 0).all()
    assert all(torch.isfinite(grad).all() and (grad[1] == 0).all() for grad in grads)


@pytest.mark.parametrize(
    "changes",
    [{"dtype": torch.float32}, {"dtype": torch.float16}, {"queries": 1}, {"queries": 3}, {"longest": 19}],
    ids=str,
)
def test_what_blocked_is_not_for_goes_to_pytorchs_kernel(changes, monkeypatch):
    monkeypatch.setattr(kernels, "LONGEST", changes.get("longest", 1024))
    monkeypatch.setattr(kernels._Blocked, "apply", lambda *_: pytest.fail("computed in blocks"))
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
