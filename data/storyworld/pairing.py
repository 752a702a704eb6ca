"""Conversations in which the assistant says who goes with what, in three steps.

In a story the name comes first ("Folen had a ladder"), and the ladder is what is asked about. An induction head finds
what comes *after* a word. To find what came before takes two heads, each of no use without the other, and a name is
three tokens long. All at once this is not learned. One step after another, each takes a few hundred training steps:

    pair_words   "mole net. fox ladder."               "ladder fox."     animals, each of them one token
    pair_names   "Falwa net. Folen ladder."            "ladder Folen."
                 "Folen the mole had a red ladder."    "ladder Folen."
    ask_pairs    all of these, and more wordings       "Who had the ladder? So it was Folen."
                 "Folen hid under the bridge."         "Where did Folen hide? under the bridge."

Only the names (or the places) are trained on. Which thing comes next cannot be known, and a loss on it hides what is to
be learned.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from .conversations import Message, pick
from .story import Split
from .vocabulary import names_for, places, some, words_of
from .wordings import wordings

TOLD = 8  # of one conversation
BARE = ("{name} {thing}.",)
Told = list[tuple[str, str, str]]  # what is said, how it is asked about, and who it was


def pair_words(seed: int, index: int, split: Split = "train") -> dict[str, Any]:
    """Conversation number `index` about animals and their things: two words each, asked about by the thing alone.

    Here and below, validation conversations have names that no training text holds, and the same arguments give the
    same conversation on every machine.
    """
    rng = Random(f"pair words {split} {seed} {index}")
    return talk("pair words", pairs(animals(), BARE, ["{thing}"], rng), rng)


def pair_names(seed: int, index: int, split: Split = "train") -> dict[str, Any]:
    """The same with names, half of the conversations in whole sentences."""
    rng = Random(f"pair names {split} {seed} {index}")
    told = BARE if rng.random() < 1 / 2 else wordings("conversations")["pairs"]["told"][:1]
    return talk("pair names", pairs(names_for(split), told, ["{thing}"], rng), rng)


def ask_pairs(seed: int, index: int, split: Split = "train") -> dict[str, Any]:
    """The same with words between the thing and the answer: "Who had the ladder? So it was". A sixth is of animals.

    A third asks by the name instead: "Folen hid under the bridge." "Where did Folen hide? Under the bridge."
    """
    rng = Random(f"ask pairs {split} {seed} {index}")
    said = wordings("conversations")["pairs"]
    way = int(rng.random() * 6)
    if way < 2:
        return talk("ask pairs", hidden(names_for(split), rng), rng)
    if way == 2:
        return talk("ask pairs", pairs(animals(), BARE, said["back"], rng), rng)
    told = (BARE, said["told"][:1], said["told"])[way - 3]
    return talk("ask pairs", pairs(names_for(split), told, said["back"], rng), rng)


def animals() -> Sequence[str]:
    """What somebody of a story may be."""
    return sorted(words_of("friend", "kind"))


def pairs(people: Sequence[str], told: Sequence[str], asked: Sequence[str], rng: Random) -> Told:
    """Eight of the people, each with a thing, in some of the wordings; which thing is told, and whose it is."""
    return eight(people, "thing", sorted(words_of("thing", "")), told, asked, "name", rng)


def hidden(people: Sequence[str], rng: Random) -> Told:
    """Eight of the people, each in another place; who is told, and where that is."""
    said = wordings("conversations")["pairs"]
    return eight(people, "place", places(), said["hid"], said["where"], "place", rng)


def eight(
    people: Sequence[str],
    role: str,
    pool: Sequence[str],
    told: Sequence[str],
    asked: Sequence[str],
    answer: str,
    rng: Random,
) -> Told:
    """Eight people, each with one of the pool in this role, told and asked in some of the wordings. answer: the role
    of what is answered."""
    found: Told = []
    others = some(pool, TOLD, rng)
    for name, other in zip(some(people, TOLD, rng), others, strict=True):
        values = described(name, rng) | {role: other}
        found.append((pick(rng, told).format(**values), pick(rng, asked).format(**values), values[answer]))
    return found


def described(name: str, rng: Random) -> dict[str, str]:
    """A name with a kind, a trait and a colour, in all their forms."""
    values = {"name": name}
    for role, part in (("friend", "kind"), ("friend", "trait"), ("thing", "colour")):
        forms = words_of(role, part)
        values |= forms[pick(rng, sorted(forms))]
    return values


def talk(kind: str, told: Told, rng: Random) -> dict[str, Any]:
    return {"conversations": said_back(told, rng), "meta": {"kind": kind, "questions": []}}


def said_back(told: Told, rng: Random) -> list[Message]:
    """All that is told, and then all in another order, with weight only on who it was."""
    left, parts = list(told), list[tuple[str, int]]()
    while left:
        _, asked, name = left.pop(int(rng.random() * len(left)))
        parts += [(f" {asked}" if parts else asked, 0), (f" {name}", 1), (".", 0)]
    content = [{"type": "text", "text": text, "weight": weight} for text, weight in parts]
    user = " ".join(sentence for sentence, _, _ in told)
    return [{"role": "user", "content": user}, {"role": "assistant", "content": content}]
