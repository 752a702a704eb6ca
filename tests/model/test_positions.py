"""Learned positions: where a token stands is looked up, so a place that has no vector is refused."""

import pytest
import torch

from model import generate
from model.convert_kv_heads import convert_kv_heads
from tests.conftest import random_model, tiny_config

GPT2 = {
    "position_embedding": "learned", "norm": "layernorm", "gated_mlp": False, "hidden_act": "gelu_new",
    "attention_bias": True, "mlp_bias": True, "qk_norm": False, "num_key_value_heads": "mha",
    "max_position_embeddings": 20,
}  # fmt: skip
IDS = torch.arange(40)[None]


def gpt2(**changes):
    return random_model(tiny_config(**GPT2 | changes))


def test_a_token_means_something_else_at_another_place():
    lm = gpt2(num_hidden_layers=1)
    with torch.no_grad():
        here, there = (lm(IDS[:, :1], position_ids=torch.tensor([[place]])) for place in (0, 7))
        assert not torch.allclose(here, there)
        lm.model.embed_positions.weight.zero_()
        here, there = (lm(IDS[:, :1], position_ids=torch.tensor([[place]])) for place in (0, 7))
        assert torch.equal(here, there)


def test_a_text_that_is_longer_than_the_positions_is_refused():
    lm = gpt2()
    assert lm(IDS[:, :20]).shape == (1, 20, 192)
    with pytest.raises(ValueError, match="the sequence has 21 tokens, more than max_position_embeddings"):
        lm(IDS[:, :21])
    assert generate(lm, IDS[:, :15], 30, stop_ids=()).shape == (1, 20)


@pytest.mark.parametrize("places", [[0, 20], [-1, 3]])
def test_a_place_without_a_vector_is_refused(places):
    with pytest.raises(IndexError):
        gpt2()(IDS[:, :2], position_ids=torch.tensor([places]))


def test_packed_documents_count_from_their_own_beginning():
    """A row of two documents, longer than the positions: each document is what it is alone."""
    lm, lengths = gpt2(), (18, 12)
    ids, documents = IDS[:, :30], torch.tensor([[0] * 18 + [1] * 12])
    places = torch.cat([torch.arange(length) for length in lengths])[None]
    with torch.no_grad():
        packed = lm(ids, document_ids=documents, position_ids=places)
        alone = [lm(part) for part in ids.split(lengths, dim=1)]
    torch.testing.assert_close(packed, torch.cat(alone, dim=1), rtol=1e-4, atol=1e-4)


def test_no_fewer_key_value_heads_are_made_of_it():
    lm = gpt2()
    assert convert_kv_heads(lm, 4).config == lm.config
    with pytest.raises(ValueError, match=r"heads \(2\) does not fit .*: use 4$"):
        convert_kv_heads(lm, 2)
