"""Head scores: small pure functions of attention weights.

    weights (..., query, key): A[i, j] is how much query i attends to key j ≤ i; a row sums to 1
    rows count from 0. Row 0 can only attend to itself, so most means leave it out.

SCORES lists every score, and `chance` computes the score of uniform attention. docs/measure.md has
formula, range, chance level and paper of each.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from eval.attention.capture import AttentionMaps
from eval.attention.probes import Probe

# The softmax has almost no gradient in a row with more than this on one token.
SATURATED = 0.95
# A row with less than this on all tokens behind the first shows nothing about them.
WITHOUT_SINK = 1e-6


# Scores on ordinary text: weights (..., T, T) -> (...). They need T ≥ 3, else they are NaN.


def previous_token(weights: Tensor) -> Tensor:
    """Mean over i ≥ 2 of A[i, i-1]. Olsson et al. 2022 (arXiv 2209.11895)."""
    # the diagonal below the main one: A[1, 0], A[2, 1], …; A[1, 0] may be a sink
    return weights.diagonal(-1, -2, -1)[..., 1:].mean(-1)


def sink(weights: Tensor) -> Tensor:
    """Mean over i ≥ 1 of A[i, 0]. Xiao et al. 2023 (arXiv 2309.17453)."""
    return weights[..., 1:, 0].mean(-1)  # row 0 sees nothing else


def sink_rate(weights: Tensor) -> float:
    """Share of all heads and rows whose mean over i ≥ 0 of A[i, 0] exceeds 0.3.

    weights: (layer, B, head, T, T). Gu et al. 2024 (arXiv 2410.10781), who take 64 tokens.
    """
    # 0.3 is the paper's threshold; the share depends on the length of the text as well
    return (weights[..., 0].mean(-1) > 0.3).double().mean().item()


def entropy(weights: Tensor) -> Tensor:
    """Mean over i ≥ 1 of a row's entropy, in nats. Vig & Belinkov 2019 (arXiv 1906.04284)."""
    # entr(x) = -x ln x
    return torch.special.entr(weights).sum(-1)[..., 1:].mean(-1)


def entropy_normalised(weights: Tensor) -> Tensor:
    """Mean over i ≥ 1 of a row's entropy / ln(i+1), its largest possible value."""
    # row i sees i + 1 tokens
    largest = torch.arange(2, weights.shape[-1] + 1, dtype=torch.float64).log().to(weights)
    return (torch.special.entr(weights).sum(-1)[..., 1:] / largest).mean(-1)


def entropy_sink_free(weights: Tensor) -> Tensor:
    """Mean over i ≥ 2 of the entropy over keys j ≥ 1, renormalised, in nats.

    A head with a sink looks focused otherwise.
    """
    without_first = weights[..., 2:, 1:]  # (..., T - 2, T - 1)
    total = without_first.sum(-1, keepdim=True)  # (..., T - 2, 1)
    rows = torch.special.entr(without_first / total.clamp_min(WITHOUT_SINK)).sum(-1)
    # skip rows with nothing but a sink
    return rows.masked_fill(total[..., 0] < WITHOUT_SINK, math.nan).nanmean(-1)


def distance(weights: Tensor) -> Tensor:
    """Σ A[i, j] (i - j) / Σ A[i, j] over all i, j, in tokens. Vig & Belinkov 2019, equation 7."""
    positions = torch.arange(weights.shape[-1], dtype=weights.dtype)
    # later keys have weight 0; the clamp keeps a rounding error from counting backwards
    back = (positions[:, None] - positions[None, :]).clamp_min(0)  # (T, T)
    return (weights * back).sum((-2, -1)) / weights.sum((-2, -1))


def saturated_rows(weights: Tensor) -> Tensor:
    """Share of rows i ≥ 1 with more than 0.95 on one token."""
    return (weights[..., 1:, :].amax(-1) > SATURATED).to(weights.dtype).mean(-1)


def text_induction(weights: Tensor, probe: Probe) -> Tensor:
    """Mass on the tokens that followed earlier copies of a token, in ordinary text.

    Mean over the tokens that have such copies, without a copy just before; NaN without any.
    weights (layer, B, head, T, T) -> (layer, B, head)
    """
    ids = probe.input_ids  # (B, T)
    same = (ids[:, :, None] == ids[:, None, :]).tril(-2)  # (B, query, key)
    followers = torch.zeros_like(same)
    # one to the right of each earlier copy is what followed it
    followers[..., 1:] = same[..., :-1]
    queries = followers.any(-1).sum(-1).to(weights.dtype)  # (B,)
    return (weights * followers[:, None]).sum((-2, -1)) / queries[:, None]  # 0 / 0 is NaN


# Scores on a probe with known structure: weights (layer, B, head, T, T) -> (layer, B, head).


def mass_on_copies(weights: Tensor, probe: Probe, shift: int, each_entry: bool = False) -> Tensor:
    """Mass on the same token in earlier copies of a block, mean over the rows of later copies.

    shift:      0 = the same token (duplicate), 1 = the token that followed it (induction)
    each_entry: mean over all pairs of a row and an earlier copy, as Olsson et al. count
    """
    # Row 0 is a document's first token, rows 1 to `period` are the first copy.
    period = probe.period or 0
    later = range(1 + period, 1 + probe.copies * period)
    rows = []
    keys = []
    for i in later:
        for copies_back in range(1, (i - 1) // period + 1):
            rows.append(i)
            keys.append(i - copies_back * period + shift)
    mass = weights[..., rows, keys]  # (layer, B, head, entries)
    # note: a row of the fourth copy has three entries, which share its mass of 1. So with four
    # copies the mean over entries is at most 0.5: 75 rows of mass 1, 150 entries.
    return mass.mean(-1) if each_entry else mass.sum(-1) / len(later)


def mass_on_targets(weights: Tensor, probe: Probe, kind: str) -> Tensor:
    """Mean over a row's queries of the mass on their keys; NaN for a row without targets."""
    targets = probe.targets[kind]  # for each row: (query, [keys])
    entries = []
    for b, pairs in enumerate(targets):
        for query, keys in pairs:
            entries += [(b, query, key) for key in keys]
    L, B, H = weights.shape[:3]
    total = weights.new_zeros(B, L, H)
    if entries:
        # index_add_, because several entries may belong to one row
        row, query, key = torch.tensor(entries).T
        total.index_add_(0, row, weights[:, row, :, query, key])
    counts = torch.tensor([len(pairs) for pairs in targets], dtype=weights.dtype)
    return (total / counts[:, None, None]).transpose(0, 1)  # 0 / 0 is NaN


def cross_document(weights: Tensor, probe: Probe) -> Tensor:
    """Mass on tokens of other documents, mean over the tokens with another document before."""
    ids = probe.document_ids  # (B, T)
    assert ids is not None
    other = (ids[:, :, None] != ids[:, None, :]).tril()  # (B, T, T)
    # tokens of a row's first document have no other one before them, and do not count
    tokens = other.any(-1).sum(-1).to(weights.dtype)  # (B,)
    return (weights * other[:, None]).sum((-2, -1)) / tokens[:, None]


@dataclass(frozen=True)
class Score:
    """One head score."""

    name: str
    title: str  # short, for pictures
    probe: str  # the texts on which it is measured
    # weights (layer, B, head, T, T) -> (layer, B, head). None: the largest logit.
    measure: Callable[[Tensor, Probe], Tensor] | None
    meaning: str  # one plain sentence for a learner
    looks_at: str = ""  # ends the sentence "This head looks at …", if it scores high
    low: float | None = 0  # the range; None: no bound
    high: float | None = 1
    unit: str = ""


def on_text(measure: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Probe], Tensor]:
    # a score of the weights alone, with the arguments of all others
    return lambda weights, probe: measure(weights)


AFTER = "what came after the same word last time"
ALL_SCORES = [
    Score("previous_token", "previous token", "text", on_text(previous_token),
          "Attention to the token just before.", looks_at="the word just before"),
    Score("duplicate_token", "duplicate token", "repeated_2", partial(mass_on_copies, shift=0),
          "Attention to the same token before.",
          looks_at="the same word, earlier in the text"),
    Score("induction", "induction", "repeated_2", partial(mass_on_copies, shift=1),
          "Attention to what followed the same token before.", looks_at=AFTER),
    Score("induction_varied", "induction, any distance", "varied",
          partial(mass_on_targets, kind="induction"),
          "Induction with blocks of 12 to 40 tokens.", looks_at=AFTER),
    Score("same_distance", "same distance, no repeat", "varied",
          partial(mass_on_targets, kind="distance"),
          "Attention just as far back, where nothing repeats."),
    Score("text_induction", "induction in text", "text", text_induction,
          "Induction on words that come again in ordinary text.", looks_at=AFTER),
    Score("prefix_matching", "prefix matching", "repeated_4",
          partial(mass_on_copies, shift=1, each_entry=True),
          "Induction as in Olsson et al. 2022.", high=0.5),
    Score("sink", "sink", "text", on_text(sink),
          "Attention to the first token.", looks_at="the first word of the text"),
    Score("entropy", "entropy", "text", on_text(entropy),
          "How spread out the attention is.", high=None, unit="nats"),
    Score("entropy_normalised", "entropy / ln(i+1)", "text", on_text(entropy_normalised),
          "Entropy as a share of the largest."),
    Score("entropy_sink_free", "entropy without sink", "text", on_text(entropy_sink_free),
          "Entropy without the first token.", high=None, unit="nats"),
    Score("distance", "mean distance", "text", on_text(distance),
          "How far back the head looks.", high=None, unit="tokens"),
    Score("saturated_rows", "saturated rows", "text", on_text(saturated_rows),
          "Rows with more than 0.95 on one token."),
    Score("max_logit", "largest logit", "text", None,
          "Largest attention logit before the softmax.", low=None, high=None),
    Score("song_induction", "induction in songs", "songs", partial(mass_on_targets, kind="song"),
          "Induction on the echo songs of stories.", looks_at=AFTER),
    Score("antecedent_copies", "copied mention", "stories",
          partial(mass_on_targets, kind="copies"), "Attention to the mention being copied."),
    Score("antecedent_writes", "mention to come", "stories",
          partial(mass_on_targets, kind="writes"),
          "Attention, just before a mention is written again, to where it was.",
          looks_at="the word that comes next, where it was before"),
    Score("antecedent_refers", "referent", "stories", partial(mass_on_targets, kind="refers"),
          "Attention from a pronoun to its name."),
    Score("cross_document", "other documents", "packed", cross_document,
          "Attention to another document of the row."),
]  # fmt: skip
SCORES: dict[str, Score] = {score.name: score for score in ALL_SCORES}
# These scores describe what a head does, in the order of pictures and tables.
PATTERNS = (
    "previous_token duplicate_token induction song_induction sink antecedent_writes "
    "antecedent_refers"
).split()
# These show that a head with a high induction score does not merely prefer a distance, and that it
# does the same in ordinary text.
CONTROLS = ("induction_varied", "same_distance", "text_induction")


def score(maps: AttentionMaps, probe: Probe) -> dict[str, Tensor]:
    """Compute every score of this probe: name -> (layer, head), the mean over the probe's rows."""
    scores = {}
    for metric in ALL_SCORES:
        if metric.probe != probe.name:
            continue
        if metric.measure is None:
            scores[metric.name] = maps.max_logits.amax(dim=1)
        else:
            # nanmean skips rows without anything to measure; the score is NaN if all are so
            scores[metric.name] = metric.measure(maps.weights, probe).nanmean(dim=1)
    return scores


def chance(name: str, probe: Probe) -> float | None:
    """Score of uniform causal attention, A[i, j] = 1 / (i + 1), on this probe.

    None for the largest logit, and for a score of another probe.
    """
    measure = SCORES[name].measure
    if measure is None or SCORES[name].probe != probe.name:
        return None
    B, T = probe.input_ids.shape
    # measured, not derived: so chance is right for every probe and every new score
    value = measure(uniform(T).expand(1, B, 1, T, T), probe).nanmean().item()
    return None if math.isnan(value) else value


def uniform(length: int) -> Tensor:
    """Uniform causal attention, (T, T) float64."""
    # float64, so that the scores of a uniform head are exact to the digits of a table
    ones = torch.ones(length, length, dtype=torch.float64).tril()
    return ones / torch.arange(1, length + 1)[:, None]
