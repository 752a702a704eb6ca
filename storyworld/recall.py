"""Documents that measure looking back: random words that repeat, and facts that are asked for.

repeated    foom Tiko ladda foom Tiko ladda: random words, and then the same words again, for finding induction heads.
            Nothing but looking back helps to predict the second copy, and nothing at all helps to predict the first.
recall      Tiko red kite river  Belna blue kite hill  …  Belna blue kite hill  …  red kite river Tiko  …
            A fact is a name and one word of each facet (colour, toy, place, food). A question about *one* thing repeats
            a name: each of its words follows from looking up that name. A question about *several* repeats the words:
            who is it? Others share some of them, so the answer may need all these words at one position.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import combinations
from random import Random
from typing import NamedTuple
from zlib import crc32

from pydantic import Field, model_validator

from configs.loader import Section

from .lexicon import lexicon
from .names import another, held_out_names, names, pick

REPEATED_WORDS = range(4, 41)  # words in a block of a document that is trained on, for near and far copies
FACETS = (
    ("red", "blue", "green", "yellow", "purple", "orange", "white", "black"),
    ("kite", "drum", "hat", "bell", "flute", "cup", "shell", "lantern"),
    ("river", "pond", "well", "mill", "barn", "hill", "bridge", "gate"),
    ("nuts", "honey", "bread", "cheese", "soup", "cake", "plums", "beans"),
)
MOST_NAMES = 32
HELD_OUT = 8  # one list of facts in eight is held out, by its checksum: no training document has it


class RecallDocuments(Section):
    """Facts about people, then questions: the answers say what the model can look up."""

    people: int = Field(6, ge=2, le=32)
    """Facts in a document, one for each person."""
    facets: int = Field(2, ge=1, le=4)
    """Words of a fact besides the name: colour, toy, place, food."""
    values: int = Field(8, ge=2, le=8)
    """Different words of a facet. With fewer, people share more words."""
    questions: int = Field(12, ge=1, le=10_000)
    """Questions in a document."""
    several: float = Field(0.5, ge=0, le=1)
    """Share of questions that give all words of a fact and ask for the name. The others give the name."""

    @model_validator(mode="after")
    def _check_people(self) -> RecallDocuments:
        if (distinct := self.values**self.facets) < self.people:
            raise ValueError(f"people: {self.values} values in {self.facets} facets distinguish only {distinct} people")
        return self


class Repeated(NamedTuple):
    """A block of `words`, no two alike, written several `times`."""

    words: tuple[str, ...]
    times: int

    @property
    def text(self) -> str:
        """Every word has a space before it, so all copies are cut alike: " foom Tiko ladda foom Tiko ladda"."""
        return "".join(f" {word}" for word in self.words) * self.times


def repeated(seed: int, index: int, words: int | Sequence[int] = 25, held_out: bool = False) -> Repeated:
    """Document number `index`: different random words, half of them names, written two to four times.

    words: how many, or how many it may be, each as likely.
    """
    pools = (held_out_names() if held_out else names(), lexicon().song_words)
    rng = Random(f"repeated {seed} {index}")
    times, block = pick(rng, (2, 3, 4)), list[str]()
    for _ in range(words if isinstance(words, int) else pick(rng, words)):
        block.append(another(pick(rng, pools), block, rng))
    return Repeated(tuple(block), times)


class RecallQuestion(NamedTuple):
    """A word that the facts decide."""

    word: int  # its number in the text, from 0
    fact: int  # the number of the word in the facts that it repeats
    clues: tuple[int, ...]  # the numbers of the words just before it: a name, or one word of each facet
    needs: int  # how many of the clues decide it at least; 1 where a name is asked about
    kind: str  # "one" or "several"

    @property
    def distance(self) -> int:
        """Words from the fact to the answer."""
        return self.word - self.fact


class Recall(NamedTuple):
    """A document. words: all of them; the text puts a space before each. questions: every word that is decided."""

    words: tuple[str, ...]
    questions: tuple[RecallQuestion, ...]

    @property
    def text(self) -> str:
        return "".join(f" {word}" for word in self.words)


def recall(seed: int, index: int, shape: RecallDocuments, held_out: bool = False) -> Recall:
    """Document number `index`: facts of 1 + shape.facets words, and as many words for each of the questions.

    No held-out document has the facts of a training one.
    """
    rng = Random(f"recall {seed} {index} {held_out}")
    facts = draw_facts(rng, shape)
    while (crc32(" ".join(map(" ".join, facts)).encode()) % HELD_OUT == 0) != held_out:
        facts = draw_facts(rng, shape)
    words = [word for fact in facts for word in fact]
    size, decided = 1 + shape.facets, []
    for _ in range(shape.questions):
        who, start = int(rng.random() * shape.people), len(words)
        if rng.random() < shape.several:
            clues, last = tuple(range(start, start + shape.facets)), start + shape.facets
            decided.append(RecallQuestion(last, who * size, clues, words_needed(facts, who), "several"))
            words += [*facts[who][1:], facts[who][0]]
        else:
            decided += [RecallQuestion(start + i, who * size + i, (start,), 1, "one") for i in range(1, size)]
            words += facts[who]
    return Recall(tuple(words), tuple(decided))


@cache
def recalled_names() -> tuple[str, ...]:
    """The names of these documents: few, so that each is one token of a small vocabulary."""
    every = len(names()) // MOST_NAMES
    return names()[every // 2 :: every][:MOST_NAMES]


def draw_facts(rng: Random, shape: RecallDocuments) -> list[tuple[str, ...]]:
    """(name, a word of each facet) of every person. No name comes twice, and no two people share all their words."""
    name_of: dict[tuple[str, ...], str] = {}
    while len(name_of) < shape.people:
        name = another(recalled_names(), name_of.values(), rng)
        words: tuple[str, ...] = ()
        while not words or words in name_of:
            words = tuple(pick(rng, facet[: shape.values]) for facet in FACETS[: shape.facets])
        name_of[words] = name
    return [(name, *words) for words, name in name_of.items()]


def words_needed(facts: list[tuple[str, ...]], who: int) -> int:
    """The fewest words of this person that nobody else has together."""
    mine = facts[who]
    subsets = (places for n in range(1, len(mine)) for places in combinations(range(1, len(mine)), n))
    return next(len(at) for at in subsets if sum(all(fact[i] == mine[i] for i in at) for fact in facts) == 1)
