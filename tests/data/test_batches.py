"""Rows and batches: pure functions of (seed, k); every token exactly once an epoch."""

import threading
from collections import Counter

import numpy as np
import pytest
import torch

from configs import IGNORED
from data.batches import TrainBatches, prefetched, validation_batches
from data.config import TokenizerConfig
from data.packing import DocumentRows, TokenStream
from data.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer(TokenizerConfig(kind="byte"), [])


@pytest.fixture
def stream(tmp_path):
    """20 documents whose tokens are all different, so that each can be followed: ids 20, 21, 22, …"""
    ids = []
    next_id = 20
    for length in range(1, 21):
        ids += [TOKENIZER.bos_id, *range(next_id, next_id + length), TOKENIZER.eos_id]
        next_id += length
    np.array(ids, dtype=np.uint16).tofile(tmp_path / "a.bin")
    return TokenStream([tmp_path / "a.bin"], "uint16")


def batches(stream, rows=4, seed=0, length=16, isolate=False):
    return TrainBatches(document_rows(stream, length), TOKENIZER, rows, seed, isolate)


def document_rows(stream, length=16, **order):
    return DocumentRows(stream, length, TOKENIZER.bos_id, TOKENIZER.pad_id, **order)


def test_a_batch_is_a_pure_function_of_seed_and_k(stream):
    one = batches(stream)
    other = batches(stream)
    forwards = [one.batch(k)["input_ids"] for k in range(12)]
    backwards = [other.batch(k)["input_ids"] for k in reversed(range(12))][::-1]
    assert all(torch.equal(a, b) for a, b in zip(forwards, backwards, strict=True))
    assert not torch.equal(forwards[0], batches(stream, seed=1).batch(0)["input_ids"])


def test_every_token_appears_exactly_once_an_epoch_and_each_epoch_cuts_the_text_elsewhere(stream):
    one_row = batches(stream, rows=1)
    starts = set()
    everything = Counter(stream.read(0, len(stream)).tolist())
    for epoch in range(3):
        first = epoch * one_row.rows.per_epoch
        rows = [one_row.batch(first + r)["input_ids"].flatten().tolist() for r in range(one_row.rows.per_epoch)]
        seen = Counter(token for row in rows for token in row)
        padding = seen.pop(TOKENIZER.pad_id, 0)
        assert seen == everything
        assert padding == -len(stream) % 16
        starts.add(tuple(sorted(row[0] for row in rows)))
    assert len(starts) == 3


def test_labels_are_the_row_itself_but_for_document_starts_and_padding(stream):
    for k in range(8):
        batch = batches(stream).batch(k)
        left_out = (batch["input_ids"] == TOKENIZER.bos_id) | (batch["input_ids"] == TOKENIZER.pad_id)
        assert (batch["labels"][left_out] == IGNORED).all()
        assert torch.equal(batch["labels"][~left_out], batch["input_ids"][~left_out])


def test_document_ids_change_exactly_at_the_first_token_of_a_document_and_positions_start_again(stream):
    source = TrainBatches(document_rows(stream), TOKENIZER, 4, 0, True, True)
    seen_boundary = False
    for k in range(8):
        batch = source.batch(k)
        steps = batch["document_ids"][:, 1:] - batch["document_ids"][:, :-1]
        assert torch.equal(steps, (batch["input_ids"][:, 1:] == TOKENIZER.bos_id).long())
        seen_boundary |= bool(steps.any())
        for positions, documents, ids in zip(
            *(batch[name].tolist() for name in ("position_ids", "document_ids", "input_ids")), strict=True
        ):
            # padding has a position that every model has
            expected = [documents[:i].count(documents[i]) if ids[i] != TOKENIZER.pad_id else 0 for i in range(16)]
            assert positions == expected
    assert seen_boundary
    assert batches(stream).batch(0).tensors.keys() == {"input_ids", "labels"}


def test_validation_asks_for_every_token_exactly_once_or_for_as_many_as_told(stream):
    rows = document_rows(stream, held_out=True)
    asked = []
    for batch in validation_batches(rows, TOKENIZER, 3):
        labels = batch["labels"][:, 1:]
        asked += labels[labels != IGNORED].tolist()
    expected = [token for token in stream.read(0, len(stream)).tolist() if token != TOKENIZER.bos_id]
    assert asked == expected
    assert sum(len(batch.row_ids) for batch in validation_batches(rows, TOKENIZER, 3, max_tokens=40)) == 3


def test_micro_batches_are_the_batch_in_pieces(stream):
    batch = batches(stream, rows=6, isolate=True).batch(2)
    pieces = batch.split(4)
    assert [len(p.row_ids) for p in pieces] == [4, 2]
    assert torch.equal(torch.cat([p["input_ids"] for p in pieces]), batch["input_ids"])
    assert [r for p in pieces for r in p.row_ids] == batch.row_ids


def threads() -> int:
    return sum(thread.name == "prefetch" for thread in threading.enumerate())


def test_items_come_in_order_and_an_error_in_its_turn():
    def broken():
        yield from range(100)
        raise KeyError("here")

    items = prefetched(broken())
    assert [next(items) for _ in range(100)] == list(range(100))
    with pytest.raises(KeyError, match="here"):
        next(items)
    assert list(prefetched([])) == []
    assert threads() == 0


def test_stopping_early_ends_the_thread_and_the_iterator_which_was_not_far_ahead():
    made = []
    ended = []

    def endless():
        try:
            while True:
                made.append(0)
                yield 0
        finally:
            ended.append(True)

    items = prefetched(endless(), ahead=2)
    next(items)
    items.close()
    assert ended == [True]
    assert len(made) <= 4  # one given, two waiting, one that found no place
    assert threads() == 0


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6])
def test_the_ranks_of_any_world_share_a_batch(stream, world_size):
    source = batches(stream, rows=6)
    for k in range(4):
        shares = [source.batch(k, rank, world_size) for rank in range(world_size)]
        assert torch.equal(torch.cat([share["input_ids"] for share in shares]), source.batch(k)["input_ids"])
        assert [row for share in shares for row in share.row_ids] == source.batch(k).row_ids
        sizes = [len(share.row_ids) for share in shares]
        assert max(sizes) - min(sizes) <= 1
