"""Decoding: greedy equals argmax of full forwards; filters, stops and seeds do what they say."""

import pytest
import torch

from model import generate
from model.generation import penalise_repetition, sample
from tests.conftest import random_model, tiny_config


@pytest.fixture
def lm():
    return random_model(tiny_config())


@pytest.fixture
def prompt():
    return torch.randint(0, 192, (2, 6))


def test_greedy_decoding_equals_argmax_without_a_cache(lm, prompt):
    expected = prompt
    with torch.no_grad():
        for _ in range(20):
            expected = torch.cat((expected, lm(expected)[:, -1].argmax(-1, keepdim=True)), 1)
    assert torch.equal(generate(lm, prompt, 20, temperature=0), expected)


def test_a_seed_decides_everything_and_nothing_else_changes(lm, prompt):
    before = torch.get_rng_state()
    first = generate(lm.train(), prompt, 20, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert lm.training
    assert torch.equal(first, generate(lm, prompt, 20, seed=1))
    assert not torch.equal(first, generate(lm, prompt, 20, seed=2))


def test_stopped_rows_are_filled_and_generation_ends_early(lm, prompt):
    free = generate(lm, prompt, 20, temperature=0)
    stop = free[0, 8].item()  # the third new token of the first row
    first = free[0, 6:].tolist().index(stop) + 6
    output = generate(lm, prompt, 20, temperature=0, stop_ids=[stop])
    assert (output[0, first:] == stop).all()
    assert torch.equal(output[0, : first + 1], free[0, : first + 1])
    alone = generate(lm, prompt[:1], 20, temperature=0, stop_ids=[stop])
    assert alone.shape[1] == first + 1


def test_generation_ends_where_the_context_does(lm, prompt):
    assert generate(lm, prompt, 1000, seed=0).shape[1] == 64


def draws(logits, **filters):
    settings = {"temperature": 1.0, "top_k": None, "top_p": None, "min_p": None} | filters
    rows = torch.tensor(logits).log().expand(4000, -1)
    ids = sample(rows, **settings, generator=torch.Generator().manual_seed(0))
    return torch.bincount(ids[:, 0], minlength=len(logits)) / 4000


def test_sampling_follows_the_probabilities():
    assert torch.allclose(draws([0.5, 0.3, 0.2]), torch.tensor([0.5, 0.3, 0.2]), atol=0.03)
    hot = torch.tensor([0.5, 0.3, 0.2]) ** 0.5
    assert torch.allclose(draws([0.5, 0.3, 0.2], temperature=2.0), hot / hot.sum(), atol=0.03)


def test_filters_keep_exactly_what_they_promise():
    assert (draws([0.5, 0.3, 0.2], top_k=2) > 0).tolist() == [True, True, False]
    assert (draws([0.2, 0.5, 0.3], top_p=0.6) > 0).tolist() == [
        False,
        True,
        True,
    ]  # .5 alone does not reach .6
    assert (draws([0.2, 0.5, 0.3], top_p=0.4) > 0).tolist() == [False, True, False]
    assert (draws([0.2, 0.5, 0.3], min_p=0.5) > 0).tolist() == [False, True, True]


def test_repetition_penalty_lowers_what_was_seen_whatever_its_sign():
    logits = torch.tensor([[2.0, -2.0, 1.0]])
    assert penalise_repetition(logits, torch.tensor([[0, 1]]), 2.0).tolist() == [[1.0, -4.0, 1.0]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"min_p": 2.0}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
    ],
)
def test_settings_out_of_range_are_named(lm, prompt, settings, message):
    with pytest.raises(ValueError, match=message):
        generate(lm, prompt, **settings)


def test_an_empty_prompt_is_refused(lm):
    with pytest.raises(ValueError, match="at least one token"):
        generate(lm, torch.zeros(1, 0).long())
