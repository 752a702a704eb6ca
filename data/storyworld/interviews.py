"""Conversations of many questions about one story, which makes the most of reading it once."""

from collections.abc import Mapping
from random import Random
from typing import Any, NamedTuple

from .conversations import OTHER_BOOK, ask_for, asked_about, noted, opening, pick, repeats, turn
from .draw import as_yes_no, draw_question
from .echoes import with_echoes
from .questions import KINDS, OPEN_KINDS, Question, questions_about
from .story import Split, Story


class Asked(NamedTuple):
    """What an interview asks, and how.

    most:        questions, at most
    told:        share of the conversations in which the assistant tells the story that is asked about. It has the
                 "weight" `told_weight`: 0 = it is read, and not trained on
    weights:     how often a class of question is asked, of those that the story has; 1 where it is not named
    checked:     share of the answers after which the same is asked as yes or no: only comparing is left to do. That
                 may be one question more than `most`
    echoed:      share of the stories that the assistant tells in which names are said again (echoes.py); only these
                 names are trained on, whatever `told_weight` says
    """

    most: int = 8
    told: float = 0.0
    told_weight: int = 0
    weights: Mapping[str, int] = {"who_has": 3, "where": 3}
    checked: float = 0.0
    echoed: float = 0.0


USUAL = Asked()


def interview(
    seed: int,
    index: int,
    split: Split = "train",
    level: int = 1,
    held_out_names: bool | None = None,
    asked: Asked = USUAL,
) -> dict[str, Any]:
    """Conversation number `index`, as `converse` describes it, of the kind "questions".

    Who asks for a few words at the beginning gets them until the end. Validation conversations have names that no
    training text holds, unless `held_out_names` is False. The same arguments give the same conversation on every
    machine.
    """
    rng = Random(f"conversation {split} {level} {seed} {index}")
    if held_out_names is None:
        held_out_names = split == "validation"
    story, question = draw_question(OTHER_BOOK + seed, index, split, level, pick(rng, KINDS), held_out_names)
    messages, shortly = opening(rng), False
    contains: list[str] = []
    answered: list[dict[str, Any]] = []
    if asked.told and rng.random() < asked.told:
        request, contains = ask_for(story, rng)
        turn(messages, request, story.text)
        if asked.echoed and rng.random() < asked.echoed:
            messages[-1]["content"] = with_echoes(story, rng)
        else:
            messages[-1]["weight"] = asked.told_weight
        turn(messages, question.text, question.reply(shortly))
    else:
        shortly = rng.random() < 1 / 2
        turn(messages, asked_about(story.text, question.text, shortly, rng), question.reply(shortly))
    answered.append(noted(question, messages))
    for one in many_questions(story, question, rng, asked):
        turn(messages, one.text, one.reply(shortly))
        answered.append(noted(one, messages))
    meta = {"kind": "questions", "plot": story.plot, "contains": contains, "questions": answered}
    return {"conversations": messages, "meta": meta}


def many_questions(story: Story, first: Question, rng: Random, asked: Asked) -> list[Question]:
    """More questions about the story than the first, of any kind that it has, none of them asked before.

    Yes or no is asked of every candidate alike, so the name that is offered says nothing about the answer. Where yes is
    right half of the time, models learn to repeat that name (EXPERIMENTS.md).
    """
    more: list[Question] = []
    of_kind: dict[str, list[Question]] = {}
    for question in questions_about(story):
        of_kind.setdefault(question.kind, []).append(question)
    kinds = [kind for kind in of_kind for _ in range(asked.weights.get(kind, 1))]
    for _ in range(3 * asked.most):
        found = of_kind[pick(rng, kinds)]
        one = found[int(rng.random() * len(found))]
        if not any(repeats(one.text, before.text) for before in (first, *more)):
            more.append(one)
            if asked.checked and one.kind in OPEN_KINDS and rng.random() < asked.checked:
                again = as_yes_no(one, rng.random() < 1 / 2, rng)
                more += [again] if again else []
        if len(more) + 1 >= asked.most:
            break
    return more
