"""Stories and what they cost: `tell` writes one, `parse` recovers its choices from the text alone."""

from dataclasses import dataclass
from math import fsum
from random import Random
from re import search
from typing import Literal, get_args

from .author import Author
from .lexicon import lexicon
from .pen import Choice
from .plots import tell_with
from .reader import Reader

Split = Literal["train", "validation"]


@dataclass(frozen=True)
class Story:
    """A story and the choices that made it.

    The bits add up to -log2 of the probability of exactly this text under the generator. No model can expect
    to pay less, so their mean over held-out stories is the entropy floor of the corpus.
    """

    text: str
    choices: tuple[Choice, ...]
    plot: str

    @property
    def bits(self) -> float:
        """The whole price of the text, in bits."""
        return fsum(choice.bits for choice in self.choices)

    @property
    def name_bits(self) -> float:
        """The part of it that pays for invented names."""
        return fsum(choice.bits for choice in self.choices if choice.kind == "name")

    @property
    def song_bits(self) -> float:
        """The part of it that pays for a nonsense song and its length."""
        return fsum(choice.bits for choice in self.choices if choice.kind in ("song", "song:end"))

    @property
    def invented_spans(self) -> list[tuple[int, int]]:
        """Where an invented name, or a song, stands for the first time: (start, end) in characters, in order.

        What stands there can only be guessed; every later occurrence can be copied.
        """
        spans = []
        for choice in self.choices:
            if choice.kind == "name":
                match = search(rf"\b{choice.option}\b", self.text)
                assert match is not None
                spans.append(match.span())
        song = " ".join(choice.option for choice in self.choices if choice.kind == "song")
        if song:
            start = self.text.index(song)
            spans.append((start, start + len(song)))
        return sorted(spans)


def tell(seed: int, index: int, split: Split = "train") -> Story:
    """Story number `index` of the endless book that `seed` opens; the two splits are two different books.

    The same arguments give the same story on every machine. Raises ValueError for an unknown split.
    """
    if split not in get_args(Split):
        raise ValueError(f"unknown split {split!r}: use 'train' or 'validation'")
    author = Author(lexicon(), Random(f"storyworld {split} {seed} {index}"))
    plot = tell_with(author)
    return Story(author.text, tuple(author.choices), plot)


def tell_many(seed: int, start: int, stop: int, split: Split = "train") -> list[Story]:
    """Stories `start` to `stop - 1`, a unit of work for a process pool (safe under `spawn`)."""
    return [tell(seed, index, split) for index in range(start, stop)]


def parse(text: str) -> tuple[Choice, ...]:
    """The choices that made this text, each with its price: `parse(story.text) == story.choices`.

    Raises ValueError naming the character position and what was expected there, if the text is no story of
    this world (or, which the tests look for, could have been told in two ways).
    """
    reader = Reader(lexicon(), text)
    tell_with(reader)
    reader.finish()
    return tuple(reader.choices)
