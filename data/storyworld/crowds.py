"""Conversations about one sentence of a story that is said of four people, one after another: who goes with what?

In a whole story two people have the same part (two hide, two wish, two help), and a guess is right half of the time.
Here it is right a quarter of the time, and the text is a third as long.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from .author import Author
from .conversations import Message, asked_about, noted, pick, turn
from .echoes import with_echoes
from .interviews import Asked, many_questions
from .lexicon import lexicon
from .pen import Pen
from .plots import GAVE, one_hides
from .questions import questions_about
from .story import Split, Story, finished
from .wordings import wordings

PEOPLE = 4
ASKED = Asked(most=14, weights={"who_has": 2, "where": 4, "who_wanted": 6, "yes_no": 6})


def crowd(seed: int, index: int, split: Split = "train") -> Story:
    """A text of nothing but one sentence of a plot, said of PEOPLE people, with its facts."""
    rng = Random(f"crowd {split} {seed} {index}")
    plot = pick(rng, tuple(CROWDS))
    author = Author(lexicon(), rng, held_out=split == "validation")
    CROWDS[plot](author)
    return finished(author, author.text, plot)


def ask_crowd(seed: int, index: int, split: Split = "train") -> dict[str, Any]:
    """A conversation of questions about a crowd.

    Validation conversations have names that no training text holds. The same arguments give the same conversation on
    every machine.
    """
    rng = Random(f"ask crowd {split} {seed} {index}")
    return _talk(crowd(seed, index, split), rng, told=False)


def tell_crowd(seed: int, index: int, split: Split = "train") -> dict[str, Any]:
    """The same, but the assistant tells the crowd, and says names again (echoes.py)."""
    rng = Random(f"tell crowd {split} {seed} {index}")
    return _talk(crowd(seed, index, split), rng, told=True)


def _talk(story: Story, rng: Random, told: bool) -> dict[str, Any]:
    every = questions_about(story)
    kind = pick(rng, sorted({question.kind for question in every}))
    possible = [question for question in every if question.kind == kind]
    first = possible[int(rng.random() * len(possible))]
    messages: list[Message] = []
    shortly = rng.random() < 1 / 2
    if told:
        messages.append({"role": "user", "content": wordings("conversations")["crowd"]})
        messages.append({"role": "assistant", "content": with_echoes(story, rng)})
        turn(messages, first.text, first.reply(shortly))
    else:
        turn(messages, asked_about(story.text, first.text, shortly, rng), first.reply(shortly))
    answered = [noted(first, messages)]
    for one in many_questions(story, first, rng, ASKED):
        turn(messages, one.text, one.reply(shortly))
        answered.append(noted(one, messages))
    return {"conversations": messages, "meta": {"kind": "crowd", "plot": story.plot, "questions": answered}}


def many_hide(pen: Pen) -> None:
    for _ in range(PEOPLE):
        one_hides(pen, pen.new("friend"), pen.new("spot"), pen.new("clothes"))


def many_wish(pen: Pen) -> None:
    for _ in range(PEOPLE // 2):
        one, two, gift, present = pen.new("friend"), pen.new("friend"), pen.new("thing"), pen.new("thing")
        pen.say("wish.wishes", one=one, two=two, gift=gift, present=present)
        pen.fact("wants", who=one, thing=gift)
        pen.fact("wants", who=two, thing=present)


def many_lend(pen: Pen) -> None:
    cook = pen.new("friend")
    pen.say("soup.opening", cook=cook, dish=pen.new("dish"), one=pen.new("food"), two=pen.new("food"))
    for _ in range(PEOPLE):
        giver, gift = pen.new("friend"), pen.new("food")
        pen.say("soup.lend", cook=cook, giver=giver, gift=gift)
        pen.fact("has", who=giver, thing=gift, cook=cook, asked=GAVE)


def many_trade(pen: Pen) -> None:
    for _ in range(PEOPLE):
        hero, have, wish = pen.new("friend"), pen.new("thing"), pen.new("thing")
        pen.say("trade.opening", hero=hero, have=have, wish=wish)
        pen.fact("has", who=hero, thing=have)
        pen.fact("wants", who=hero, thing=wish)


CROWDS: Mapping[str, Callable[[Pen], None]] = {
    "hide": many_hide,
    "wish": many_wish,
    "soup": many_lend,
    "trade": many_trade,
}
