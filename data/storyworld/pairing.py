"""Conversations in which the assistant says who goes with what, with names that are said again.

In a story the name comes first ("Folen had a ladder"), and the ladder is what is asked about. An induction head finds
what comes *after* a word. To find what came before takes two heads, each of no use without the other. So in half of the
sentences, and of the questions, the answer is said again where it can first be known, which takes only one of the two:

    pairs        "Falwa net Falwa. Folen ladder."          "ladder Folen. net Falwa."
                 "Folen the mole had a red ladder Folen."  "ladder Folen."
    ask_pairs    all of these, in more wordings            "Who had the ladder Folen? So it was Folen."
    by_name      "Folen the mole ladder Folen."            "Folen ladder."
    ask_by_name  "Folen hid under Folen the bridge."       "Where did Folen under the bridge hide? under the bridge."

Only the names (or what is asked for) are trained on. Which thing comes next cannot be known, and a loss on it hides
what is to be learned. Without what is said again neither is learned, but for a course in small steps, and then not with
every seed. What a name goes with is learned after whose a thing is, and bare before it is asked in words
(EXPERIMENTS.md).
"""

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from .conversations import Message, pick, weighted
from .echoes import AGAIN, first_word
from .story import Split
from .vocabulary import names_for, places, some, words_of
from .wordings import wordings

TOLD = 8  # pairs in one conversation
BARE = ("{name} {thing}.",)


class Pair(NamedTuple):
    """What is said of somebody, in two parts, and how it is asked about, likewise: each is cut where the echo belongs.

    told:   ("Folen the mole had a red ladder", ".") or ("Folen hid under", " the bridge.")
    asked:  ("Who had the ladder", "? So it was") or ("Where did Folen", " hide?")
    """

    told: tuple[str, str]
    asked: tuple[str, str]
    name: str
    answer: str


def pairs(seed: int, index: int, split: Split = "train") -> dict[str, Any]:
    """Conversation number `index` about people and their things, asked about by the thing alone.

    Here and below, validation conversations have names that no training text holds, and the same arguments give the
    same conversation on every machine.
    """
    rng = Random(f"pairs {split} {seed} {index}")
    told = BARE if rng.random() < 1 / 2 else wordings("conversations")["pairs"]["told"][:1]
    return said_back("pairs", owners(names_for(split), told, ["{thing}"], rng), rng)


def ask_pairs(seed: int, index: int, split: Split = "train") -> dict[str, Any]:
    """The same with words between the thing and the answer: "Who had the ladder? So it was"."""
    rng = Random(f"ask pairs {split} {seed} {index}")
    said = wordings("conversations")["pairs"]
    told = (BARE, said["told"][:1], said["told"], said["told"])[int(rng.random() * 4)]
    return said_back("ask pairs", owners(names_for(split), told, said["back"], rng), rng)


def by_name(seed: int, index: int, split: Split = "train") -> dict[str, Any]:
    """People and their things, asked about by the name alone. What comes right after a name is not always the thing."""
    rng = Random(f"by name {split} {seed} {index}")
    told = wordings("conversations")["pairs"]["bare"]
    return said_back("by name", owners(names_for(split), told, ["{name}"], rng, by_name=True), rng)


def ask_by_name(seed: int, index: int, split: Split = "train") -> dict[str, Any]:
    """The same in sentences and questions, and half of them about places: "Where did Folen hide?" """
    rng = Random(f"ask by name {split} {seed} {index}")
    if rng.random() < 1 / 2:
        return said_back("ask by name", hidden(names_for(split), rng), rng)
    said = wordings("conversations")["pairs"]
    told = said["told" if rng.random() < 1 / 2 else "bare"]
    return said_back("ask by name", owners(names_for(split), told, said["had"], rng, by_name=True), rng)


def owners(
    people: Sequence[str], told: Sequence[str], asked: Sequence[str], rng: Random, by_name: bool = False
) -> list[Pair]:
    """Some of the people, each with a thing. It is asked by the thing who has it, or with `by_name` what each has."""
    found = []
    things = some(sorted(words_of("thing", "")), TOLD, rng)
    for name, thing in zip(some(people, TOLD, rng), things, strict=True):
        values = described(name, rng) | {"thing": thing}
        sentence, question = pick(rng, told).format(**values), pick(rng, asked).format(**values)
        about, answer = (name, thing) if by_name else (thing, name)
        found.append(Pair(cut(sentence, thing), cut(question, about), name, answer))
    return found


def hidden(people: Sequence[str], rng: Random) -> list[Pair]:
    """Some of the people, each in another place; it is asked where they are.

    The name is said again *in* the place, where its first word can be found by the name that is noted there.
    """
    found = []
    said = wordings("conversations")["pairs"]
    for name, place in zip(some(people, TOLD, rng), some(places(), TOLD, rng), strict=True):
        sentence = pick(rng, said["hid"]).format(**described(name, rng), place=place)
        question = pick(rng, said["where"]).format(name=name)
        at = sentence.rindex(place) + len(first_word(place))
        found.append(Pair((sentence[:at], sentence[at:]), cut(question, name), name, place))
    return found


def cut(text: str, word: str) -> tuple[str, str]:
    """A text cut after the last such word in it."""
    end = text.rindex(word) + len(word)
    return text[:end], text[end:]


def described(name: str, rng: Random) -> dict[str, str]:
    """A name with a kind, a trait and a colour, in all their forms."""
    values = {"name": name}
    for role, part in (("friend", "kind"), ("friend", "trait"), ("thing", "colour")):
        forms = words_of(role, part)
        values |= forms[pick(rng, sorted(forms))]
    return values


def said_back(kind: str, told: list[Pair], rng: Random) -> dict[str, Any]:
    """The assistant says all that is told, and then it asks and answers in another order."""
    found: list[tuple[str, int]] = []

    def say(text: tuple[str, str], echo: str) -> None:
        found.append((" " * bool(found) + text[0], 0))
        if text[1] and rng.random() < AGAIN:
            found.append((f" {echo}", 1))
        found.append((text[1], 0))

    for pair in told:
        say(pair.told, pair.name)
    left = list(told)
    while left:
        pair = left.pop(int(rng.random() * len(left)))
        say(pair.asked, pair.answer)
        found += [(f" {pair.answer}", 1), (".", 0)]
    messages: list[Message] = [{"role": "user", "content": wordings("conversations")["pairs"]["request"]}]
    messages.append({"role": "assistant", "content": weighted(found)})
    return {"conversations": messages, "meta": {"kind": kind, "questions": []}}
