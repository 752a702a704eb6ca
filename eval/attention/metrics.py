"""What does a head do, in numbers? Head scores, each a small pure function of attention weights.

    weights (..., query, key): A[i, j] is how much query i attends to key j ≤ i; every row sums to 1
    rows count from 0, and row 0, usually the first token of a document, can only attend to itself: most means
    leave it out

SCORES lists every score with its range; `chance` says what a head that attends equally to all it may see would get;
docs/attention_scores.md explains them one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from eval.attention.capture import AttentionMaps
from eval.attention.probes import Pairs, Probe

SATURATED = 0.95  # of a row's attention on one token
SINK_EPSILON = 0.3  # of Gu et al. 2024
WITHOUT_SINK = 1e-6  # a row that gives less than this to all other tokens says nothing about them


# ---------------------------------------------------------------------------------------------------------
# on ordinary text: weights (..., T, T) -> (...); T ≥ 3, else NaN


def previous_token(weights: Tensor) -> Tensor:
    """mean over i ≥ 2 of A[i, i-1]. Row 1 is left out: the token before it is the first one, which heads like for
    another reason (`sink`). Range 0 … 1; uniform: mean of 1 / (i+1). Olsson et al. 2022 (arXiv 2209.11895)."""
    return weights.diagonal(-1, -2, -1)[..., 1:].mean(-1)


def sink(weights: Tensor) -> Tensor:
    """mean over i ≥ 1 of A[i, 0]. Range 0 … 1; uniform: mean of 1 / (i+1). Xiao et al. 2023 (arXiv 2309.17453)."""
    return weights[..., 1:, 0].mean(-1)


def sink_rate(weights: Tensor, epsilon: float = SINK_EPSILON) -> float:
    """Share of heads (of all layers and rows) whose mean over i ≥ 0 of A[i, 0] exceeds epsilon: one number.

    weights (layer, B, head, T, T). Range 0 … 1; uniform: 0 from T = 10 on. Gu et al. 2024 (arXiv 2410.10781), who
    take 64 tokens and epsilon 0.3.
    """
    return (weights[..., 0].mean(-1) > epsilon).double().mean().item()


def row_entropy(weights: Tensor) -> Tensor:
    """-Σ_j A[i, j] ln A[i, j] of every row, in nats: (..., T)."""
    return torch.special.entr(weights).sum(-1)


def entropy(weights: Tensor) -> Tensor:
    """mean over i ≥ 1 of a row's entropy, in nats. From 0 (one token) to the mean of ln(i+1), which is also what
    uniform attention has. Vig & Belinkov 2019 (arXiv 1906.04284)."""
    return row_entropy(weights)[..., 1:].mean(-1)


def entropy_normalised(weights: Tensor) -> Tensor:
    """mean over i ≥ 1 of a row's entropy / ln(i+1), the largest that it can have. Range 0 … 1; uniform: 1."""
    largest = torch.arange(2, weights.shape[-1] + 1, dtype=torch.float64).log().to(weights)
    return (row_entropy(weights)[..., 1:] / largest).mean(-1)


def entropy_sink_free(weights: Tensor) -> Tensor:
    """Entropy over the keys j ≥ 1, renormalised; mean over i ≥ 2 (row 1 has one key left), in nats.

    Rows that give less than 1e-6 to these keys are skipped; NaN if that leaves none. Uniform: mean of ln(i).
    Vig & Belinkov 2019 (arXiv 1906.04284), footnote 4: without it a head with a sink looks focused.
    """
    others = weights[..., 2:, 1:]
    total = others.sum(-1, keepdim=True)
    rows = row_entropy(others / total.clamp_min(WITHOUT_SINK))
    return rows.masked_fill(total[..., 0] < WITHOUT_SINK, math.nan).nanmean(-1)


def distance(weights: Tensor) -> Tensor:
    """Σ A[i, j] (i - j) / Σ A[i, j] over all i and j, in tokens. From 0 to (T-1)/2; uniform: (T-1)/4.

    Vig & Belinkov 2019 (arXiv 1906.04284), equation 7.
    """
    places = torch.arange(weights.shape[-1], dtype=weights.dtype)
    back = (places[:, None] - places[None, :]).clamp_min(0)
    return (weights * back).sum((-2, -1)) / weights.sum((-2, -1))


def saturated_rows(weights: Tensor) -> Tensor:
    """Share of rows i ≥ 1 with more than 0.95 on one token. Range 0 … 1; uniform: 0.

    Rows like that hardly learn: the softmax has almost no gradient there. Cf. Zhai et al. 2023 (arXiv 2303.06296).
    """
    return (weights[..., 1:, :].amax(-1) > SATURATED).to(weights.dtype).mean(-1)


# ---------------------------------------------------------------------------------------------------------
# on a block of `period` tokens that begins at `first` and stands there `copies` times: (..., T, T) -> (...)


def duplicate_token(weights: Tensor, first: int, period: int, copies: int) -> Tensor:
    """Mass on the same token in earlier copies, mean over the rows of copies ≥ 2. Range 0 … 1.

    Uniform: mean of (earlier copies) / (i+1). Wang et al. 2022 (arXiv 2211.00593).
    """
    rows, keys = _earlier(first, period, copies, shift=0)
    return weights[..., rows, keys].sum(-1) / (period * (copies - 1))


def induction(weights: Tensor, first: int, period: int, copies: int) -> Tensor:
    """Mass on what followed the same token in earlier copies, mean over the rows of copies ≥ 2. Range 0 … 1.

    Uniform: mean of (earlier copies) / (i+1). After Olsson et al. 2022 (arXiv 2209.11895), as mass: see below.
    """
    rows, keys = _earlier(first, period, copies, shift=1)
    return weights[..., rows, keys].sum(-1) / (period * (copies - 1))


def prefix_matching(weights: Tensor, first: int, period: int, copies: int) -> Tensor:
    """Mean of all entries A[i, j] where j follows an earlier occurrence of token i. Range 0 … 2 / copies.

    A row of the fourth copy has three such entries that share a mass of 1, hence at most 0.5 with four copies:
    75 rows, 150 entries. Olsson et al. 2022 (arXiv 2209.11895): 25 random tokens, four times.
    """
    rows, keys = _earlier(first, period, copies, shift=1)
    return weights[..., rows, keys].mean(-1)


def _earlier(first: int, period: int, copies: int, shift: int) -> tuple[list[int], list[int]]:
    """Rows i of copies ≥ 2, and keys i - k * period + shift for every k = 1, 2, … that stays in the block."""
    entries = [
        (row, row - k * period + shift)
        for row in range(first + period, first + copies * period)
        for k in range(1, (row - first) // period + 1)
    ]
    return [row for row, _ in entries], [key for _, key in entries]


# ---------------------------------------------------------------------------------------------------------
# with a label for every row: weights (layer, B, head, T, T) -> (layer, B, head)


def mass_on_targets(weights: Tensor, targets: Sequence[Pairs]) -> Tensor:
    """Mean over a row's queries of the mass on their keys; NaN for a row of the probe without any. Range 0 … 1.

    targets: for each row of the probe its (query, [keys]). Uniform: mean of (number of keys) / (i+1).
    """
    entries = [(b, query, key) for b, pairs in enumerate(targets) for query, keys in pairs for key in keys]
    total = weights.new_zeros(weights.shape[1], weights.shape[0], weights.shape[2])  # (B, layer, head)
    if entries:
        b, queries, keys = torch.tensor(entries).T
        total.index_add_(0, b, weights[:, b, :, queries, keys])
    queries_of_row = torch.tensor([len(pairs) for pairs in targets], dtype=weights.dtype)
    return (total / queries_of_row[:, None, None]).transpose(0, 1)  # 0 / 0 is NaN


def cross_document(weights: Tensor, document_ids: Tensor) -> Tensor:
    """Mass on tokens of other documents, mean over the tokens that have such before them. Range 0 … 1.

    document_ids (B, T). Uniform: mean of (earlier tokens of other documents) / (i+1); 0 where documents are isolated.
    """
    other = (document_ids[:, :, None] != document_ids[:, None, :]).tril()  # (B, T, T)
    tokens = other.any(-1).sum(-1).to(weights.dtype)  # (B,)
    return (weights * other[:, None]).sum((-2, -1)) / tokens[:, None]


# ---------------------------------------------------------------------------------------------------------
# between heads


def similarity(weights: Tensor) -> Tensor:
    """How alike the heads of a layer attend: 1 - mean over i ≥ 1 and rows of JSD(A[i], A'[i]) / ln 2.

    weights (layer, B, head, T, T) -> (layer, head, head), from 0 (never the same token) to 1 (equal, and every
    head with itself). JSD is the Jensen-Shannon divergence, at most ln 2, as in Clark et al. 2019 (arXiv 1906.04341).
    """
    layers, _, heads, T, _ = weights.shape
    i, j = torch.tril_indices(T, T)
    flat = weights[..., i, j]  # (layer, B, head, T (T+1) / 2): above the diagonal it is 0
    own = torch.special.entr(flat)
    alike = torch.ones(layers, heads, heads, dtype=weights.dtype)
    for head in range(heads - 1):
        one, others = slice(head, head + 1), slice(head + 1, heads)
        mixed = torch.special.entr((flat[:, :, one] + flat[:, :, others]) / 2)
        apart = mixed - (own[:, :, one] + own[:, :, others]) / 2
        divergence = apart.sum(-1).mean(1)  # (layer, others), summed over i
        alike[:, head, others] = alike[:, others, head] = (1 - divergence / (T - 1) / math.log(2)).clamp(0, 1)
    return alike


def group_gap(alike: Tensor, maps: AttentionMaps) -> float | None:
    """Mean similarity of heads that share a key/value head minus that of heads that do not, mean over the layers.

    alike: of `similarity`, for the heads in maps. Range -1 … 1; 0 = sharing makes no difference. None where there are
    no such pairs to compare: in MHA no two heads share, in MQA all do. Our own construct, from no paper.
    """
    groups = torch.tensor(maps.heads) // (maps.num_attention_heads // maps.num_key_value_heads)
    i, j = torch.triu_indices(len(groups), len(groups), offset=1)
    same = groups[i] == groups[j]
    if same.all() or not same.any():  # also where there is no pair at all
        return None
    pairs = alike[:, i, j]
    return (pairs[:, same].mean() - pairs[:, ~same].mean()).item()


# ---------------------------------------------------------------------------------------------------------
# all of them


@dataclass(frozen=True)
class Score:
    """One head score. probe: on which probe it is measured; low, high: its range (None: no bound); unit: "" or
    "nats", "tokens"; title: short, for pictures; meaning: one plain sentence for a learner; measure: weights
    (layer, B, head, T, T) and the probe -> (layer, B, head); paper: where it is from; looks_at: how the sentence "This
    head looks at …" ends for a head in which the score is high, or ""."""

    name: str
    title: str
    probe: str
    low: float | None
    high: float | None
    unit: str
    meaning: str
    measure: Callable[[Tensor, Probe], Tensor] | None
    paper: str = ""
    looks_at: str = ""


def on_text(measure: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Probe], Tensor]:
    return lambda weights, probe: measure(weights)


def on_blocks(measure: Callable[..., Tensor]) -> Callable[[Tensor, Probe], Tensor]:
    return lambda weights, probe: measure(weights, probe.first, probe.period, probe.copies)


def on_targets(kind: str) -> Callable[[Tensor, Probe], Tensor]:
    return lambda weights, probe: mass_on_targets(weights, probe.targets[kind])


VIG, OLSSON, WANG = "Vig & Belinkov 2019, 1906.04284", "Olsson et al. 2022, 2209.11895", "Wang et al. 2022, 2211.00593"
GU, ZHAI, KIMI = "Gu et al. 2024, 2410.10781", "Zhai et al. 2023, 2303.06296", "Kimi Team 2025, 2507.20534"
SAME, AFTER = "the same word, earlier in the text", "what came after the same word last time"
BEFORE, FIRST = "the word just before", "the first word of the text"
ALL_SCORES = [
    Score("previous_token", "previous token", "text", 0, 1, "", "Attention to the token just before.",
          on_text(previous_token), OLSSON, BEFORE),
    Score("duplicate_token", "duplicate token", "repeated_2", 0, 1, "", "Attention to the same token before.",
          on_blocks(duplicate_token), WANG, SAME),
    Score("induction", "induction", "repeated_2", 0, 1, "", "Attention to what followed the same token before.",
          on_blocks(induction), OLSSON, AFTER),
    Score("prefix_matching", "prefix matching", "repeated_4", 0, 0.5, "", "Induction as in Olsson et al. 2022.",
          on_blocks(prefix_matching), OLSSON),
    Score("sink", "sink", "text", 0, 1, "", "Attention to the first token.", on_text(sink), GU, FIRST),
    Score("entropy", "entropy", "text", 0, None, "nats", "How spread out the attention is.", on_text(entropy), VIG),
    Score("entropy_normalised", "entropy / ln(i+1)", "text", 0, 1, "", "Entropy as a share of the largest.",
          on_text(entropy_normalised), ZHAI),
    Score("entropy_sink_free", "entropy without sink", "text", 0, None, "nats", "Entropy without the first token.",
          on_text(entropy_sink_free), VIG),
    Score("distance", "mean distance", "text", 0, None, "tokens", "How far back the head looks.",
          on_text(distance), VIG),
    Score("saturated_rows", "saturated rows", "text", 0, 1, "", "Rows with more than 0.95 on one token.",
          on_text(saturated_rows), ZHAI),
    Score("max_logit", "largest logit", "text", None, None, "", "Largest attention logit before the softmax.",
          None, KIMI),
    Score("song_induction", "induction in songs", "songs", 0, 1, "", "Induction on the echo songs of stories.",
          on_targets("song"), "", AFTER),
    Score("antecedent_copies", "copied mention", "stories", 0, 1, "", "Attention to the mention being copied.",
          on_targets("copies")),
    Score("antecedent_writes", "mention to come", "stories", 0, 1, "",
          "Attention, just before a mention is written again, to where it stood.", on_targets("writes")),
    Score("antecedent_refers", "referent", "stories", 0, 1, "", "Attention from a pronoun to its name.",
          on_targets("refers")),
    Score("cross_document", "other documents", "packed", 0, 1, "", "Attention to another document of the row.",
          lambda weights, probe: cross_document(weights, cast(Tensor, probe.document_ids))),
]  # fmt: skip
SCORES: dict[str, Score] = {score.name: score for score in ALL_SCORES}
# the scores that say what a head does, in the order of pictures and tables
PATTERNS = "previous_token duplicate_token induction song_induction sink antecedent_writes antecedent_refers".split()


def score(maps: AttentionMaps, probe: Probe) -> dict[str, Tensor]:
    """Every score that this probe serves: name -> (layer, head), the mean over the probe's rows.

    Rows in which a score has nothing to measure are skipped; a head's score is NaN if all rows are. Raises
    ValueError for maps of something else than the whole probe.
    """
    if not torch.equal(maps.tokens, probe.input_ids) or maps.weights.shape[-2] != maps.weights.shape[-1]:
        raise ValueError(f"these are not the maps of the whole probe {probe.name}: capture all its rows and tokens")
    return {
        one.name: one.measure(maps.weights, probe).nanmean(dim=1) if one.measure else maps.max_logits.amax(dim=1)
        for one in ALL_SCORES
        if one.probe == probe.name
    }


def chance(name: str, probe: Probe) -> float | None:
    """What uniform causal attention, A[i, j] = 1 / (i + 1), scores on this very probe.

    None where there is no such level: a largest logit, or a score that this probe does not serve.
    """
    measure = SCORES[name].measure
    if measure is None or SCORES[name].probe != probe.name:
        return None
    B, T = probe.input_ids.shape
    value = measure(uniform(T).expand(1, B, 1, T, T), probe).nanmean().item()
    return None if math.isnan(value) else value


def uniform(length: int) -> Tensor:
    """(T, T) float64: every token attends equally to itself and all before it."""
    return torch.ones(length, length, dtype=torch.float64).tril() / torch.arange(1, length + 1)[:, None]
