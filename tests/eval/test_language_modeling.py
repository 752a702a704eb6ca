"""Bits: whole documents one by one, and the floor that the built-in world knows about itself."""

import math

import pytest
import torch

from data.config import TokenizerConfig
from data.tokenizer import train_tokenizer
from eval.language_modeling import compare_with_floor, predictions, token_bits
from eval.samples import complete
from model import LanguageModel
from storyworld import tell
from tests.conftest import random_model, tiny_config

STORIES = [tell(0, i, "validation") for i in range(12)]
TOKENIZER = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=512), [story.text for story in STORIES])


@pytest.fixture
def lm():
    return random_model(tiny_config(vocab_size=TOKENIZER.vocab_size, max_position_embeddings=1024))


def test_predictions_are_those_of_the_model_in_any_number_of_rows(lm, monkeypatch):
    ids = torch.randint(0, 500, (3, 14))
    losses, likeliest = predictions(lm, ids)
    assert losses[:, 0].isnan().all()
    with torch.no_grad():
        total, count = lm(ids, labels=ids)
        assert torch.equal(likeliest[:, 1:], lm(ids)[:, :-1].argmax(-1) == ids[:, 1:])
    assert losses[:, 1:].sum().item() == pytest.approx(total.item(), rel=1e-6)
    assert losses[:, 1:].numel() == count
    monkeypatch.setattr("eval.language_modeling.LOGITS", 1)  # a row at a time
    assert torch.allclose(predictions(lm, ids)[0][:, 1:], losses[:, 1:], rtol=1e-6, atol=0)


def test_bits_of_a_document_do_not_depend_on_the_others_in_its_batch(lm):
    texts = [story.text for story in STORIES[:5]]
    lm.train()
    for text, bits in zip(texts, token_bits(lm, TOKENIZER, texts), strict=True):
        ids = torch.tensor(TOKENIZER.encode_documents([text]))
        loss_sum, count = lm(ids, labels=ids)
        # the end token is paid for
        assert len(bits) == int(count) == len(TOKENIZER.encode(text)) + 1
        assert sum(bits) * math.log(2) == pytest.approx(loss_sum.item(), rel=1e-5)
    with pytest.raises(ValueError, match="more than max_position_embeddings"):
        token_bits(lm, TOKENIZER, [texts[0] * 20])
    assert lm.training  # as it was


def test_an_untrained_model_pays_log2_of_the_vocabulary_for_every_token_of_what_it_can_read():
    longest = max(len(TOKENIZER.encode(story.text)) for story in STORIES)
    lm = LanguageModel(tiny_config(vocab_size=TOKENIZER.vocab_size, max_position_embeddings=longest + 1))
    documents, bits, floor = compare_with_floor(lm, TOKENIZER, STORIES)
    read = [story for story in STORIES if len(TOKENIZER.encode(story.text)) < longest]
    assert documents == len(read) < len(STORIES)
    tokens = sum(len(TOKENIZER.encode(s.text)) + 1 for s in read)
    text_bytes = sum(len(s.text) for s in read)
    assert bits == pytest.approx(tokens * math.log2(TOKENIZER.vocab_size) / text_bytes, rel=0.02)
    assert floor == pytest.approx(sum(s.bits for s in read) / text_bytes)


def test_a_completion_begins_with_its_prompt_and_is_decided_by_its_seed(lm):
    first, same, other = (complete(lm, TOKENIZER, "Once there was", 10, seed=seed).content for seed in (3, 3, 4))
    assert first.startswith("Once there was")
    assert first == same != other
