"""The words and sentences of the world, read from YAML once, when the first story is told.

`words.yaml` holds pools of words; each word has *forms*: the fox is "fox" but also "a fox", lives in a "den"
and likes "berries". `beats/*.yaml` holds the sentences: a *beat* is one thing that happens, with one
template a line for each way of saying it:

    give: |
      {giver} gave the {toy} to {taker}.
      "May I have a turn?" asked {taker}, and {giver} [smiled and nodded|agreed at once].

`{giver}` mentions a character, `{giver.kind}` another form of it, `[a|b]` is a small choice of words and
`[@glad]` a choice from the list of that name in `words.yaml`. What is true after a beat stands under
`facts` in the same file.

`questions.yaml` and `conversations.yaml` say how a story is asked and talked about.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import yaml

HERE = Path(__file__).parent
# A choice in brackets, which may hold one more; a bar outside of inner brackets; a slot.
CHOICE = re.compile(r"(\[(?:[^][]|\[[^][]*\])*\])")
BAR = re.compile(r"\|(?![^\[]*\])")
SLOT = re.compile(r"\{([\w.]+)\}")


class Slot(NamedTuple):
    """Where a template mentions `role`, in one of its forms; "" is the usual one (a name, a noun)."""

    role: str
    form: str


@dataclass(frozen=True, eq=False)
class Beat:
    """One thing that happens (or one small choice of words) and the ways to say it."""

    kind: str  # of the choice among its templates: "beat:hide.first", or "word" for a choice inside a sentence
    templates: Mapping[str, tuple["Part", ...]]  # a number, or what stands in the brackets -> its parts
    facts: tuple[tuple[str, Mapping[str, str]], ...] = ()  # what is true after it: (kind, values), see Pen.fact


Part: TypeAlias = str | Slot | Beat


@dataclass(frozen=True, eq=False)
class Pool:
    """Words that can fill one facet (kind, colour, place...) of something in a story, each equally likely.

    Two things in one story never share a word of a facet, but for "gender": two can be "she".
    """

    facet: str
    texts: Mapping[str, Mapping[str, str]]  # word -> form -> text


class Lexicon(NamedTuple):
    """All that a pen needs to know about words. A role maps each form to the pool that settles it."""

    beats: Mapping[str, Beat]  # "hide.first" -> Beat
    roles: Mapping[str, Mapping[str, Pool | str]]  # "friend" -> {"": "name", "kind": Pool, ...}
    song_words: tuple[str, ...]


@cache
def wordings(file: str) -> dict[str, Any]:
    """Everything in a YAML file of this folder; a text of several lines is a list of wordings."""

    def lines(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: lines(inner) for key, inner in value.items()}
        return value.splitlines() if isinstance(value, str) and "\n" in value else value

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # where it was built, the C one is ten times as quick
    return lines(yaml.load((HERE / f"{file}.yaml").read_text(encoding="utf-8"), Loader=loader))


@cache
def lexicon() -> Lexicon:
    """Read the YAML files, once per process."""
    words = wordings("words")
    lists = {name: text.split(", ") for name, text in words["lists"].items()}
    pools = {name: make_pool(spec, words["pronouns"]) for name, spec in words["pools"].items()}
    pools["gender"] = Pool("gender", words["pronouns"])
    roles: dict[str, dict[str, Pool | str]] = {}
    for role, spec in words["roles"].items():
        roles[role] = {}
        for name in spec.split():
            if name in pools:  # it settles the forms that all of its words have
                roles[role] |= dict.fromkeys(set.intersection(*map(set, pools[name].texts.values())), pools[name])
            else:  # "name" and "song" are not pools of words: their texts are invented
                roles[role][""] = name
    beats = {}
    for path in sorted((HERE / "beats").glob("*.yaml")):
        beats_of_plot = wordings(f"beats/{path.stem}")
        for name in beats_of_plot.keys() - {"facts"}:
            templates = {str(n): compile_template(line, lists) for n, line in enumerate(beats_of_plot[name])}
            facts = beats_of_plot.get("facts", {}).get(name, ())
            noted = tuple(pair for fact in facts for pair in fact.items())
            beats[f"{path.stem}.{name}"] = Beat(f"beat:{path.stem}.{name}", templates, noted)
    return Lexicon(beats, roles, tuple(words["song_words"].split()))


def make_pool(spec: dict[str, Any], pronouns: dict[str, dict[str, str]]) -> Pool:
    """From `{facet: kind, words: {fox: {home: den}, ...}}`, adding articles (and pronouns for a girl)."""
    plain, words = spec.get("plain", spec["facet"]), spec["words"]
    texts = {}
    for word in words.split(", ") if isinstance(words, str) else words:
        more_forms = {} if isinstance(words, str) else words[word]
        with_article = ("an " if word[0] in "aeiou" else "a ") + word
        forms = {plain: word, f"a_{plain}".rstrip("_"): with_article, **more_forms}
        texts[word] = forms | pronouns.get(forms.pop("gender", ""), {})
    return Pool(spec["facet"], texts)


def compile_template(line: str, lists: Mapping[str, list[str]]) -> tuple[Part, ...]:
    """Cut one template into literal text, slots and small choices, so that telling it needs no searching."""
    parts: list[Part] = []
    for piece in CHOICE.split(line):
        if piece.startswith("["):
            options: list[str] = []
            for option in BAR.split(piece[1:-1]):
                options += lists[option[1:]] if option.startswith("@") else [option]
            templates = {option: compile_template(option, lists) for option in options}
            parts += [Beat("word", templates)] if len(options) > 1 else templates[options[0]]
            continue
        for n, text in enumerate(SLOT.split(piece)):
            if n % 2:
                role, _, form = text.partition(".")
                parts.append(Slot(role, form))
            elif text:
                parts.append(text)
    return tuple(parts)


@cache
def feelings() -> tuple[str, ...]:
    """All feelings that can be asked for."""
    return tuple(wordings("questions")["feelings"].split(", "))


@cache
def feeling_words() -> str:
    """A pattern for any of them. The longest come first: "very tired" is not "tired"."""
    return "|".join(sorted(feelings(), key=len, reverse=True))


def words_of(role: str, form: str) -> Mapping[str, Mapping[str, str]]:
    """Every word that the lexicon offers for a role, with each of its forms."""
    pool = lexicon().roles[role][form]
    assert isinstance(pool, Pool)
    return pool.texts


@cache
def place_sorts() -> dict[str, frozenset[str]]:
    """How the places of each sort answer "where": places, hiding places, seats."""
    sorts = ("place", "spot", "seat")
    return {sort: frozenset(texts["at"] for texts in words_of(sort, "at").values()) for sort in sorts}
