"""Sampling: filters keep exactly what they promise, and the draw follows the probabilities."""

import torch

from model.decoding.sampling import Sampling, next_token, penalise_repetition


def draws(logits, **filters):
    rows = torch.tensor(logits).log().expand(4000, -1)
    ids, _ = next_token(rows, torch.zeros(len(rows), 0).long(), Sampling(**filters), torch.Generator().manual_seed(0))
    return torch.bincount(ids, minlength=len(logits)) / 4000


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
