"""Conversations in which the assistant says who goes with what.

In a story the name comes first ("Folen had a ladder"), and the ladder is what is asked about. An induction head finds
what comes *after* a word. To find what came before takes two heads, each of no use without the other, and a name is
three tokens long. With words of one token for the names it is learned in a few hundred steps, and after that with
names as well. With names from the beginning, or both at once, it often is not (EXPERIMENTS.md):

    words    "mole net. fox ladder."               "ladder fox."   animals; data.source.drills.word_pairs
    names    "Falwa net. Folen ladder."            "ladder Folen."                data.source.drills.pairs
    inline   "Folen the mole had a red ladder."    "ladder Folen."
    worded   the same, said in several ways        "Who had the ladder? So it was Folen."

Only the names are trained on. Which thing comes next cannot be known, and a loss on it hides what is to be learned.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from .conversations import Message, pick
from .story import Split
from .vocabulary import names_for, some, words_of
from .wordings import wordings

WAYS = ("names", "inline", "worded")
TOLD = 8  # of one conversation


def pair_words(seed: int, index: int, split: Split = "train") -> dict[str, Any]:
    """Conversation number `index` about animals and things. The same arguments give the same one on every machine."""
    return pair_off(seed, index, split, "words")


def pair_off(seed: int, index: int, split: Split = "train", way: str | None = None) -> dict[str, Any]:
    """Conversation number `index`, about names: in one of WAYS, drawn unless given.

    Validation conversations have names that no training text holds. The same arguments give the same conversation on
    every machine.
    """
    rng = Random(f"pairs {split} {seed} {index}")
    way = way or pick(rng, WAYS)
    if way in ("words", "names"):
        told = bare(names_for(split) if way == "names" else sorted(words_of("friend", "kind")), rng)
    else:
        told = sentences(names_for(split), way == "worded", rng)
    return {"conversations": said_back(told, rng), "meta": {"kind": way, "questions": []}}


Told = list[tuple[str, str, str]]  # what is said, how it is asked about, and who it was


def bare(people: Sequence[str], rng: Random) -> Told:
    """Two words each."""
    pairs = zip(some(people, TOLD, rng), some(sorted(words_of("thing", "")), TOLD, rng), strict=True)
    return [(f"{name} {thing}.", thing, name) for name, thing in pairs]


def sentences(people: Sequence[str], in_several_ways: bool, rng: Random) -> Told:
    """A sentence each; asked about by the bare word unless `in_several_ways`."""
    said, found = wordings("conversations")["pairs"], []
    for _, thing, name in bare(people, rng):
        values = {"name": name, "thing": thing}
        for role, part in (("friend", "kind"), ("friend", "trait"), ("thing", "colour")):
            forms = words_of(role, part)
            values |= forms[pick(rng, sorted(forms))]
        told = pick(rng, said["told"]) if in_several_ways else said["told"][0]
        asked = pick(rng, said["back"]) if in_several_ways else "{thing}"
        found.append((told.format(**values), asked.format(**values), name))
    return found


def said_back(told: Told, rng: Random) -> list[Message]:
    """All that is told, and then all in another order, with weight only on who it was."""
    left, parts = list(told), list[tuple[str, int]]()
    while left:
        _, asked, name = left.pop(int(rng.random() * len(left)))
        parts += [(f" {asked}" if parts else asked, 0), (f" {name}", 1), (".", 0)]
    content = [{"type": "text", "text": text, "weight": weight} for text, weight in parts]
    user = " ".join(sentence for sentence, _, _ in told)
    return [{"role": "user", "content": user}, {"role": "assistant", "content": content}]
