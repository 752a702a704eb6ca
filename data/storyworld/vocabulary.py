"""Words and names to draw from, for conversations that are made without a story."""

from collections.abc import Mapping, Sequence
from functools import cache
from random import Random

from .lexicon import Pool, lexicon
from .names import held_out_names, names
from .questions import place_sorts
from .repeats import another
from .story import Split


def words_of(role: str, part: str) -> Mapping[str, Mapping[str, str]]:
    """Every word that the lexicon offers for a role, with each of its forms."""
    pool = lexicon().roles[role][part]
    assert isinstance(pool, Pool)
    return pool.texts


@cache
def known_words() -> tuple[str, ...]:
    """Every single word that stories may have for somebody or something: "fox", "kite", "red", "river"."""
    pools = [pool for parts in lexicon().roles.values() for pool in parts.values() if isinstance(pool, Pool)]
    return tuple(sorted({word for pool in pools for word in pool.texts if word.isalpha() and word.islower()}))


def places() -> list[str]:
    """Every place, as it answers "where": "by the river"."""
    return sorted(frozenset.union(*place_sorts().values()))


def names_for(split: Split) -> Sequence[str]:
    """Names that texts of this split may hold."""
    return held_out_names() if split == "validation" else names()


def some(pool: Sequence[str], count: int, rng: Random) -> list[str]:
    """`count` of the pool, no two alike."""
    found: list[str] = []
    for _ in range(count):
        found.append(another(pool, set(found), rng))
    return found
