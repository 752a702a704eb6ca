"""What story programs write with, and the choices that are recorded while they do.

A story program (plots.py) never draws a random number. It asks its pen to say a beat; the pen chooses the
wording and, at first mention, the name, kind, colour or place of whatever is mentioned. Every choice shows
itself in the very next characters. So a Reader that runs the same program over a finished text sees at every
choice which option was taken, because exactly one option's *head* (what it would write up to the next choice)
stands at the cursor. If two did, the text could be told in two ways and its probability would not be the
product of its choices; the Reader refuses such a text, and the tests look for one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from math import log2
from typing import NamedTuple

from .lexicon import Beat, Lexicon, Part, Pool, Slot
from .names import held_out_name_set, held_out_names, name_set, names

SONG_LENGTHS = range(16, 29)  # words
PRONOUNS = frozenset(("He", "he", "him", "his", "His"))


class Choice(NamedTuple):
    """One choice in a story, and its price under the generator.

    kind:   "plot"; "branch", what happens next; "beat:hide.first", how that is said; "word", a choice inside
            a sentence; "who" of several; at first mention "name", "kind", "trait", "gender", "thing",
            "colour", "clothes", "place", "time", "food" or "dish" and, at level 2, "seal", "saying", "day",
            "errand", "insult", "seat", "flock" or "number"; "song", a nonsense word; "song:end", whether the
            song stops there
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

    __slots__ = ("role", "texts")

    def __init__(self, role: Mapping[str, Pool | str]):
        self.role = role  # form -> the pool that settles it
        self.texts: dict[str, str] = {}  # form -> text

    @property
    def chosen(self) -> "Entity":
        return self


class OneOf(Entity):
    """One of several entities, chosen when it is first mentioned; `chosen` tells which, after that."""

    __slots__ = ("_chosen", "candidates")

    def __init__(self, *candidates: Entity):
        super().__init__({})
        self.candidates = candidates
        self._chosen: Entity | None = None

    @property
    def chosen(self) -> Entity:
        if self._chosen is None:
            raise RuntimeError("nothing has mentioned this entity yet, so nothing has chosen it")
        return self._chosen.chosen

    def settle(self, entity: Entity) -> None:
        self._chosen, self.role, self.texts = entity, entity.role, entity.texts


class Pen:
    """What a story program may ask for. A kind of pen adds `write`, `choose` and `choose_invented`."""

    def __init__(self, lexicon: Lexicon, held_out: bool = False):
        self.lexicon = lexicon
        self.names = held_out_names() if held_out else names()
        self.name_set = held_out_name_set() if held_out else name_set()
        self.choices: list[Choice] = []
        self.at = 0  # characters written or read so far
        self.entities: list[Entity] = []
        self.noted: list[tuple[int, str, dict[str, Entity | str]]] = []
        self.mentioned: list[tuple[int, int, Entity, str]] = []
        self.taken: dict[str, set[str]] = {"name": set()}  # facet -> words in use
        self.untold: dict[str, list[int]] = {}  # beat -> wordings not yet used in this story
        self.begun = False

    def write(self, text: str) -> object:
        """Put down literal text (Author), or check that it stands there (Reader)."""
        raise NotImplementedError

    def choose(self, n: int, heads: Callable[[int], Iterable[str]], cumulative: Sequence[float] = ()) -> int:
        """Which of n options is taken. `heads(i)`: what option i may write first. Equal odds unless given."""
        raise NotImplementedError

    def choose_invented(self, words: Sequence[str], known: frozenset[str], taken: Iterable[str]) -> str:
        """One of many invented `words` (`known`, for looking up) that is not `taken`, each equally likely."""
        raise NotImplementedError

    def new(self, role: str) -> Entity:
        """Someone or something of a role in words.yaml, with everything about it still open."""
        self.entities.append(Entity(self.lexicon.roles[role]))
        return self.entities[-1]

    def fact(self, kind: str, **values: Entity | str) -> None:
        """Note what is true in the story from here on. Draws nothing and writes nothing.

        kind and values (an entity stands for its usual text, a name or a noun; in a string {key} stands
        for the text of another value):
        has    who, thing    from now on who holds the thing, and nobody else does
        at     what, place   from now on a thing or a character is at the place, until somebody has the thing
                             or another "at" moves it
        lost   what          from now on the thing's owner is unknown (its place may be noted with "at")
        wants  who, thing    who would like to have the thing
        did    who, deed     a deed in the past tense without its subject, in the order of the story:
                             "found the {toy}" (with toy=toy). Without `deed` it is not put in order with
                             others, for what is told later may have happened before or meanwhile
        feels  who, feeling  "sad", "full of joy": fits after "{who} was". Noted by itself (speech.py) where a
                             beat says so with one of the feelings in questions.yaml
        said   who, words    the words between the quotes. Noted by itself (speech.py) where a beat has a verb
                             of saying and a slot beside the quote

        `asked`, for has, at, wants and did: the only ways to ask for this fact, where the general ones ("Where
        was {what} at the end of the story?") would not do, separated by bars. They begin with "Who" or "Where":
        "Where did {what} hide?|Where was {what} hiding?" For did they ask for the order ("Who helped first?");
        `who_did` holds those that do not ("Who broke the seal?").
        """
        self.noted.append((self.at, kind, values))

    def say(self, key: str, **cast: Entity) -> int:
        """Write one beat as the next sentence (or two). Returns the number of its wording."""
        self._space()
        return self._tell(key, cast)

    def say_either(self, weights: Mapping[str, float], **cast: Entity) -> str:
        """Let chance decide which of several beats happens, and write it. Returns its key."""
        self._space()
        key = self.decide("branch", weights, lambda key: self.heads(key, cast))
        self._tell(key, cast)
        return key

    def decide(self, kind: str, weights: Mapping[str, float], heads: Callable[[str], Iterable[str]]) -> str:
        """Choose a key of `weights`; `heads(key)` are the ways in which the text may continue with it."""
        weights = {key: weight for key, weight in weights.items() if weight}
        keys = list(weights)
        cumulative = list(accumulate(weights.values()))
        key = keys[self.choose(len(keys), lambda i: heads(keys[i]), cumulative)]
        self.choices.append(Choice(kind, key, log2(cumulative[-1] / weights[key])))
        return key

    def heads(self, key: str, cast: Mapping[str, Entity]) -> list[str]:
        """How a beat may begin, given what is known about its cast."""
        beat = self.lexicon.beats[key]
        return [text for n in self._fresh(beat) for text in heads_of(beat.templates[n], cast)]

    def _space(self) -> None:
        if self.begun:
            self.write(" ")
        self.begun = True

    def _fresh(self, beat: Beat) -> Sequence[int]:
        """A beat that is told again picks among the wordings that this story has not used yet."""
        return self.untold.get(beat.key) or range(len(beat.templates))

    def _tell(self, key: str, cast: Mapping[str, Entity]) -> int:
        beat = self.lexicon.beats[key]
        templates, fresh = beat.templates, self._fresh(beat)
        template = fresh[self.choose(len(fresh), lambda i: heads_of(templates[fresh[i]], cast))]
        self.choices.append(Choice(beat.key, beat.labels[template], log2(len(fresh))))
        self.untold[beat.key] = [other for other in fresh if other != template]
        self._render(templates[template], cast)
        return template

    def _render(self, parts: Sequence[Part], cast: Mapping[str, Entity]) -> None:
        for part in parts:
            if isinstance(part, str):
                self.write(part)
            elif isinstance(part, Slot):
                entity, start = cast[part.role], self.at
                text = entity.texts.get(part.form)
                if text is None:
                    self._settle(entity, part.form)
                else:
                    self.write(text)
                self.mentioned.append((start, self.at, entity, part.form))
            else:
                options = part.templates
                n = self.choose(len(options), lambda i, options=options: heads_of(options[i], cast))  # type: ignore[misc]
                self.choices.append(Choice("word", part.labels[n], log2(len(options))))
                self._render(options[n], cast)

    def _settle(self, entity: Entity, form: str) -> None:
        """Choose what this mention needs and is not known yet, and write it."""
        if isinstance(entity, OneOf) and not entity.role:
            candidates = entity.candidates
            n = self.choose(len(candidates), lambda i: (candidates[i].texts[form],))
            entity.settle(candidates[n])
            self.choices.append(Choice("who", entity.texts[form], log2(len(candidates))))
            self.write(entity.texts[form])
            return
        if form in PRONOUNS and "kind" not in entity.texts:
            raise RuntimeError("mention the kind before the first pronoun, for a girl is always a she")
        pool = entity.role[form]
        if isinstance(pool, Pool):
            entity.texts.update(pool.texts[self._word(pool, form)])
            self.write(entity.texts[form])
        else:
            entity.texts[form] = self._name() if pool == "name" else self._song()

    def _word(self, pool: Pool, form: str) -> str:
        """Choose a word of the pool that nothing else in the story has."""
        taken, texts = self.taken.setdefault(pool.facet, set()), pool.texts
        words = [word for word in texts if word not in taken]
        word = words[self.choose(len(words), lambda i: (texts[words[i]][form],))]
        if not pool.shared:
            taken.add(word)
        self.choices.append(Choice(pool.facet, word, log2(len(words))))
        return word

    def _name(self) -> str:
        """Choose and write a new name."""
        taken = self.taken["name"]
        name = self.choose_invented(self.names, self.name_set, taken)
        self.choices.append(Choice("name", name, log2(len(self.names) - len(taken))))
        self.write(name)
        taken.add(name)
        return name

    def _song(self) -> str:
        """Choose and write a song. A full stop always follows it, so its end shows in the next character."""
        words, known = self.lexicon.song_words, self.lexicon.song_word_set
        song: list[str] = []
        while True:
            word = self.choose_invented(words, known, ())
            self.choices.append(Choice("song", word, log2(len(words))))
            self.write(word)
            song.append(word)
            if self._song_ends(len(song)):
                return " ".join(song)
            self.write(" ")

    def _song_ends(self, length: int) -> bool:
        """Whether the song stops at this length; every length of SONG_LENGTHS is equally likely."""
        if length < SONG_LENGTHS.start or length == SONG_LENGTHS[-1]:
            return length == SONG_LENGTHS[-1]
        longer = SONG_LENGTHS[-1] - length  # how many greater lengths there are
        heads = {"end": ".", "on": " "}
        return self.decide("song:end", {"end": 1, "on": longer}, lambda key: (heads[key],)) == "end"


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
            return (known,) if known else [t for option in part.templates for t in heads_of(option, cast)]
    return (known,)
