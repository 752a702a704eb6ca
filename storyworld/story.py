"""Write stories with `tell`, and recover their choices from the text with `read`."""

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
# The plots of each level and their weights.
LEVELS = {1: (PLOTS, PLOT_WEIGHTS), 2: (LONG_PLOTS, LONG_PLOT_WEIGHTS)}


@dataclass(frozen=True)
class Story:
    """A story and the choices that made it."""

    text: str
    choices: tuple[Choice, ...]
    plot: str
    # the facts of the plot, in order; see Pen.fact
    noted: tuple[Fact, ...] = field(default=(), hash=False)
    # each place where the text names or describes an entity
    mentions: tuple[Mention, ...] = ()
    # form -> text of each entity, by the numbers in `mentions`; "" is the usual form
    entities: tuple[Mapping[str, str], ...] = field(default=(), hash=False)

    @cached_property
    def facts(self) -> tuple[Fact, ...]:
        """All facts in order: those of the plot, and those in the text (said and felt)."""
        # a plot may have noted what is also found in the text
        known = {(fact.kind, *fact.values.values()) for fact in self.noted}
        facts = list(self.noted)
        for fact in said_and_felt(self):
            if (fact.kind, *fact.values.values()) not in known:
                facts.append(fact)
        return tuple(sorted(facts, key=lambda fact: fact.at))

    @cached_property
    def people(self) -> dict[int, str]:
        """Number of the entity -> name, in the order in which the story names them."""
        numbers = {texts[""]: n for n, texts in enumerate(self.entities) if "" in texts}
        names = [choice.option for choice in self.choices if choice.kind == "name"]
        return {numbers[name]: name for name in names}

    @property
    def bits(self) -> float:
        # -log2 of the probability of exactly this text under the generator. No model can do better,
        # so the mean over held-out stories is the entropy floor of the corpus.
        return fsum(choice.bits for choice in self.choices)


def tell(
    seed: int,
    index: int,
    split: Split = "train",
    level: int = 1,
    held_out_names: bool = False,
    plot: str | None = None,
) -> Story:
    """Write story number `index` of this seed and split, the same one on every machine.

    - level: 1, nine plots, or 2, which adds longer ones.
    - held_out_names: the same story with names of another shape, which no training text holds.
    - plot: choose this plot. The story differs from the one without this argument.
    """
    book = f"storyworld {split} {seed} {index}"
    if level > 1:
        # or stories of both levels with one seed would begin with the same draws
        book += f" level {level}"
    if plot is not None:
        book += f" {plot}"
    return tell_with(Pen(Random(book), held_out_names), level, plot)


def read(text: str, level: int = 1, held_out_names: bool = False) -> Story:
    """Recover the whole story from a text: `read(story.text) == story`.

    Raises ValueError with the position and the expected text, if it is no story of this level.
    """
    reader = Reader(text, held_out_names)
    story = tell_with(reader, level)
    if reader.at != len(text):
        raise reader.error("the end of the story")
    return story


def tell_with(pen: Pen, level: int = 1, plot: str | None = None) -> Story:
    """Write a story with this pen. Without a plot, draw one of this level."""
    plots, weights = LEVELS[level]
    if plot is None:
        plot = pen.decide("plot", weights, lambda plot: pen.heads(f"{plot}.opening", {}))
    else:
        # not drawn, but it costs the same: the bits of a text are those under `tell`
        pen.choices.append(Choice("plot", plot, log2(sum(weights.values()) / weights[plot])))
    plots[plot](pen)
    return finished(pen, plot)


def finished(pen: Pen, plot: str) -> Story:
    """Return the story of a pen. Entities become numbers in mentions, and texts in facts."""
    # by identity: two entities may have equal texts
    numbers = {id(entity): number for number, entity in enumerate(pen.entities)}
    mentions = []
    for start, end, entity, form in pen.mentioned:
        mentions.append(Mention(start, end, numbers[id(entity.chosen)], form))
    facts = []
    for at, kind, values, cast in pen.noted:
        names = {role: who.texts[""] for role, who in cast.items() if "" in who.texts}
        texts = {}
        for key, value in values.items():
            texts[key] = value.format(**names) if isinstance(value, str) else value.texts[""]
        facts.append(Fact(at, kind, texts))
    entities = tuple(entity.texts for entity in pen.entities)
    return Story(pen.text, tuple(pen.choices), plot, tuple(facts), tuple(mentions), entities)


# Speech and feelings, found in the text

VERBS = "said cried whispered called laughed shouted sighed groaned moaned mumbled asked wondered"
VERBS += " begged told promised"
SAYING = f"(?:{'|'.join(VERBS.split())})"
QUOTE = re.compile(r'"([^"]+)"')
# "Oh!" said Tiko
SAID_BY = re.compile(f" {SAYING} ")
# "Oh!" Tiko proudly said
DID_SAY = re.compile(rf" (?:\w+ly )?{SAYING}\b")
# Tiko the fox said, "Oh!"
LEADS_IN = re.compile(rf"(?<!was ){SAYING}, $")
# The text between a subject and its verb; and the longer text if the sentence has one subject only.
BEFORE_SAID = re.compile(r" (?:\w+ly )?"), re.compile(r"[a-z, ]+")
BEFORE_WAS = re.compile(r"(?:, who| the (?:\w+ )?\w+)? "), re.compile(r" [a-z ]+ and ")


def said_and_felt(story: Story) -> Iterator[Fact]:
    """Find the facts of the kinds said and feels. Unclear ones are left out."""
    # A quote belongs to the mention (a name or "she") that a verb of saying connects it to, a
    # feeling to the mention before "was".
    text = story.text
    people = story.people
    subjects = [m for m in story.mentions if m.entity in people and m.form in ("", "he", "He")]
    by_start = {mention.start: mention for mention in subjects}

    def between(start: int, end: int) -> list[Mention]:
        return [mention for mention in subjects if start <= mention.start < end]

    def sentence_start(at: int) -> int:
        return 1 + max(text.rfind(mark, 0, at) for mark in '.!?"')

    def subject_of(verb: int, patterns: tuple[re.Pattern[str], ...]) -> list[Mention]:
        # the subject of the verb at this character; [] if it is unclear, as with two names
        possible = between(sentence_start(verb), verb)
        if len({mention.entity for mention in possible}) != 1:
            patterns = patterns[:1]
        last = possible[-1:]
        return [m for m in last if any(p.fullmatch(text, m.end, verb) for p in patterns)]

    for quote in QUOTE.finditer(text):
        said_by = SAID_BY.match(text, quote.end())
        # three forms: "Oh!" said Tiko | "Oh!" Tiko said | Tiko said, "Oh!"
        speaker = by_start.get(said_by.end() if said_by else quote.end() + 1)
        if said_by is None and speaker is not None:
            if not DID_SAY.match(text, speaker.end):
                speaker = None
        elif said_by is None:
            leads_in = LEADS_IN.search(text[: quote.start()])
            if leads_in:
                speaker = next(iter(subject_of(leads_in.start(), BEFORE_SAID)), None)
        if speaker is not None:
            yield Fact(quote.end(), "said", {"who": people[speaker.entity], "words": quote[1]})

    for felt in re.finditer(rf"\b(was|were|Feeling) ({feeling_words()})\b", text):
        start = felt.start()
        if felt[1] == "Feeling":
            # Feeling tired, she lay down
            after_comma = felt.end() + len(", ")
            who = between(after_comma, after_comma + 1)
        elif text.endswith("everyone ", 0, start):
            who = between(0, start)
        elif text.endswith("both ", 0, start):
            who = between(sentence_start(start), start)
        else:
            who = subject_of(start, BEFORE_WAS)
        for entity in dict.fromkeys(mention.entity for mention in who):
            yield Fact(felt.end(), "feels", {"who": people[entity], "feeling": felt[2]})
