"""Which head looks up what? Where every head looks while it answers `red kite …`, and what is lost without it.

    result = lookups(lm, held_out(source, tokenizer)); result.attention[layer, head] -> right, one word, no word

Heads of a group that look alike share one lookup; a key head whose query heads look at different facts serves several.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eval.attention.capture import capture
from eval.attention.controls import ablated
from eval.recall import Exam, right
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
    chosen = [i for i, question in enumerate(of.questions) if question.kind == "several"]
    if not chosen:
        raise ValueError("no question asks for a name: data.source.recall.several is 0")
    weights = capture(lm, of.ids).weights  # (layer, B, head, query, key)
    facets = len(of.questions[chosen[0]].clues)
    sums, counts = torch.zeros(weights.shape[0], weights.shape[2], 2 + facets), torch.zeros(2 + facets)
    for i in chosen:
        row = int(of.row[i])
        words, from_answer = of.words[row], weights[:, row, :, int(of.first[i]) - 1]  # (layer, head, key)
        for person in range(of.people):
            start = person * (1 + facets)
            group = _group(of, i, start)
            if group is not None:
                sums[..., group] += from_answer[..., words[start][0] : words[start + facets][1] + 1].sum(-1)
                counts[group] += 1

    def without(layer: int, heads: range) -> float:
        with ablated(lm, [(layer, head) for head in heads]):
            return right(lm, of)[chosen].float().mean().item()

    heads, layers = lm.config.num_attention_heads, range(lm.config.num_hidden_layers)
    readers = heads // lm.config.kv_heads
    queries = [[without(layer, range(head, head + 1)) for head in range(heads)] for layer in layers]
    keys = [[without(layer, range(first, first + readers)) for first in range(0, heads, readers)] for layer in layers]
    whole = right(lm, of)[chosen].float().mean().item()
    return Lookups(sums / counts, torch.tensor(queries), torch.tensor(keys), whole)


def _group(of: Exam, i: int, start: int) -> int | None:
    """What the person whose fact begins at word `start` shares with the one that question i asks for: 0 all words,
    1 + f only that of facet f, the last number none; None for several but not all."""
    question, row = of.questions[i], int(of.row[i])
    if start == question.fact:
        return 0

    def ids_of(word: int) -> list[int]:
        first, last = of.words[row][word]
        return of.ids[row, first : last + 1].tolist()

    same = [f for f, clue in enumerate(question.clues) if ids_of(start + 1 + f) == ids_of(clue)]
    return 1 + len(question.clues) if not same else 1 + same[0] if len(same) == 1 else None
