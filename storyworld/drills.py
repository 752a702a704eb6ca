"""Conversations of one small task again and again, which stories show too seldom: copy, pair, compare, answer shortly.

docs/data_formats.md shows what the user and the assistant say in each of DRILLS.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from random import Random
from typing import Any

from .conversations import AGAIN, Talk, first_word, in_prompt, many_questions, weighted, with_echoes
from .lexicon import Pool, feelings, lexicon, place_sorts, wordings, words_of
from .names import held_out_names, names, pick, some
from .pen import Entity, Pen
from .plots import GAVE
from .questions import judged, questions_about
from .recall import REPEATED_WORDS, repeated
from .story import Split, Story, finished

COPIES = 5  # how often the assistant repeats words in one conversation
KNOWN_WORDS = range(3, 17)  # how many words it repeats, where these are known ones
COMPARED = 14  # how often it compares two names, or two places
FEW = 4  # names, or places, where they come again
FACTS = 12  # how often it answers a question about one sentence
PAIRS = 8  # people, each with a thing or in a place
CROWD = 4  # people of whom the same is said
CROWD_QUESTIONS = 14
CROWD_WEIGHTS = {"who_has": 2, "where": 4, "who_wanted": 6, "yes_no": 6}
Names = tuple[str, ...]  # those that texts of a split may hold


def say_again(seed: int, index: int, split: Split = "train") -> dict[str, Any]:
    """The assistant repeats random words, COPIES times others: it can only copy."""
    talk = Talk()
    for number in range(COPIES):
        words = repeated(seed, COPIES * index + number, REPEATED_WORDS, held_out=split == "validation").words
        talk.turn(" ".join(words), " ".join(words))
    return talk.finished("again")


def drill(name: str, seed: int, index: int, split: Split = "train") -> dict[str, Any]:
    """Conversation number `index` of one of TASKS."""
    kind, talk = name.replace("_", " "), Talk()
    TASKS[name](talk, Random(f"{kind} {split} {seed} {index}"), held_out_names() if split == "validation" else names())
    return talk.finished(kind)


def places() -> list[str]:
    """Every place, as it answers "where": "by the river"."""
    return sorted(frozenset.union(*place_sorts().values()))


# One word, one name, one sentence


@cache
def known_words() -> tuple[str, ...]:
    """Every single word that stories may have for somebody or something: "fox", "kite", "red", "river"."""
    pools = [pool for parts in lexicon().roles.values() for pool in parts.values() if isinstance(pool, Pool)]
    return tuple(sorted({word for pool in pools for word in pool.texts if word.isalpha() and word.islower()}))


def say_words(talk: Talk, rng: Random, pool: Names) -> None:
    """The assistant repeats words of the stories, COPIES times others.

    Most are one token, and no two are alike, so the token before says which one comes next. A name is three tokens, and
    its first one stands for many names. From words, heads learn to copy in half of the steps.
    """
    for _ in range(COPIES):
        words = some(known_words(), pick(rng, KNOWN_WORDS), rng)
        talk.turn(" ".join(words), " ".join(words))


def compare(talk: Talk, rng: Random, pool: Names) -> None:
    """The assistant says whether two names are the same, or two places.

    Nothing else in it is said twice, so that a head which finds what was said before can do it.
    """
    for candidate, actual, is_place in to_compare(rng, pool, few=False):
        talk.turn(f"It was {actual}. Was it {candidate}?", judged(candidate, actual, is_place))


def judge(talk: Talk, rng: Random, pool: Names) -> None:
    """The same question about what the assistant has just said, which cannot be known: "It was Belna. Tiko? No."

    Only "yes" and "no" are trained on, and only the two names side by side say which it is. In most of these
    conversations the same few names come again and again, as in a story. What `compare` teaches is not enough there: in
    stories it is a coin (FINDINGS.md#reader).
    """
    questions = wordings("conversations")["judged"]
    for candidate, actual, is_place in to_compare(rng, pool, few=rng.random() < 0.7):
        before, _, word = judged(candidate, actual, is_place).removesuffix(".").rpartition(" ")
        question = pick(rng, questions[:2] if is_place else questions).format(candidate=candidate)
        talk.turn(question, weighted([(before, 0), (f" {word}", 1), (".", 0)]))


def to_compare(rng: Random, pool: Names, few: bool) -> Iterator[tuple[str, str, bool]]:
    """(who is asked about, who it was, whether they are places), half of them equal. few: the same names again."""
    people, everywhere = (some(words, FEW if few else 2 * COMPARED, rng) for words in (pool, places()))
    for number in range(COMPARED):
        is_place, same = rng.random() < 1 / 4, rng.random() < 1 / 2
        words = everywhere if is_place else people
        actual, other = some(words, 2, rng) if few else words[2 * number : 2 * number + 2]
        yield actual if same else other, actual, is_place


def one_fact(talk: Talk, rng: Random, pool: Names) -> None:
    """The assistant answers questions about one sentence each, two of three in a few words.

    So it learns how words of a story begin an answer, where they are cut otherwise (" sleepy", but "s", "leepy"), and
    that who runs to the barn is in the barn.
    """
    facts = wordings("conversations")["facts"]
    for name in some(pool, FACTS, rng):
        who = pick(rng, (name, f"{name} the {pick(rng, list(words_of('friend', 'kind')))}"))
        values, kind = {"name": name, "who": who}, pick(rng, ("feeling", "stays", "race"))
        subject = kind
        if kind == "feeling":
            short = pick(rng, feelings())
        elif kind == "stays":
            short = values["place"] = pick(rng, sorted(place_sorts()[pick(rng, list(place_sorts()))]))
        else:
            ends = words_of("place", "at")
            start, end = (ends[place] for place in some(list(ends), 2, rng))
            values |= {"start": start[""], "end": end[""]}
            subject = pick(rng, ("start", "end"))
            short = (start if subject == "start" else end)["at"]
        question = pick(rng, facts[f"asked_{subject}"]).format(**values)
        if kind == "feeling":
            statement, reply = f"{who} was {short}.", f"{name} was {short}."
        else:
            reply = f"{short.capitalize()}."
            statement = pick(rng, facts[kind]).format(**values, Place=short.capitalize())
        shortly = rng.random() < 2 / 3
        talk.turn(in_prompt(statement, question, shortly, rng), short if shortly else reply)


# Who goes with what


def pair(talk: Talk, rng: Random, pool: Names, task: str) -> None:
    """The assistant says who goes with what, and then it asks and answers in another order.

    In a story the name comes first ("Folen had a ladder"), and the ladder is what is asked about. An induction head
    finds what comes *after* a word. To find what came before takes two heads, each of no use without the other. So in
    half of the sentences, and of the questions, the answer is said again where it can first be known, which takes only
    one of the two. Only the names (or what is asked for) are trained on. Which thing comes next cannot be known, and a
    loss on it hides what is to be learned. Without what is said again neither is learned, but for a course in small
    steps, and then not with every seed. What a name goes with is learned after whose a thing is, and bare before it is
    asked in words (FINDINGS.md#reader).
    """
    texts = wordings("conversations")["pairs"]
    bare, plain, hidden = texts["bare"][:1], texts["told"][:1], False
    if task == "pairs":
        statements, questions = pick(rng, (bare, plain)), ["{thing}"]
    elif task == "ask_pairs":
        statements, questions = pick(rng, (bare, plain, texts["told"], texts["told"])), texts["back"]
    elif task == "by_name":  # what comes right after a name is not always the thing
        statements, questions = texts["bare"], ["{name}"]
    elif hidden := rng.random() < 1 / 2:
        statements, questions = texts["hid"], texts["where"]
    else:
        statements, questions = pick(rng, (texts["told"], texts["bare"])), texts["had"]

    things = [] if hidden else some(sorted(words_of("thing", "")), PAIRS, rng)
    people = some(pool, PAIRS, rng)
    pairs = []
    for name, thing in zip(people, some(places(), PAIRS, rng) if hidden else things, strict=True):
        if hidden:
            wording, values = pick(rng, statements), described(name, rng)
        else:
            values, wording = described(name, rng), pick(rng, statements)
        values |= {"thing": thing, "place": thing}
        pairs.append((wording.format(**values), pick(rng, questions).format(**values), name, thing))

    parts: list[tuple[str, int]] = []

    def say(text: str, at: int, again: str) -> None:
        """A text, in which half of the time something is said again at this character, if it does not end there."""
        parts.append((" " * bool(parts) + text[:at], 0))
        if at < len(text) and rng.random() < AGAIN:
            parts.append((f" {again}", 1))
        parts.append((text[at:], 0))

    for statement, _, name, thing in pairs:
        # The name comes after the thing, or *in* the place at its first word: there what is noted of it can be found.
        say(statement, statement.rindex(thing) + len(first_word(thing) if hidden else thing), name)
    while pairs:
        _, question, name, thing = pairs.pop(int(rng.random() * len(pairs)))
        about, answer = (name, thing) if "by_name" in task else (thing, name)
        say(question, question.rindex(about) + len(about), answer)
        parts += [(f" {answer}", 1), (".", 0)]
    talk.turn(texts["request"], weighted(parts))


def described(name: str, rng: Random) -> dict[str, str]:
    """A name with a kind, a trait and a colour, in all their forms."""
    values = {"name": name}
    for role, part in (("friend", "kind"), ("friend", "trait"), ("thing", "colour")):
        forms = words_of(role, part)
        values |= forms[pick(rng, sorted(forms))]
    return values


# Crowds


def crowds(seed: int, index: int, split: Split = "train", told: bool = False) -> dict[str, Any]:
    """Questions about a crowd. told: the assistant tells it, and says names again (`echoes`)."""
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
    """A text of nothing but one sentence of a plot, said of CROWD people, with its facts.

    In a whole story two people have the same part (two hide, two wish, two help), and a guess is right half of the
    time. Here it is right a quarter of the time, and the text is a third as long.
    """
    rng = Random(f"crowd {split} {seed} {index}")
    plots = wordings("conversations")["crowds"]
    plot = pick(rng, list(plots))
    pen, cast = Pen(rng, held_out=split == "validation"), dict[str, Entity]()
    if plot == "soup":
        cast["cook"] = pen.new("friend")
        pen.say("soup.opening", dish=pen.new("dish"), one=pen.new("food"), two=pen.new("food"), **cast)
        pen.noted.clear()  # nobody is asked about what the cook wants
    for _ in range(CROWD // 2 if plot == "wish" else CROWD):
        for beat, roles in plots[plot].items():
            cast |= pen.cast(**roles)
            pen.say(beat, **cast)
        if plot == "soup":
            pen.fact("has", who=cast["giver"], thing=cast["gift"], cook=cast["cook"], asked=GAVE)
    return finished(pen, plot)


TASKS: dict[str, Callable[[Talk, Random, Names], None]]
TASKS = {"words": say_words, "compare": compare, "judge": judge, "one_fact": one_fact}
TASKS |= {task: partial(pair, task=task) for task in ("pairs", "ask_pairs", "by_name", "ask_by_name")}

# data.source.drills names them.
DRILLS: dict[str, Callable[..., dict[str, Any]]] = {name: partial(drill, name) for name in TASKS}
DRILLS |= {"crowds": crowds, "told_crowds": partial(crowds, told=True)}
