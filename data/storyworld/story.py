"""Stories and what they cost: `tell` writes one, `parse` recovers its choices from the text alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import fsum
from random import Random
from re import search
from typing import Literal, get_args

from .author import Author
from .levels import tell_with
from .lexicon import lexicon
from .pen import Choice, Entity, Fact, Mention, Pen
from .reader import Reader
from .speech import Listener
from .wordings import feelings

Split = Literal["train", "validation"]


@dataclass(frozen=True)
class Story:
    """A story and the choices that made it.

    The bits add up to -log2 of the probability of exactly this text under the generator. No model can expect
    to pay less, so their mean over held-out stories is the entropy floor of the corpus.

    noted:    what the plot says is true, in order: who has what, who is where (see Pen.fact for the kinds)
    mentions: every place where the text names or describes somebody or something that the story keeps track of
    entities: these somebodies and somethings, by the numbers in `mentions`: form -> text, "" the usual form
    """

    text: str
    choices: tuple[Choice, ...]
    plot: str
    noted: tuple[Fact, ...] = field(default=(), hash=False)
    mentions: tuple[Mention, ...] = ()
    entities: tuple[Mapping[str, str], ...] = field(default=(), hash=False)

    @cached_property
    def facts(self) -> tuple[Fact, ...]:
        """All that is known to be true: what the plot noted, who said what, and who felt how, in order."""
        listener = Listener(self.text, self.mentions, self.people)
        found = dict.fromkeys(map(key_of, self.noted))
        heard = [*listener.said(), *listener.felt(feelings())]
        return tuple(sorted([*self.noted, *(f for f in heard if key_of(f) not in found)], key=lambda fact: fact.at))

    @cached_property
    def people(self) -> dict[int, str]:
        """The names of all that have one, by number of the entity, in the order in which the story names them."""
        numbers = {texts[""]: number for number, texts in enumerate(self.entities) if "" in texts}
        return {numbers[name]: name for name in names_in(self.choices)}

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


def tell(
    seed: int,
    index: int,
    split: Split = "train",
    level: int = 1,
    held_out_names: bool = False,
    plot: str | None = None,
) -> Story:
    """Story number `index` of the endless book that `seed` opens; the two splits are two different books.

    level: 1, nine plots, or 2, which adds longer ones. held_out_names: the same story with names of another
    shape, which no other text of the world holds. plot: the only plot that it may have (then it is another
    story than without). The same arguments give the same story on every machine. Raises ValueError for an
    unknown split, level or plot.
    """
    author, plot = drafted(seed, index, split, level, held_out_names, plot)
    return finished(author, author.text, plot)


def drafted(
    seed: int, index: int, split: Split, level: int, held_out_names: bool, plot: str | None
) -> tuple[Author, str]:
    """The pen that has told a story of `tell`, and its plot; `finished` makes the story of both."""
    if split not in get_args(Split):
        raise ValueError(f"unknown split {split!r}: use 'train' or 'validation'")
    book = f"storyworld {split} {seed} {index}" + (f" level {level}" if level > 1 else "")
    author = Author(lexicon(), Random(book if plot is None else f"{book} {plot}"), held_out_names)
    return author, tell_with(author, level, plot)


def tell_many(
    seed: int, start: int, stop: int, split: Split = "train", level: int = 1, held_out_names: bool = False
) -> list[Story]:
    """Stories `start` to `stop - 1`, a unit of work for a process pool (safe under `spawn`)."""
    return [tell(seed, index, split, level, held_out_names) for index in range(start, stop)]


def read(text: str, level: int = 1, held_out_names: bool = False) -> Story:
    """The whole story behind a text, facts and mentions included: `read(story.text) == story`.

    Raises ValueError naming the character position and what was expected there, if the text is not a story of
    this level and these names (or, which the tests look for, could have been told in two ways).
    """
    reader = Reader(lexicon(), text, held_out_names)
    plot = tell_with(reader, level)
    reader.finish()
    return finished(reader, text, plot)


def parse(text: str, level: int = 1, held_out_names: bool = False) -> tuple[Choice, ...]:
    """The choices that made this text, each with its price: `parse(story.text) == story.choices`.

    Raises ValueError as `read` does.
    """
    return read(text, level, held_out_names).choices


def finished(pen: Pen, text: str, plot: str) -> Story:
    """What the pen kept of a story, with every entity replaced by its number or its usual text."""
    numbers = {id(entity): number for number, entity in enumerate(pen.entities)}
    mentions = tuple(Mention(start, end, numbers[id(who.chosen)], form) for start, end, who, form in pen.mentioned)
    facts = tuple(Fact(at, kind, resolved(kind, values)) for at, kind, values in pen.noted)
    return Story(text, tuple(pen.choices), plot, facts, mentions, tuple(entity.texts for entity in pen.entities))


def names_in(choices: Iterable[Choice]) -> list[str]:
    """The names that were chosen, in the order in which the story names them."""
    return [choice.option for choice in choices if choice.kind == "name"]


def key_of(fact: Fact) -> tuple[str, ...]:
    """What a fact says, wherever it is noted."""
    return (fact.kind, *fact.values.values())


def resolved(kind: str, values: Mapping[str, Entity | str]) -> dict[str, str]:
    """The texts of a fact's values, braces in strings filled in with the other values."""
    texts = {}
    for key, value in values.items():
        if isinstance(value, Entity):
            if "" not in value.chosen.texts:
                raise RuntimeError(f"the fact {kind!r} is about {key!r}, which the story has not named")
            texts[key] = value.chosen.texts[""]
    return texts | {key: value.format(**texts) for key, value in values.items() if isinstance(value, str)}
