"""Conversations of one small task again and again, which stories show too seldom: copy, compare, answer in a few words.

Each is `{"conversations": [{"role", "content"}, ...], "meta": {...}}`. Validation conversations have names that no
training text holds. The same arguments give the same conversation on every machine.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from .conversations import Message, asked_about, pick, turn
from .crowds import ask_crowd
from .pairing import ask_pairs, pair_names, pair_words
from .questions import judged, place_sorts, worded
from .repeats import REPEATED_WORDS, repeated
from .story import Split
from .vocabulary import known_words, names_for, some, words_of
from .wordings import feelings, wordings

AGAIN = 5  # how often the assistant repeats words in one conversation
KNOWN_WORDS = range(3, 17)  # how many words it repeats, where these are known ones
COMPARED = 14  # how often it compares two names, or two places
FEW = 4  # names, or places, of these comparisons where they come again
FACTS = 12  # how often it answers a question about one sentence


def say_again(seed: int, index: int, split: Split = "train") -> dict[str, Any]:
    """The assistant repeats random words, AGAIN times others: it can only copy."""
    messages: list[Message] = []
    for number in range(AGAIN):
        words = repeated(seed, AGAIN * index + number, REPEATED_WORDS, held_out=split == "validation").words
        turn(messages, " ".join(words), " ".join(words))
    return {"conversations": messages, "meta": {"kind": "again", "questions": []}}


def say_words(seed: int, index: int, split: Split = "train") -> dict[str, Any]:
    """The assistant repeats words of the stories, AGAIN times others.

    Most are one token, and no two are alike, so the token before says which one comes next. A name is three tokens, and
    its first one stands for many names. From words, heads learn to copy in half of the steps (EXPERIMENTS.md).
    """
    rng = Random(f"words {split} {seed} {index}")
    messages: list[Message] = []
    for _ in range(AGAIN):
        words = some(known_words(), KNOWN_WORDS[int(rng.random() * len(KNOWN_WORDS))], rng)
        turn(messages, " ".join(words), " ".join(words))
    return {"conversations": messages, "meta": {"kind": "words", "questions": []}}


def compare(seed: int, index: int, split: Split = "train") -> dict[str, Any]:
    """The assistant says whether two names are the same, or two places.

    In a third of the conversations nothing else is said twice, so that a head which finds what was said before can do
    it. In the others the same FEW names come again and again, as in a story: only the two side by side count.
    """
    rng = Random(f"compare {split} {seed} {index}")
    few = rng.random() < 2 / 3
    people = some(names_for(split), FEW if few else 2 * COMPARED, rng)
    places = some(sorted(frozenset.union(*place_sorts().values())), FEW if few else 2 * COMPARED, rng)
    messages: list[Message] = []
    for number in range(COMPARED):
        is_place, so = rng.random() < 1 / 4, rng.random() < 1 / 2
        pool = places if is_place else people
        one, other = some(pool, 2, rng) if few else pool[2 * number : 2 * number + 2]
        candidate = one if so else other
        asked = f"It was {one}. Was it {candidate}?"
        turn(messages, asked, judged(candidate, one, is_place, "yes" if so else "no"))
    return {"conversations": messages, "meta": {"kind": "compare", "questions": []}}


def one_fact(seed: int, index: int, split: Split = "train") -> dict[str, Any]:
    """The assistant answers questions about one sentence each, two of three in a few words.

    So it learns how words of a story begin an answer, where they are cut otherwise (" sleepy", but "s", "leepy"), and
    that who runs to the barn is in the barn.
    """
    rng = Random(f"one fact {split} {seed} {index}")
    messages: list[Message] = []
    for name in some(names_for(split), FACTS, rng):
        told, asked, answer, sentence = _fact(name, rng)
        shortly = rng.random() < 2 / 3
        turn(messages, asked_about(told, asked, shortly, rng), answer if shortly else sentence)
    return {"conversations": messages, "meta": {"kind": "one fact", "questions": []}}


def _fact(name: str, rng: Random) -> tuple[str, str, str, str]:
    """A sentence, a question about it, and its answer, in a few words and as a sentence."""
    facts = wordings("conversations")["facts"]
    who = pick(rng, (name, f"{name} the {pick(rng, list(words_of('friend', 'kind')))}"))
    kind = pick(rng, ("feeling", "stays", "race"))
    if kind == "feeling":
        feeling = pick(rng, feelings())
        told, asked = facts["feeling"].format(who=who, feeling=feeling), pick(rng, worded("feels", who=name))
        return told, asked, feeling, f"{name} was {feeling}."
    if kind == "stays":
        place, about = pick(rng, sorted(place_sorts()[pick(rng, ("place", "spot", "seat"))])), "stays"
        values = {"who": who, "name": name, "place": place}
    else:
        places = words_of("place", "at")
        start, end = some(list(places), 2, rng)
        values = {"start": places[start][""], "end": places[end][""]}
        about = pick(rng, ("start", "end"))
        place = places[start if about == "start" else end]["at"]
    values["Place"] = place[0].upper() + place[1:]
    asked = pick(rng, facts[f"asked_{about}"]).format(**values)
    return pick(rng, facts[kind]).format(**values), asked, place, f"{values['Place']}."


# data.source.drills names them.
DRILLS: Mapping[str, Callable[[int, int, Split], dict[str, Any]]] = {
    "words": say_words,
    "pair_words": pair_words,
    "pair_names": pair_names,
    "ask_pairs": ask_pairs,
    "crowds": ask_crowd,
    "compare": compare,
    "one_fact": one_fact,
}
