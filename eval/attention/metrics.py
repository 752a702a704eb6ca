"""Head scores: numbers that say what a head does. This file is being written; SCORES is what others rely on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """One head score. probe: on which probe it is measured; low, high: its range (None: no bound); unit: "" or
    "nats", "tokens"; title: short, for pictures; meaning: one plain sentence for a learner."""

    name: str
    title: str
    probe: str
    low: float
    high: float | None
    unit: str
    meaning: str


SCORES: dict[str, Score] = {
    score.name: score
    for score in [
        Score("previous_token", "previous token", "text", 0, 1, "", "Attention to the token just before."),
        Score("duplicate_token", "duplicate token", "repeated_2", 0, 1, "", "Attention to the same token before."),
        Score("induction", "induction", "repeated_2", 0, 1, "", "Attention to what followed the same token before."),
        Score("prefix_matching", "prefix matching", "repeated_4", 0, 0.5, "", "Induction as in Olsson et al. 2022."),
        Score("sink", "sink", "text", 0, 1, "", "Attention to the first token."),
        Score("entropy", "entropy", "text", 0, None, "nats", "How spread out the attention is."),
        Score("entropy_normalised", "entropy / ln(i+1)", "text", 0, 1, "", "Entropy as a share of the largest."),
        Score("entropy_sink_free", "entropy without sink", "text", 0, None, "nats", "Entropy without the first token."),
        Score("distance", "mean distance", "text", 0, None, "tokens", "How far back the head looks."),
        Score("saturated_rows", "saturated rows", "text", 0, 1, "", "Rows with more than 0.95 on one token."),
        Score("max_logit", "largest logit", "text", 0, None, "", "Largest attention logit before the softmax."),
        Score("song_induction", "induction in songs", "songs", 0, 1, "", "Induction on the echo songs of stories."),
        Score("antecedent_copies", "copied mention", "stories", 0, 1, "", "Attention to the mention being copied."),
        Score("antecedent_refers", "referent", "stories", 0, 1, "", "Attention from a pronoun to its name."),
        Score("cross_document", "other documents", "packed", 0, 1, "", "Attention to another document of the row."),
    ]
}
