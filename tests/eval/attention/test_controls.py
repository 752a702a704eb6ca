"""Controls: copy gain and ablation, against models made by hand."""

import copy
import math
import random

import pytest
import torch

from data.config import StoryworldSource, TokenizerConfig
from data.tokenizer import train_tokenizer
from eval.attention import capture
from eval.attention.controls import (
    ablate_each,
    ablate_strongest,
    ablated,
    ablation,
    copied,
    copy_gain,
    second_copy_loss,
    token_losses,
)
from eval.attention.metrics import score
from eval.attention.probes import Probe, story_probe
from model import LanguageModel
from storyworld import tell
from tests.conftest import random_model, tiny_config


@pytest.fixture
def lm() -> LanguageModel:
    return random_model(tiny_config(num_attention_heads=4, num_key_value_heads=2, head_dim=8))


def repeated(rows: int, period: int, vocabulary: int = 192) -> Probe:
    blocks = torch.stack([torch.randperm(vocabulary - 12)[:period] + 12 for _ in range(rows)])
    ids = torch.cat([torch.ones(rows, 1, dtype=torch.int64), blocks, blocks], 1)
    return Probe("repeated_2", ids, [], period=period, copies=2)


@pytest.fixture
def probe() -> Probe:
    return repeated(3, 6)


def test_copy_gain_compares_the_same_tokens_without_the_first_of_a_copy(lm, probe):
    first, second = copied(probe)
    assert first[0].nonzero().flatten().tolist() == [2, 3, 4, 5, 6]
    assert second[0].nonzero().flatten().tolist() == [8, 9, 10, 11, 12]
    assert torch.equal(probe.input_ids[first], probe.input_ids[second])
    losses = token_losses(lm, probe)
    expected = losses[:, 2:7].mean() - losses[:, 8:13].mean()
    # two float32 means of some 5 nats, each summed in an order of its own: a few roundings of eps x
    # 5 in either
    tolerance = 8 * torch.finfo(torch.float32).eps * losses[:, 1:].max().item()
    assert copy_gain(lm, probe) == pytest.approx(expected.item(), abs=tolerance)
    with torch.no_grad():  # a model that knows nothing gains nothing
        lm.lm_head.weight.zero_()
    assert copy_gain(lm, probe) == 0
    assert second_copy_loss(lm, probe) == pytest.approx(math.log(192))


def test_songs_compare_the_second_singing_with_the_first():
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=512), [tell(0, i).text for i in range(40)])
    songs = story_probe(tokenizer, StoryworldSource(), 2000, "songs")
    first, second = copied(songs)
    assert torch.equal(songs.input_ids[first], songs.input_ids[second])
    for ids, before, after in zip(songs.input_ids, first, second, strict=True):
        assert tokenizer.decode(ids.tolist()).count(tokenizer.decode(ids[before].tolist())) >= 2
        assert before.nonzero()[-1] < after.nonzero()[0]
    pairs = [(5, [2]), (6, [3]), (9, [2, 6]), (10, [3, 7])]  # a third singing is left out
    first, second = copied(Probe("songs", torch.zeros(1, 12, dtype=torch.int64), [], targets={"song": [pairs]}))
    assert (first.nonzero().tolist(), second.nonzero().tolist()) == ([[0, 2], [0, 3]], [[0, 6], [0, 7]])


def without_columns(lm: LanguageModel, heads: list[tuple[int, int]]) -> LanguageModel:
    other = copy.deepcopy(lm)
    with torch.no_grad():
        for layer, head in heads:
            other.attention_modules()[layer].o_proj.weight[:, head * 8 : (head + 1) * 8] = 0
    return other


@pytest.mark.parametrize("heads", [[(1, 3)], [(0, 1), (0, 2), (1, 0)], [(0, h) for h in range(4)], []])
def test_zero_is_a_model_without_the_heads_columns(lm, probe, heads):
    with torch.no_grad():
        plain = lm(probe.input_ids)
        with ablated(lm, heads):
            ablated_logits = lm(probe.input_ids)
        assert torch.equal(ablated_logits, without_columns(lm, heads)(probe.input_ids))
        assert torch.equal(ablated_logits, plain) == (not heads)
        assert torch.equal(lm(probe.input_ids), plain)  # nothing is left behind


def test_ablation_is_the_rise_of_the_loss_on_second_copies(lm, probe):
    rises = ablate_each(lm, lambda: second_copy_loss(lm, probe))
    second = copied(probe)[1]
    assert rises.shape == (2, 4)
    for heads in ([(0, 1), (1, 2)], [(0, 0)], [(0, 3)], [(1, 2)]):
        after, before = (token_losses(model, probe)[second].mean() for model in (without_columns(lm, heads), lm))
        assert abs(float(after - before)) > 0.01
        assert ablation(lm, probe, heads) == pytest.approx(float(after - before), abs=1e-6)
        if len(heads) == 1:
            assert rises[heads[0]].item() == pytest.approx(float(after - before), abs=1e-6)


def test_heads_that_do_not_exist_are_refused_and_hooks_are_removed_after_an_error(lm):
    for head in ((2, 0), (0, 4), (-1, 0), (0, -1)):
        with pytest.raises(ValueError, match=f"layer {head[0]} has no head {head[1]}"), ablated(lm, [(0, 0), head]):
            pass
    too_long = Probe("repeated_2", torch.ones(1, 101, dtype=torch.int64), [], period=50, copies=2)
    with pytest.raises(ValueError, match="more than max_position_embeddings"), ablated(lm, [(0, 0), (1, 1)]):
        token_losses(lm, too_long)
    assert not any(module._forward_pre_hooks for module in lm.modules())


def test_everything_is_left_as_it_was(lm, probe):
    lm.train()
    lm.model.layers[0].eval()  # one part in another mode
    modes = [module.training for module in lm.modules()]
    states = (torch.get_rng_state(), random.getstate())
    weights = [p.clone() for p in lm.parameters()]
    copy_gain(lm, probe)
    ablate_strongest(lm, probe, torch.rand(2, 4, generator=torch.Generator().manual_seed(1)))
    assert [module.training for module in lm.modules()] == modes
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert all(p.grad is None and torch.equal(p, w) for p, w in zip(lm.parameters(), weights, strict=True))


def test_strongest_heads_are_compared_with_as_many_others(lm, probe):
    scores = torch.tensor([[0.1, 0.9, math.nan, 0.2], [0.3, 0.0, 0.8, 0.1]])
    strongest, *draws = ablate_strongest(lm, probe, scores, k=2, draws=5)
    assert strongest.heads == [(0, 1), (1, 2)]
    assert len({tuple(draw.heads) for draw in draws}) == len(draws) == 5
    for one in (strongest, *draws):
        assert len(set(one.heads)) == 2
        assert one.rise == ablation(lm, probe, one.heads)
    assert ablate_strongest(lm, probe, scores, k=2, draws=5) == [strongest, *draws]


def test_no_random_draw_holds_a_head_of_the_circuit(lm, probe):
    """The previous-token head feeds the induction head: what its ablation costs says nothing about
    random heads.
    """
    induction = torch.tensor([[0.0, 0.1, 0.0, 0.0], [0.0, 0.0, 0.9, 0.2]])
    # L1 H1 is beside the induction head
    previous = torch.tensor([[0.1, 0.0, 0.2, 0.9], [0.0, 1.0, 0.0, 0.0]])
    others = [{(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 3)}, {(0, 0), (0, 1), (1, 0), (1, 1)}]
    for k in (1, 2):
        strongest, feeding, *draws = ablate_strongest(lm, probe, induction, previous, k=k, draws=20)
        assert (strongest.heads, feeding.heads) == ([(1, 2), (1, 3)][:k], [(0, 3), (0, 2)][:k])
        assert {head for draw in draws for head in draw.heads} == others[k - 1]


def test_a_model_that_learned_to_copy_shows_it_in_every_number():
    """One layer, trained here on blocks of 8 tokens that come twice: copy gain, a head that looks
    where induction says, far above chance, and its ablation, which costs more than that of the
    others.
    """
    lm = LanguageModel(tiny_config(vocab_size=64, num_hidden_layers=1, num_key_value_heads=4))
    optimizer = torch.optim.AdamW(lm.parameters(), lr=1e-2)
    for _ in range(150):
        ids = repeated(16, 8, 64).input_ids
        loss, count = lm(ids, labels=ids)
        (loss / count).backward()
        optimizer.step()
        optimizer.zero_grad()
    probe = repeated(16, 8, 64)
    induction = score(capture(lm, probe.input_ids), probe)["induction"]
    strongest, *draws = ablate_strongest(lm, probe, induction, k=1)
    assert copy_gain(lm, probe) > 1
    assert induction.max() > 0.5
    assert strongest.rise > 0.5
    assert strongest.rise > sum(draw.rise for draw in draws) / len(draws)
