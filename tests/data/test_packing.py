"""Conversations packed whole; every trained token once; a document neither sees nor touches its
neighbours.
"""

from itertools import pairwise, permutations
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import IGNORED
from configs.command import InputError
from data.batches import TrainBatches, make_batch, make_rows
from data.chat import MAY_END, TRAINED, encode_conversations
from data.config import DataConfig, StoryworldSource, TokenizerConfig
from data.packing import NEIGHBORS, ConversationRows, TokenStream, best_fit
from data.prepare import prepare
from data.reading.messages import Message
from data.reading.records import Conversation
from data.tokenizer import train_tokenizer
from tests.conftest import random_model, tiny_config

TOKENIZER = train_tokenizer(TokenizerConfig(kind="byte"), [])


def conversation(*texts: str) -> Conversation:
    """User and assistant in turn."""
    return Conversation(tuple(Message(("user", "assistant")[i % 2], text) for i, text in enumerate(texts)))


def stream_of(conversations, folder) -> TokenStream:
    encoded = encode_conversations(TOKENIZER, conversations)
    np.concatenate([np.array(ids, dtype=np.uint16) for ids, _ in encoded]).tofile(folder / "a.bin")
    np.concatenate([flags for _, flags in encoded]).tofile(folder / "a.flags")
    return TokenStream([folder / "a.bin"], "uint16", [folder / "a.flags"])


def rows_of(conversations, length, folder, too_long="truncate") -> ConversationRows:
    return ConversationRows(stream_of(conversations, folder), length, TOKENIZER.bos_id, TOKENIZER.pad_id, too_long)


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(40, 60))
@settings(derandomize=True, max_examples=200, deadline=None)
def test_best_fit_places_each_item_once_and_opens_a_row_only_for_an_item_that_fits_into_no_other(sizes, capacity):
    def turn(item):
        return -sizes[item], item  # the longest first

    rows = best_fit(np.array(sizes, dtype=int), capacity)
    assert sorted(item for row in rows for item in row) == list(range(len(sizes)))
    assert all(0 < sum(sizes[item] for item in row) <= capacity for row in rows)
    for row, other in permutations(rows, 2):
        opening = min(row, key=turn)
        there = [item for item in other if turn(item) < turn(opening)]
        assert not there or sum(sizes[item] for item in there) + sizes[opening] > capacity


def test_without_shuffling_rows_keep_the_order_of_the_source(tmp_path):
    source = StoryworldSource(documents=80, validation_documents=4)
    config = DataConfig(source=source, records="conversations", sequence_length=256, shuffle=False, rows_joined=1)
    data = prepare(config, tmp_path)
    rows = make_rows(config, data, "train")
    placed = [item for row in rows.members for item in row]
    assert sorted(placed) == list(range(80))
    assert sorted(placed[:NEIGHBORS]) == list(range(NEIGHBORS))  # only neighbours change places
    batches = TrainBatches(rows, data.tokenizer, 2, 0, shuffle=config.shuffle)
    for k in range(2 * rows.per_epoch):  # the second epoch is like the first
        assert batches.batch(k)["input_ids"][0].tolist() == rows.row(2 * k % rows.per_epoch)[0].tolist()


def test_whole_conversations_share_rows_and_each_token_comes_once(tmp_path):
    said = [conversation(f"question {i}", "answer " * (i % 9)) for i in range(50)]
    encoded = encode_conversations(TOKENIZER, said)
    rows = rows_of(said, 150, tmp_path)
    assert (rows.cut, rows.dropped) == (0, 0)
    seen = []
    for index in range(rows.per_epoch):
        ids, labels = rows.row(index)
        assert ids.shape == labels.shape == (150,)
        starts = [*np.flatnonzero(ids == TOKENIZER.bos_id), len(ids[ids != TOKENIZER.pad_id])]
        for begin, end in pairwise(starts):
            seen.append((ids[begin:end].tolist(), (labels[begin:end] != IGNORED).tolist()))
        assert (labels[ids == TOKENIZER.pad_id] == IGNORED).all()
        assert (labels[labels != IGNORED] == ids[labels != IGNORED]).all()
    expected = [(list(ids), (flags & TRAINED > 0).tolist()) for ids, flags in encoded]
    assert sorted(seen) == sorted(expected)


@pytest.mark.parametrize("every", [1, 2])
def test_a_conversation_without_a_trained_token_in_its_row_is_left_out_and_counted(tmp_path, every):
    """Cut after an answer of weight 0, or too long for a row; of pairs, only the first of two is
    counted.
    """
    read = Message("assistant", "no", weight=0)
    late = Conversation((Message("user", "a"), read, Message("user", "b" * 200), Message("assistant", "c")))
    good = conversation("a", "b")
    long = conversation("a" * 300, "b")
    measures = 100, TOKENIZER.bos_id, TOKENIZER.pad_id, "truncate", False, every
    rows = ConversationRows(stream_of([late, good, good, late, long, good], tmp_path), *measures)
    assert (rows.cut, rows.dropped, len(rows.sizes)) == ((0, 3, 6) if every == 1 else (0, 2, 3))
    for index in range(rows.per_epoch):
        ids, labels = rows.row(index)
        # "b" and the end of each turn
        assert (labels != IGNORED).sum() == 2 * (ids == TOKENIZER.bos_id).sum()
    with pytest.raises(InputError, match="conversations has an answer to train on"):
        ConversationRows(stream_of([late, good] if every == 2 else [late], tmp_path), *measures)


LONG = conversation("a b", " yes", "and?", "", "go on <|im_end|>", "no\n\nmore", "end", "bye")


@pytest.mark.parametrize("length", range(2, 140))
def test_truncation_at_every_possible_position_leaves_whole_turns(tmp_path, length):
    ((ids, flags),) = encode_conversations(TOKENIZER, [LONG])
    ends = [int(at) + 1 for at in np.flatnonzero(flags & MAY_END)]
    fitting = [end for end in ends if end <= length]
    if not fitting:
        with pytest.raises(InputError, match=f"none of 1 conversations .* within a row of {length} tokens"):
            rows_of([LONG], length, tmp_path)
        return
    rows = rows_of([LONG], length, tmp_path)
    kept, labels = rows.row(0)
    n = fitting[-1]
    assert kept.tolist() == list(ids)[:n] + [TOKENIZER.pad_id] * (length - n)
    assert (labels != IGNORED).tolist() == (flags[:n] & TRAINED > 0).tolist() + [False] * (length - n)
    assert TOKENIZER.decode(kept[:n], skip_special_tokens=False).endswith("<|im_end|>\n")
    assert (rows.cut, rows.dropped) == (int(n < len(ids)), 0)
    if n < len(ids):
        both = rows_of([LONG, conversation("hi", "ho")], max(length, 70), tmp_path, "drop")
        assert (both.cut, both.dropped) == (0, int(len(ids) > max(length, 70)))


def test_rows_are_joined_until_whole_conversations_fill_them(tmp_path):
    """Answers of about 200 tokens: two of them hardly fit into a row of 256."""
    stream = stream_of([conversation("Tell", "x" * (120 + 37 * i % 130)) for i in range(1200)], tmp_path)
    data = SimpleNamespace(stream=lambda split: stream, tokenizer=TOKENIZER)

    def rows(per_step=16, split="train", **changes):
        return make_rows(DataConfig(records="conversations", sequence_length=256, **changes), data, split, per_step)

    def real_share(rows) -> float:
        return float(np.mean([(rows.row(i)[0] != TOKENIZER.pad_id).mean() for i in range(rows.per_epoch)]))

    alone = rows(rows_joined=1)
    joined = rows()
    assert real_share(alone) < 0.85
    assert real_share(joined) >= 0.95
    assert joined.sizes.max() <= 256  # what fits together is longer; a conversation is not
    assert sorted(i for row in joined.members for i in row) == sorted(i for row in alone.members for i in row)
    assert rows(6, rows_joined=3).length == 768
    # only where a step can be made of them and no token sees further
    assert {rows(5).length, rows(split="validation").length, rows(isolate_documents=False).length} == {256}


# Isolation: what shares a row does not share anything else


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    said = [conversation(f"question {i}?", f"It is {i * 37} " * (1 + i % 4)) for i in range(12)]
    rows = rows_of(said, 200, tmp_path_factory.mktemp("packed"))
    lm = random_model(tiny_config(vocab_size=TOKENIZER.vocab_size, max_position_embeddings=256)).eval()
    return said, rows, lm


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("backend", ["eager", "sdpa", "flash"])
def test_packed_conversations_have_the_loss_that_they_have_alone(packed, backend, restart):
    said, rows, lm = packed
    lm.set_attn_implementation(backend)
    for index in range(rows.per_epoch):
        batch = make_batch([rows.row(index)], [index], TOKENIZER, True, restart)
        with torch.no_grad():
            together, count = lm(**batch.tensors)
        alone = 0.0
        counts = 0
        for i in rows.members[index]:
            ((ids, flags),) = encode_conversations(TOKENIZER, [said[i]])
            targets = np.where(flags & TRAINED, ids, IGNORED)
            with torch.no_grad():
                loss, n = lm(torch.tensor([list(ids)]), labels=torch.tensor([targets.tolist()]))
            alone = alone + float(loss)
            counts = counts + int(n)
        assert counts == int(count) > 0
        assert float(together) / counts == pytest.approx(alone / counts, abs=2e-6)


@pytest.mark.parametrize("backend", ["eager", "sdpa", "flash"])
def test_changing_one_document_changes_no_bit_of_another_ones_logits(packed, backend):
    _, rows, lm = packed
    lm.set_attn_implementation(backend)
    batch = make_batch([rows.row(0)], [0], TOKENIZER, True, False)
    assert "document_ids" in batch.tensors
    documents = batch["document_ids"][0]
    assert documents.max() >= 2
    with torch.no_grad():
        before = lm(batch["input_ids"], document_ids=batch["document_ids"])
        for changed in range(1, int(documents.max()) + 1):
            ids = batch["input_ids"].clone()
            inside = documents == changed
            ids[0, inside] = (ids[0, inside] + 7) % 200 + 20
            after = lm(ids, document_ids=batch["document_ids"])
            assert torch.equal(before[0, ~inside], after[0, ~inside])
            assert not torch.equal(before[0, inside], after[0, inside])
