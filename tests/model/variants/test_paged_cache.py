"""Pages change where keys and values are, never what is computed; memory is bounded, shared and
given back.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model import LanguageModel, generate
from model.variants.paged_cache import OutOfBlocks, PagedCache, PagedView
from tests.conftest import LATENT, random_model, tiny_config

FAMILIES = {
    "gqa": {},
    "window": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "mla": LATENT,
    "smeared": {"smear_keys": True, "loadable_elsewhere": False},
}


def model(**changes) -> LanguageModel:
    return random_model(tiny_config(vocab_size=96, max_position_embeddings=128, **changes))


def prompts(lengths):
    return [torch.randint(4, 96, (n,)).tolist() for n in lengths]


@torch.no_grad()
def forward(lm, cache, tables, count):
    """Read the next `count` tokens of every sequence, in one batch: the greedy id after each."""
    view = PagedView(cache, tables, count)
    ids = torch.tensor([table.token_ids[table.length : table.length + count] for table in tables])
    logits = lm(ids, attention_mask=view.attention_mask, position_ids=view.position_ids, kv_cache=view)
    for table in tables:
        cache.read(table, count)
    return logits[:, -1].argmax(-1).tolist()


def prefill(lm, cache, table, chunk=1000):
    while (left := len(table.token_ids) - table.length) > 0:
        (greedy,) = forward(lm, cache, [table], min(chunk, left))
    return greedy


def run(lm, cache, texts, steps, chunk=1000):
    """Greedy ids of every prompt, decoded together."""
    tables = []
    for text in texts:
        tables.append(cache.begin(text, len(text) + steps))
        tables[-1].token_ids.append(prefill(lm, cache, tables[-1], chunk))
    for _ in range(steps - 1):
        for table, token in zip(tables, forward(lm, cache, tables, 1), strict=True):
            table.token_ids.append(token)
    for table in tables:
        cache.free(table)
    return [table.token_ids[len(text) :] for table, text in zip(tables, texts, strict=True)]


def alone(lm, text, steps):
    return generate(lm, torch.tensor([text]), steps, temperature=0, stop_ids=())[0, len(text) :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", [1000, 5])
def test_greedy_ids_are_those_of_the_dynamic_cache(family, chunk):
    lm = model(**FAMILIES[family])
    texts = prompts([3, 30, 17, 16])
    cache = PagedCache(lm.config, 40, next(lm.parameters()), block_size=4)
    assert run(lm, cache, texts, 20, chunk) == [alone(lm, text, 20) for text in texts]
    assert cache.free_blocks == 40


def test_a_shared_beginning_is_read_once_and_nothing_changes():
    lm, (beginning, *ends) = model(), prompts([24, 5, 9, 1])
    first, *others = ([*beginning, *end] for end in ends)
    cache = PagedCache(lm.config, 40, next(lm.parameters()), block_size=8)
    table = cache.begin(first, 40)
    assert table.length == 0
    prefill(lm, cache, table)
    second = cache.begin(others[0], 40)
    assert second.length == 24
    assert second.blocks[:3] == table.blocks[:3]
    assert cache.free_blocks == 40 - 5 - 2
    cache.free(table)
    cache.free(second)
    assert cache.free_blocks == 40
    assert run(lm, cache, others, 12) == [alone(lm, text, 12) for text in others]
    whole = cache.begin(first[:24], 30)
    assert whole.length == 16  # the last block is read again: somebody must give the logits
    cache.free(whole)


def test_what_does_not_fit_is_refused_and_nothing_is_taken():
    lm = model()
    cache = PagedCache(lm.config, 5, next(lm.parameters()), block_size=4)
    held = cache.begin([5] * 8, 9)
    assert cache.free_blocks == 2
    with pytest.raises(OutOfBlocks, match="3 blocks are needed, and 2 are free"):
        cache.begin([6] * 8, 12)
    assert cache.free_blocks == 2
    before = [memory.shape for layer in cache.layers for memory in layer]
    cache.free(held)
    assert run(lm, cache, [[6] * 8], 12) == [alone(lm, [6] * 8, 12)]
    assert [memory.shape for layer in cache.layers for memory in layer] == before
    assert cache.free_blocks == 5


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 20), st.booleans()), max_size=40))
def test_blocks_are_never_lost_nor_held_by_strangers(moves):
    """Any order of beginning, reading and ending: every block is unused or used, and only equal
    tokens share one.
    """
    cache = PagedCache(tiny_config(vocab_size=96), 12, torch.zeros(1), block_size=4)
    tables = []
    for which, length, ends in moves:
        if ends and tables:
            cache.free(tables.pop(which % len(tables)))
            continue
        text = [which % 3] * (length // 2) + [which] * (length - length // 2)
        try:
            table = cache.begin(text, length)
        except OutOfBlocks:
            continue
        cache.read(table, length - table.length)
        tables.append(table)
        used = [block for table in tables for block in table.blocks]
        assert cache.free_blocks == 12 - len(set(used))
        assert not set(used) & set(cache.unused)
        for block in set(used):
            holders = [(t, t.blocks.index(block)) for t in tables if block in t.blocks]
            assert cache.users[block] == len(holders)
            assert len({tuple(t.token_ids[: (at + 1) * 4]) for t, at in holders}) == 1
    for table in tables:
        cache.free(table)
    assert cache.free_blocks == 12
    assert not any(cache.users)
