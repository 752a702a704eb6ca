"""Documents that measure looking back: repeated random words, and questions about facts.

- repeated: foom Tiko ladda foom Tiko ladda: random words, for finding induction heads.
- blocks: XxafXxafmkXxafXxaf: a few characters in random order, again and again. The smallest text
  that teaches a model to copy.
- recall: Tiko red kite river  Belna blue kite hill  …  Belna blue kite hill  …  red kite river Tiko
  A fact is a name and one word of each facet (colour, toy, place, food). A question about *one*
  thing repeats a name; its words follow. A question about *several* repeats the words and asks for
  the name. People share words, so the answer may need all of them at one position.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from random import Random
from typing import NamedTuple
from zlib import crc32

from pydantic import Field, model_validator

from configs.loader import Section

from .lexicon import lexicon
from .names import another, held_out_names, names, pick, sample

# The number of words in a block to train on, for near and far copies.
REPEATED_WORDS = range(4, 41)
FACETS = (
    ("red", "blue", "green", "yellow", "purple", "orange", "white", "black"),
    ("kite", "drum", "hat", "bell", "flute", "cup", "shell", "lantern"),
    ("river", "pond", "well", "mill", "barn", "hill", "bridge", "gate"),
    ("nuts", "honey", "bread", "cheese", "soup", "cake", "plums", "beans"),
)
MOST_NAMES = 32
# The characters of blocks.
SYMBOLS = string.ascii_letters + string.digits
# One list of facts in this many is held out, by its checksum: no training document has it.
HELD_OUT = 8


class RecallDocuments(Section):
    """Facts about people, then questions: the answers show what the model can look up."""

    people: int = Field(6, ge=2, le=32)
    """Facts in a document, one for each person."""
    facets: int = Field(2, ge=1, le=4)
    """Words of a fact besides the name: colour, toy, place, food."""
    values: int = Field(8, ge=2, le=8)
    """Different words of a facet. With fewer, people share more words."""
    questions: int = Field(12, ge=1, le=10_000)
    """Questions in a document."""
    several: float = Field(0.5, ge=0, le=1)
    """Share of questions that give all words of a fact and ask for the name. The others give the
    name."""

    @model_validator(mode="after")
    def _check_people(self) -> RecallDocuments:
        distinct = self.values**self.facets
        if distinct < self.people:
            raise ValueError(
                f"people: {self.values} values in {self.facets} facets distinguish only {distinct} "
                "people"
            )
        return self


class BlockDocuments(Section):
    """One block of characters again and again, with other characters between.

    Lengths are drawn evenly on a logarithmic scale: short blocks, which come again soon, teach the
    first heads. Because of the others between, no head can count back a fixed distance.
    """

    shortest: int = Field(2, ge=1, le=40)
    """Characters of the shortest block."""
    longest: int = Field(20, ge=1, le=40)
    """Characters of the longest block."""
    without: list[int] = Field([], examples=[[2, 3]])
    """Lengths that no block has, to see what they teach."""
    between: int = Field(3, ge=0, le=20)
    """Other characters between two copies, at most. Half of the time there are none."""
    length: int = Field(47, ge=2, le=10_000)
    """Characters of a document."""

    @model_validator(mode="after")
    def _check_lengths(self) -> BlockDocuments:
        if self.shortest > self.longest:
            raise ValueError(f"shortest: {self.shortest} is more than longest, {self.longest}")
        if not {*range(self.shortest, self.longest + 1)} - {*self.without}:
            raise ValueError("without: no length is left")
        return self


class Repeated(NamedTuple):
    """A block of `words`, no two alike, written several `times`."""

    words: tuple[str, ...]
    times: int

    @property
    def text(self) -> str:
        # each word has a space before it, so that all copies have the same tokens
        return "".join(f" {word}" for word in self.words) * self.times


def repeated(
    seed: int, index: int, words: int | Sequence[int] = 25, held_out: bool = False
) -> Repeated:
    """Make document number `index`: random words, half of them names, written two to four times.

    words: their number, or the numbers to draw from.
    """
    pools = (held_out_names() if held_out else names(), lexicon().song_words)
    rng = Random(f"repeated {seed} {index}")
    times = pick(rng, (2, 3, 4))
    count = words if isinstance(words, int) else pick(rng, words)
    block: list[str] = []
    for _ in range(count):
        # no word twice: in a block, only looking back one period can tell what follows
        block.append(another(pick(rng, pools), block, rng))
    return Repeated(tuple(block), times)


def blocks(seed: int, index: int, shape: BlockDocuments, held_out: bool = False) -> str:
    """Make document number `index`."""
    rng = Random(f"blocks {seed} {index} {held_out}")
    span = (shape.longest + 1) / shape.shortest
    size = 0
    while not size or size in shape.without:
        size = int(shape.shortest * span ** rng.random())
    block = sample(SYMBOLS, size, rng)
    others = [symbol for symbol in SYMBOLS if symbol not in block]
    text = ""
    while len(text) < shape.length:
        text += "".join(block)
        # half of the numbers are below zero: nothing between
        for _ in range(int((2 * shape.between + 2) * rng.random()) - shape.between - 1):
            text += pick(rng, others)
    return text[: shape.length]


class RecallQuestion(NamedTuple):
    """A word that follows from the facts. Words are numbered through the text, from 0."""

    word: int
    # the same word in the facts
    fact: int
    # the words just before it: a name, or one word of each facet
    clues: tuple[int, ...]
    # the fewest clues that decide it
    needs: int
    # "one" or "several"
    kind: str

    @property
    def distance(self) -> int:
        return self.word - self.fact


class Recall(NamedTuple):
    """A document: its words, and all questions in it."""

    words: tuple[str, ...]
    questions: tuple[RecallQuestion, ...]

    @property
    def text(self) -> str:
        return "".join(f" {word}" for word in self.words)


def recall(seed: int, index: int, shape: RecallDocuments, held_out: bool = False) -> Recall:
    """Make document number `index`: facts of 1 + shape.facets words, and questions of as many."""
    rng = Random(f"recall {seed} {index} {held_out}")
    # until the checksum fits: no held-out document has the facts of a training one
    while True:
        facts = _draw_facts(rng, shape)
        words = [word for fact in facts for word in fact]
        if (crc32(" ".join(words).encode()) % HELD_OUT == 0) == held_out:
            break
    size = 1 + shape.facets
    questions = []
    for _ in range(shape.questions):
        # the same person may be asked for again, and each question is a new lookup
        who = int(rng.random() * shape.people)
        start = len(words)
        fact = who * size
        if rng.random() < shape.several:
            # red kite river Tiko: one word to look up
            last = start + shape.facets
            clues = tuple(range(start, last))
            needs = _words_needed(facts, who)
            questions.append(RecallQuestion(last, fact, clues, needs, "several"))
            words += [*facts[who][1:], facts[who][0]]
        else:
            # Tiko red kite river: each word after the name
            for i in range(1, size):
                questions.append(RecallQuestion(start + i, fact + i, (start,), 1, "one"))
            words += facts[who]
    return Recall(tuple(words), tuple(questions))


@cache
def recalled_names() -> tuple[str, ...]:
    """The names in these documents."""
    # few, so that each is one token of a small vocabulary
    stride = len(names()) // MOST_NAMES
    return names()[stride // 2 :: stride][:MOST_NAMES]


def _draw_facts(rng: Random, shape: RecallDocuments) -> list[tuple[str, ...]]:
    # (name, a word of each facet) of every person; no two have the same words
    name_of: dict[tuple[str, ...], str] = {}
    while len(name_of) < shape.people:
        name = another(recalled_names(), name_of.values(), rng)
        while True:
            words = tuple(pick(rng, facet[: shape.values]) for facet in FACETS[: shape.facets])
            if words not in name_of:
                break
        name_of[words] = name
    return [(name, *words) for words, name in name_of.items()]


def _words_needed(facts: list[tuple[str, ...]], who: int) -> int:
    # the fewest words of this person that no other person shares
    mine = facts[who]
    for count in range(1, len(mine)):
        for places in combinations(range(1, len(mine)), count):
            people = [fact for fact in facts if all(fact[i] == mine[i] for i in places)]
            if len(people) == 1:
                return count
    raise AssertionError("no two people have the same words")
