"""Head scores: exact on maps whose answer is known, at chance on uniform attention, within their range on any."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.attention import metrics
from eval.attention.capture import AttentionMaps
from eval.attention.metrics import SCORES, chance, group_gap, score, similarity, sink_rate, uniform
from eval.attention.probes import Probe

LENGTHS = [16, 64, 256]
MEASURES = [name for name, one in SCORES.items() if one.measure]


def pointing(keys: list[int]) -> torch.Tensor:
    """(T, T): row i gives everything to keys[i]."""
    return torch.nn.functional.one_hot(torch.tensor(keys), len(keys)).float()


def previous(T: int) -> torch.Tensor:
    return pointing([max(0, i - 1) for i in range(T)])


def probe(name: str, T: int, rows: int = 2, **known) -> Probe:
    ids = torch.arange(rows * T).view(rows, T)
    return Probe(name, ids, [["x"] * T] * rows, **known)


def repeated(copies: int, T: int) -> Probe:
    return probe(f"repeated_{copies}", T, period=(T - 1) // copies, copies=copies)


def packed(T: int) -> Probe:
    return probe("packed", T, document_ids=(torch.arange(T) // (T // 4)).expand(2, -1))


# the second row of the probe has no target at all
TARGETS = [[(5, [2]), (9, [1, 3]), (15, [0, 2, 4])], []]


def labelled(name: str, T: int) -> Probe:
    return probe(name, T, targets=dict.fromkeys(("song", "copies", "refers", "writes"), TARGETS))


def probe_of(name: str, T: int) -> Probe:
    where = SCORES[name].probe
    if where.startswith("repeated"):
        return repeated(int(where[-1]), T)
    return packed(T) if where == "packed" else probe(where, T) if where == "text" else labelled(where, T)


def maps_of(given: Probe, weights: torch.Tensor, heads: int = 4, kv_heads: int = 2) -> AttentionMaps:
    """Maps of two layers, in which every head attends like weights (T, T)."""
    B, T = given.input_ids.shape
    spread = weights.float().expand(2, B, heads, T, T).clone()
    numbers = list(range(heads))
    return AttentionMaps(spread, given.input_ids, [0, 1], numbers, heads, kv_heads, torch.full((2, B, heads), 3.0))


def perfect(name: str, given: Probe) -> torch.Tensor:
    """The map (T, T) that scores the most."""
    T = given.input_ids.shape[1]
    if name == "previous_token":
        return previous(T)
    if name in ("sink", "distance", "saturated_rows"):
        return pointing([0] * T)
    if name in ("duplicate_token", "induction", "prefix_matching"):
        begin, period = given.first + given.period, given.period
        shift = 0 if name == "duplicate_token" else 1
        keys = [i - period + shift if begin <= i < given.first + given.copies * period else 0 for i in range(T)]
        return pointing(keys)
    if name.startswith("entropy"):
        return uniform(T)
    if name == "cross_document":
        return pointing([0 if i >= T // 4 else i for i in range(T)])
    keys = {query: of_query[0] for query, of_query in TARGETS[0]}
    return pointing([keys.get(i, i) for i in range(T)])


def most(name: str, T: int) -> float:
    if name == "entropy":
        return sum(math.log(i + 1) for i in range(1, T)) / (T - 1)
    if name == "entropy_sink_free":
        return sum(math.log(i) for i in range(2, T)) / (T - 2)
    return {"distance": (T - 1) / 2, "prefix_matching": 0.5}.get(name, 1.0)


def by_formula(name: str, given: Probe) -> float:
    """Chance, written out with sums of 1 / (i + 1)."""
    T = given.input_ids.shape[1]

    def mean(values) -> float:
        values = list(values)
        return math.fsum(values) / len(values)

    if name in ("duplicate_token", "induction"):
        rows = range(given.first + given.period, given.first + given.copies * given.period)
        return mean(((i - given.first) // given.period) / (i + 1) for i in rows)
    if name == "prefix_matching":
        L = given.period
        return mean(1 / (i + 1) for i in range(1 + L, 1 + 4 * L) for _ in range((i - 1) // L))
    formulas = {
        "previous_token": lambda: mean(1 / (i + 1) for i in range(2, T)),
        "sink": lambda: mean(1 / (i + 1) for i in range(1, T)),
        "entropy": lambda: most(name, T),
        "entropy_normalised": lambda: 1.0,
        "entropy_sink_free": lambda: most(name, T),
        "distance": lambda: (T - 1) / 4,
        "saturated_rows": lambda: 0.0,
        "cross_document": lambda: mean((i // (T // 4)) * (T // 4) / (i + 1) for i in range(T // 4, T)),
    }
    return formulas.get(name, lambda: mean(len(keys) / (query + 1) for query, keys in TARGETS[0]))()


@pytest.mark.parametrize("T", LENGTHS)
@pytest.mark.parametrize("name", MEASURES)
def test_a_perfect_head_scores_the_maximum(name, T):
    given = probe_of(name, T)
    found = score(maps_of(given, perfect(name, given)), given)[name]
    assert found.shape == (2, 4)
    if name.startswith("entropy"):  # sums of up to 256 rounded logarithms
        assert found.flatten().tolist() == pytest.approx([most(name, T)] * 8, rel=1e-6)
    else:
        assert (found == most(name, T)).all()


@pytest.mark.parametrize("T", LENGTHS)
@pytest.mark.parametrize("name", MEASURES)
def test_uniform_attention_scores_chance(name, T):
    """1e-6 relative: 1/(i+1) in float32 is rounded to 6e-8, and up to 256 of them are added."""
    given = probe_of(name, T)
    expected = by_formula(name, given)
    assert chance(name, given) == pytest.approx(expected, rel=1e-12)
    found = score(maps_of(given, uniform(T)), given)[name]
    assert found.flatten().tolist() == pytest.approx([expected] * 8, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", MEASURES)
def test_another_head_does_not_score(name):
    """A head that looks only at itself has nothing of what the scores ask for."""
    given = probe_of(name, 64)
    found = score(maps_of(given, torch.eye(64)), given)[name]
    assert (found == (1.0 if name == "saturated_rows" else 0.0)).all()


def test_known_chance_levels():
    """As they stand in the documentation, for Olsson et al.'s probe and for a text of 64 tokens."""
    assert chance("induction", probe("repeated_2", 51, period=25, copies=2)) == pytest.approx(0.0266, abs=5e-5)
    assert chance("prefix_matching", probe("repeated_4", 101, period=25, copies=4)) == pytest.approx(0.0154, abs=5e-5)
    assert chance("sink", probe("text", 64)) == pytest.approx(0.0594, abs=5e-5)
    assert chance("distance", probe("text", 64)) == pytest.approx(15.75)
    assert chance("max_logit", probe("text", 64)) is None
    assert chance("induction", probe("text", 64)) is None


def test_each_probe_gets_its_scores_and_every_score_has_a_probe():
    found = {name for where in {s.probe for s in SCORES.values()} for name in _scores_on(where)}
    assert found == set(SCORES)


def test_the_page_explains_every_score():
    page = (Path(__file__).parents[2] / "docs/attention_scores.md").read_text(encoding="utf-8")
    for name in (*SCORES, "sink_rate", "similarity", "group_gap", "copy_gain", "ablate_strongest"):
        assert f"`{name}`" in page
    for name, one in SCORES.items():  # one name for a score: its key and its title, once, side by side
        assert page.count(f"| `{name}`, {one.title} |") == 1
    assert len({one.title for one in SCORES.values()}) == len(SCORES)


def _scores_on(where: str) -> set[str]:
    given = probe_of(next(name for name, s in SCORES.items() if s.probe == where), 64)
    names = set(score(maps_of(given, uniform(64)), given))
    assert names == {name for name, s in SCORES.items() if s.probe == where}
    return names


def test_a_head_without_any_target_is_missing_not_zero():
    empty = probe("songs", 16, targets={"song": [[], []]})
    assert score(maps_of(empty, uniform(16)), empty)["song_induction"].isnan().all()
    assert chance("song_induction", empty) is None


def test_targets_belong_to_their_row():
    """Against plain loops, on maps that differ from row to row, head to head and layer to layer."""
    targets = [[(5, [2]), (9, [1, 3])], [(7, [0, 6, 7])], []]
    weights = torch.rand(2, 3, 4, 12, 12)
    found = metrics.mass_on_targets(weights, targets)
    assert found.shape == (2, 3, 4)
    for layer in range(2):
        for head in range(4):
            for row, pairs in enumerate(targets[:2]):
                masses = [sum(weights[layer, row, head, query, key].item() for key in keys) for query, keys in pairs]
                assert found[layer, row, head].item() == pytest.approx(sum(masses) / len(masses), rel=1e-6)
    assert found[:, 2].isnan().all()


def test_sink_rate_counts_heads_above_the_threshold():
    assert sink_rate(uniform(64).expand(2, 3, 4, 64, 64)) == 0
    weights = uniform(64).repeat(2, 3, 4, 1, 1)
    weights[0, :, 1] = pointing([0] * 64).double()
    assert sink_rate(weights) == 1 / 8
    weights[1, 0, 0] = pointing([0] * 64).double()  # in one of three rows
    assert sink_rate(weights) == (3 + 1) / 24


@pytest.mark.parametrize("T", LENGTHS)
def test_similarity_of_equal_and_of_disjoint_heads(T):
    heads = torch.stack([pointing([0] * T), torch.eye(T), pointing([0] * T)])
    alike = similarity(heads.expand(2, 3, 3, T, T))
    assert alike.shape == (2, 3, 3)
    assert (alike[:, 0, 2] == 1).all()
    assert (alike.diagonal(0, 1, 2) == 1).all()
    assert alike[:, 0, 1].abs().max().item() < 1e-6  # T - 1 times ln 2, rounded
    assert torch.equal(alike, alike.transpose(1, 2))


def test_similarity_is_the_jensen_shannon_divergence_of_scipys_formula():
    weights = torch.softmax(torch.randn(1, 2, 2, 9, 9).masked_fill(torch.ones(9, 9).triu(1).bool(), -math.inf), -1)
    p, q = weights[0, :, 0].double(), weights[0, :, 1].double()
    m = (p + q) / 2
    divergence = sum(torch.special.xlogy(x, x / m.clamp_min(1e-30)).sum(-1) / 2 for x in (p, q))[:, 1:].mean()
    assert similarity(weights)[0, 0, 1].item() == pytest.approx(1 - divergence.item() / math.log(2), abs=1e-6)


def test_group_gap_knows_which_heads_share_keys():
    """8 heads, 2 key/value heads: 0-3 share one, 4-7 the other (repeat_interleave, not 0 2 4 6)."""
    alike = torch.full((2, 8, 8), 0.25)
    alike[:, :4, :4] = alike[:, 4:, 4:] = 0.75
    maps = replace(maps_of(probe("text", 8), uniform(8), heads=8), num_attention_heads=8, num_key_value_heads=2)
    assert group_gap(alike, maps) == 0.5
    assert group_gap(alike, replace(maps, num_key_value_heads=8)) is None  # MHA
    assert group_gap(alike, replace(maps, num_key_value_heads=1)) is None  # MQA
    some = replace(maps, heads=[0, 3, 6])
    assert group_gap(alike[:, [0, 3, 6]][:, :, [0, 3, 6]], some) == 0.5
    assert group_gap(alike[:, :2, :2], replace(maps, heads=[0, 1])) is None  # one group only
    assert group_gap(alike[:, :1, :1], replace(maps, heads=[5])) is None


causal_maps = st.tuples(st.integers(0, 2**31), st.sampled_from([0.1, 1.0, 30.0]), st.sampled_from([16, 33]))


@settings(max_examples=60, deadline=None)
@given(causal_maps)
def test_scores_stay_within_their_range_and_change_nothing(drawn):
    seed, sharpness, T = drawn
    logits = sharpness * torch.randn(2, 2, 4, T, T, generator=torch.Generator().manual_seed(seed))
    weights = torch.softmax(logits.masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf), -1)
    for name in MEASURES:
        given_probe = probe_of(name, T)
        before = weights.clone()
        maps = replace(maps_of(given_probe, uniform(T)), weights=weights)
        found = score(maps, given_probe)[name]
        assert torch.equal(weights, before)
        low, high = SCORES[name].low, SCORES[name].high
        found = found[~found.isnan()]
        assert (found >= low).all()
        assert (found <= most(name, T) * (1 + 1e-5)).all()  # rows add up to 1 but for rounding
        assert high is None or high >= most(name, T)
    alike = similarity(weights)
    assert torch.equal(weights, before)
    assert ((alike >= 0) & (alike <= 1)).all()
    assert 0 <= sink_rate(weights) <= 1
    maps = replace(maps_of(probe("text", T), uniform(T)), weights=weights)
    gap = group_gap(alike, maps)
    assert gap is not None
    assert -1 <= gap <= 1
