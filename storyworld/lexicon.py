"""Read the words and sentences of the world from YAML, once, when the first story is told.

`words.yaml` has pools of words. Each word has *forms*: the fox is "fox" or "a fox", lives in a
"den" and likes "berries". `beats/*.yaml` has the sentences: a *beat* is one event, with one
template a line for each wording:

    give: |
      {giver} gave the {toy} to {taker}.
      "May I have a turn?" asked {taker}, and {giver} [smiled and nodded|agreed at once].

`{giver}` mentions a character, `{giver.kind}` another form of it, `[a|b]` is a small choice of
words and `[@glad]` a choice from the list of that name in `words.yaml`. The facts after a beat are
under `facts` in the same file.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import yaml

HERE = Path(__file__).parent
# A choice in brackets, which may hold one more: [a [big|small] fox|a hen].
CHOICE = re.compile(r"(\[(?:[^][]|\[[^][]*\])*\])")
# A bar outside of inner brackets.
BAR = re.compile(r"\|(?![^\[]*\])")
# {giver.kind}
SLOT = re.compile(r"\{([\w.]+)\}")


class Slot(NamedTuple):
    """A mention of `role` in a template, in one of its forms; "" is the usual one."""

    role: str
    form: str


@dataclass(frozen=True, eq=False)
class Beat:
    """One event, or one small choice of words, with all its wordings."""

    # Its choice among templates is recorded as this: "beat:hide.first", or "word" in a sentence.
    kind: str
    # Number, or text in brackets -> the parts of the template.
    templates: Mapping[str, tuple["Part", ...]]
    # (kind, values) of the facts after it, see Pen.fact.
    facts: tuple[tuple[str, Mapping[str, str]], ...] = ()


Part: TypeAlias = str | Slot | Beat


@dataclass(frozen=True, eq=False)
class Pool:
    """Words for one facet (kind, colour, place...) of an entity, each equally likely."""

    # no two entities of a story share a word of a facet, except "gender": two can be "she"
    facet: str
    # word -> form -> text
    texts: Mapping[str, Mapping[str, str]]


class Lexicon(NamedTuple):
    """The words and sentences that a pen needs."""

    # "hide.first" -> Beat
    beats: Mapping[str, Beat]
    # "friend" -> {"": "name", "kind": Pool, ...}
    roles: Mapping[str, Mapping[str, Pool | str]]
    song_words: tuple[str, ...]


@cache
def wordings(file: str) -> dict[str, Any]:
    """Read a YAML file of this folder; a text of several lines becomes a list."""

    def lines(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: lines(inner) for key, inner in value.items()}
        return value.splitlines() if isinstance(value, str) and "\n" in value else value

    # the C loader is ten times as fast, but not always built
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return lines(yaml.load((HERE / f"{file}.yaml").read_text(encoding="utf-8"), Loader=loader))


@cache
def lexicon() -> Lexicon:
    """Read words.yaml and the beats."""
    words = wordings("words")
    lists = {name: text.split(", ") for name, text in words["lists"].items()}
    pools = {name: _pool(spec, words["pronouns"]) for name, spec in words["pools"].items()}
    pools["gender"] = Pool("gender", words["pronouns"])
    roles: dict[str, dict[str, Pool | str]] = {}
    for role, spec in words["roles"].items():
        roles[role] = {}
        for name in spec.split():
            if name in pools:
                # a pool decides the forms that all of its words have
                forms = set.intersection(*map(set, pools[name].texts.values()))
                roles[role] |= dict.fromkeys(forms, pools[name])
            else:
                # "name" and "song" are invented
                roles[role][""] = name
    beats = {}
    for path in sorted((HERE / "beats").glob("*.yaml")):
        plot = wordings(f"beats/{path.stem}")
        for name in plot.keys() - {"facts"}:
            # the numbers are recorded as choices
            templates = {str(n): _compiled(line, lists) for n, line in enumerate(plot[name])}
            facts: list = []
            for fact in plot.get("facts", {}).get(name, ()):
                facts += fact.items()
            key = f"{path.stem}.{name}"
            beats[key] = Beat(f"beat:{key}", templates, tuple(facts))
    return Lexicon(beats, roles, tuple(words["song_words"].split()))


def _pool(spec: dict[str, Any], pronouns: dict[str, dict[str, str]]) -> Pool:
    # spec: {facet: kind, words: {fox: {home: den}, ...}}; articles and pronouns are added
    plain = spec.get("plain", spec["facet"])
    more_forms_of = spec["words"]
    # words without other forms are one text
    if isinstance(more_forms_of, str):
        more_forms_of = {word: {} for word in more_forms_of.split(", ")}
    # in the order of the file: a drawn number stands for a place in it, so new words go to the end
    # of a list only with a new STORYWORLD_VERSION
    texts = {}
    for word, more_forms in more_forms_of.items():
        # by the letter: words.yaml has no "hour" and no "unicorn"
        article = "an" if word[0] in "aeiou" else "a"
        forms = {plain: word, f"a_{plain}".rstrip("_"): f"{article} {word}", **more_forms}
        texts[word] = forms | pronouns.get(forms.pop("gender", ""), {})
    return Pool(spec["facet"], texts)


def _compiled(line: str, lists: Mapping[str, list[str]]) -> tuple[Part, ...]:
    parts: list[Part] = []
    for piece in CHOICE.split(line):
        if piece.startswith("["):
            options: list[str] = []
            for option in BAR.split(piece[1:-1]):
                options += lists[option[1:]] if option.startswith("@") else [option]
            templates = {option: _compiled(option, lists) for option in options}
            # a single option is no choice
            parts += [Beat("word", templates)] if len(options) > 1 else templates[options[0]]
            continue
        # every second piece is a slot
        for n, text in enumerate(SLOT.split(piece)):
            if n % 2:
                # {giver} alone has the form ""
                role, _, form = text.partition(".")
                parts.append(Slot(role, form))
            elif text:
                parts.append(text)
    return tuple(parts)


@cache
def feelings() -> tuple[str, ...]:
    """All feelings that questions ask for."""
    return tuple(wordings("questions")["feelings"].split(", "))


@cache
def feeling_words() -> str:
    """A pattern for any feeling."""
    # the longest come first: "very tired" is not "tired"
    return "|".join(sorted(feelings(), key=len, reverse=True))


def words_of(role: str, form: str) -> Mapping[str, Mapping[str, str]]:
    """Return the words for a form of a role, each with its forms."""
    pool = lexicon().roles[role][form]
    assert isinstance(pool, Pool)
    return pool.texts


@cache
def place_sorts() -> dict[str, frozenset[str]]:
    """Places, hiding places and seats, as they answer "where"."""
    sorts = ("place", "spot", "seat")
    return {
        sort: frozenset(texts["at"] for texts in words_of(sort, "at").values()) for sort in sorts
    }
