"""One thread ahead: the same items, errors in their turn, and a thread that ends."""

import threading
import time

import numpy as np
import pytest
import torch

from data.batches import TrainBatches
from data.config import TokenizerConfig
from data.packing import DocumentRows, TokenStream
from data.prefetch import prefetched
from data.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer(TokenizerConfig(kind="byte"), [])


@pytest.fixture
def batches(tmp_path):
    np.arange(5000, dtype=np.uint16).tofile(tmp_path / "a.bin")
    rows = DocumentRows(TokenStream([tmp_path / "a.bin"], "uint16"), 16, TOKENIZER.bos_id, TOKENIZER.pad_id)
    return TrainBatches(rows, TOKENIZER, 6, 0)


def threads() -> int:
    return sum(thread.name == "prefetch" for thread in threading.enumerate())


def test_the_same_items_in_the_same_order():
    assert list(prefetched(iter(range(100)))) == list(range(100))
    assert list(prefetched([])) == []
    assert threads() == 0


def test_items_are_made_ahead_but_not_far_ahead():
    made = []
    items = prefetched((made.append(i) or i for i in range(100)), ahead=2)
    assert next(items) == 0
    until = time.monotonic() + 60
    while len(made) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.2)  # for as many more as it would make
    assert made == [0, 1, 2]  # one given, two waiting
    items.close()
    assert threads() == 0


def test_an_error_comes_in_its_turn():
    def broken():
        yield 1
        raise KeyError("here")

    items = prefetched(broken())
    assert next(items) == 1
    with pytest.raises(KeyError, match="here"):
        next(items)
    assert threads() == 0


def test_stopping_early_ends_the_thread_and_the_iterator():
    ended = []

    def endless():
        try:
            while True:
                yield 0
        finally:
            ended.append(True)

    items = prefetched(endless())
    next(items)
    items.close()
    assert ended == [True]
    assert threads() == 0


def test_prefetched_batches_are_the_batches(batches):
    for k, batch in enumerate(batches.prefetch(3, 9), start=3):
        assert torch.equal(batch["input_ids"], batches.batch(k)["input_ids"])
    assert k == 8


def test_more_processes_than_rows_is_an_error(batches):
    with pytest.raises(ValueError, match="6 rows of a step cannot be shared by 7 processes"):
        batches.batch(0, 0, 7)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6])
def test_the_ranks_of_any_world_share_a_batch(batches, world_size):
    for k in range(4):
        shares = [batches.batch(k, rank, world_size) for rank in range(world_size)]
        assert torch.equal(torch.cat([share["input_ids"] for share in shares]), batches.batch(k)["input_ids"])
        assert [row for share in shares for row in share.row_ids] == batches.batch(k).row_ids
        sizes = [len(share.row_ids) for share in shares]
        assert max(sizes) - min(sizes) <= 1
