"""Invented words: names for the characters, nonsense for the songs.

A name that no reader has met before can only be written down again by looking back to where it first
appeared. That is what makes it worth inventing them: copying is the first thing attention learns.
"""

import re
from collections.abc import Collection, Sequence
from functools import cache
from random import Random
from typing import TypeVar

from .lexicon import wordings

T = TypeVar("T")
CONSONANTS, VOWELS, CODAS = "bdfghjklmnprstvwz", "aeiou", "nlrm"  # what may close a syllable of a name
LETTERS = {"C": CONSONANTS, "V": VOWELS, "N": CODAS}
SYLLABLES = [c + v for c in CONSONANTS for v in VOWELS]
HELD_OUT_STRIDE = 211  # of the three-syllable names every 211th is used: a prime, so that all syllables come
# Forms of names that neither the stories nor the held-out questions have. Shorter ones are words.
OTHER_FORMS = ("VCVCV", "VCVCVN", "CVNCVN", "CVCVCVN", "CVCVNCV", "CVNCVCV", "CVCVCVCV")


@cache
def names() -> tuple[str, ...]:
    """All names, each as likely as any other: two syllables, such as Tiko, Belna or Jurim."""
    pool = [a + b for a in SYLLABLES for b in SYLLABLES if b[1] != "e"]  # "Gave" and "Fire" would be words
    pool += [a + coda + b for a in SYLLABLES for coda in CODAS for b in SYLLABLES]
    pool += [a + b + coda for a in SYLLABLES for b in SYLLABLES for coda in CODAS]
    return tuple(name.capitalize() for name in pool if is_usable(name, "unkind_pieces"))


@cache
def held_out_names() -> tuple[str, ...]:
    """Names that no training text holds, for they have a third open syllable: Belora, Timovu, Zunide.

    They are for questions and conversations that ask whether a model copies, or only knows its names by heart.
    """
    pool = [a + b + c for a in SYLLABLES for b in SYLLABLES for c in SYLLABLES if c[1] != "e"][::HELD_OUT_STRIDE]
    pool = [name for name in pool if len({name[0], name[2], name[4]}) == 3]  # no Bababa
    return tuple(name.capitalize() for name in pool if is_usable(name, "unkind_pieces", "more_unkind_pieces"))


@cache
def name_set(held_out: bool = False) -> frozenset[str]:
    """The same as `names` or `held_out_names`, for looking up."""
    return frozenset(held_out_names() if held_out else names())


def is_usable(name: str, *pieces: str) -> bool:
    """Whether this is no word, and holds none of the pieces of these lists in words.yaml."""
    return name not in unwanted("real_words") and not any(piece in name for key in pieces for piece in unwanted(key))


@cache
def unwanted(key: str) -> frozenset[str]:
    return frozenset(wordings("words")[key].split())


def pick(rng: Random, options: Sequence[T]) -> T:
    """One of the options, each equally likely: the same one on every machine, which random.choice does not promise."""
    return options[int(rng.random() * len(options))]


def another(pool: Sequence[str], used: Collection[str], rng: Random) -> str:
    """A word of the pool that is not used yet, each equally likely."""
    while (word := pick(rng, pool)) in used:
        pass
    return word


def some(pool: Sequence[str], count: int, rng: Random) -> list[str]:
    """`count` of the pool, no two alike."""
    words: list[str] = []
    for _ in range(count):
        words.append(another(pool, words, rng))
    return words


def renamed(texts: list[str], rng: Random) -> list[str]:
    """The texts with a name of another form for every name: Tamil becomes Ubora, Selvakun or Bororuzi.

    The same name becomes the same one in all texts, and no two become one. A model that has met names of many
    forms must copy what is there; one that has met a single form may copy only what looks like it.
    """
    new: dict[str, str] = {}

    def other(match: re.Match[str]) -> str:
        name = match[0]
        while name in name_set() and name not in new:
            made = "".join(pick(rng, LETTERS[sort]) for sort in pick(rng, OTHER_FORMS))
            is_new = made.capitalize() not in new.values()
            if is_new and is_usable(made, "unkind_pieces", "more_unkind_pieces"):
                new[name] = made.capitalize()
        return new.get(name, name)

    return [re.sub(r"\b[A-Z][a-z]+\b", other, text) for text in texts]
