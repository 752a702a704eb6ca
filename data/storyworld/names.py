"""Invented words: names for the characters, nonsense for the songs.

A name that no reader has met before can only be written down again by looking back to where it first
appeared. That is what makes it worth inventing them: copying is the first thing attention learns.
"""

import re
from collections.abc import Collection, Sequence
from functools import cache
from random import Random
from typing import TypeVar

from .lexicon import read_yaml

T = TypeVar("T")
CONSONANTS = "bdfghjklmnprstvwz"
VOWELS = "aeiou"
CODAS = "nlrm"  # what may close a syllable of a name
HELD_OUT_STRIDE = 211  # of the three-syllable names every 211th is used: a prime, so that all syllables come
# Forms of names that neither the stories nor the held-out questions have: C = consonant, V = vowel, N = one of CODAS.
OTHER_FORMS = ("VCVCV", "VCVCVN", "CVNCVN", "CVCVCVN", "CVCVNCV", "CVNCVCV", "CVCVCVCV")  # shorter ones are words
LETTERS = {"C": CONSONANTS, "V": VOWELS, "N": CODAS}


@cache
def names() -> tuple[str, ...]:
    """All names, each as likely as any other: two syllables, such as Tiko, Belna or Jurim."""
    syllables = [c + v for c in CONSONANTS for v in VOWELS]
    pool = [a + b for a in syllables for b in syllables if b[1] != "e"]  # "Gave" and "Fire" would be words
    pool += [a + coda + b for a in syllables for coda in CODAS for b in syllables]
    pool += [a + b + coda for a in syllables for b in syllables for coda in CODAS]
    real_words, unkind, _ = unwanted()
    kind = (name for name in pool if name not in real_words and not any(piece in name for piece in unkind))
    return tuple(name.capitalize() for name in kind)


@cache
def held_out_names() -> tuple[str, ...]:
    """Names that no training text holds, for they have a third open syllable: Belora, Timovu, Zunide.

    They are for questions and conversations that ask whether a model copies, or only knows its names by heart.
    """
    syllables = [c + v for c in CONSONANTS for v in VOWELS]
    pool = [a + b + c for a in syllables for b in syllables for c in syllables if c[1] != "e"]
    real_words, unkind, more_unkind = unwanted()
    return tuple(
        name.capitalize()
        for name in pool[::HELD_OUT_STRIDE]
        if len({name[0], name[2], name[4]}) == 3  # no Bababa
        and name not in real_words
        and not any(piece in name for piece in unkind | more_unkind)
    )


@cache
def name_set() -> frozenset[str]:
    """The same as `names`, for looking up."""
    return frozenset(names())


@cache
def held_out_name_set() -> frozenset[str]:
    """The same as `held_out_names`, for looking up."""
    return frozenset(held_out_names())


@cache
def unwanted() -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Names that are words already, pieces that no name may hold, and those that only longer ones could hold."""
    words = read_yaml("words")
    real, unkind, more = (
        frozenset(words[key].split()) for key in ("real_words", "unkind_pieces", "more_unkind_pieces")
    )
    return real, unkind, more


def pick(rng: Random, options: Sequence[T]) -> T:
    """One of the options, each equally likely: the same one on every machine, which random.choice does not promise."""
    return options[int(rng.random() * len(options))]


def another(pool: Sequence[str], used: Collection[str], rng: Random) -> str:
    """A word of the pool that is not used yet, each equally likely."""
    while True:
        word = pick(rng, pool)
        if word not in used:
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
    real_words, unkind, more_unkind = unwanted()

    def other(match: re.Match[str]) -> str:
        name = match[0]
        while name in name_set() and name not in new:
            form = pick(rng, OTHER_FORMS)
            made = "".join(pick(rng, LETTERS[sort]) for sort in form)
            unusable = made in real_words or any(piece in made for piece in unkind | more_unkind)
            if made.capitalize() not in new.values() and not unusable:
                new[name] = made.capitalize()
        return new.get(name, name)

    return [re.sub(r"\b[A-Z][a-z]+\b", other, text) for text in texts]
