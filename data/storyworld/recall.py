"""Documents that ask for what they said: facts about people, then questions whose answers are exact.

    Tiko red kite river  Belna blue kite hill  …  Belna blue kite hill  …  red kite river Tiko  …

A fact is a name and one word of each facet (colour, toy, place, food). A question about *one* thing repeats a name:
each of its words follows from looking up that name. A question about *several* repeats the words: who is it? Others
share some of them, so the answer may need all these words at one position.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from random import Random
from zlib import crc32

from .names import names
from .repeats import another

FACETS = (
    ("red", "blue", "green", "yellow", "purple", "orange", "white", "black"),
    ("kite", "drum", "hat", "bell", "flute", "cup", "shell", "lantern"),
    ("river", "pond", "well", "mill", "barn", "hill", "bridge", "gate"),
    ("nuts", "honey", "bread", "cheese", "soup", "cake", "plums", "beans"),
)
MOST_NAMES, MOST_VALUES = 32, 8
HELD_OUT = 8  # one list of facts in eight is held out, by its checksum: no training document has it


@dataclass(frozen=True)
class Asked:
    """A word that the facts decide.

    word:     its number in the text, from 0
    fact:     the number of the word in the facts that it repeats
    clues:    the numbers of the words just before it that say what is asked: a name, or one word of each facet
    needs:    how many of the clues decide it at least; 1 where a name is asked about
    kind:     "one" or "several"
    """

    word: int
    fact: int
    clues: tuple[int, ...]
    needs: int
    kind: str

    @property
    def distance(self) -> int:
        """Words from the fact to the answer."""
        return self.word - self.fact


@dataclass(frozen=True)
class Recall:
    """A document. words: all of them; the text puts a space before each. questions: every word that is decided."""

    words: tuple[str, ...]
    questions: tuple[Asked, ...]

    @property
    def text(self) -> str:
        return "".join(f" {word}" for word in self.words)


def recall(
    seed: int,
    index: int,
    held_out: bool = False,
    *,
    people: int = 6,
    facets: int = 2,
    values: int = 8,
    questions: int = 12,
    several: float = 0.5,
) -> Recall:
    """Document number `index`: `people` facts of 1 + facets words, and as many words for each of the questions.

    values: words of a facet that are used. several: share of the questions that ask for a name. The same arguments
    give the same document on every machine; no held-out document has the facts of a training one. Raises ValueError
    for more than there is.
    """
    if not (2 <= people <= MOST_NAMES and 1 <= facets <= len(FACETS) and 2 <= values <= MOST_VALUES):
        there = f"2 to {MOST_NAMES} people, 1 to {len(FACETS)} facets, 2 to {MOST_VALUES} values"
        raise ValueError(f"people={people}, facets={facets}, values={values}: use {there}")
    if values**facets < people:
        raise ValueError(f"{values} values in {facets} facets distinguish only {values**facets} people, not {people}")
    rng = Random(f"recall {seed} {index} {held_out}")
    known = _facts(rng, people, facets, values)
    while (crc32(" ".join(map(" ".join, known)).encode()) % HELD_OUT == 0) != held_out:
        known = _facts(rng, people, facets, values)
    words = [word for fact in known for word in fact]
    asked = []
    for _ in range(questions):
        who = int(rng.random() * people)
        told = (*known[who][1:], known[who][0]) if (kind := rng.random() < several) else known[who]
        asked += list(_several(known, who, len(words)) if kind else _one(known, who, len(words)))
        words += told
    return Recall(tuple(words), tuple(asked))


@cache
def recalled_names() -> tuple[str, ...]:
    """The names of these documents: few, so that each is one token of a small vocabulary."""
    every = len(names()) // MOST_NAMES
    return names()[every // 2 :: every][:MOST_NAMES]


def _facts(rng: Random, people: int, facets: int, values: int) -> list[tuple[str, ...]]:
    """(name, a word of each facet) of every person. No name comes twice, and no two people share all their words."""
    known: dict[tuple[str, ...], str] = {}
    taken: set[str] = set()
    for _ in range(people):
        name = another(recalled_names(), taken, rng)
        taken.add(name)
        told = tuple(facet[int(rng.random() * values)] for facet in FACETS[:facets])
        while told in known:
            told = tuple(facet[int(rng.random() * values)] for facet in FACETS[:facets])
        known[told] = name
    return [(name, *told) for told, name in known.items()]


def _one(known: list[tuple[str, ...]], who: int, start: int) -> Iterator[Asked]:
    size = len(known[0])
    for place in range(1, size):
        yield Asked(start + place, who * size + place, (start,), 1, "one")


def _several(known: list[tuple[str, ...]], who: int, start: int) -> Iterator[Asked]:
    size = len(known[0])
    clues = tuple(range(start, start + size - 1))
    yield Asked(start + size - 1, who * size, clues, _needed(known, who), "several")


def _needed(known: list[tuple[str, ...]], who: int) -> int:
    """The fewest words of this person that nobody else has together."""
    places = range(1, len(known[who]))
    for count in places:
        for chosen in combinations(places, count):
            alike = [fact for fact in known if all(fact[place] == known[who][place] for place in chosen)]
            if len(alike) == 1:
                return count
    raise AssertionError("two people share all their words")
