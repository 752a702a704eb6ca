"""Documents that repeat themselves, for finding induction heads: random words, and then the same words again.

Nothing but looking back helps to predict the second copy, and nothing at all helps to predict the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from random import Random

from .lexicon import lexicon
from .names import held_out_names, names

REPEATED_WORDS = range(4, 41)  # words in a block of a document that is trained on, for near and far copies


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
    count = counts[int(rng.random() * len(counts))]
    length = lengths[int(rng.random() * len(lengths))] if len(lengths) > 1 else lengths[0]
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


def another(pool: Sequence[str], used: set[str], rng: Random) -> str:
    """A word of the pool that is not used yet, each equally likely."""
    while True:
        word = pool[int(rng.random() * len(pool))]
        if word not in used:
            return word
