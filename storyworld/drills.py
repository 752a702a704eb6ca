"""Conversations of one small task, many times: copy, pair, compare, answer shortly.

Stories train these skills too seldom. docs/data_formats.md shows an example of each.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from random import Random
from typing import Any

from .conversations import (
    AGAIN,
    Talk,
    first_word,
    in_prompt,
    many_questions,
    weighted,
    with_echoes,
)
from .lexicon import Pool, feelings, lexicon, place_sorts, wordings, words_of
from .names import held_out_names, names, pick, sample
from .pen import Entity, Pen
from .plots import GAVE
from .questions import judged, questions_about
from .recall import REPEATED_WORDS, repeated
from .story import Split, Story, finished

# The assistant repeats words this many times in a conversation, this many words of stories.
COPIES = 5
KNOWN_WORDS = range(3, 17)
# It compares two names or places this many times; a few names, if they come again.
COMPARED = 14
FEW = 4
# It answers this many questions about one sentence each.
FACTS = 12
# This many people each have a thing, or are at a place.
PAIRS = 8
# A crowd of this many people has the same facts.
CROWD = 4
CROWD_QUESTIONS = 14
CROWD_WEIGHTS = {"who_has": 2, "where": 4, "who_wanted": 6, "yes_no": 6}
# The names that texts of a split may hold.
Names = tuple[str, ...]


def say_again(seed: int, index: int, split: Split = "train") -> dict[str, Any]:
    """Make a conversation in which the assistant repeats random words."""
    # nothing predicts them, so it can only copy
    talk = Talk()
    held_out = split == "validation"
    for number in range(COPIES):
        words = repeated(seed, COPIES * index + number, REPEATED_WORDS, held_out).words
        talk.turn(" ".join(words), " ".join(words))
    return talk.finished("again")


def _drill(name: str, seed: int, index: int, split: Split = "train") -> dict[str, Any]:
    kind = name.replace("_", " ")
    talk = Talk()
    # note: another wording of the seed gives other documents
    rng = Random(f"{kind} {split} {seed} {index}")
    TASKS[name](talk, rng, held_out_names() if split == "validation" else names())
    return talk.finished(kind)


def _places() -> list[str]:
    return sorted(frozenset.union(*place_sorts().values()))


# One word, one name, one sentence


@cache
def _known_words() -> tuple[str, ...]:
    # "fox", "kite", "red", "river"
    words: set[str] = set()
    for pools in lexicon().roles.values():
        for pool in pools.values():
            if isinstance(pool, Pool):
                words |= pool.texts.keys()
    return tuple(sorted(word for word in words if word.isalpha() and word.islower()))


def _say_words(talk: Talk, rng: Random, pool: Names) -> None:
    # The assistant repeats words of the stories. Most are one token, and no two are alike, so the
    # token before decides the next one. A name is three tokens, and many names share the first.
    # With words, heads learn to copy in half of the steps.
    for _ in range(COPIES):
        words = sample(_known_words(), pick(rng, KNOWN_WORDS), rng)
        talk.turn(" ".join(words), " ".join(words))


def _compare(talk: Talk, rng: Random, pool: Names) -> None:
    # The assistant compares two names, or two places. Nothing else is repeated, so a head that
    # finds earlier words is enough.
    for candidate, actual, is_place in _to_compare(rng, pool, few=False):
        question = f"It was {actual}. Was it {candidate}?"
        talk.turn(question, judged(candidate, actual, is_place))


def _judge(talk: Talk, rng: Random, pool: Names) -> None:
    # The assistant compares in its own, invented statement: "It was Belna. Tiko? No." Only "yes"
    # and "no" are trained on. In most conversations the same few names come again, as in a story:
    # after `compare` alone, a model guesses in stories (FINDINGS.md#reader).
    questions = wordings("conversations")["judged"]
    for candidate, actual, is_place in _to_compare(rng, pool, few=rng.random() < 0.7):
        sentence = judged(candidate, actual, is_place)
        before, _, word = sentence.removesuffix(".").rpartition(" ")
        question = pick(rng, questions[:2] if is_place else questions)
        answer = weighted([(before, 0), (f" {word}", 1), (".", 0)])
        talk.turn(question.format(candidate=candidate), answer)


def _to_compare(rng: Random, pool: Names, few: bool) -> Iterator[tuple[str, str, bool]]:
    # (candidate, actual, is_place), half of them equal; few: the same names again
    count = FEW if few else 2 * COMPARED
    people = sample(pool, count, rng)
    places = sample(_places(), count, rng)
    for number in range(COMPARED):
        is_place = rng.random() < 1 / 4
        is_same = rng.random() < 1 / 2
        options = places if is_place else people
        actual, other = sample(options, 2, rng) if few else options[2 * number : 2 * number + 2]
        yield actual if is_same else other, actual, is_place


def _one_fact(talk: Talk, rng: Random, pool: Names) -> None:
    # The assistant answers questions about one sentence each, two of three in a few words. It
    # learns the tokens of an answer (" sleepy" is one, "sleepy" alone is "s", "leepy"), and that
    # someone who runs to the barn is in the barn.
    facts = wordings("conversations")["facts"]
    for name in sample(pool, FACTS, rng):
        who = pick(rng, (name, f"{name} the {pick(rng, list(words_of('friend', 'kind')))}"))
        values = {"name": name, "who": who}
        kind = pick(rng, ("feeling", "stays", "race"))
        subject = kind
        if kind == "feeling":
            short = pick(rng, feelings())
        elif kind == "stays":
            sort = pick(rng, list(place_sorts()))
            short = pick(rng, sorted(place_sorts()[sort]))
            values["place"] = short
        else:
            places = words_of("place", "at")
            start, end = sample(list(places), 2, rng)
            values |= {"start": places[start][""], "end": places[end][""]}
            subject = pick(rng, ("start", "end"))
            short = places[start if subject == "start" else end]["at"]
        question = pick(rng, facts[f"asked_{subject}"]).format(**values)
        if kind == "feeling":
            statement = f"{who} was {short}."
            reply = f"{name} was {short}."
        else:
            reply = f"{short.capitalize()}."
            statement = pick(rng, facts[kind]).format(**values, Place=short.capitalize())
        shortly = rng.random() < 2 / 3
        prompt = in_prompt(statement, question, shortly, rng)
        talk.turn(prompt, short if shortly else reply)


# Pairs of a name and a thing


def _pair(talk: Talk, rng: Random, pool: Names, task: str) -> None:
    # The assistant pairs names with things, then asks and answers in another order. In a story the
    # name comes first ("Folen had a ladder"), and questions ask about the ladder. An induction head
    # finds the word *after* an earlier one. The word before takes two heads, each of no use alone.
    # So in half of the sentences and questions, the answer is repeated at the first word where it
    # can be known, which takes only one of the two (FINDINGS.md#reader). Only names and answers are
    # trained on: nothing predicts the next thing, and a loss on it would hide the task.
    texts = wordings("conversations")["pairs"]
    bare = texts["bare"][:1]
    plain = texts["told"][:1]
    hidden = False
    if task == "pairs":
        statements = pick(rng, (bare, plain))
        questions = ["{thing}"]
    elif task == "ask_pairs":
        statements = pick(rng, (bare, plain, texts["told"], texts["told"]))
        questions = texts["back"]
    elif task == "by_name":
        # the word right after a name is not always the thing
        statements = texts["bare"]
        questions = ["{name}"]
    else:
        hidden = rng.random() < 1 / 2
        if hidden:
            statements = texts["hid"]
            questions = texts["where"]
        else:
            statements = pick(rng, (texts["told"], texts["bare"]))
            questions = texts["had"]

    # the order of the draws decides the text: people come between things and places
    things = [] if hidden else sample(sorted(words_of("thing", "")), PAIRS, rng)
    people = sample(pool, PAIRS, rng)
    if hidden:
        things = sample(_places(), PAIRS, rng)
    pairs = []
    for name, thing in zip(people, things, strict=True):
        if hidden:
            wording = pick(rng, statements)
            values = _described(name, rng)
        else:
            values = _described(name, rng)
            wording = pick(rng, statements)
        # a wording has one of these slots
        values |= {"thing": thing, "place": thing}
        question = pick(rng, questions).format(**values)
        pairs.append((wording.format(**values), question, name, thing))

    parts: list[tuple[str, int]] = []

    def add(text: str, at: int, again: str) -> None:
        # half of the time, a name is repeated at this character, except at the end
        space = " " if parts else ""
        parts.append((space + text[:at], 0))
        if at < len(text) and rng.random() < AGAIN:
            parts.append((f" {again}", 1))
        parts.append((text[at:], 0))

    for statement, _, name, thing in pairs:
        # after the thing, or after the first word of a place: a head can find its notes there
        end = len(first_word(thing)) if hidden else len(thing)
        add(statement, statement.rindex(thing) + end, name)
    # the questions come in another order than the statements
    while pairs:
        _, question, name, thing = pairs.pop(int(rng.random() * len(pairs)))
        about, answer = (name, thing) if "by_name" in task else (thing, name)
        add(question, question.rindex(about) + len(about), answer)
        parts += [(f" {answer}", 1), (".", 0)]
    talk.turn(texts["request"], weighted(parts))


def _described(name: str, rng: Random) -> dict[str, str]:
    # with a kind, a trait and a colour, in all their forms
    values = {"name": name}
    for role, part in (("friend", "kind"), ("friend", "trait"), ("thing", "colour")):
        forms = words_of(role, part)
        values |= forms[pick(rng, sorted(forms))]
    return values


# Crowds


def _crowds(seed: int, index: int, split: Split = "train", told: bool = False) -> dict[str, Any]:
    # Questions about a crowd. told: the assistant tells of it, with repeated names (`echoes`).
    rng = Random(f"{'tell' if told else 'ask'} crowd {split} {seed} {index}")
    story = crowd(seed, index, split)
    kind = pick(rng, sorted({question.kind for question in questions_about(story)}))
    first = pick(rng, questions_about(story, kind))
    talk = Talk()
    if told:
        shortly = rng.random() < 1 / 2
        talk.turn(wordings("conversations")["crowd"], with_echoes(story, rng))
        talk.ask(first, shortly)
    else:
        shortly = talk.ask_in_prompt(story, first, rng)
    for question in many_questions(story, first, rng, CROWD_QUESTIONS, CROWD_WEIGHTS):
        talk.ask(question, shortly)
    return talk.finished("crowd", plot=story.plot)


def crowd(seed: int, index: int, split: Split = "train") -> Story:
    """Write one sentence of a plot about each of CROWD people, with its facts."""
    # a guess is right a quarter of the time; in a story, where two have the same part, half of it
    rng = Random(f"crowd {split} {seed} {index}")
    plots = wordings("conversations")["crowds"]
    plot = pick(rng, list(plots))
    pen = Pen(rng, held_out=split == "validation")
    cast: dict[str, Entity] = {}
    if plot == "soup":
        cast = pen.cast(cook="friend", dish="dish", one="food", two="food")
        pen.say("soup.opening", **cast)
        # the wishes of the cook are not asked for
        pen.noted.clear()
    # a sentence of "wish" is about two people
    for _ in range(CROWD // 2 if plot == "wish" else CROWD):
        for beat, roles in plots[plot].items():
            cast |= pen.cast(**roles)
            pen.say(beat, **cast)
        if plot == "soup":
            pen.fact("has", who=cast["giver"], thing=cast["gift"], cook=cast["cook"], asked=GAVE)
    return finished(pen, plot)


TASKS: dict[str, Callable[[Talk, Random, Names], None]] = {
    "words": _say_words,
    "compare": _compare,
    "judge": _judge,
    "one_fact": _one_fact,
}
for task in ("pairs", "ask_pairs", "by_name", "ask_by_name"):
    TASKS[task] = partial(_pair, task=task)
# The names are those of data.source.drills.
DRILLS: dict[str, Callable[..., dict[str, Any]]] = {
    **{name: partial(_drill, name) for name in TASKS},
    "crowds": _crowds,
    "told_crowds": partial(_crowds, told=True),
}
