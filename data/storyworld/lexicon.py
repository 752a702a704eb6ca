"""The words and sentences of the world, read from YAML once, when the first story is told.

`words.yaml` holds pools of words; each word has *forms*: the fox is "fox" but also "a fox", lives in a "den"
and likes "berries". `beats/*.yaml` holds the sentences: a *beat* is one thing that happens, with one
template a line for each way of saying it:

    give: |
      {giver} gave the {toy} to {taker}.
      "May I have a turn?" asked {taker}, and {giver} [smiled and nodded|agreed at once].

`{giver}` mentions a character, `{giver.kind}` another form of it, `[a|b]` is a small choice of words and
`[@glad]` the list of that name in `words.yaml`.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

HERE = Path(__file__).parent
PIECE = re.compile(r"\{(\w+)(?:\.(\w+))?\}|\[([^\]]+)\]")


class Slot(NamedTuple):
    """A place in a template where `role` is mentioned in one of its forms; "" is the usual one (name, noun)."""

    role: str
    form: str


@dataclass(frozen=True, eq=False)
class Beat:
    """One thing that happens (or one small choice of words) and the ways to say it."""

    key: str  # "beat:hide.find", or "word" for a choice inside a sentence
    labels: tuple[str, ...]
    templates: tuple[tuple["str | Slot | Beat", ...], ...]


@dataclass(frozen=True, eq=False)
class Pool:
    """Words that can fill one facet (kind, colour, place...) of something in the story, each equally likely.

    Two things in one story never share a word of the same facet, unless the pool is `shared` (two can be "she").
    """

    facet: str
    texts: dict[str, dict[str, str]]  # word -> form -> text
    shared: bool = False


@dataclass(frozen=True)
class Lexicon:
    """Everything a pen needs to know about words. A role maps each form to the pool that settles it."""

    beats: dict[str, Beat]  # "hide.find" -> Beat
    roles: dict[str, dict[str, Pool | str]]  # "friend" -> {"": "name", "kind": Pool, ...}
    song_words: tuple[str, ...]


@cache
def lexicon() -> Lexicon:
    """Read the YAML files (once per process)."""
    words = read_yaml(HERE / "words.yaml")
    lists = {name: text.split(", ") for name, text in words["lists"].items()}
    pools = {name: make_pool(spec, words["pronouns"]) for name, spec in words["pools"].items()}
    pools["gender"] = Pool("gender", words["pronouns"], shared=True)
    roles = {name: make_role(spec.split(), pools) for name, spec in words["roles"].items()}
    beats = {}
    for path in sorted((HERE / "beats").glob("*.yaml")):
        for name, lines in read_yaml(path).items():
            key = f"{path.stem}.{name}"
            templates = tuple(compile_template(line, lists) for line in lines.splitlines())
            beats[key] = Beat(f"beat:{key}", tuple(str(n) for n in range(len(templates))), templates)
    return Lexicon(beats, roles, tuple(words["song_words"].split()))


def read_yaml(path: Path) -> dict:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one is ten times as quick, where it is built
    return yaml.load(path.read_text(encoding="utf-8"), Loader=loader)


def make_pool(spec: dict, pronouns: dict[str, dict[str, str]]) -> Pool:
    """From `{facet: kind, words: {fox: {home: den}, ...}}`; adds the article and, for a boy or girl, the pronouns."""
    texts = {}
    facet, plain = spec["facet"], spec.get("plain", spec["facet"])
    words = spec["words"]
    if isinstance(words, str):
        words = {word: {} for word in words.split(", ")}
    for word, extra in words.items():
        forms = {plain: word, f"a_{plain}".rstrip("_"): with_article(word)} | {k: str(v) for k, v in extra.items()}
        forms |= pronouns.get(forms.pop("gender", ""), {})
        texts[word] = forms
    return Pool(facet, texts)


def with_article(word: str) -> str:
    return ("an " if word[0] in "aeiou" else "a ") + word


def make_role(pool_names: list[str], pools: dict[str, Pool]) -> dict[str, Pool | str]:
    """Which pool settles which form. "name" and "song" are no pools of words: their texts are invented."""
    role: dict[str, Pool | str] = {}
    for name in pool_names:
        if name in ("name", "song"):
            role[""] = name
        else:
            pool = pools[name]
            every_word = pool.texts.values()
            role |= {form: pool for forms in every_word for form in forms if all(form in other for other in every_word)}
    return role


def compile_template(line: str, lists: dict[str, list[str]]) -> tuple[str | Slot | Beat, ...]:
    """Cut one template into literal text, slots and small choices, so that telling it needs no regular expression."""
    parts: list[str | Slot | Beat] = []
    end = 0
    for match in PIECE.finditer(line):
        parts.append(line[end : match.start()])
        role, form, choice = match.groups()
        if role:
            parts.append(Slot(role, form or ""))
        else:
            options = lists[choice[1:]] if choice.startswith("@") else choice.split("|")
            parts.append(Beat("word", tuple(options), tuple(compile_template(option, lists) for option in options)))
        end = match.end()
    parts.append(line[end:])
    return tuple(part for part in parts if part != "")
