"""What story programs write with, and the choices that are recorded while they do.

A story program (plots.py) never draws a random number. It asks its pen to say a beat; the pen chooses the
wording and, at first mention, the name, kind, colour or place of whatever is mentioned. Every choice shows
itself in the very next characters. So a Reader that runs the same program over a finished text sees at every
choice which option was taken, because exactly one option's *head* (what it would write up to the next choice)
stands at the cursor. If two did, the text could be told in two ways and its probability would not be the
product of its choices; the Reader refuses such a text, and the tests look for one.
"""

import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from math import log2
from random import Random
from typing import NamedTuple

from .lexicon import Beat, Part, Pool, Slot, lexicon
from .names import held_out_names, name_set, names

SONG_LENGTHS = range(16, 29)  # words
WORD = re.compile(r"[a-zA-Z]*")
Heads = Callable[[str], Iterable[str]]  # how the text may go on with an option


class Choice(NamedTuple):
    """One choice in a story, and its price under the generator.

    kind:   "plot"; "branch", what happens next; "beat:hide.first", how that is said; "word", a choice inside
            a sentence; "who" of several; at first mention "name" or the facet of a pool in words.yaml ("kind",
            "place"); "song", a nonsense word; "song:end", whether the song stops there
    option: what was chosen: a word, the key of a branch, the number of a wording
    bits:   -log2 of its probability, given all that stands before it
    """

    kind: str
    option: str
    bits: float


class Fact(NamedTuple):
    """Something that is true in a story from character `at` on; see Pen.fact for the kinds and their values."""

    at: int
    kind: str
    values: dict[str, str]


class Mention(NamedTuple):
    """Characters `start` to `end` of a story were written for a form of its entity number `entity`."""

    start: int
    end: int
    entity: int
    form: str


class Entity:
    """Somebody or something in a story. Its texts are settled one facet at a time, when first needed."""

    def __init__(self, role: Mapping[str, Pool | str]):
        self.role = role  # form -> the pool that settles it
        self.texts: dict[str, str] = {}  # form -> text
        self.chosen: Entity = self


class OneOf(Entity):
    """One of several entities, chosen when it is first mentioned; `chosen` tells which, after that."""

    def __init__(self, *candidates: Entity):
        super().__init__({})
        self.candidates = candidates


class Pen:
    """Writes: it draws every choice and keeps the text. A Reader finds the choices of a text that is written."""

    def __init__(self, rng: Random, held_out: bool = False):
        self.random = rng.random
        self.held_out = held_out
        self.lexicon = lexicon()
        self.text = ""
        self.at = 0  # characters written or read so far
        self.choices: list[Choice] = []
        self.entities: list[Entity] = []
        self.noted: list[tuple[int, str, Mapping[str, Entity | str], Mapping[str, Entity]]] = []
        self.mentioned: list[tuple[int, int, Entity, str]] = []
        self.taken: dict[str, set[str]] = defaultdict(set)  # facet -> words in use
        self.untold: dict[str, list[str]] = {}  # beat -> wordings not yet used in this story

    def write(self, text: str) -> None:
        """Put down literal text."""
        self.text += text
        self.at += len(text)

    def choose(self, options: Sequence[str], cumulative: Sequence[float], heads: Heads) -> int:
        """The number of the option that is taken, by the sums of their weights."""
        return bisect(cumulative, self.random() * cumulative[-1])

    def choose_invented(self, kind: str, words: Sequence[str], taken: Collection[str]) -> str:
        """One of the `words` of this kind ("name" or "song") that is not `taken`, each equally likely."""
        while (word := words[int(self.random() * len(words))]) in taken:
            pass
        return word

    def new(self, role: str) -> Entity:
        """Someone or something of a role in words.yaml, with everything about it still open."""
        self.entities.append(Entity(self.lexicon.roles[role]))
        return self.entities[-1]

    def cast(self, **roles: str) -> dict[str, Entity]:
        """New entities under the names that a plot gives them: `cast(hero="friend", toy="thing")`."""
        return {name: self.new(role) for name, role in roles.items()}

    def fact(self, kind: str, **values: Entity | str) -> None:
        """Note what is true in the story from here on. Draws nothing and writes nothing.

        Most facts stand in the YAML of a beat, under `facts`. kind and values (an entity stands for its usual
        text, a name or a noun; in a string {key} stands for the text of another value, or of a role of the beat):
        has    who, thing    from now on who holds the thing, and nobody else does
        at     what, place   from now on a thing or a character is at the place, until somebody has the thing
                             or another "at" moves it
        lost   what          from now on the thing's owner is unknown (its place may be noted with "at")
        wants  who, thing    who would like to have the thing
        did    who, deed     a deed in the past tense without its subject, in the order of the story:
                             "found the {toy}" (with toy=toy). Without `deed` it is not put in order with
                             others, for what is told later may have happened before or meanwhile
        feels  who, feeling  "sad", "full of joy": fits after "{who} was". This and the next note themselves
        said   who, words    the words between the quotes (said_and_felt in story.py)

        `asked`, for has, at, wants and did: the only ways to ask for this fact, where the general ones ("Where
        was {what} at the end of the story?") would not do, separated by bars. They begin with "Who" or "Where":
        "Where did {what} hide?|Where was {what} hiding?" For did they ask for the order ("Who helped first?");
        `who_did` holds those that do not ("Who broke the seal?").
        """
        self.noted.append((self.at, kind, values, {k: v for k, v in values.items() if isinstance(v, Entity)}))

    def say(self, *keys: str, **cast: Entity) -> None:
        """Write one beat after the other, each a sentence or two."""
        for key in keys:
            if self.at:
                self.write(" ")
            self._tell(key, cast)

    def say_either(self, weights: Mapping[str, float], **cast: Entity) -> str:
        """Let chance decide which of several beats happens, and write it. Returns its key."""
        if self.at:
            self.write(" ")
        key = self.decide("branch", weights, lambda key: self.heads(key, cast))
        self._tell(key, cast)
        return key

    def decide(self, kind: str, weights: Mapping[str, float], heads: Heads) -> str:
        """Choose an option, as often as the weights say, and record it."""
        options = [option for option, weight in weights.items() if weight]
        cumulative = list(accumulate(weights[option] for option in options))
        option = options[self.choose(options, cumulative, heads)]
        self.choices.append(Choice(kind, option, log2(cumulative[-1] / weights[option])))
        return option

    def heads(self, key: str, cast: Mapping[str, Entity]) -> list[str]:
        """How a beat may begin, given what is known about its cast."""
        templates = self.lexicon.beats[key].templates
        labels = self.untold.get(key) or list(templates)
        return [text for label in labels for text in heads_of(templates[label], cast)]

    def _tell(self, key: str, cast: Mapping[str, Entity]) -> None:
        beat = self.lexicon.beats[key]
        fresh = self.untold.get(key) or list(beat.templates)  # told again, it is told in other words
        label = self._say(beat, fresh, cast)
        self.untold[key] = [other for other in fresh if other != label]
        for kind, values in beat.facts:
            self.noted.append((self.at, kind, {key: cast.get(value, value) for key, value in values.items()}, cast))

    def _say(self, beat: Beat, labels: Iterable[str], cast: Mapping[str, Entity]) -> str:
        """Choose one of these templates and write it: literal text, mentions, and small choices of words."""
        label = self.decide(beat.kind, dict.fromkeys(labels, 1), lambda label: heads_of(beat.templates[label], cast))
        for part in beat.templates[label]:
            if isinstance(part, str):
                self.write(part)
            elif isinstance(part, Beat):
                self._say(part, part.templates, cast)
            else:
                entity, start = cast[part.role], self.at
                if part.form in entity.texts:
                    self.write(entity.texts[part.form])
                else:
                    self._settle(entity, part.form)
                self.mentioned.append((start, self.at, entity, part.form))
        return label

    def _settle(self, entity: Entity, form: str) -> None:
        """Choose and write what this mention needs and is not known yet."""
        if isinstance(entity, OneOf) and not entity.role:
            candidates = {candidate.texts[form]: candidate for candidate in entity.candidates}
            text = self.decide("who", dict.fromkeys(candidates, 1), lambda text: (text,))
            entity.chosen = candidates[text].chosen
            entity.role, entity.texts = entity.chosen.role, entity.chosen.texts
        elif isinstance(pool := entity.role[form], Pool):  # a word of it that nothing else in the story has
            taken = self.taken[pool.facet]
            weights = {word: 1 for word in pool.texts if word not in taken}
            word = self.decide(pool.facet, weights, lambda word: (pool.texts[word][form],))
            if pool.facet != "gender":
                taken.add(word)
            entity.texts.update(pool.texts[word])
        elif pool == "song":
            entity.texts[form] = self._song()
            return
        else:
            taken = self.taken["name"]
            entity.texts[form] = self._invent("name", held_out_names() if self.held_out else names(), taken)
            taken.add(entity.texts[form])
        self.write(entity.texts[form])

    def _invent(self, kind: str, words: Sequence[str], taken: Collection[str]) -> str:
        word = self.choose_invented(kind, words, taken)
        self.choices.append(Choice(kind, word, log2(len(words) - len(taken))))
        return word

    def _song(self) -> str:
        """Every length of SONG_LENGTHS is equally likely. A full stop always follows a song, so its end shows."""
        song: list[str] = []
        heads = {"end": (".",), "on": (" ",)}
        while True:
            song.append(self._invent("song", self.lexicon.song_words, ()))
            self.write(song[-1])
            longer = SONG_LENGTHS[-1] - len(song)  # how many greater lengths there are
            weights, may_end = {"end": 1, "on": longer}, len(song) >= SONG_LENGTHS.start
            if not longer or (may_end and self.decide("song:end", weights, heads.__getitem__) == "end"):
                return " ".join(song)
            self.write(" ")


class Reader(Pen):
    """Follows the text with a finger, `at`. Raises ValueError where no option stands, or more than one."""

    def __init__(self, text: str, held_out: bool = False):
        super().__init__(Random(0), held_out)  # from which nothing is drawn
        self.text = text

    def write(self, text: str) -> None:
        if not self.text.startswith(text, self.at):
            raise self.error(repr(text))
        self.at += len(text)

    def choose(self, options: Sequence[str], cumulative: Sequence[float], heads: Heads) -> int:
        fitting = [n for n, option in enumerate(options) if any(self._stands_here(text) for text in heads(option))]
        if len(fitting) == 1:
            return fitting[0]
        expected = " or ".join(repr(text) for option in options for text in heads(option))
        raise self.error(f"only one of {expected}" if fitting else expected)

    def choose_invented(self, kind: str, words: Sequence[str], taken: Collection[str]) -> str:
        word = WORD.match(self.text, self.at)[0]  # type: ignore[index]
        if word not in (name_set(self.held_out) if kind == "name" else words) or word in taken:
            raise self.error("a new name or a word of a song")
        return word

    def _stands_here(self, text: str) -> bool:
        """Whether this text stands at the finger in whole words: "ball" does not stand in "balloon"."""
        end = self.at + len(text)
        in_a_word = text[-1:].isalpha() and self.text[end : end + 1].isalpha()
        return self.text.startswith(text, self.at) and not in_a_word

    def error(self, expected: str) -> ValueError:
        rest = self.text[self.at : self.at + 30] or "the end of the text"
        return ValueError(f"character {self.at}: expected {expected}, found {rest!r}")


def heads_of(parts: Sequence[Part], cast: Mapping[str, Entity]) -> Iterable[str]:
    """How a template may begin: its text up to the next choice or, if that stands first, its options."""
    known = ""
    for part in parts:
        if isinstance(part, str):
            known += part
        elif isinstance(part, Slot):
            entity = cast.get(part.role)
            text = entity.texts.get(part.form) if entity else None
            if text is not None:
                known += text
                continue
            pool = entity.role.get(part.form) if entity and not known else None
            return [texts[part.form] for texts in pool.texts.values()] if isinstance(pool, Pool) else (known,)
        else:
            return (known,) if known else [t for option in part.templates.values() for t in heads_of(option, cast)]
    return (known,)
