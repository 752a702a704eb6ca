"""Invented words: names for the characters, nonsense for the songs.

A name can only be written again by looking back to its first mention. So names teach copying, the
first skill of attention.
"""

import re
from collections.abc import Collection, Sequence
from functools import cache
from random import Random
from typing import TypeVar

from .lexicon import wordings

T = TypeVar("T")
CONSONANTS = "bdfghjklmnprstvwz"
VOWELS = "aeiou"
# The consonants that may end a syllable of a name.
CODAS = "nlrm"
LETTERS = {"C": CONSONANTS, "V": VOWELS, "N": CODAS}
SYLLABLES = [c + v for c in CONSONANTS for v in VOWELS]
# Every 211th of the three-syllable names is used: a prime, so that all syllables occur.
HELD_OUT_STRIDE = 211
# Forms of names that neither stories nor held-out questions have. Shorter ones are words.
OTHER_FORMS = ("VCVCV", "VCVCVN", "CVNCVN", "CVCVCVN", "CVCVNCV", "CVNCVCV", "CVCVCVCV")


@cache
def names() -> tuple[str, ...]:
    """All names, each equally likely. They have two syllables, such as Tiko, Belna or Jurim."""
    pairs = [(a, b) for a in SYLLABLES for b in SYLLABLES]
    # "Gave" and "Fire" would be words
    pool = [a + b for a, b in pairs if b[1] != "e"]
    for a in SYLLABLES:
        for coda in CODAS:
            pool += [a + coda + b for b in SYLLABLES]
    for a, b in pairs:
        pool += [a + b + coda for coda in CODAS]
    return tuple(name.capitalize() for name in pool if _is_usable(name, "unkind_pieces"))


@cache
def held_out_names() -> tuple[str, ...]:
    """Names of three open syllables, which no training text holds: Belora, Timovu, Zunide.

    With them, questions test whether a model copies, or only memorised its names.
    """
    pool = []
    for a in SYLLABLES:
        for b in SYLLABLES:
            pool += [a + b + c for c in SYLLABLES if c[1] != "e"]
    # half a million are possible; these 1,800 have every syllable
    pool = pool[::HELD_OUT_STRIDE]
    # no Bababa
    pool = [name for name in pool if len({name[0], name[2], name[4]}) == 3]
    pieces = ("unkind_pieces", "more_unkind_pieces")
    return tuple(name.capitalize() for name in pool if _is_usable(name, *pieces))


@cache
def name_set(held_out: bool = False) -> frozenset[str]:
    """The same as `names` or `held_out_names`, for quick lookups."""
    return frozenset(held_out_names() if held_out else names())


def _is_usable(name: str, *lists: str) -> bool:
    # true if it is no word, and has no piece of these lists in words.yaml
    if name in _unwanted("real_words"):
        return False
    # pieces, because a name may hide a word in its middle
    return not any(piece in name for key in lists for piece in _unwanted(key))


@cache
def _unwanted(key: str) -> frozenset[str]:
    return frozenset(wordings("words")[key].split())


def pick(rng: Random, options: Sequence[T]) -> T:
    """Draw an option."""
    # note: random.choice may draw another one in another version of Python
    return options[int(rng.random() * len(options))]


def another(pool: Sequence[str], used: Collection[str], rng: Random) -> str:
    """Draw a word of the pool that is not used yet."""
    while True:
        word = pick(rng, pool)
        if word not in used:
            return word


def sample(pool: Sequence[str], count: int, rng: Random) -> list[str]:
    """Draw `count` different words of the pool."""
    words: list[str] = []
    for _ in range(count):
        words.append(another(pool, words, rng))
    return words


def renamed(texts: list[str], rng: Random) -> list[str]:
    """Replace every name by one of another form, the same in all texts: Tamil becomes Ubora."""
    # a model that has seen a single form may copy only words of this form
    new: dict[str, str] = {}

    def other(match: re.Match[str]) -> str:
        name = match[0]
        while name in name_set() and name not in new:
            word = "".join(pick(rng, LETTERS[sort]) for sort in pick(rng, OTHER_FORMS))
            # two names must not become one
            if word.capitalize() in new.values():
                continue
            if _is_usable(word, "unkind_pieces", "more_unkind_pieces"):
                new[name] = word.capitalize()
        return new.get(name, name)

    return [re.sub(r"\b[A-Z][a-z]+\b", other, text) for text in texts]
