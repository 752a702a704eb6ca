"""Where a head looks is summed over the right words, and ablating a key head ablates all that read it."""

import pytest
import torch
from eval.recall import exam, right

from data.config import TokenizerConfig
from data.storyworld import recall
from data.tokenizer import train_tokenizer
from eval.attention.capture import capture
from eval.attention.controls import ablated
from eval.lookups import lookups
from model import ModelConfig
from tests.conftest import random_model

BYTES = train_tokenizer(TokenizerConfig(kind="byte"), [])
SHAPE = {"people": 4, "facets": 2, "values": 3, "questions": 2, "several": 1.0}


@pytest.fixture
def lm():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return random_model(ModelConfig(vocab_size=BYTES.vocab_size, **sizes))


def test_attention_is_summed_over_each_sort_of_person(lm):
    documents = [recall(0, i, **SHAPE) for i in range(3)]
    of, sums = exam(documents, BYTES, 4), {}
    weights = capture(lm, of.ids).weights
    for i, asked in enumerate(of.questions):
        document = documents[int(of.row[i])]
        *clues, name = document.words[asked.word - 2 : asked.word + 1]
        text = ""
        for person in range(4):
            fact = document.words[3 * person : 3 * person + 3]
            begin, text = len(text) + 1, text + "".join(f" {word}" for word in fact)
            shared = [clue == word for clue, word in zip(clues, fact[1:], strict=True)]
            sort = "right" if fact[0] == name else str(shared)
            share = weights[:, int(of.row[i]), :, int(of.first[i]) - 1, begin : len(text) + 1].sum(-1)
            sums.setdefault(sort, []).append(share)
    expected = [sums[sort] for sort in ("right", "[True, False]", "[False, True]", "[False, False]")]
    found = lookups(lm, of).attention
    for place, shares in enumerate(expected):
        assert torch.allclose(found[..., place], torch.stack(shares).mean(0), atol=1e-5)


def test_a_key_head_is_ablated_with_all_that_read_it(lm):
    of = exam([recall(0, i, **SHAPE) for i in range(3)], BYTES, 4)
    found = lookups(lm, of)
    assert found.whole == right(lm, of).float().mean().item()
    assert (found.without_query.shape, found.without_key.shape) == ((2, 4), (2, 2))
    with ablated(lm, [(1, 2), (1, 3)]):
        assert found.without_key[1, 1] == right(lm, of).float().mean()
