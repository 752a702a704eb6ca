"""Antecedents: which earlier words a mention copies or refers to, in characters and in the tokens of any tokenizer.

The pen knows of every name, noun and pronoun whom or what it means, so these labels are exact. They answer how
much of a head's attention goes from a mention to the mention that it stands for.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from .story import Story

PRONOUNS = frozenset(("He", "he", "him", "his", "His", "himself"))


class Antecedent(NamedTuple):
    """Characters `start` to `end` stand for the same as the earlier `earlier_start` to `earlier_end`."""

    start: int
    end: int
    earlier_start: int
    earlier_end: int
    kind: Literal["copies", "refers"]  # the same text again: a name, a noun, a whole song; or a pronoun for a name


def antecedents(story: Story, which: Literal["latest", "all"] = "latest") -> list[Antecedent]:
    """What every mention copies or refers to, in the order of the text; first mentions have nothing.

    A mention copies the latest mention of the same entity with the same text ("to the mill" copies "the mill"),
    a pronoun refers to the latest mention of its entity by name or noun. "all" gives a label for each earlier
    mention that fits: a head that looks at the first of three copies is right, too.
    """
    earlier: dict[int, list[tuple[int, int, str, str]]] = {}  # entity -> (start, end, text, form) of what names it
    labels = []
    for start, end, entity, form in story.mentions:
        # The part that other forms share counts: "drum" of "a drum", "red" of "a red", "the river" of "by the river".
        text, core_form = story.text[start:end], form.removeprefix("a_") if form.startswith("a_") else ""
        core = story.entities[entity].get(core_form, text)
        if form not in PRONOUNS and text.endswith(f" {core}"):
            start, text, form = end - len(core), core, core_form
        before = earlier.setdefault(entity, [])
        kind: Literal["copies", "refers"] = "refers" if form in PRONOUNS else "copies"
        fitting = [naming for naming in before if (naming[3] == "" if kind == "refers" else naming[2] == text)]
        if kind == "copies":
            before.append((start, end, text, form))
        for earlier_start, earlier_end, *_ in fitting if which == "all" else fitting[-1:]:
            labels.append(Antecedent(start, end, earlier_start, earlier_end, kind))
    return labels


def align(antecedents: Iterable[Antecedent], offsets: Sequence[tuple[int, int]]) -> list[tuple[int, list[int]]]:
    """The labels in tokens: pairs of a token's index and the earlier tokens that it copies or refers to, in order.

    offsets: the characters of every token, as `tokenizers` gives them (Encoding.offsets) for the text of the
    story alone; tokens may take the space before a word along, share a character (bytes) or be empty (skipped).

    copies: token by token, the second of a name with the second of its earlier mention; where the two are cut
            differently (a name at the very start of a text has no space), with those that hold the same characters.
            With i copying j, a head's A[i, j] is how much it looks at the same word before; A[i, j + 1], induction,
            at what followed that time; A[i - 1, j], at what it is about to write again.
    refers: every token of the pronoun goes with all tokens of the name.
    """

    def holding(start: int, end: int) -> list[int]:
        """The tokens that hold at least one of these characters."""
        return [token for token, (begin, stop) in enumerate(offsets) if begin < end and start < stop]

    def cuts(tokens: list[int], start: int) -> list[tuple[int, int]]:
        """Where these tokens begin and end, counted from `start`; a space before the first makes no difference."""
        return [(max(0, offsets[token][0] - start), offsets[token][1] - start) for token in tokens]

    pairs: dict[int, set[int]] = {}
    for mention in antecedents:
        tokens, sources = holding(mention.start, mention.end), holding(mention.earlier_start, mention.earlier_end)
        shift = mention.start - mention.earlier_start
        same_cuts = cuts(tokens, mention.start) == cuts(sources, mention.earlier_start)
        for rank, token in enumerate(tokens):
            chosen = sources
            if mention.kind == "copies" and same_cuts:
                chosen = sources[rank : rank + 1]
            elif mention.kind == "copies":
                start, end = max(mention.start, offsets[token][0]), min(mention.end, offsets[token][1])
                chosen = [source for source in sources if source in holding(start - shift, end - shift)]
            pairs.setdefault(token, set()).update(chosen)
    return sorted((token, sorted(chosen)) for token, chosen in pairs.items())
