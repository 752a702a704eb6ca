"""What does a head do, in numbers? Head scores, each a small pure function of attention weights.

    weights (..., query, key): A[i, j] is how much query i attends to key j ≤ i; every row sums to 1
    rows count from 0, and row 0, usually the first token of a document, can only attend to itself: most means
    leave it out

SCORES lists every score; `chance` says what a head that attends equally to all it may see would get;
docs/measure.md has formula, range, chance level and paper of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from eval.attention.capture import AttentionMaps
from eval.attention.probes import Probe

SATURATED = 0.95  # of a row's attention on one token: the softmax has almost no gradient there
SINK_EPSILON = 0.3  # of Gu et al. 2024
WITHOUT_SINK = 1e-6  # a row that gives less than this to all other tokens says nothing about them


# on ordinary text: weights (..., T, T) -> (...); T ≥ 3, else NaN


def previous_token(weights: Tensor) -> Tensor:
    """mean over i ≥ 2 of A[i, i-1]. Row 1 is left out: the token before it is the first one, which heads like for
    another reason (`sink`). Olsson et al. 2022 (arXiv 2209.11895)."""
    return weights.diagonal(-1, -2, -1)[..., 1:].mean(-1)


def sink(weights: Tensor) -> Tensor:
    """mean over i ≥ 1 of A[i, 0]. Xiao et al. 2023 (arXiv 2309.17453)."""
    return weights[..., 1:, 0].mean(-1)


def sink_rate(weights: Tensor) -> float:
    """Share of heads (of all layers and rows) whose mean over i ≥ 0 of A[i, 0] exceeds 0.3: one number.

    weights (layer, B, head, T, T). Gu et al. 2024 (arXiv 2410.10781), who take 64 tokens.
    """
    return (weights[..., 0].mean(-1) > SINK_EPSILON).double().mean().item()


def entropy(weights: Tensor) -> Tensor:
    """mean over i ≥ 1 of a row's entropy, in nats. Vig & Belinkov 2019 (arXiv 1906.04284)."""
    return torch.special.entr(weights).sum(-1)[..., 1:].mean(-1)


def entropy_normalised(weights: Tensor) -> Tensor:
    """mean over i ≥ 1 of a row's entropy / ln(i+1), the largest that it can have."""
    largest = torch.arange(2, weights.shape[-1] + 1, dtype=torch.float64).log().to(weights)
    return (torch.special.entr(weights).sum(-1)[..., 1:] / largest).mean(-1)


def entropy_sink_free(weights: Tensor) -> Tensor:
    """Entropy over the keys j ≥ 1, renormalised; mean over i ≥ 2 (row 1 has one key left), in nats.

    Without it a head with a sink looks focused. Rows with nothing but a sink are skipped; NaN if that leaves none.
    """
    others = weights[..., 2:, 1:]
    total = others.sum(-1, keepdim=True)
    rows = torch.special.entr(others / total.clamp_min(WITHOUT_SINK)).sum(-1)
    return rows.masked_fill(total[..., 0] < WITHOUT_SINK, math.nan).nanmean(-1)


def distance(weights: Tensor) -> Tensor:
    """Σ A[i, j] (i - j) / Σ A[i, j] over all i and j, in tokens. Vig & Belinkov 2019, equation 7."""
    places = torch.arange(weights.shape[-1], dtype=weights.dtype)
    back = (places[:, None] - places[None, :]).clamp_min(0)
    return (weights * back).sum((-2, -1)) / weights.sum((-2, -1))


def saturated_rows(weights: Tensor) -> Tensor:
    """Share of rows i ≥ 1 with more than 0.95 on one token."""
    return (weights[..., 1:, :].amax(-1) > SATURATED).to(weights.dtype).mean(-1)


# on a probe of which something is known: weights (layer, B, head, T, T) -> (layer, B, head)


def mass_on_copies(weights: Tensor, probe: Probe, shift: int, each_entry: bool = False) -> Tensor:
    """Mass on the same token in earlier copies of a block (shift 0), or on what followed it (shift 1: induction); mean
    over the rows of copies ≥ 2.

    each_entry: the mean of all entries, as Olsson et al. count. A row of the fourth copy has three of them that share a
    mass of 1, hence at most 0.5 with four copies: 75 rows, 150 entries.
    """
    period = probe.period or 0
    later = range(1 + period, 1 + probe.copies * period)
    # row i of a later copy, and the key that stands k copies before it
    entries = [(i, i - k * period + shift) for i in later for k in range(1, (i - 1) // period + 1)]
    mass = weights[..., [i for i, _ in entries], [key for _, key in entries]]
    return mass.mean(-1) if each_entry else mass.sum(-1) / len(later)


def mass_on_targets(weights: Tensor, probe: Probe, kind: str) -> Tensor:
    """Mean over a row's queries of the mass on their keys; NaN for a row of the probe without any."""
    targets = probe.targets[kind]  # for each row of the probe its (query, [keys])
    entries = [(b, query, key) for b, pairs in enumerate(targets) for query, keys in pairs for key in keys]
    total = weights.new_zeros(weights.shape[1], weights.shape[0], weights.shape[2])  # (B, layer, head)
    if entries:
        b, queries, keys = torch.tensor(entries).T
        total.index_add_(0, b, weights[:, b, :, queries, keys])
    queries_of_row = torch.tensor([len(pairs) for pairs in targets], dtype=weights.dtype)
    return (total / queries_of_row[:, None, None]).transpose(0, 1)  # 0 / 0 is NaN


def cross_document(weights: Tensor, probe: Probe) -> Tensor:
    """Mass on tokens of other documents, mean over the tokens that have such before them."""
    assert probe.document_ids is not None
    other = (probe.document_ids[:, :, None] != probe.document_ids[:, None, :]).tril()  # (B, T, T)
    tokens = other.any(-1).sum(-1).to(weights.dtype)  # (B,)
    return (weights * other[:, None]).sum((-2, -1)) / tokens[:, None]


@dataclass(frozen=True)
class Score:
    """One head score. title: short, for pictures; probe: on which it is measured; measure: weights (layer, B, head,
    T, T) and the probe -> (layer, B, head), None: the largest logit; meaning: one plain sentence for a learner; low,
    high: its range (None: no bound); looks_at: how the sentence "This head looks at …" ends for a head that scores
    high, or ""."""

    name: str
    title: str
    probe: str
    measure: Callable[[Tensor, Probe], Tensor] | None
    meaning: str
    looks_at: str = ""
    low: float | None = 0
    high: float | None = 1
    unit: str = ""


def on_text(measure: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Probe], Tensor]:
    return lambda weights, probe: measure(weights)


SAME, AFTER = "the same word, earlier in the text", "what came after the same word last time"
BEFORE, FIRST = "the word just before", "the first word of the text"
NEXT = "the word that comes next, where it stood before"
ALL_SCORES = [
    Score("previous_token", "previous token", "text", on_text(previous_token), "Attention to the token just before.",
          looks_at=BEFORE),
    Score("duplicate_token", "duplicate token", "repeated_2", partial(mass_on_copies, shift=0),
          "Attention to the same token before.", looks_at=SAME),
    Score("induction", "induction", "repeated_2", partial(mass_on_copies, shift=1),
          "Attention to what followed the same token before.", looks_at=AFTER),
    Score("prefix_matching", "prefix matching", "repeated_4", partial(mass_on_copies, shift=1, each_entry=True),
          "Induction as in Olsson et al. 2022.", high=0.5),
    Score("sink", "sink", "text", on_text(sink), "Attention to the first token.", looks_at=FIRST),
    Score("entropy", "entropy", "text", on_text(entropy), "How spread out the attention is.", high=None, unit="nats"),
    Score("entropy_normalised", "entropy / ln(i+1)", "text", on_text(entropy_normalised),
          "Entropy as a share of the largest."),
    Score("entropy_sink_free", "entropy without sink", "text", on_text(entropy_sink_free),
          "Entropy without the first token.", high=None, unit="nats"),
    Score("distance", "mean distance", "text", on_text(distance), "How far back the head looks.", high=None,
          unit="tokens"),
    Score("saturated_rows", "saturated rows", "text", on_text(saturated_rows),
          "Rows with more than 0.95 on one token."),
    Score("max_logit", "largest logit", "text", None, "Largest attention logit before the softmax.", low=None,
          high=None),
    Score("song_induction", "induction in songs", "songs", partial(mass_on_targets, kind="song"),
          "Induction on the echo songs of stories.", looks_at=AFTER),
    Score("antecedent_copies", "copied mention", "stories", partial(mass_on_targets, kind="copies"),
          "Attention to the mention being copied."),
    Score("antecedent_writes", "mention to come", "stories", partial(mass_on_targets, kind="writes"),
          "Attention, just before a mention is written again, to where it stood.", looks_at=NEXT),
    Score("antecedent_refers", "referent", "stories", partial(mass_on_targets, kind="refers"),
          "Attention from a pronoun to its name."),
    Score("cross_document", "other documents", "packed", cross_document, "Attention to another document of the row."),
]  # fmt: skip
SCORES: dict[str, Score] = {score.name: score for score in ALL_SCORES}
# the scores that say what a head does, in the order of pictures and tables
PATTERNS = "previous_token duplicate_token induction song_induction sink antecedent_writes antecedent_refers".split()


def score(maps: AttentionMaps, probe: Probe) -> dict[str, Tensor]:
    """Every score that this probe serves: name -> (layer, head), the mean over the probe's rows. maps: of the whole
    probe. Rows in which a score has nothing to measure are skipped; a head's score is NaN if all rows are."""
    return {
        metric.name: metric.measure(maps.weights, probe).nanmean(dim=1)
        if metric.measure
        else maps.max_logits.amax(dim=1)
        for metric in ALL_SCORES
        if metric.probe == probe.name
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
