"""Conversations of one small task again and again, which stories show too seldom: copy, pair, compare, answer shortly.

words        known words are said again
compare      whether two names, or two places, are the same
judge        the same question about what the assistant has just said
one_fact     questions about one sentence each
pairs        "Falwa net Falwa. Folen ladder."          "ladder Folen. net Falwa."
             "Folen the mole had a red ladder Folen."  "ladder Folen."
ask_pairs    all of these, in more wordings            "Who had the ladder Folen? So it was Folen."
by_name      "Folen the mole ladder Folen."            "Folen ladder."
ask_by_name  "Folen hid under Folen the bridge."       "Where did Folen under the bridge hide? under the bridge."
crowds       one sentence of a story, said of four people, and questions: who goes with what?
told_crowds  the same, told by the assistant
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from random import Random
from typing import Any

from .conversations import AGAIN, Talk, first_word, in_prompt, many_questions, weighted, with_echoes
from .lexicon import Pool, feelings, lexicon, place_sorts, wordings, words_of
from .names import held_out_names, names, pick, some
from .pen import Author
from .plots import GAVE
from .questions import capital, judged, questions_about
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


def say_again(seed: int, index: int, split: Split = "train") -> dict[str, Any]:
    """The assistant repeats random words, COPIES times others: it can only copy."""
    talk = Talk()
    for number in range(COPIES):
        words = repeated(seed, COPIES * index + number, REPEATED_WORDS, held_out=split == "validation").words
        talk.turn(" ".join(words), " ".join(words))
    return talk.finished("again")


def drill(name: str, seed: int, index: int, split: Split = "train") -> dict[str, Any]:
    """Conversation number `index` of one of TASKS."""
    kind = name.replace("_", " ")
    return TASKS[name](Random(f"{kind} {split} {seed} {index}"), split).finished(kind)


def names_for(split: Split) -> tuple[str, ...]:
    """Names that texts of this split may hold."""
    return held_out_names() if split == "validation" else names()


def places() -> list[str]:
    """Every place, as it answers "where": "by the river"."""
    return sorted(frozenset.union(*place_sorts().values()))


@cache
def known_words() -> tuple[str, ...]:
    """Every single word that stories may have for somebody or something: "fox", "kite", "red", "river"."""
    pools = [pool for parts in lexicon().roles.values() for pool in parts.values() if isinstance(pool, Pool)]
    return tuple(sorted({word for pool in pools for word in pool.texts if word.isalpha() and word.islower()}))


# One word, one name, one sentence


def say_words(rng: Random, split: Split) -> Talk:
    """The assistant repeats words of the stories, COPIES times others.

    Most are one token, and no two are alike, so the token before says which one comes next. A name is three tokens, and
    its first one stands for many names. From words, heads learn to copy in half of the steps (EXPERIMENTS.md).
    """
    talk = Talk()
    for _ in range(COPIES):
        words = some(known_words(), pick(rng, KNOWN_WORDS), rng)
        talk.turn(" ".join(words), " ".join(words))
    return talk


def compare(rng: Random, split: Split) -> Talk:
    """The assistant says whether two names are the same, or two places.

    Nothing else in it is said twice, so that a head which finds what was said before can do it.
    """
    talk = Talk()
    for candidate, actual, is_place in to_compare(rng, split, few=False):
        talk.turn(f"It was {actual}. Was it {candidate}?", judged(candidate, actual, is_place))
    return talk


def judge(rng: Random, split: Split) -> Talk:
    """The same question about what the assistant has just said, which cannot be known: "It was Belna. Tiko? No."

    Only "yes" and "no" are trained on, and only the two names side by side say which it is. In most of these
    conversations the same few names come again and again, as in a story. What `compare` teaches is not enough there: in
    stories it is a coin (EXPERIMENTS.md).
    """
    talk = Talk()
    questions = wordings("conversations")["judged"]
    for candidate, actual, is_place in to_compare(rng, split, few=rng.random() < 0.7):
        before, _, word = judged(candidate, actual, is_place).removesuffix(".").rpartition(" ")
        question = pick(rng, questions[:2] if is_place else questions).format(candidate=candidate)
        talk.turn(question, weighted([(before, 0), (f" {word}", 1), (".", 0)]))
    return talk


def to_compare(rng: Random, split: Split, few: bool) -> Iterator[tuple[str, str, bool]]:
    """(who is asked about, who it was, whether they are places), half of them equal. few: the same names again."""
    people = some(names_for(split), FEW if few else 2 * COMPARED, rng)
    somewhere = some(places(), FEW if few else 2 * COMPARED, rng)
    for number in range(COMPARED):
        is_place, same = rng.random() < 1 / 4, rng.random() < 1 / 2
        pool = somewhere if is_place else people
        actual, other = some(pool, 2, rng) if few else pool[2 * number : 2 * number + 2]
        yield actual if same else other, actual, is_place


def one_fact(rng: Random, split: Split) -> Talk:
    """The assistant answers questions about one sentence each, two of three in a few words.

    So it learns how words of a story begin an answer, where they are cut otherwise (" sleepy", but "s", "leepy"), and
    that who runs to the barn is in the barn.
    """
    talk = Talk()
    facts = wordings("conversations")["facts"]
    for name in some(names_for(split), FACTS, rng):
        who = pick(rng, (name, f"{name} the {pick(rng, list(words_of('friend', 'kind')))}"))
        kind = pick(rng, ("feeling", "stays", "race"))
        if kind == "feeling":
            short = pick(rng, feelings())
            statement, reply = facts["feeling"].format(who=who, feeling=short), f"{name} was {short}."
            question = pick(rng, wordings("questions")["wordings"]["feels"]).format(who=name)
        else:
            if kind == "stays":
                about, short = "stays", pick(rng, sorted(place_sorts()[pick(rng, ("place", "spot", "seat"))]))
                values = {"who": who, "name": name, "place": short}
            else:
                ends = words_of("place", "at")
                start, end = (ends[place] for place in some(list(ends), 2, rng))
                about = pick(rng, ("start", "end"))
                values, short = {"start": start[""], "end": end[""]}, (start if about == "start" else end)["at"]
            question = pick(rng, facts[f"asked_{about}"]).format(**values)
            statement, reply = pick(rng, facts[kind]).format(**values, Place=capital(short)), f"{capital(short)}."
        shortly = rng.random() < 2 / 3
        talk.turn(in_prompt(statement, question, shortly, rng), short if shortly else reply)
    return talk


# Who goes with what


def pair(rng: Random, split: Split, task: str) -> Talk:
    """The assistant says who goes with what, and then it asks and answers in another order.

    In a story the name comes first ("Folen had a ladder"), and the ladder is what is asked about. An induction head
    finds what comes *after* a word. To find what came before takes two heads, each of no use without the other. So in
    half of the sentences, and of the questions, the answer is said again where it can first be known, which takes only
    one of the two. Only the names (or what is asked for) are trained on. Which thing comes next cannot be known, and a
    loss on it hides what is to be learned. Without what is said again neither is learned, but for a course in small
    steps, and then not with every seed. What a name goes with is learned after whose a thing is, and bare before it is
    asked in words (EXPERIMENTS.md).
    """
    texts = wordings("conversations")["pairs"]
    bare, plain, hidden = ["{name} {thing}."], texts["told"][:1], False
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
    people = some(names_for(split), PAIRS, rng)
    pairs = []  # both texts are cut where the echo belongs; the name, and what is asked for
    for name, thing in zip(people, some(places(), PAIRS, rng) if hidden else things, strict=True):
        if (
            hidden
        ):  # the name is said again *in* the place, at its first word, where it can be found by what is noted there
            statement = pick(rng, statements).format(**described(name, rng), place=thing)
            at = statement.rindex(thing) + len(first_word(thing))
            cut_statement = statement[:at], statement[at:]
            question = pick(rng, questions).format(name=name)
        else:
            values = described(name, rng) | {"thing": thing}
            cut_statement = cut_after(pick(rng, statements).format(**values), thing)
            question = pick(rng, questions).format(**values)
        about, short = (name, thing) if "by_name" in task else (thing, name)
        pairs.append((cut_statement, cut_after(question, about), name, short))

    parts: list[tuple[str, int]] = []

    def say(text: tuple[str, str], echo: str) -> None:
        parts.append((" " * bool(parts) + text[0], 0))
        if text[1] and rng.random() < AGAIN:
            parts.append((f" {echo}", 1))
        parts.append((text[1], 0))

    for cut_statement, _, name, _ in pairs:
        say(cut_statement, name)
    while pairs:
        _, cut_question, _, short = pairs.pop(int(rng.random() * len(pairs)))
        say(cut_question, short)
        parts += [(f" {short}", 1), (".", 0)]
    talk = Talk()
    talk.turn(texts["request"], weighted(parts))
    return talk


def described(name: str, rng: Random) -> dict[str, str]:
    """A name with a kind, a trait and a colour, in all their forms."""
    values = {"name": name}
    for role, part in (("friend", "kind"), ("friend", "trait"), ("thing", "colour")):
        forms = words_of(role, part)
        values |= forms[pick(rng, sorted(forms))]
    return values


def cut_after(text: str, word: str) -> tuple[str, str]:
    """A text cut after the last such word in it."""
    end = text.rindex(word) + len(word)
    return text[:end], text[end:]


# Crowds


def crowds(seed: int, index: int, split: Split = "train", told: bool = False) -> dict[str, Any]:
    """Questions about a crowd. told: the assistant tells it, and says names again (`echoes`)."""
    rng = Random(f"{'tell' if told else 'ask'} crowd {split} {seed} {index}")
    story = crowd(seed, index, split)
    every = questions_about(story)
    kind = pick(rng, sorted({question.kind for question in every}))
    first = pick(rng, [question for question in every if question.kind == kind])
    talk, shortly = Talk(), rng.random() < 1 / 2
    if told:
        talk.turn(wordings("conversations")["crowd"], with_echoes(story, rng))
        talk.ask(first, shortly)
    else:
        talk.ask(first, shortly, in_prompt(story.text, first.text, shortly, rng))
    for question in many_questions(story, first, rng, CROWD_QUESTIONS, CROWD_WEIGHTS):
        talk.ask(question, shortly)
    return talk.finished("crowd", plot=story.plot)


def crowd(seed: int, index: int, split: Split = "train") -> Story:
    """A text of nothing but one sentence of a plot, said of CROWD people, with its facts.

    In a whole story two people have the same part (two hide, two wish, two help), and a guess is right half of the
    time. Here it is right a quarter of the time, and the text is a third as long.
    """
    rng = Random(f"crowd {split} {seed} {index}")
    plot = pick(rng, ("hide", "wish", "soup", "trade"))
    pen = Author(lexicon(), rng, held_out=split == "validation")
    if plot == "soup":
        cook = pen.new("friend")
        pen.say("soup.opening", cook=cook, dish=pen.new("dish"), one=pen.new("food"), two=pen.new("food"))
        pen.noted.clear()  # nobody is asked about what the cook wants
    for _ in range(CROWD // 2 if plot == "wish" else CROWD):
        one = pen.new("friend")
        if plot == "hide":
            pen.say("hide.hide", hider=one, spot=pen.new("spot"), clothes=pen.new("clothes"))
        elif plot == "wish":
            two, gift, present = pen.new("friend"), pen.new("thing"), pen.new("thing")
            pen.say("wish.wishes", one=one, two=two, gift=gift, present=present)
        elif plot == "soup":
            food = pen.new("food")
            pen.say("soup.lend", cook=cook, giver=one, gift=food)
            pen.fact("has", who=one, thing=food, cook=cook, asked=GAVE)
        else:
            have, wish = pen.new("thing"), pen.new("thing")
            pen.say("trade.opening", hero=one, have=have, wish=wish)
    return finished(pen, pen.text, plot)


TASKS: Mapping[str, Callable[[Random, Split], Talk]] = {
    "words": say_words,
    "compare": compare,
    "judge": judge,
    "one_fact": one_fact,
    **{task: partial(pair, task=task) for task in ("pairs", "ask_pairs", "by_name", "ask_by_name")},
}

# data.source.drills names them.
DRILLS: Mapping[str, Callable[[int, int, Split], dict[str, Any]]] = {
    **{name: partial(drill, name) for name in TASKS},
    "crowds": crowds,
    "told_crowds": partial(crowds, told=True),
}
