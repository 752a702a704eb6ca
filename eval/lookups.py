"""Which head looks up what? Where every head looks while it answers `red kite …`, and what is lost without it.

    result = lookups(lm, held_out(source, tokenizer)); result.attention[layer, head] -> right, one word, no word

Heads of a group that look alike share one lookup; a key head whose query heads look at different facts serves several.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eval.attention.capture import capture
from eval.attention.controls import ablated
from eval.recall import Exam, right
from model import LanguageModel


class Lookups(NamedTuple):
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
    chosen = [i for i, question in enumerate(of.questions) if question.kind == "several"]
    if not chosen:
        raise ValueError("no question asks for a name: data.source.recall.several is 0")
    weights = capture(lm, of.ids).weights  # (layer, B, head, query, key)
    facets = len(of.questions[chosen[0]].clues)
    sums, counts = torch.zeros(weights.shape[0], weights.shape[2], 2 + facets), torch.zeros(2 + facets)
    for i in chosen:
        question, row = of.questions[i], int(of.row[i])
        words, from_answer = of.words[row], weights[:, row, :, int(of.first[i]) - 1]  # (layer, head, key)
        word_ids = [of.ids[row, first : last + 1].tolist() for first, last in words]
        for start in range(0, of.people * (1 + facets), 1 + facets):  # a name and its facets: the fact of a person
            shared = [f for f, clue in enumerate(question.clues) if word_ids[start + 1 + f] == word_ids[clue]]
            group = 1 + facets if not shared else 1 + shared[0]
            if start == question.fact:
                group = 0
            elif len(shared) > 1:  # several words but not all: neither here nor there
                continue
            sums[..., group] += from_answer[..., words[start][0] : words[start + facets][1] + 1].sum(-1)
            counts[group] += 1

    def right_without(layer: int, heads: range) -> float:
        with ablated(lm, [(layer, head) for head in heads]):
            return right(lm, of)[chosen].float().mean().item()

    heads, layers = lm.config.num_attention_heads, range(lm.config.num_hidden_layers)
    of_query, of_key = (  # ablated together: one query head, or all that read a key head
        torch.tensor([[right_without(layer, range(at, at + n)) for at in range(0, heads, n)] for layer in layers])
        for n in (1, heads // lm.config.kv_heads)
    )
    return Lookups(sums / counts, of_query, of_key, right_without(0, range(0)))
