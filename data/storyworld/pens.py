"""Two pens for one story program: an Author who draws the choices, a Reader who recovers them from the text.

A story program (plots.py) never draws a random number. It asks its pen to say a beat; the pen chooses the
wording and, at first mention, the name, kind, colour or place of whatever is mentioned. Every choice shows
itself in the very next characters that are written. So the Reader, running the same program over a finished text,
sees at every choice which option was taken, because exactly one option's *head* (what it would write up to
the next choice) stands at the cursor. If two did, the text could be told in two ways and its probability
would not be the product of the choices; the Reader refuses such a text, and the tests look for one.
"""

from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from math import log2
from random import Random
from typing import NamedTuple

from .lexicon import Beat, Lexicon, Pool, Slot
from .names import name_set, names

SONG_LENGTHS = range(12, 21)  # words


class Choice(NamedTuple):
    """One choice in a story, and its price under the generator.

    kind:   "plot", "branch" (what happens next), "beat:hide.find" (how it is said), "word" (a small choice of words),
            "who", "name", "kind", "trait", "noun", "colour", "place", "gender", ..., "song" (a nonsense word),
            "song:end" (does the song stop here)
    option: what was chosen, as text
    bits:   -log2 of its probability, given everything before it
    """

    kind: str
    option: str
    bits: float


PRONOUNS = frozenset(("He", "he", "him", "his", "His", "himself"))


class Entity:
    """Somebody or something in a story. Its texts are settled one facet at a time, when they are first needed."""

    __slots__ = ("role", "texts")

    def __init__(self, role: dict[str, Pool | str]):
        self.role = role
        self.texts: dict[str, str] = {}  # form -> text


class OneOf(Entity):
    """One of several entities; which one is chosen when it is first mentioned. Read `.chosen` after that."""

    __slots__ = ("candidates", "_chosen")

    def __init__(self, candidates: Sequence[Entity]):
        super().__init__({})
        self.candidates = candidates
        self._chosen: Entity | None = None

    @property
    def chosen(self) -> Entity:
        if self._chosen is None:
            raise RuntimeError("the sentence did not mention this entity by name, so nothing chose it")
        return self._chosen

    def settle(self, entity: Entity) -> None:
        self._chosen, self.role, self.texts = entity, entity.role, entity.texts


class Pen:
    """What a story program may ask for. Author and Reader differ in `write`, `choose` and `choose_invented` alone."""

    def __init__(self, lexicon: Lexicon):
        self.lexicon = lexicon
        self.choices: list[Choice] = []
        self.taken: dict[str, set[str]] = {"name": set()}  # facet -> words in use
        self.untold: dict[str, list[int]] = {}  # beat -> templates not yet used in this story
        self.begun = False

    # What the two pens do differently

    def write(self, text: str) -> object:
        """Put down literal text (Author) or check that it stands there (Reader)."""
        raise NotImplementedError

    def choose(self, options: Sequence, heads: Callable[[int], Iterable[str]], cumulative: Sequence[float] = ()) -> int:
        """The position of the option taken. `heads(i)`: what option i may write first. Equal weights unless given."""
        raise NotImplementedError

    def choose_invented(self, words: Sequence[str], is_word: Callable[[str], bool], taken: Iterable[str]) -> str:
        """One of many invented words, each equally likely, that is not taken."""
        raise NotImplementedError

    # What story programs call

    def new(self, role: str) -> Entity:
        """Someone or something of a role in words.yaml, with everything about it still open."""
        return Entity(self.lexicon.roles[role])

    def say(self, key: str, **cast: Entity) -> None:
        """Write one beat as the next sentence (or two)."""
        if self.begun:
            self.write(" ")
        self.begun = True
        self._tell(key, cast)

    def say_either(self, weights: dict[str, float], **cast: Entity) -> str:
        """Let chance decide which of several beats happens, and write it. Returns its key."""
        if self.begun:
            self.write(" ")
        self.begun = True
        key = self.decide("branch", weights, lambda key: self.heads(key, cast))
        self._tell(key, cast)
        return key

    def decide(self, kind: str, weights: dict[str, float], heads: Callable[[str], Iterable[str]]) -> str:
        """Choose one key of `weights`; `heads(key)` are the ways in which the text may go on if it is chosen."""
        keys = list(weights)
        cumulative = list(accumulate(weights.values()))
        key = keys[self.choose(keys, lambda i: heads(keys[i]), cumulative)]
        self.choices.append(Choice(kind, key, log2(cumulative[-1] / weights[key])))
        return key

    def heads(self, key: str, cast: dict[str, Entity]) -> list[str]:
        """How a beat may begin, given what is known about its cast."""
        beat = self.lexicon.beats[key]
        return [head(beat.templates[n], cast) for n in self._open_templates(beat)]

    # How a sentence is made

    def _open_templates(self, beat: Beat) -> Sequence[int]:
        """A beat that is told again picks among the wordings it has not used yet in this story."""
        return self.untold.get(beat.key) or range(len(beat.templates))

    def _tell(self, key: str, cast: dict[str, Entity]) -> None:
        beat = self.lexicon.beats[key]
        open_templates = self._open_templates(beat)
        templates = beat.templates
        n = 0
        if len(open_templates) > 1:
            n = self.choose(open_templates, lambda i: (head(templates[open_templates[i]], cast),))
        template = open_templates[n]
        self.choices.append(Choice(beat.key, beat.labels[template], log2(len(open_templates))))
        self.untold[beat.key] = [other for other in open_templates if other != template]
        self._render(templates[template], cast)

    def _render(self, parts: Sequence[str | Slot | Beat], cast: dict[str, Entity]) -> None:
        write = self.write
        for part in parts:
            if part.__class__ is str:
                write(part)
            elif part.__class__ is Slot:
                entity = cast[part.role]
                text = entity.texts.get(part.form)
                if text is None:
                    self._settle(entity, part.form)
                else:
                    write(text)
            else:
                options = part.templates
                n = self.choose(options, lambda i, options=options: (head(options[i], cast),))
                self.choices.append(Choice("word", part.labels[n], log2(len(options))))
                self._render(options[n], cast)

    def _settle(self, entity: Entity, form: str) -> None:
        """Choose what this mention needs and is not known yet, and write it."""
        if entity.__class__ is OneOf and not entity.role:
            candidates = entity.candidates
            n = self.choose(candidates, lambda i: (candidates[i].texts[form],))
            entity.settle(candidates[n])
            self.choices.append(Choice("who", entity.texts[form], log2(len(candidates))))
            self.write(entity.texts[form])
            return
        pool = entity.role[form]
        if form in PRONOUNS and "kind" not in entity.texts:
            raise RuntimeError("mention the kind before the first pronoun: a girl is always a she")
        if pool == "name":
            text = entity.texts[form] = self._name()
        elif pool == "song":
            entity.texts[form] = self._song()
            return
        else:
            word = self._word(pool, form)
            entity.texts.update(pool.texts[word])
            text = entity.texts[form]
        self.write(text)

    def _word(self, pool: Pool, form: str) -> str:
        taken = self.taken.setdefault(pool.facet, set())
        words = [word for word in pool.texts if word not in taken]
        texts = pool.texts
        word = words[self.choose(words, lambda i: (texts[words[i]][form],))]
        if not pool.shared:
            taken.add(word)
        self.choices.append(Choice(pool.facet, word, log2(len(words))))
        return word

    def _name(self) -> str:
        taken = self.taken["name"]
        name = self.choose_invented(names(), name_set().__contains__, taken)
        self.choices.append(Choice("name", name, log2(len(names()) - len(taken))))
        taken.add(name)
        return name

    def _song(self) -> str:
        """Write a song of nonsense words. A full stop always follows it, so its end shows in the next character."""
        words = self.lexicon.song_words
        song: list[str] = []
        while True:
            word = self.choose_invented(words, words.__contains__, ())
            self.choices.append(Choice("song", word, log2(len(words))))
            self.write(word)
            song.append(word)
            if self._song_ends(len(song)):
                return " ".join(song)
            self.write(" ")

    def _song_ends(self, length: int) -> bool:
        """Whether the song stops at this length; every length of SONG_LENGTHS is equally likely."""
        if length not in SONG_LENGTHS:
            return False
        lengths_left = SONG_LENGTHS.stop - length
        if lengths_left == 1:
            return True
        n = self.choose(("end", "on"), (".", " ").__getitem__, (1, lengths_left))
        self.choices.append(Choice("song:end", ("end", "on")[n], log2(lengths_left / (1, lengths_left - 1)[n])))
        return n == 0


def head(parts: Sequence[str | Slot | Beat], cast: dict[str, Entity]) -> str:
    """The text that a template begins with, as far as it is known before any further choice."""
    known = []
    for part in parts:
        if part.__class__ is Slot:
            entity = cast.get(part.role)
            part = entity and entity.texts.get(part.form)
        if part.__class__ is not str:
            break
        known.append(part)
    return "".join(known)


class Author(Pen):
    """Draws every choice and keeps the text."""

    def __init__(self, lexicon: Lexicon, rng: Random):
        super().__init__(lexicon)
        self.written: list[str] = []
        self.write = self.written.append
        self.random = rng.random

    @property
    def text(self) -> str:
        return "".join(self.written)

    def choose(self, options, heads, cumulative=()):
        if cumulative:
            return bisect(cumulative, self.random() * cumulative[-1])
        return int(self.random() * len(options))

    def choose_invented(self, words, is_word, taken):
        while True:
            word = words[int(self.random() * len(words))]
            if word not in taken:
                return word


class Reader(Pen):
    """Recovers the choices from a text, or raises ValueError naming the character and what was expected there."""

    def __init__(self, lexicon: Lexicon, text: str):
        super().__init__(lexicon)
        self.text = text
        self.at = 0

    def write(self, text):
        if not self.text.startswith(text, self.at):
            raise self._error(repr(text))
        self.at += len(text)

    def choose(self, options, heads, cumulative=()):
        candidates = [tuple(heads(n)) for n in range(len(options))]
        fitting = [n for n, texts in enumerate(candidates) if any(map(self._stands_here, texts))]
        if len(fitting) == 1:
            return fitting[0]
        expected = " or ".join(repr(text) for texts in candidates for text in texts)
        if fitting:
            raise self._error(f"only one to fit of {expected}")
        raise self._error(expected)

    def choose_invented(self, words, is_word, taken):
        end = self.at
        while self.text[end : end + 1].isalpha():
            end += 1
        word = self.text[self.at : end]
        if not is_word(word) or word in taken:
            raise self._error("an invented word (a new name, or a word of a song)")
        return word

    def finish(self) -> None:
        """Nothing may follow the story."""
        if self.at != len(self.text):
            raise self._error("the end of the story")

    def _stands_here(self, text: str) -> bool:
        end = self.at + len(text)
        if not self.text.startswith(text, self.at):
            return False
        return not (text[-1:].isalpha() and self.text[end : end + 1].isalpha())  # "ball" does not stand in "balloon"

    def _error(self, expected: str) -> ValueError:
        found = self.text[self.at : self.at + 30] or "the end of the text"
        return ValueError(f"character {self.at}: expected {expected}, found {found!r}")
