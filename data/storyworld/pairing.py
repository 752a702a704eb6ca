"""Conversations in which the assistant says who goes with what, in small steps: a name stands before its thing in a
story, and is asked for by the thing.

An induction head finds what comes *after* a word. What comes before it takes two heads that are of no use without each
other, and a name of three tokens. All at once that is not learned; in these steps it is (EXPERIMENTS.md):

    words    "mole net. fox ladder."                       "ladder fox."      animals are single tokens
    names    "Falwa net. Folen ladder."                    "ladder Folen."
    inline   "Folen the mole had a red ladder."            "Who had the ladder? So it was Folen."
    worded   the same in several wordings
    asked    in a conversation (crowds.py)

Only names are trained on: which thing comes next cannot be known, and a loss on it hides what is to be learned.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from .conversations import Message, pick
from .crowds import ask_crowd
from .drills import _texts, names_for, some
from .repeats import another
from .story import Split
from .wordings import wordings

PAIRS = 8
STEPS = {"words": 0.0, "names": 0.26, "inline": 0.6, "worded": 0.72, "asked": 0.84}  # share of the way where each begins
NEW = 0.6  # share of the conversations that are of the newest step


def pair_off(seed: int, index: int, split: Split = "train", way: float = 1.0) -> dict[str, Any]:
    """Conversation number `index`, where `way` of all steps are done (0 to 1)."""
    rng = Random(f"pairs {split} {seed} {index}")
    begun = [step for step, begin in STEPS.items() if begin <= way]
    step = begun[-1] if rng.random() < NEW else pick(rng, begun)
    if step == "asked":
        return ask_crowd(seed, index, split, 6)
    return {"conversations": STEP[step](split, rng), "meta": {"kind": step, "questions": []}}


def words(split: Split, rng: Random) -> list[Message]:
    return bare(sorted(_texts("friend", "kind")), rng)


def new_names(split: Split, rng: Random) -> list[Message]:
    return bare(names_for(split), rng)


def bare(pool: Sequence[str], rng: Random) -> list[Message]:
    pairs = list(zip(some(pool, PAIRS, rng), some(sorted(_texts("thing", "")), PAIRS, rng), strict=True))
    return said_back([f"{one} {thing}." for one, thing in pairs], [(thing, one) for one, thing in pairs], rng)


def inline(split: Split, rng: Random) -> list[Message]:
    return sentences(split, rng, 1)


def worded(split: Split, rng: Random) -> list[Message]:
    return sentences(split, rng, None)


def sentences(split: Split, rng: Random, most: int | None) -> list[Message]:
    told, back = [], []
    used: set[str] = set()
    form = wordings("conversations")["pairs"]
    for name in some(names_for(split), PAIRS - 2, rng):
        thing, kind = another(sorted(_texts("thing", "")), used, rng), pick(rng, sorted(_texts("friend", "kind")))
        used.add(thing)
        colour = pick(rng, sorted(_texts("thing", "colour")))
        trait = pick(rng, sorted(_texts("friend", "trait")))
        values = {"name": name, "thing": thing, "kind": kind, "trait": trait}
        values |= {"a_kind": article(kind), "a_trait": article(trait), "a_colour": article(colour)}
        told.append(pick(rng, form["told"][:most]).format(**values))
        back.append((pick(rng, form["back"][:most]).format(**values), name))
    return said_back(told, back, rng)


def article(word: str) -> str:
    return ("an " if word[0] in "aeiou" else "a ") + word


def said_back(told: list[str], pairs: list[tuple[str, str]], rng: Random) -> list[Message]:
    left, parts = list(pairs), []
    while left:
        given, name = left.pop(int(rng.random() * len(left)))
        parts += [part(f" {given}" if parts else given, 0), part(f" {name}", 1), part(".", 0)]
    return [{"role": "user", "content": " ".join(told)}, {"role": "assistant", "content": parts}]


def part(text: str, weight: int) -> dict[str, Any]:
    return {"type": "text", "text": text, "weight": weight}


STEP = {"words": words, "names": new_names, "inline": inline, "worded": worded}
