"""Masks: each form that a backend wants says the same as the predicates asked one pair at a time."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from data.packing import document_starts
from model.attention import eager
from model.backends.kernels import flash, sequences
from model.masks import MaskSpec, boolean_mask
from tests import varlen_kernel
from tests.conftest import LATENT, random_model, tiny_config
from tests.model import reference


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_predicates_combine_to_the_boolean_mask(data):
    length = data.draw(st.integers(1, 9))
    window = data.draw(st.none() | st.integers(1, 10))
    documents, real = (
        data.draw(st.none() | st.lists(st.lists(kind, min_size=length, max_size=length), min_size=2, max_size=2))
        for kind in (st.integers(0, 3), st.booleans())
    )
    places = torch.arange(length)
    tensors = [None if x is None else torch.tensor(x) for x in (real, documents)]
    mask = boolean_mask(MaskSpec(places, places, 2, *tensors, window)).expand(2, 1, length, length)

    def may_see(b, i, j):
        of_row = {"documents": documents and documents[b], "real": real and real[b]}
        return reference.may_see(i, j, window=window, **of_row)

    assert mask[:, 0].tolist() == [[[may_see(b, i, j) for j in range(length)] for i in range(length)] for b in (0, 1)]


def test_a_static_cache_may_be_longer_than_the_attention_mask():
    places = torch.arange(5)
    real = torch.tensor([[0, 1, 1]])
    assert MaskSpec(places, places, 1, real).real_keys.tolist() == [[0, 1, 1, 1, 1]]
    assert MaskSpec(places[2:3], places[1:3], 1, real).real_keys.tolist() == [[1, 1]]


def by_definition(*tensors, window_size, enable_gqa=False):
    return varlen_kernel.forward(*tensors, window=window_size, enable_gqa=enable_gqa)[0]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_lengths_say_the_same_as_the_boolean_mask(data):
    """Everything around the varlen kernel, which needs CUDA; the kernel itself is replaced by its
    definition.
    """
    length = data.draw(st.integers(1, 8))
    cached = data.draw(st.sampled_from([0, 0, 3]))
    window = data.draw(st.none() | st.integers(1, 6))
    is_packed = data.draw(st.booleans())
    padding = data.draw(st.sampled_from(["none", "left", "right"] + ["anywhere"] * (window is None)))
    documents = real = starts = None
    room = 0
    if is_packed:
        cached = 0
        documents = torch.randint(0, 3, (2, length), generator=torch.manual_seed(data.draw(st.integers(0, 999))))
        documents = documents.sort().values
        if data.draw(st.booleans()):  # as batches say it
            starts = torch.from_numpy(document_starts(documents.numpy()))
    elif cached:  # a static cache has room for tokens that are still to come
        room = data.draw(st.sampled_from([0, 2]))
    columns = length + cached + room
    if padding != "none":
        real = torch.arange(columns - room) < data.draw(st.integers(0, columns - room))
        real = real.flip(0) if padding == "left" else real
        if padding == "anywhere":
            real = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(real), max_size=len(real))))
        real = F.pad(torch.stack([real, torch.ones_like(real)]), (0, room), value=1)
    places = torch.arange(columns)
    spec = MaskSpec(places[cached : cached + length], places, 2, real, documents, window, document_starts=starts)
    q, k, v = (torch.randn(2, h, n, 4).double() for h, n in ((4, length), (2, columns), (2, columns)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.nn.attention.varlen.varlen_attn", by_definition)
        out = flash(q, k, v, sequences(spec), 0.0)
    mask = boolean_mask(spec).expand(2, 1, length, columns)
    expected = eager(q, k, v, mask, 0.0)
    if real is not None:  # padding as a query is left out altogether, so it is zero
        expected = expected * real[:, None, cached : cached + length, None]
    assert torch.allclose(out, expected, atol=1e-12)


def test_a_document_never_continues_in_the_next_row():
    ids = torch.tensor([[0, 0, 1, 1], [1, 1, 2, 2]])
    places = torch.arange(4)
    assert sequences(MaskSpec(places, places, 2, None, ids)).cu_keys.tolist() == [0, 2, 4, 4, 6, 8, 8]


def test_starts_are_filled_up_to_a_power_of_two():
    """One long row among short ones; what is filled up becomes empty documents at the end of its
    row.
    """
    ids = torch.stack([torch.arange(20) // 2, torch.zeros(20, dtype=torch.long)])
    starts = document_starts(ids.numpy())
    assert starts.tolist() == [[*range(0, 20, 2), *[20] * 6], [0, *[20] * 15]]
    places = torch.arange(20)
    spec = MaskSpec(places, places, 2, None, ids, document_starts=torch.from_numpy(starts))
    assert sequences(spec).cu_keys.tolist() == [*range(0, 20, 2), *[20] * 8, *[40] * 17]
    assert document_starts(ids[:, :3].numpy()).shape == (2, 8)


@pytest.mark.parametrize("changes", [{}, LATENT], ids=["heads", "latent"])
def test_documents_packed_into_one_row_do_not_see_each_other(changes):
    lm = random_model(tiny_config(**changes))
    first = torch.randint(0, 192, (1, 9))
    second = torch.randint(0, 192, (1, 14))
    documents = torch.tensor([[0] * 9 + [1] * 14])
    positions = torch.tensor([[*range(9), *range(14)]])
    with torch.no_grad():
        packed = lm(torch.cat((first, second), 1), document_ids=documents)
        restarted = lm(torch.cat((first, second), 1), document_ids=documents, position_ids=positions)
        assert torch.allclose(packed[:, :9], lm(first), atol=1e-5)
        assert torch.allclose(packed[:, 9:], lm(second), atol=2e-4)
        assert torch.allclose(restarted[:, 9:], lm(second), atol=1e-5)
        leaking = lm(torch.cat((first, second), 1))
        # the silent leak of guessing documents from positions: here positions alone isolate
        # nothing, by design
        only_positions = lm(torch.cat((first, second), 1), position_ids=positions)
    assert not torch.allclose(packed[:, 9:], leaking[:, 9:], atol=1e-1)
    assert not torch.allclose(packed[:, 9:], only_positions[:, 9:], atol=1e-1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attention_mask": torch.ones(2, 5).bool()}, r"attention_mask has shape \(2, 5\): give .*\(2, 6\)"),
        ({"attention_mask": torch.zeros(2, 6)}, "integers or booleans"),  # an additive mask
        ({"attention_mask": torch.ones(2, 1, 6, 6).bool()}, "attention_mask has shape"),
        ({"position_ids": torch.zeros(3, 6).long()}, "position_ids has shape"),
        ({"document_ids": torch.zeros(2, 5).long()}, "document_ids has shape"),
    ],
)
def test_masks_of_another_shape_are_refused(given, message):
    lm = random_model(tiny_config())
    with pytest.raises(ValueError, match=message):
        lm(torch.zeros(2, 6).long(), **given)
