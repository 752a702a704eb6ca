"""Head scores: exact on maps whose answer is known, at chance on uniform attention, within their
range on any.
"""

import math
from dataclasses import replace

import pytest
import torch

from eval.attention.capture import AttentionMaps
from eval.attention.metrics import SCORES, chance, mass_on_targets, score, sink_rate, uniform
from eval.attention.probes import Probe

LENGTHS = [16, 64, 256]
MEASURES = [name for name, one in SCORES.items() if one.measure]
# the second row of the probe has no target at all
TARGETS = [[(5, [2]), (9, [1, 3]), (15, [0, 2, 4])], []]


def pointing(keys: list[int]) -> torch.Tensor:
    """(T, T): row i gives everything to keys[i]."""
    return torch.nn.functional.one_hot(torch.tensor(keys), len(keys)).float()


def probe(name: str, T: int, **known) -> Probe:
    return Probe(name, torch.arange(2 * T).view(2, T), [["x"] * T] * 2, **known)


def probe_of(name: str, T: int) -> Probe:
    where = SCORES[name].probe
    if name == "text_induction":  # token 2 comes again at 5, and what followed it (3) at 9
        ids = torch.arange(2 * T).view(2, T)
        ids[0, 5] = 2
        ids[0, 9] = 3
        return replace(probe(where, T), input_ids=ids)
    copies = int(where[-1]) if where.startswith("repeated") else 0
    known = {"period": (T - 1) // copies, "copies": copies} if copies else {}
    if where == "packed":
        known = {"document_ids": (torch.arange(T) // (T // 4)).expand(2, -1)}
    if where in ("songs", "stories", "varied"):
        kinds = ("song", "copies", "refers", "writes", "induction", "distance")
        known = {"targets": dict.fromkeys(kinds, TARGETS)}
    return probe(where, T, **known)


def maps_of(given: Probe, weights: torch.Tensor) -> AttentionMaps:
    """Maps of two layers, in which every head attends like weights (T, T)."""
    B, T = given.input_ids.shape
    spread = weights.float().expand(2, B, 4, T, T).clone()
    return AttentionMaps(spread, [0, 1], [0, 1, 2, 3], 4, 2, torch.full((2, B, 4), 3.0))


def perfect(name: str, given: Probe) -> torch.Tensor:
    """The map (T, T) that scores the most."""
    T = given.input_ids.shape[1]
    keys = {query: of_query[0] for query, of_query in TARGETS[0]}
    if name.startswith("entropy"):
        return uniform(T)
    if given.period:
        shift = int(name != "duplicate_token")
        block = range(1 + given.period, 1 + given.copies * given.period)
        return pointing([i - given.period + shift if i in block else 0 for i in range(T)])
    if name == "previous_token":
        return pointing([max(0, i - 1) for i in range(T)])
    if name == "cross_document":
        return pointing([0 if i >= T // 4 else i for i in range(T)])
    if name == "text_induction":
        return pointing([{5: 3, 9: 4}.get(i, i) for i in range(T)])
    return pointing([keys.get(i, i) if given.targets else 0 for i in range(T)])


def mean(values) -> float:
    values = list(values)
    return math.fsum(values) / len(values)


def most(name: str, T: int) -> float:
    if name == "entropy":
        return mean(math.log(i + 1) for i in range(1, T))
    if name == "entropy_sink_free":
        return mean(math.log(i) for i in range(2, T))
    return {"distance": (T - 1) / 2, "prefix_matching": 0.5}.get(name, 1.0)


def by_formula(name: str, given: Probe) -> float:
    """Chance, written out with sums of 1 / (i + 1)."""
    T = given.input_ids.shape[1]
    L = given.period or 0
    block = range(1 + L, 1 + given.copies * L)
    formulas = {
        "previous_token": lambda: mean(1 / (i + 1) for i in range(2, T)),
        "duplicate_token": lambda: mean((i - 1) // L / (i + 1) for i in block),
        "induction": lambda: mean((i - 1) // L / (i + 1) for i in block),
        "prefix_matching": lambda: mean(1 / (i + 1) for i in block for _ in range((i - 1) // L)),
        "sink": lambda: mean(1 / (i + 1) for i in range(1, T)),
        "entropy": lambda: most(name, T),
        "entropy_normalised": lambda: 1.0,
        "entropy_sink_free": lambda: most(name, T),
        "distance": lambda: (T - 1) / 4,
        "saturated_rows": lambda: 0.0,
        "text_induction": lambda: mean((1 / 6, 1 / 10)),
        "cross_document": lambda: mean((i // (T // 4)) * (T // 4) / (i + 1) for i in range(T // 4, T)),
    }
    return formulas.get(name, lambda: mean(len(keys) / (query + 1) for query, keys in TARGETS[0]))()


@pytest.mark.parametrize("T", LENGTHS)
@pytest.mark.parametrize("name", MEASURES)
def test_a_perfect_head_scores_the_maximum_uniform_attention_chance_and_another_head_nothing(name, T):
    given = probe_of(name, T)
    best = score(maps_of(given, perfect(name, given)), given)[name]
    assert best.shape == (2, 4)
    # sums of up to 256 rounded logarithms
    assert best.flatten().tolist() == pytest.approx([most(name, T)] * 8, rel=1e-6 if "entropy" in name else 0)
    expected = by_formula(name, given)
    assert chance(name, given) == pytest.approx(expected, rel=1e-12)
    # 1/(i+1) in float32 is rounded to 6e-8, and up to 256 of them are added
    evenly = score(maps_of(given, uniform(T)), given)[name]
    assert evenly.flatten().tolist() == pytest.approx([expected] * 8, rel=1e-6, abs=1e-9)
    at_itself = score(maps_of(given, torch.eye(T)), given)[name]
    assert (at_itself == (1.0 if name == "saturated_rows" else 0.0)).all()


def test_known_chance_levels():
    """As they stand in the documentation, for Olsson et al.'s probe and for a text of 64 tokens."""
    assert chance("induction", probe("repeated_2", 51, period=25, copies=2)) == pytest.approx(0.0266, abs=5e-5)
    assert chance("prefix_matching", probe("repeated_4", 101, period=25, copies=4)) == pytest.approx(0.0154, abs=5e-5)
    for name, level in (("sink", 0.0594), ("distance", 15.75), ("max_logit", None), ("induction", None)):
        assert chance(name, probe("text", 64)) == (level and pytest.approx(level, abs=5e-5))


def test_targets_belong_to_their_row_and_a_head_without_any_is_missing_not_zero():
    """Against plain loops, on maps that differ from row to row, head to head and layer to layer."""
    targets = [[(5, [2]), (9, [1, 3])], [(7, [0, 6, 7])], []]
    weights = torch.rand(2, 3, 4, 12, 12)
    shares = mass_on_targets(weights, probe("songs", 12, targets={"song": targets}), "song")
    for layer, head, row in torch.cartesian_prod(torch.arange(2), torch.arange(4), torch.arange(2)).tolist():
        masses = [sum(weights[layer, row, head, query, key].item() for key in keys) for query, keys in targets[row]]
        assert shares[layer, row, head].item() == pytest.approx(sum(masses) / len(masses), rel=1e-6)
    assert shares[:, 2].isnan().all()
    empty = probe("songs", 16, targets={"song": [[], []]})
    assert score(maps_of(empty, uniform(16)), empty)["song_induction"].isnan().all()
    assert chance("song_induction", empty) is None


def test_sink_rate_counts_heads_above_the_threshold():
    assert sink_rate(uniform(64).expand(2, 3, 4, 64, 64)) == 0
    weights = uniform(64).repeat(2, 3, 4, 1, 1)
    # the second in one of three rows
    weights[0, :, 1] = weights[1, 0, 0] = pointing([0] * 64).double()
    assert sink_rate(weights) == (3 + 1) / 24


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("T", [16, 33])
def test_scores_stay_within_their_range_and_change_nothing(sharpness, T):
    logits = sharpness * torch.randn(2, 2, 4, T, T)
    weights = torch.softmax(logits.masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf), -1)
    before = weights.clone()
    maps = replace(maps_of(probe("text", T), uniform(T)), weights=weights)
    for name in MEASURES:
        values = score(maps, probe_of(name, T))[name]
        values = values[~values.isnan()]
        assert (values >= SCORES[name].low).all()
        assert (values <= most(name, T) * (1 + 1e-5)).all()  # rows add up to 1 but for rounding
        assert SCORES[name].high is None or SCORES[name].high >= most(name, T)
    assert torch.equal(weights, before)
    assert 0 <= sink_rate(weights) <= 1
