"""Sliding windows in chunks: the numbers and gradients of the formula, and full masks where chunks do not serve."""

import pytest
import torch

from model.attention import eager
from model.backends.sdpa import FEWEST, SMALLEST, band_or_mask, sdpa
from model.masks import Band, MaskSpec, boolean_mask
from tests.conftest import random_model, tiny_config

LENGTH = FEWEST * SMALLEST


def spec(window, length=LENGTH, documents=None, **changes):
    places = torch.arange(length)
    return MaskSpec(places, places, 2, document_ids=documents, sliding_window=window, **changes)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("window", [1, 5, SMALLEST])
def test_chunks_give_the_numbers_and_gradients_of_the_formula(window, packed, kv_heads):
    torch.manual_seed(0)
    documents = torch.stack([torch.arange(LENGTH) // 50, torch.arange(LENGTH) // 31]) if packed else None
    band, mask = band_or_mask(spec(window, documents=documents)), boolean_mask(spec(window, documents=documents))
    assert isinstance(band, Band)
    results = []
    for compute, given in ((sdpa, band), (eager, mask)):
        torch.manual_seed(1)
        q, k, v = inputs = [torch.randn(2, n, LENGTH, 8, requires_grad=True) for n in (4, kv_heads, kv_heads)]
        out = compute(q, k, v, given, 0.0)
        results.append([out, *torch.autograd.grad((out * torch.linspace(-1, 1, 8)).sum(), inputs)])
    for found, exact in zip(*results, strict=True):
        torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-5)


def test_longer_windows_have_longer_chunks():
    band = band_or_mask(spec(SMALLEST + 1, 2 * LENGTH))
    assert isinstance(band, Band)
    assert band.size == 2 * SMALLEST


@pytest.mark.parametrize(
    "other",
    [
        spec(5, LENGTH - 1),
        spec(5, LENGTH // 2),
        spec(LENGTH),
        spec(None),
        spec(5, attention_mask=torch.ones(2, LENGTH)),
        MaskSpec(torch.arange(LENGTH), torch.arange(2 * LENGTH), 2, sliding_window=5),
    ],
    ids=["no whole chunks", "few chunks", "a long window", "no window", "padding", "cached tokens"],
)
def test_where_chunks_do_not_serve_the_mask_is_written_out(other):
    assert torch.equal(band_or_mask(other), boolean_mask(other))


def test_a_model_with_windows_computes_the_same_in_chunks():
    lm = random_model(
        tiny_config(
            sliding_window=5,
            layer_types=["sliding_attention", "full_attention"],
            max_position_embeddings=LENGTH,
        )
    )
    ids = torch.randint(0, lm.config.vocab_size, (2, LENGTH))
    documents = torch.arange(LENGTH).expand(2, -1) // 40
    logits = {}
    for name in ("eager", "sdpa"):
        lm.set_attn_implementation(name)
        logits[name] = lm(ids, document_ids=documents)
    torch.testing.assert_close(logits["sdpa"], logits["eager"], rtol=1e-4, atol=1e-4)
