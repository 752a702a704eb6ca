"""The pen writes a story and records its choices; a reader recovers them from the text.

A story program (plots.py) calls its pen to write a beat; the pen chooses the wording and, at first
mention, the name, kind, colour or place. Every choice is visible in the very next characters. So a
Reader can run the same program over a finished text: at every choice, exactly one option's *head*
(its text up to the next choice) fits.
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

# The number of words in a song.
SONG_LENGTHS = range(16, 29)
WORD = re.compile(r"[a-zA-Z]*")
# A function that returns the heads of an option.
Heads = Callable[[str], Iterable[str]]


class Choice(NamedTuple):
    """One choice in a story."""

    # "plot", "branch" (the next event), "beat:hide.first" (its wording), "word" (in a sentence),
    # "who", "name", a facet in words.yaml ("kind"), "song" (a nonsense word), "song:end"
    kind: str
    # a word, the key of a branch, or the number of a wording
    option: str
    # -log2 of its probability, given the text before it
    bits: float


class Fact(NamedTuple):
    """A fact that is true from character `at` on; see Pen.fact for the kinds and their values."""

    at: int
    kind: str
    values: dict[str, str]


class Mention(NamedTuple):
    """Characters `start` to `end` of a story mention its entity number `entity`."""

    start: int
    end: int
    entity: int
    form: str


class Entity:
    """A person, thing or place of a story. Its texts are chosen one facet at a time."""

    def __init__(self, role: Mapping[str, Pool | str]):
        # form -> the pool that it is chosen from
        self.role = role
        # form -> text
        self.texts: dict[str, str] = {}
        # an entity stands for itself; a OneOf gets the entity that was drawn
        self.chosen: Entity = self


class OneOf(Entity):
    """One of several entities. The first mention sets `chosen`."""

    def __init__(self, *candidates: Entity):
        super().__init__({})
        self.candidates = candidates


class Pen:
    """The writer: it draws every choice and keeps the text."""

    def __init__(self, rng: Random, held_out: bool = False):
        # only this method: its numbers are the same in every version of Python, those of `choice`
        # are not
        self.random = rng.random
        self.held_out = held_out
        self.lexicon = lexicon()
        self.text = ""
        # the number of characters written or read so far
        self.at = 0
        self.choices: list[Choice] = []
        self.entities: list[Entity] = []
        self.noted: list[tuple[int, str, Mapping[str, Entity | str], Mapping[str, Entity]]] = []
        self.mentioned: list[tuple[int, int, Entity, str]] = []
        # the used words of each facet, and the unused wordings of each beat
        self.taken: dict[str, set[str]] = defaultdict(set)
        self.unused: dict[str, list[str]] = {}

    def write(self, text: str) -> None:
        self.text += text
        self.at += len(text)

    def choose(self, options: Sequence[str], cumulative: Sequence[float], heads: Heads) -> int:
        """Choose an option by the sums of the weights; return its number."""
        # the first option whose sum is above the drawn number
        return bisect(cumulative, self.random() * cumulative[-1])

    def choose_invented(self, kind: str, words: Sequence[str], taken: Collection[str]) -> str:
        """Choose a "name" or a "song" word that is not taken, each equally likely."""
        while True:
            # few words of thousands are taken: to draw again is quicker than to list the free ones
            word = words[int(self.random() * len(words))]
            if word not in taken:
                return word

    def new(self, role: str) -> Entity:
        """Create an entity of a role in words.yaml."""
        # all its texts are open until they are mentioned
        self.entities.append(Entity(self.lexicon.roles[role]))
        return self.entities[-1]

    def cast(self, **roles: str) -> dict[str, Entity]:
        """Create entities under the names of a plot: `cast(hero="friend", toy="thing")`."""
        return {name: self.new(role) for name, role in roles.items()}

    def fact(self, kind: str, **values: Entity | str) -> None:
        """Note a fact that is true from here on. Most facts are in the YAML of a beat instead.

        An entity is recorded as its usual text. In a string, {key} is the text of another value or
        of a role of the beat.

        - has (who, thing): who alone holds the thing now.
        - at (what, place): a thing or character is there, until another "at" or "has" moves it.
        - lost (what): the thing has no owner; "at" may note its place.
        - wants (who, thing)
        - did (who, deed): "found the {toy}". Deeds are in the order of the story; one that may have
          happened earlier has no `deed`.
        - feels (who, feeling): "sad"; said (who, words). story.py finds both.

        `asked`: all questions about this fact, if the general ones do not fit: "Where did {what}
        hide?|Where was {what} hiding?" With kind `did`, it holds questions about the order ("Who
        helped first?"); `who_did` holds the others ("Who broke the seal?").
        """
        roles = {key: value for key, value in values.items() if isinstance(value, Entity)}
        self.noted.append((self.at, kind, values, roles))

    def say(self, *keys: str, **cast: Entity) -> None:
        """Write these beats, each a sentence or two."""
        for key in keys:
            if self.at:
                self.write(" ")
            self._tell(key, cast)

    def say_either(self, weights: Mapping[str, float], **cast: Entity) -> str:
        """Draw one of several beats, write it, and return its key."""
        if self.at:
            self.write(" ")
        key = self.decide("branch", weights, lambda key: self.heads(key, cast))
        self._tell(key, cast)
        return key

    def decide(self, kind: str, weights: Mapping[str, float], heads: Heads) -> str:
        """Draw an option by its weight, and record the choice."""
        # what cannot happen must not be an option: a reader would look for its text
        options = [option for option, weight in weights.items() if weight]
        # the weights 1, 2, 1 are the intervals up to 1, 3, 4
        cumulative = list(accumulate(weights[option] for option in options))
        option = options[self.choose(options, cumulative, heads)]
        self.choices.append(Choice(kind, option, log2(cumulative[-1] / weights[option])))
        return option

    def heads(self, key: str, cast: Mapping[str, Entity]) -> list[str]:
        """Return the possible beginnings of a beat for this cast."""
        templates = self.lexicon.beats[key].templates
        # if all wordings were used, they may come again
        heads: list[str] = []
        for label in self.unused.get(key) or templates:
            heads += heads_of(templates[label], cast)
        return heads

    def _tell(self, key: str, cast: Mapping[str, Entity]) -> None:
        beat = self.lexicon.beats[key]
        # a repeated beat gets another wording
        labels = self.unused.get(key) or list(beat.templates)
        used = self._say(beat, labels, cast)
        self.unused[key] = [label for label in labels if label != used]
        for kind, values in beat.facts:
            entities = {name: cast.get(value, value) for name, value in values.items()}
            self.noted.append((self.at, kind, entities, cast))

    def _say(self, beat: Beat, labels: Iterable[str], cast: Mapping[str, Entity]) -> str:
        templates = beat.templates
        weights = dict.fromkeys(labels, 1)
        label = self.decide(beat.kind, weights, lambda label: heads_of(templates[label], cast))
        for part in templates[label]:
            if isinstance(part, str):
                self.write(part)
            elif isinstance(part, Beat):
                self._say(part, part.templates, cast)
            else:
                entity = cast[part.role]
                start = self.at
                if part.form in entity.texts:
                    self.write(entity.texts[part.form])
                else:
                    self._settle(entity, part.form)
                self.mentioned.append((start, self.at, entity, part.form))
        return label

    def _settle(self, entity: Entity, form: str) -> None:
        # an open text is chosen here, at first mention
        # the role of a OneOf is empty until an entity is drawn
        if isinstance(entity, OneOf) and not entity.role:
            candidates = {candidate.texts[form]: candidate for candidate in entity.candidates}
            text = self.decide("who", dict.fromkeys(candidates, 1), lambda text: (text,))
            entity.chosen = candidates[text].chosen
            entity.role = entity.chosen.role
            entity.texts = entity.chosen.texts
            self.write(text)
            return
        # a pool, "name" or "song"
        pool = entity.role[form]
        if pool == "song":
            entity.texts[form] = self._song()
            return
        if isinstance(pool, Pool):
            texts = pool.texts
            taken = self.taken[pool.facet]
            weights = {word: 1 for word in texts if word not in taken}
            word = self.decide(pool.facet, weights, lambda word: (texts[word][form],))
            # with all its other forms: "fox", "a fox", "den"
            entity.texts.update(texts[word])
            if pool.facet != "gender":
                taken.add(word)
        else:
            taken = self.taken["name"]
            name = self._invent("name", held_out_names() if self.held_out else names(), taken)
            entity.texts[form] = name
            taken.add(name)
        self.write(entity.texts[form])

    def _invent(self, kind: str, words: Sequence[str], taken: Collection[str]) -> str:
        word = self.choose_invented(kind, words, taken)
        # each free word is equally likely; in a song, no word is ever taken
        self.choices.append(Choice(kind, word, log2(len(words) - len(taken))))
        return word

    def _song(self) -> str:
        song: list[str] = []
        # A full stop always follows a song, so that its end is visible. The weights make all of
        # SONG_LENGTHS equally likely.
        heads = {"end": (".",), "on": (" ",)}
        while True:
            song.append(self._invent("song", self.lexicon.song_words, ()))
            self.write(song[-1])
            # the number of greater lengths
            longer = SONG_LENGTHS[-1] - len(song)
            if not longer:
                break
            if len(song) >= SONG_LENGTHS.start:
                weights = {"end": 1, "on": longer}
                if self.decide("song:end", weights, heads.__getitem__) == "end":
                    break
            self.write(" ")
        return " ".join(song)


class Reader(Pen):
    """The reader of a finished text. Raises ValueError unless exactly one option fits."""

    def __init__(self, text: str, held_out: bool = False):
        # nothing is drawn
        super().__init__(Random(0), held_out)
        self.text = text

    def write(self, text: str) -> None:
        if not self.text.startswith(text, self.at):
            raise self.error(repr(text))
        self.at += len(text)

    def choose(self, options: Sequence[str], cumulative: Sequence[float], heads: Heads) -> int:
        # if two fitted, the probability of the text would not be the product of its choices
        fitting = []
        for number, option in enumerate(options):
            for text in heads(option):
                # in whole words: "ball" does not fit at "balloon"
                end = self.at + len(text)
                ends_in_word = text[-1:].isalpha() and self.text[end : end + 1].isalpha()
                if self.text.startswith(text, self.at) and not ends_in_word:
                    fitting.append(number)
                    break
        if len(fitting) == 1:
            return fitting[0]
        expected = " or ".join(repr(text) for option in options for text in heads(option))
        raise self.error(f"only one of {expected}" if fitting else expected)

    def choose_invented(self, kind: str, words: Sequence[str], taken: Collection[str]) -> str:
        word = WORD.match(self.text, self.at)[0]  # type: ignore[index]
        possible = name_set(self.held_out) if kind == "name" else words
        if word not in possible or word in taken:
            raise self.error("a new name or a word of a song")
        return word

    def error(self, expected: str) -> ValueError:
        rest = self.text[self.at : self.at + 30] or "the end of the text"
        return ValueError(f"character {self.at}: expected {expected}, found {rest!r}")


def heads_of(parts: Sequence[Part], cast: Mapping[str, Entity]) -> Iterable[str]:
    """Return the heads of a template: its text up to the next choice, or the options of that."""
    head = ""
    for part in parts:
        if isinstance(part, str):
            head += part
            continue
        if isinstance(part, Slot):
            # a settled text belongs to the head, an open one ends it
            entity = cast.get(part.role)
            if entity and part.form in entity.texts:
                head += entity.texts[part.form]
                continue
            pool = entity.role.get(part.form) if entity else None
            # it begins with a choice, whose options are the heads
            if not head and isinstance(pool, Pool):
                return [texts[part.form] for texts in pool.texts.values()]
        elif not head:
            return [text for option in part.templates.values() for text in heads_of(option, cast)]
        break
    return (head,)
