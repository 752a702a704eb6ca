"""Antecedents: the earlier words that a mention copies or refers to, for any tokenizer.

The pen records the entity of every name, noun and pronoun, so these labels are exact.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from .story import Story

PRONOUNS = frozenset(("He", "he", "him", "his", "His", "himself"))


class Antecedent(NamedTuple):
    """Characters `start` to `end` mean the same as `earlier_start` to `earlier_end`.

    kind: the same text again (a name, a noun, a whole song), or a pronoun for a name.
    """

    start: int
    end: int
    earlier_start: int
    earlier_end: int
    kind: Literal["copies", "refers"]


def antecedents(story: Story, which: Literal["latest", "all"] = "latest") -> list[Antecedent]:
    """Find the antecedent of every mention, in the order of the text; first mentions have none.

    A mention copies the latest mention of its entity with the same text; a pronoun refers to the
    latest mention by name or noun. "all" labels every such mention.
    """
    # entity -> (start, end, text, form) of its names and nouns so far
    earlier: dict[int, list[tuple[int, int, str, str]]] = {}
    labels = []
    for start, end, entity, form in story.mentions:
        named = earlier.setdefault(entity, [])
        if form in PRONOUNS:
            kind: Literal["copies", "refers"] = "refers"
            fitting = [mention for mention in named if mention[3] == ""]
        else:
            kind = "copies"
            # All forms share a core: "drum" of "a drum", "the river" of "by the river".
            text = story.text[start:end]
            core_form = form.removeprefix("a_") if form.startswith("a_") else ""
            core = story.entities[entity].get(core_form, text)
            if text.endswith(f" {core}"):
                start = end - len(core)
                text = core
                form = core_form
            fitting = [mention for mention in named if mention[2] == text]
            named.append((start, end, text, form))
        # "all": a head that attends to the first of three copies is right, too
        for earlier_start, earlier_end, *_ in fitting if which == "all" else fitting[-1:]:
            labels.append(Antecedent(start, end, earlier_start, earlier_end, kind))
    return labels


def align(
    antecedents: Iterable[Antecedent], offsets: Sequence[tuple[int, int]]
) -> list[tuple[int, list[int]]]:
    """Return the labels in tokens: pairs of a token and the earlier tokens that it goes with.

    offsets: the characters of every token (`tokenizers`: Encoding.offsets) in the story. With i
    copying j, a head's A[i, j] is its attention to the same word; A[i, j + 1], induction, to the
    word after that; A[i - 1, j], to the word that comes next.
    """

    def tokens_in(start: int, end: int) -> list[int]:
        # any overlap counts: a tokenizer may join a name with the space before it
        return [i for i, (begin, stop) in enumerate(offsets) if begin < end and start < stop]

    def cuts(tokens: list[int], start: int) -> list[tuple[int, int]]:
        # counted from `start`; a space before the first token makes no difference
        return [(max(0, offsets[i][0] - start), offsets[i][1] - start) for i in tokens]

    pairs: dict[int, set[int]] = {}
    for mention in antecedents:
        tokens = tokens_in(mention.start, mention.end)
        sources = tokens_in(mention.earlier_start, mention.earlier_end)
        # characters between the copies
        shift = mention.start - mention.earlier_start
        # the same name may be cut into other tokens at the beginning of a text
        same_cuts = cuts(tokens, mention.start) == cuts(sources, mention.earlier_start)
        for rank, token in enumerate(tokens):
            # A pronoun goes with all tokens of the name; copies that are cut alike, token by token;
            # others (a name at the start of a text has no space), by their characters.
            chosen = sources
            if mention.kind == "copies" and same_cuts:
                chosen = sources[rank : rank + 1]
            elif mention.kind == "copies":
                start = max(mention.start, offsets[token][0]) - shift
                end = min(mention.end, offsets[token][1]) - shift
                same_characters = tokens_in(start, end)
                chosen = [source for source in sources if source in same_characters]
            pairs.setdefault(token, set()).update(chosen)
    return sorted((token, sorted(chosen)) for token, chosen in pairs.items())
