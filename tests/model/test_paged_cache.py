"""Pages change where keys and values are, never what is computed; memory is bounded, shared and given back."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model import LanguageModel, generate
from model.paged_cache import OutOfBlocks, PagedCache, PagedView
from tests.conftest import tiny_config

FAMILIES = {
    "gqa": {},
    "window": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "mla": {"attention": "mla", "num_key_value_heads": "mha"},
}


def model(**changes) -> LanguageModel:
    torch.manual_seed(0)
    lm = LanguageModel(tiny_config(vocab_size=96, max_position_embeddings=128, **changes)).eval()
    with torch.no_grad():
        for module in lm.attention_modules():
            module.o_proj.weight.normal_(std=0.2)
    return lm


def prompts(lengths, vocab=96):
    rng = torch.Generator().manual_seed(7)
    return [torch.randint(4, vocab, (n,), generator=rng).tolist() for n in lengths]


@torch.no_grad()
def decode(lm, cache, tables, steps, greedy):
    """One token for every sequence at a time, all in one batch."""
    for _ in range(steps):
        view = PagedView(cache, tables, 1)
        ids = torch.tensor([[table.token_ids[-1]] for table in tables])
        logits = lm(ids, attention_mask=view.attention_mask, position_ids=view.position_ids, kv_cache=view)
        for table, token in zip(tables, logits[:, -1].argmax(-1).tolist(), strict=True):
            cache.read(table, 1)
            table.token_ids.append(token)
            greedy[id(table)].append(token)


@torch.no_grad()
def prefill(lm, cache, table, chunk=1000):
    logits = None
    while table.length < len(table.token_ids):
        count = min(chunk, len(table.token_ids) - table.length)
        view = PagedView(cache, [table], count)
        ids = torch.tensor([table.token_ids[table.length : table.length + count]])
        logits = lm(ids, position_ids=view.position_ids, kv_cache=view)
        cache.read(table, count)
    return int(logits[0, -1].argmax())


def run(lm, cache, texts, steps, chunk=1000):
    """Greedy ids of every prompt, decoded together."""
    tables, greedy = [], {}
    for text in texts:
        table = cache.begin(text, len(text) + steps)
        greedy[id(table)] = [prefill(lm, cache, table, chunk)]
        table.token_ids.append(greedy[id(table)][0])
        tables.append(table)
    decode(lm, cache, tables, steps - 1, greedy)
    found = [greedy[id(table)] for table in tables]
    for table in tables:
        cache.free(table)
    return found


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
    lm = model()
    first, *others = ([*prompts([24])[0], *end] for end in prompts([5, 9, 1]))
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
    """Any order of beginning, reading and ending: every block is unused or used, and only equal tokens share one."""
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
