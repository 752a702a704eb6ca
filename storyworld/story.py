"""Stories and what they cost: `tell` writes one, `read` recovers its choices from the text alone."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import fsum, log2
from random import Random
from typing import Literal

from .lexicon import feeling_words
from .long_plots import LONG_PLOT_WEIGHTS, LONG_PLOTS
from .pen import Choice, Fact, Mention, Pen, Reader
from .plots import PLOT_WEIGHTS, PLOTS

Split = Literal["train", "validation"]
LEVELS = {1: (PLOTS, PLOT_WEIGHTS), 2: (LONG_PLOTS, LONG_PLOT_WEIGHTS)}  # and how often each plot is told


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
        known = {(fact.kind, *fact.values.values()) for fact in self.noted}
        new = [fact for fact in said_and_felt(self) if (fact.kind, *fact.values.values()) not in known]
        return tuple(sorted([*self.noted, *new], key=lambda fact: fact.at))

    @cached_property
    def people(self) -> dict[int, str]:
        """The names of all that have one, by number of the entity, in the order in which the story names them."""
        numbers = {texts[""]: number for number, texts in enumerate(self.entities) if "" in texts}
        return {numbers[choice.option]: choice.option for choice in self.choices if choice.kind == "name"}

    @property
    def bits(self) -> float:
        """The whole price of the text, in bits."""
        return fsum(choice.bits for choice in self.choices)


def tell(
    seed: int, index: int, split: Split = "train", level: int = 1, held_out_names: bool = False, plot: str | None = None
) -> Story:
    """Story number `index` of the endless book that `seed` opens; the two splits are two different books.

    level: 1, nine plots, or 2, which adds longer ones. held_out_names: the same story with names of another
    shape, which no other text of the world holds. plot: the only plot that it may have (then it is another
    story than without). The same arguments give the same story on every machine.
    """
    book = f"storyworld {split} {seed} {index}" + (f" level {level}" if level > 1 else "")
    return tell_with(Pen(Random(book if plot is None else f"{book} {plot}"), held_out_names), level, plot)


def read(text: str, level: int = 1, held_out_names: bool = False) -> Story:
    """The whole story behind a text, with its choices, facts and mentions: `read(story.text) == story`.

    Raises ValueError naming the character position and what was expected there, if the text is not a story of
    this level and these names (or, which the tests look for, could have been told in two ways).
    """
    reader = Reader(text, held_out_names)
    story = tell_with(reader, level)
    if reader.at != len(text):
        raise reader.error("the end of the story")
    return story


def tell_with(pen: Pen, level: int = 1, plot: str | None = None) -> Story:
    """Choose a plot of this level (or take the one given), and tell it with this pen."""
    plots, weights = LEVELS[level]
    if plot is None:
        plot = pen.decide("plot", weights, lambda plot: pen.heads(f"{plot}.opening", {}))
    else:  # not drawn, but as dear as ever: the price of a text is that under `tell`
        pen.choices.append(Choice("plot", plot, log2(sum(weights.values()) / weights[plot])))
    plots[plot](pen)
    return finished(pen, plot)


def finished(pen: Pen, plot: str) -> Story:
    """What the pen kept of a story, with every entity replaced by its number or its usual text."""
    numbers = {id(entity): number for number, entity in enumerate(pen.entities)}
    mentions = tuple(Mention(start, end, numbers[id(who.chosen)], form) for start, end, who, form in pen.mentioned)
    facts = []
    for at, kind, values, cast in pen.noted:
        words = {role: who.texts[""] for role, who in cast.items() if "" in who.texts}
        texts = {key: v.format(**words) if isinstance(v, str) else v.texts[""] for key, v in values.items()}
        facts.append(Fact(at, kind, texts))
    entities = tuple(entity.texts for entity in pen.entities)
    return Story(pen.text, tuple(pen.choices), plot, tuple(facts), mentions, entities)


# Who said what, and who felt how

VERBS = "said cried whispered called laughed shouted sighed groaned moaned mumbled asked wondered begged told promised"
SAYING = f"(?:{'|'.join(VERBS.split())})"
QUOTE = re.compile(r'"([^"]+)"')
SAID_BY = re.compile(f" {SAYING} ")  # "Oh!" said Tiko
DID_SAY = re.compile(rf" (?:\w+ly )?{SAYING}\b")  # "Oh!" Tiko proudly said
LEADS_IN = re.compile(rf"(?<!was ){SAYING}, $")  # Tiko the fox said, "Oh!"
# What may stand between somebody and the verb; and what else may if nobody else is in the sentence.
BEFORE_SAID = re.compile(r" (?:\w+ly )?"), re.compile(r"[a-z, ]+")
BEFORE_WAS = re.compile(r"(?:, who| the (?:\w+ )?\w+)? "), re.compile(r" [a-z ]+ and ")


def said_and_felt(story: Story) -> Iterator[Fact]:
    """Reads from a told story who said what, and then who felt how.

    A mention tells whom the pen meant, be it by name or by "she". A quote belongs to the mention that a verb of
    saying ties it to, a feeling to the mention before "was". Where the text ties them to no one, no question is asked.
    """
    text, people = story.text, story.people
    subjects = [m for m in story.mentions if m.entity in people and m.form in ("", "he", "He")]  # of a sentence
    starting = {m.start: m for m in subjects}

    def since(start: int, end: int) -> list[Mention]:
        return [m for m in subjects if start <= m.start < end]

    def sentence_start(at: int) -> int:
        return 1 + max(text.rfind(mark, 0, at) for mark in '.!?"')

    def subject_of(verb: int, next_to: re.Pattern[str], alone: re.Pattern[str]) -> list[Mention]:
        """Who does what the verb at this character says; nobody where the text leaves that open."""
        possible = since(sentence_start(verb), verb)
        between = (next_to, alone) if len({m.entity for m in possible}) == 1 else (next_to,)
        return [m for m in possible[-1:] if any(words.fullmatch(text, m.end, verb) for words in between)]

    for quote in QUOTE.finditer(text):
        if verb := SAID_BY.match(text, quote.end()):
            speaker = starting.get(verb.end())
        elif speaker := starting.get(quote.end() + 1):
            speaker = speaker if DID_SAY.match(text, speaker.end) else None
        elif verb := LEADS_IN.search(text[: quote.start()]):
            speaker = next(iter(subject_of(verb.start(), *BEFORE_SAID)), None)
        if speaker is not None:
            yield Fact(quote.end(), "said", {"who": people[speaker.entity], "words": quote[1]})

    for felt in re.finditer(rf"\b(was|were|Feeling) ({feeling_words()})\b", text):
        start = felt.start()
        if felt[1] == "Feeling":  # Feeling tired, she lay down
            who = since(felt.end() + len(", "), felt.end() + len(", ") + 1)
        elif text.endswith("everyone ", 0, start):
            who = since(0, start)
        elif text.endswith("both ", 0, start):
            who = since(sentence_start(start), start)
        else:
            who = subject_of(start, *BEFORE_WAS)
        for entity in dict.fromkeys(m.entity for m in who):
            yield Fact(felt.end(), "feels", {"who": people[entity], "feeling": felt[2]})
