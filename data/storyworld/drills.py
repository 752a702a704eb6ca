"""Conversations of one small task again and again, which stories show too seldom: copy, compare, answer in a few words.

Each is `{"conversations": [{"role", "content"}, ...], "meta": {...}}`. Validation conversations have names that no
training text holds. The same arguments give the same conversation on every machine.
"""

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from .conversations import Message, asked_about, pick, turn, weighted
from .crowds import ask_crowd, tell_crowd
from .pairing import ask_by_name, ask_pairs, by_name, pairs
from .questions import judged, place_sorts, worded
from .repeats import REPEATED_WORDS, repeated
from .story import Split
from .vocabulary import known_words, names_for, places, some, words_of
from .wordings import feelings, wordings

AGAIN = 5  # how often the assistant repeats words in one conversation
KNOWN_WORDS = range(3, 17)  # how many words it repeats, where these are known ones
COMPARED = 14  # how often it compares two names, or two places
FEW = 4  # names, or places, where they come again
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

    Nothing else in it is said twice, so that a head which finds what was said before can do it.
    """
    rng = Random(f"compare {split} {seed} {index}")
    messages: list[Message] = []
    for candidate, found, is_place in _to_compare(rng, split, few=False):
        answer = judged(candidate, found, is_place, "yes" if candidate == found else "no")
        turn(messages, f"It was {found}. Was it {candidate}?", answer)
    return {"conversations": messages, "meta": {"kind": "compare", "questions": []}}


def judge(seed: int, index: int, split: Split = "train") -> dict[str, Any]:
    """The same question about what the assistant has just said, which cannot be known: "It was Belna. Tiko? No."

    Only "yes" and "no" are trained on, and only the two names side by side say which it is. In most of these
    conversations the same few names come again and again, as in a story. What `compare` teaches is not enough there: in
    stories it is a coin (EXPERIMENTS.md).
    """
    rng = Random(f"judge {split} {seed} {index}")
    messages: list[Message] = []
    asked = wordings("conversations")["judged"]
    for candidate, found, is_place in _to_compare(rng, split, few=rng.random() < 0.7):
        answer = judged(candidate, found, is_place, "yes" if candidate == found else "no")
        before, _, word = answer.removesuffix(".").rpartition(" ")
        turn(messages, pick(rng, asked[:2] if is_place else asked).format(candidate=candidate), "")
        messages[-1]["content"] = weighted([(before, 0), (f" {word}", 1), (".", 0)])
    return {"conversations": messages, "meta": {"kind": "judge", "questions": []}}


def _to_compare(rng: Random, split: Split, few: bool) -> Iterator[tuple[str, str, bool]]:
    """(who is asked about, who it was, whether they are places), half of them equal. few: the same names again."""
    people = some(names_for(split), FEW if few else 2 * COMPARED, rng)
    somewhere = some(places(), FEW if few else 2 * COMPARED, rng)
    for number in range(COMPARED):
        is_place, so = rng.random() < 1 / 4, rng.random() < 1 / 2
        pool = somewhere if is_place else people
        found, other = some(pool, 2, rng) if few else pool[2 * number : 2 * number + 2]
        yield found if so else other, found, is_place


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
    "pairs": pairs,
    "ask_pairs": ask_pairs,
    "by_name": by_name,
    "ask_by_name": ask_by_name,
    "crowds": ask_crowd,
    "told_crowds": tell_crowd,
    "compare": compare,
    "judge": judge,
    "one_fact": one_fact,
}
