"""Which head looks up what? Where every head looks while it answers `red kite …`, and what is lost without it.

    found = lookups(lm, held_out(source, tokenizer)); found.attention[layer, head] -> right, one word, no word

Heads of a group that look alike share one lookup; a key head whose query heads look at different facts serves several.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eval.attention.capture import capture
from eval.attention.controls import ablated
from eval.recall import Exam, right

if TYPE_CHECKING:
    from model import LanguageModel


@dataclass(frozen=True)
class Lookups:
    """attention (layer, head, 2 + facets): mean weight that a head gives to the fact of one person when a name is asked
    for: the right person; one who shares only the word of facet 0, 1, …; one who shares none. without_query (layer,
    head) and without_key (layer, key head): share of right answers when a query head, or all that read a key head, are
    ablated. whole: with all heads."""

    attention: Tensor
    without_query: Tensor
    without_key: Tensor
    whole: float


def lookups(lm: LanguageModel, of: Exam) -> Lookups:
    """Look at every head and ablate it, on the questions of an exam that ask for a name.

    Raises ValueError where none does.
    """
    asked = [i for i, question in enumerate(of.questions) if question.kind == "several"]
    if not asked:
        raise ValueError("no question asks for a name: data.source.recall.several is 0")
    weights = capture(lm, of.ids).weights  # (layer, B, head, query, key)
    facets = len(of.questions[asked[0]].clues)
    sums, counts = torch.zeros(*weights.shape[:1], weights.shape[2], 2 + facets), torch.zeros(2 + facets)
    for i in asked:
        row, words = int(of.row[i]), of.words[int(of.row[i])]
        looks = weights[:, row, :, int(of.first[i]) - 1]  # (layer, head, key)
        for person in range(of.people):
            start = person * (1 + facets)
            group = _group(of, i, start)
            if group is not None:
                sums[..., group] += looks[..., words[start][0] : words[start + facets][1] + 1].sum(-1)
                counts[group] += 1
    config, whole = lm.config, right(lm, of)[asked].float().mean().item()
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    readers = heads // config.kv_heads

    def without(chosen: list[tuple[int, int]]) -> float:
        with ablated(lm, chosen):
            return right(lm, of)[asked].float().mean().item()

    queries = torch.tensor([[without([(layer, head)]) for head in range(heads)] for layer in range(layers)])
    keys = [
        [without([(layer, key * readers + i) for i in range(readers)]) for key in range(config.kv_heads)]
        for layer in range(layers)
    ]
    return Lookups(sums / counts, queries, torch.tensor(keys), whole)


def _group(of: Exam, i: int, start: int) -> int | None:
    """What the person whose fact begins at word `start` shares with the one that question i asks for: 0 all words,
    1 + f only that of facet f, the last number none; None for several but not all."""
    question, words = of.questions[i], of.words[int(of.row[i])]
    ids, row = of.ids, int(of.row[i])
    facets = len(question.clues)
    if start == question.fact:
        return 0
    same = [
        f
        for f, clue in enumerate(question.clues)
        if ids[row, words[start + 1 + f][0] : words[start + 1 + f][1] + 1].tolist()
        == ids[row, words[clue][0] : words[clue][1] + 1].tolist()
    ]
    return 1 + facets if not same else 1 + same[0] if len(same) == 1 else None
