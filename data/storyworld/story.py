"""Stories and what they cost: `tell` writes one, `parse` recovers its choices from the text alone."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import fsum, log2
from random import Random
from typing import Literal, get_args

from .lexicon import feelings, lexicon
from .long_plots import LONG_PLOT_WEIGHTS, LONG_PLOTS
from .pen import Author, Choice, Fact, Mention, Pen, Reader
from .plots import PLOT_WEIGHTS, PLOTS

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
        listener = Listener(self)
        known = {(fact.kind, *fact.values.values()) for fact in self.noted}
        heard = [*listener.said(), *listener.felt()]
        new = [fact for fact in heard if (fact.kind, *fact.values.values()) not in known]
        return tuple(sorted([*self.noted, *new], key=lambda fact: fact.at))

    @cached_property
    def people(self) -> dict[int, str]:
        """The names of all that have one, by number of the entity, in the order in which the story names them."""
        numbers = {texts[""]: number for number, texts in enumerate(self.entities) if "" in texts}
        return {numbers[name]: name for name in names_in(self.choices)}

    @property
    def bits(self) -> float:
        """The whole price of the text, in bits."""
        return fsum(choice.bits for choice in self.choices)


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
    """Stories `start` to `stop - 1`."""
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


def tell_with(pen: Pen, level: int = 1, plot: str | None = None) -> str:
    """Choose a plot of this level (or take the one given), tell it with this pen and return the plot's name."""
    plots, weights = plots_of(level)
    if plot is None:
        plot = pen.decide("plot", weights, lambda plot: pen.heads(f"{plot}.opening", {}))
    elif plot in plots:  # not drawn, but as dear as ever: the price of a text is that under `tell`
        pen.choices.append(Choice("plot", plot, log2(sum(weights.values()) / weights[plot])))
    else:
        raise ValueError(f"unknown plot {plot!r} at level {level}: use one of {', '.join(plots)}")
    plots[plot](pen)
    return plot


def plots_of(level: int) -> tuple[Mapping[str, Callable[[Pen], None]], Mapping[str, int]]:
    """The plots of a level and how often each is told: level 1 is plots.py, level 2 adds long_plots.py."""
    if level not in (1, 2):
        raise ValueError(f"unknown level {level!r}: use 1 (nine plots) or 2 (longer ones too)")
    return (PLOTS, PLOT_WEIGHTS) if level == 1 else (LONG_PLOTS, LONG_PLOT_WEIGHTS)


def finished(pen: Pen, text: str, plot: str) -> Story:
    """What the pen kept of a story, with every entity replaced by its number or its usual text."""
    numbers = {id(entity): number for number, entity in enumerate(pen.entities)}
    mentions = tuple(Mention(start, end, numbers[id(who.chosen)], form) for start, end, who, form in pen.mentioned)
    facts = []
    for at, kind, values, cast in pen.noted:
        words = {role: who.chosen.texts[""] for role, who in cast.items() if "" in who.chosen.texts}
        texts = {key: v.format(**words) if isinstance(v, str) else v.chosen.texts[""] for key, v in values.items()}
        facts.append(Fact(at, kind, texts))
    return Story(text, tuple(pen.choices), plot, tuple(facts), mentions, tuple(entity.texts for entity in pen.entities))


def names_in(choices: Iterable[Choice]) -> list[str]:
    """The names that were chosen, in the order in which the story names them."""
    return [choice.option for choice in choices if choice.kind == "name"]


# Who said what, and who felt how

VERBS = "said cried whispered called laughed shouted sighed groaned moaned mumbled asked wondered begged told promised"
SAYING = f"(?:{'|'.join(VERBS.split())})"
QUOTE = re.compile(r'"([^"]+)"')
SAID_BY = re.compile(f" {SAYING} ")  # "Oh!" said Tiko
DID_SAY = re.compile(rf" (?:\w+ly )?{SAYING}\b")  # "Oh!" Tiko proudly said
LEADS_IN = re.compile(rf"(?<!was ){SAYING}, $")  # Tiko the fox said, "Oh!"
SUBJECTS = ("", "he", "He")  # the forms in which somebody can be the subject of a sentence
# What may stand between somebody and the verb; and what else may if nobody else is in the sentence.
NEXT_TO_SAID, ALONE_WITH_SAID = re.compile(r" (?:\w+ly )?"), re.compile(r"[a-z, ]+")
NEXT_TO_WAS, ALONE_WITH_WAS = re.compile(r"(?:, who| the (?:\w+ )?\w+)? "), re.compile(r" [a-z ]+ and ")


class Listener:
    """Reads from a told story who said what and who felt how.

    A mention tells whom the pen meant, be it by name or by "she". A quote belongs to the mention that a verb of
    saying ties it to, a feeling to the mention before "was". Where the text ties them to no one, no question is asked.
    """

    def __init__(self, story: Story):
        self.text = story.text
        self.people = story.people
        self.subjects = [m for m in story.mentions if m.entity in story.people and m.form in SUBJECTS]
        self.starting = {m.start: m for m in self.subjects}

    def said(self) -> Iterator[Fact]:
        """A fact for every quote that somebody is tied to."""
        for quote in QUOTE.finditer(self.text):
            if verb := SAID_BY.match(self.text, quote.end()):
                speaker = self.starting.get(verb.end())
            elif speaker := self.starting.get(quote.end() + 1):
                speaker = speaker if DID_SAY.match(self.text, speaker.end) else None
            elif verb := LEADS_IN.search(self.text[: quote.start()]):
                speaker = self.subject_of(verb.start(), NEXT_TO_SAID, ALONE_WITH_SAID)
            if speaker is not None:
                yield Fact(quote.end(), "said", {"who": self.people[speaker.entity], "words": quote[1]})

    def felt(self) -> Iterator[Fact]:
        """A fact for everybody of whom the text says that he, she, both or everyone felt something."""
        words = "|".join(sorted(feelings(), key=len, reverse=True))
        for match in re.finditer(rf"\b(?:was|were|Feeling) ({words})\b", self.text):
            before = self.text[: match.start()]
            if match[0].startswith("Feeling"):  # Feeling tired, she lay down
                subjects = [m for m in self.subjects if m.start == match.end() + len(", ")]
            elif before.endswith(("everyone ", "both ")):
                since = 0 if before.endswith("everyone ") else self.sentence(match.start())
                subjects = [m for m in self.subjects if since <= m.start < match.start()]
            else:
                subject = self.subject_of(match.start(), NEXT_TO_WAS, ALONE_WITH_WAS)
                subjects = [subject] if subject else []
            for entity in dict.fromkeys(m.entity for m in subjects):
                yield Fact(match.end(), "feels", {"who": self.people[entity], "feeling": match[1]})

    def subject_of(self, verb: int, next_to: re.Pattern[str], alone: re.Pattern[str]) -> Mention | None:
        """Who does what the verb at this character says."""
        subjects = [m for m in self.subjects if self.sentence(verb) <= m.start < verb]
        if not subjects:
            return None
        last = subjects[-1]
        only = len({m.entity for m in subjects}) == 1
        fits = next_to.fullmatch(self.text, last.end, verb) or (only and alone.fullmatch(self.text, last.end, verb))
        return last if fits else None

    def sentence(self, at: int) -> int:
        """Where the sentence begins that holds this character."""
        return 1 + max(self.text.rfind(mark, 0, at) for mark in '.!?"')
