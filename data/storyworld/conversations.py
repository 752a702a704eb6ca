"""Conversations for supervised fine-tuning, made of stories and of questions whose answers are known.

Three kinds: somebody asks for a story; somebody gives a story and asks about it; a story is told and talked
about over several turns. Each is `{"conversations": [{"role", "content"}, ...], "meta": {...}}`. A fourth, of many
questions about one story, is in interviews.py.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from .draw import draw_question
from .questions import KINDS, Question, questions_about
from .story import Split, Story, tell
from .wordings import wordings

CONVERSATION_KINDS = ("tell", "question", "turns")
WEIGHTS = (1, 2, 1)  # half of all conversations are one question about one story
OTHER_BOOK = 500_009  # so that conversations are not about the stories of draw_question(seed, index)
Message = dict[str, Any]


def converse(
    seed: int,
    index: int,
    split: Split = "train",
    level: int = 1,
    kind: str | None = None,
    held_out_names: bool | None = None,
) -> dict[str, Any]:
    """Conversation number `index`, in the form that OpenAI and MiniMind use, with one more key, "meta":

    kind:      "tell", "question" or "turns", drawn unless given
    plot:      of the story that it is about
    contains:  what a story that fits the request must contain (names, a thing); empty where none is asked for
    questions: [{message, kind, answer, candidates}]: the exact short answer to the question that message
               number `message` of the conversation answers, whether in short or in a sentence

    Validation conversations have names that no training text holds, unless `held_out_names` is False. The
    same arguments give the same conversation on every machine. Raises ValueError for an unknown kind.
    """
    if kind is not None and kind not in CONVERSATION_KINDS:
        raise ValueError(f"unknown kind of conversation {kind!r}: use one of {', '.join(CONVERSATION_KINDS)}")
    rng = Random(f"conversation {split} {level} {seed} {index}")
    kind = kind or pick(rng, [one for one, n in zip(CONVERSATION_KINDS, WEIGHTS, strict=True) for _ in range(n)])
    if held_out_names is None:
        held_out_names = split == "validation"
    if kind == "tell":
        story = tell(2 * OTHER_BOOK + seed, index, split, level, held_out_names)
    else:
        story, question = draw_question(OTHER_BOOK + seed, index, split, level, pick(rng, KINDS), held_out_names)
    messages = opening(rng)
    contains: list[str] = []
    answered: list[dict[str, Any]] = []
    if kind == "question":
        shortly = rng.random() < 1 / 2
        turn(messages, asked_about(story.text, question.text, shortly, rng), question.reply(shortly))
        answered.append(noted(question, messages))
    else:
        request, contains = ask_for(story, rng)
        turn(messages, request, story.text)
    if kind == "turns":
        for one in (question, *more_questions(story, question, rng)):
            turn(messages, one.text, one.sentence)
            answered.append(noted(one, messages))
        if rng.random() < 1 / 4:
            turn(messages, *(pick(rng, wordings("conversations")[key]) for key in ("thanks", "welcome")))
    meta = {"kind": kind, "plot": story.plot, "contains": contains, "questions": answered}
    return {"conversations": messages, "meta": meta}


def opening(rng: Random) -> list[Message]:
    """A system message, in every fourth conversation."""
    said = rng.random() < 1 / 4
    return [{"role": "system", "content": pick(rng, wordings("conversations")["system"])}] if said else []


def turn(messages: list[Message], user: str, assistant: str) -> None:
    messages += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


def weighted(parts: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    """The content of a message of which some parts are trained on (1), and some are not (0)."""
    return [{"type": "text", "text": text, "weight": weight} for text, weight in parts]


def pick(rng: Random, options: Sequence[str]) -> str:
    return options[int(rng.random() * len(options))]


def noted(question: Question, messages: Sequence[Message]) -> dict[str, Any]:
    """What is known about the answer that the last message gives."""
    known = {"kind": question.kind, "answer": question.answer, "candidates": list(question.candidates)}
    return {"message": len(messages) - 1, **known}


def asked_about(story: str, question: str, shortly: bool, rng: Random) -> str:
    """A prompt with a story and a question, which asks for a few words or does not."""
    return pick(rng, wordings("conversations")["ask_shortly" if shortly else "ask"]).format(
        story=story, question=question
    )


def ask_for(story: Story, rng: Random) -> tuple[str, list[str]]:
    """A request that this story fits, and what it asks the story to contain."""
    said = wordings("conversations")
    people = [described(story, number, rng) for number in story.people]
    names = list(story.people.values())
    things = [texts for texts in story.entities if "a_colour" in texts and "" in texts]
    ways = ["about_one", *["about_two"] * (len(people) > 1), *["about_thing"] * bool(things)]
    way = pick(rng, ways + ["about_topic"] * (story.plot in said["topics"]))
    first = int(rng.random() * len(people))
    second = (first + 1 + int(rng.random() * (len(people) - 1))) % len(people)
    values = {"one": people[first], "two": people[second], "topic": said["topics"].get(story.plot, "")}
    contains = [names[first]]
    if way == "about_two":
        contains.append(names[second])
    elif way == "about_thing":
        thing = things[int(rng.random() * len(things))]
        values["thing"] = f"{thing['a_colour']} {thing['']}"
        contains.append(thing[""])
    return pick(rng, said[way]).format(**values), contains


def described(story: Story, number: int, rng: Random) -> str:
    """Somebody of the story, with as much as one may wish for: "a shy fox named Tiko"."""
    texts = story.entities[number]
    if "trait" in texts and rng.random() < 1 / 2:
        return f"{texts['a_trait']} {texts['kind']} named {texts['']}"
    return f"{texts['a_kind']} named {texts['']}"


def more_questions(story: Story, asked: Question, rng: Random) -> list[Question]:
    """One to three more questions about the story, each of another kind and none asked before, yes as likely as no."""
    more: list[Question] = []
    kinds = [kind for kind in KINDS if kind != asked.kind]
    for _ in range(1 + int(rng.random() * 3)):
        kind = kinds.pop(int(rng.random() * len(kinds)))
        found = questions_about(story, kind)
        if kind == "yes_no":
            answer = pick(rng, ("yes", "no"))
            found = [question for question in found if question.answer == answer]
        found = [one for one in found if not any(repeats(one.text, before.text) for before in (asked, *more))]
        if found:
            more.append(found[int(rng.random() * len(found))])
    return more


def repeats(one: str, other: str) -> bool:
    """Whether one question asks what the other does: "Who sang first?" and "Is it true that Tiko sang first?"."""
    shorter, longer = sorted((one, other), key=len)
    return longer.endswith(shorter.removeprefix("Who"))
