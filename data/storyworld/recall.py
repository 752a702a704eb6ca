"""Documents that measure looking back: random words that repeat, and facts that are asked for.

repeated    foom Tiko ladda foom Tiko ladda: random words, and then the same words again, for finding induction heads.
            Nothing but looking back helps to predict the second copy, and nothing at all helps to predict the first.
recall      Tiko red kite river  Belna blue kite hill  …  Belna blue kite hill  …  red kite river Tiko  …
            A fact is a name and one word of each facet (colour, toy, place, food). A question about *one* thing repeats
            a name: each of its words follows from looking up that name. A question about *several* repeats the words:
            who is it? Others share some of them, so the answer may need all these words at one position.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import log2
from random import Random
from zlib import crc32

from .lexicon import lexicon
from .names import another, held_out_names, names, pick

REPEATED_WORDS = range(4, 41)  # words in a block of a document that is trained on, for near and far copies
FACETS = (
    ("red", "blue", "green", "yellow", "purple", "orange", "white", "black"),
    ("kite", "drum", "hat", "bell", "flute", "cup", "shell", "lantern"),
    ("river", "pond", "well", "mill", "barn", "hill", "bridge", "gate"),
    ("nuts", "honey", "bread", "cheese", "soup", "cake", "plums", "beans"),
)
MOST_NAMES, MOST_VALUES = 32, 8
HELD_OUT = 8  # one list of facts in eight is held out, by its checksum: no training document has it


@dataclass(frozen=True)
class Repeated:
    """A document of `times` equal blocks.

    text:   " foom Tiko ladda foom Tiko ladda": every word has a space before it, so all copies are cut alike
    period: characters of one block. `text[i]` is `text[i - period]` from there on
    words:  the words of one block, no two alike
    times:  how often it is written
    bits:   -log2 of the probability of the text for one who knows how it is made: all of it is spent on the
            first block (and on the number of words and of times, where those were drawn)
    """

    text: str
    period: int
    words: tuple[str, ...]
    times: int
    bits: float


def repeated(
    seed: int,
    index: int,
    words: int | Sequence[int] = 25,
    times: int | Sequence[int] = (2, 3, 4),
    held_out: bool = False,
) -> Repeated:
    """Document number `index`: a block of different random words, half of them names, written several times.

    words, times: how many, how often; or how many and how often it may be, each as likely. The same arguments
    give the same document on every machine. Raises ValueError for fewer than two, or more words than there are.
    """
    pools = (held_out_names() if held_out else names(), lexicon().song_words)
    lengths, counts = (((n,) if isinstance(n, int) else tuple(n)) for n in (words, times))
    if not lengths or min(lengths) < 2 or max(lengths) > min(map(len, pools)) or not counts or min(counts) < 2:
        raise ValueError(f"words={words}, times={times}: use 2 to {min(map(len, pools))} words and 2 or more times")
    rng = Random(f"repeated {seed} {index}")
    count = pick(rng, counts)
    length = pick(rng, lengths) if len(lengths) > 1 else lengths[0]
    bits, block = log2(len(counts)) + log2(len(lengths)), []
    used: tuple[set[str], set[str]] = (set(), set())
    for _ in range(length):
        which = int(rng.random() * 2)
        word = another(pools[which], used[which], rng)
        bits += 1 + log2(len(pools[which]) - len(used[which]))
        used[which].add(word)
        block.append(word)
    text = "".join(f" {word}" for word in block)
    return Repeated(text * count, len(text), tuple(block), count, bits)


@dataclass(frozen=True)
class RecallQuestion:
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
    questions: tuple[RecallQuestion, ...]

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
        possible = f"2 to {MOST_NAMES} people, 1 to {len(FACETS)} facets, 2 to {MOST_VALUES} values"
        raise ValueError(f"people={people}, facets={facets}, values={values}: use {possible}")
    if values**facets < people:
        raise ValueError(f"{values} values in {facets} facets distinguish only {values**facets} people, not {people}")
    rng = Random(f"recall {seed} {index} {held_out}")
    facts = draw_facts(rng, people, facets, values)
    while (crc32(" ".join(map(" ".join, facts)).encode()) % HELD_OUT == 0) != held_out:
        facts = draw_facts(rng, people, facets, values)
    words = [word for fact in facts for word in fact]
    size, asked = 1 + facets, []
    for _ in range(questions):
        who, start = int(rng.random() * people), len(words)
        if rng.random() < several:
            clues, last = tuple(range(start, start + facets)), start + facets
            asked.append(RecallQuestion(last, who * size, clues, words_needed(facts, who), "several"))
            words += [*facts[who][1:], facts[who][0]]
        else:
            asked += [RecallQuestion(start + i, who * size + i, (start,), 1, "one") for i in range(1, size)]
            words += facts[who]
    return Recall(tuple(words), tuple(asked))


@cache
def recalled_names() -> tuple[str, ...]:
    """The names of these documents: few, so that each is one token of a small vocabulary."""
    every = len(names()) // MOST_NAMES
    return names()[every // 2 :: every][:MOST_NAMES]


def draw_facts(rng: Random, people: int, facets: int, values: int) -> list[tuple[str, ...]]:
    """(name, a word of each facet) of every person. No name comes twice, and no two people share all their words."""
    name_of: dict[tuple[str, ...], str] = {}
    for _ in range(people):
        name = another(recalled_names(), list(name_of.values()), rng)
        words: tuple[str, ...] = ()
        while not words or words in name_of:
            words = tuple(facet[int(rng.random() * values)] for facet in FACETS[:facets])
        name_of[words] = name
    return [(name, *words) for words, name in name_of.items()]


def words_needed(facts: list[tuple[str, ...]], who: int) -> int:
    """The fewest words of this person that nobody else has together."""
    mine = facts[who][1:]
    for count in range(1, len(mine)):
        for chosen in combinations(range(len(mine)), count):
            if sum(all(fact[1 + i] == mine[i] for i in chosen) for fact in facts) == 1:
                return count
    return len(mine)
