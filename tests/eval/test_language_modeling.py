"""Bits: whole documents one by one, and the floor that the built-in world knows about itself."""

import math

import pytest
import torch

from data.config import TokenizerConfig
from data.storyworld import tell
from data.tokenizer import train_tokenizer
from eval.language_modeling import compare_with_floor, token_bits
from eval.samples import complete
from model import LanguageModel
from tests.conftest import random_model, tiny_config

STORIES = [tell(0, i, "validation") for i in range(12)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=512), [story.text for story in STORIES])


def test_bits_of_a_document_do_not_depend_on_the_others_in_its_batch(tokenizer):
    lm = random_model(tiny_config(vocab_size=tokenizer.vocab_size, max_position_embeddings=1024))
    texts = [story.text for story in STORIES[:5]]
    together = token_bits(lm, tokenizer, texts)
    for text, bits in zip(texts, together, strict=True):
        ids = torch.tensor(tokenizer.encode_documents([text]))
        loss_sum, count = lm(ids, labels=ids)
        assert len(bits) == int(count) == len(tokenizer.encode(text)) + 1  # the end token is paid for
        assert sum(bits) * math.log(2) == pytest.approx(loss_sum.item(), rel=1e-5)


def test_a_model_in_training_is_in_training_afterwards_even_if_a_document_is_too_long(tokenizer):
    lm = random_model(tiny_config(vocab_size=tokenizer.vocab_size)).train()
    token_bits(lm, tokenizer, ["A fox."])
    assert lm.training
    with pytest.raises(ValueError, match="more than max_position_embeddings"):
        token_bits(lm, tokenizer, [STORIES[0].text * 2])
    assert lm.training


def test_an_untrained_model_pays_log2_of_the_vocabulary_for_every_token(tokenizer):
    lm = LanguageModel(tiny_config(vocab_size=tokenizer.vocab_size, max_position_embeddings=1024))
    compared = compare_with_floor(lm, tokenizer, STORIES)
    tokens = sum(len(tokenizer.encode(s.text)) + 1 for s in STORIES)
    text_bytes = sum(len(s.text) for s in STORIES)
    assert compared.model == pytest.approx(tokens * math.log2(tokenizer.vocab_size) / text_bytes, rel=0.02)
    assert compared.floor == pytest.approx(sum(s.bits for s in STORIES) / text_bytes)


def test_a_completion_begins_with_its_prompt_and_is_decided_by_its_seed(tokenizer):
    lm = random_model(tiny_config(vocab_size=tokenizer.vocab_size))
    first = complete(lm, tokenizer, "Once there was", 10, seed=3).content
    assert first.startswith("Once there was")
    assert first == complete(lm, tokenizer, "Once there was", 10, seed=3).content
    assert first != complete(lm, tokenizer, "Once there was", 10, seed=4).content
