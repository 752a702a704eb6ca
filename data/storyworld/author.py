"""The pen that invents a story."""

from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from random import Random

from .lexicon import Lexicon
from .pen import Pen


class Author(Pen):
    """Draws every choice and keeps the text."""

    def __init__(self, lexicon: Lexicon, rng: Random, held_out: bool = False):
        super().__init__(lexicon, held_out)
        self.written: list[str] = []
        self.random = rng.random

    def write(self, text: str) -> None:
        self.written.append(text)
        self.at += len(text)

    @property
    def text(self) -> str:
        return "".join(self.written)

    def choose(self, n: int, heads: Callable[[int], Iterable[str]], cumulative: Sequence[float] = ()) -> int:
        if cumulative:
            return bisect(cumulative, self.random() * cumulative[-1])
        return int(self.random() * n)

    def choose_invented(self, words: Sequence[str], known: frozenset[str], taken: Iterable[str]) -> str:
        while True:
            word = words[int(self.random() * len(words))]
            if word not in taken:
                return word
