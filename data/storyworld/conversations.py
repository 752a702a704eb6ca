"""Conversations for supervised fine-tuning, made of stories and of questions whose answers are known.

Three kinds: somebody asks for a story; somebody gives a story and asks about it; a story is told and talked
about over several turns. A fourth comes only where it is asked for: somebody gives a story and asks about it again and
again, which makes the most of reading it once. Each is `{"conversations": [{"role", "content"}, ...], "meta": {...}}`.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from .draw import as_yes_no, draw_question
from .echoes import with_echoes
from .questions import KINDS, OPEN_KINDS, Question, questions_about
from .story import Split, Story, tell
from .wordings import wordings

CONVERSATION_KINDS = ("tell", "question", "turns")
WEIGHTS = (1, 2, 1)  # half of all conversations are one question about one story
MANY = "questions"  # the fourth kind, and how many questions it has at most unless that is said
MOST_QUESTIONS = 8
WEIGHTS_OF_CLASSES = {"who_has": 3, "where": 3}  # how often a class of question is asked; the others count 1
OTHER_BOOK = 500_009  # so that conversations are not about the stories of draw_question(seed, index)
Message = dict[str, Any]


def converse(
    seed: int,
    index: int,
    split: Split = "train",
    level: int = 1,
    kind: str | None = None,
    held_out_names: bool | None = None,
    most: int = MOST_QUESTIONS,
    told: float = 0.0,
    told_weight: int = 0,
    weights: Mapping[str, int] = WEIGHTS_OF_CLASSES,
    checked: float = 0.0,
    echoed: float = 0.0,
) -> dict[str, Any]:
    """Conversation number `index`, in the form that OpenAI and MiniMind use, with one more key, "meta":

    kind:      "tell", "question" or "turns", drawn unless given; or "questions", where that is given
    plot:      of the story that it is about
    contains:  what a story that fits the request must contain (names, a thing); empty where none is asked for
    questions: [{message, kind, answer, candidates}]: the exact short answer to the question that message
               number `message` of the conversation answers, whether in short or in a sentence

    most:      questions of a conversation of the kind "questions", at most
    told:      share of these in which the assistant tells the story that is asked about, as in "turns". There it has
               the "weight" `told_weight`: 0 = it is read, and not trained on
    weights:   how often a class of question is asked there, of those that the story has; 1 where it is not named
    checked:   share of these answers after which the same is asked as yes or no: only comparing is left to do. That
               may be one question more than `most`
    echoed:    share of the stories that the assistant tells in which names are said again (echoes.py); only these names
               are trained on, whatever `told_weight` says

    Where the first of many questions is to be answered in a few words, so are the others.

    Validation conversations have names that no training text holds, unless `held_out_names` is False. The
    same arguments give the same conversation on every machine. Raises ValueError for an unknown kind.
    """
    if kind is not None and kind not in (*CONVERSATION_KINDS, MANY):
        raise ValueError(f"unknown kind of conversation {kind!r}: use one of {', '.join((*CONVERSATION_KINDS, MANY))}")
    rng = Random(f"conversation {split} {level} {seed} {index}")
    kind = kind or pick(rng, [one for one, n in zip(CONVERSATION_KINDS, WEIGHTS, strict=True) for _ in range(n)])
    if held_out_names is None:
        held_out_names = split == "validation"
    if kind == "tell":
        story = tell(2 * OTHER_BOOK + seed, index, split, level, held_out_names)
    else:
        story, question = draw_question(OTHER_BOOK + seed, index, split, level, pick(rng, KINDS), held_out_names)
    messages: list[Message] = []
    contains: list[str] = []
    answered: list[dict[str, Any]] = []
    if rng.random() < 1 / 4:
        messages.append({"role": "system", "content": pick(rng, wordings("conversations")["system"])})
    by_assistant = kind == MANY and rng.random() < told if told else False
    shortly = False
    if kind in ("question", MANY) and not by_assistant:
        prompt, answer = ask(story, question, rng)
        turn(messages, prompt, answer)
        answered.append(noted(question, messages))
        shortly = answer == question.answer  # asked for at the beginning, for all that follows
    else:
        request, contains = ask_for(story, rng)
        turn(messages, request, story.text)
        if by_assistant:
            messages[-1]["weight"] = told_weight
            if echoed and rng.random() < echoed:
                messages[-1] = {"role": "assistant", "content": with_echoes(story, rng)}
    more: list[Question] = []
    if kind == "turns":
        more = [question, *more_questions(story, question, rng)]
    elif kind == MANY:
        more = [question] * by_assistant + many_questions(story, question, rng, most, weights, checked)
    for one in more:
        turn(messages, one.text, one.answer if shortly else one.sentence)
        answered.append(noted(one, messages))
    if kind == "turns" and rng.random() < 1 / 4:
        turn(messages, *(pick(rng, wordings("conversations")[key]) for key in ("thanks", "welcome")))
    meta = {"kind": kind, "plot": story.plot, "contains": contains, "questions": answered}
    return {"conversations": messages, "meta": meta}


def turn(messages: list[Message], user: str, assistant: str) -> None:
    messages += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


def pick(rng: Random, options: Sequence[str]) -> str:
    return options[int(rng.random() * len(options))]


def noted(question: Question, messages: Sequence[Message]) -> dict[str, Any]:
    """What is known about the answer that the last message gives."""
    known = {"kind": question.kind, "answer": question.answer, "candidates": list(question.candidates)}
    return {"message": len(messages) - 1, **known}


def ask(story: Story, question: Question, rng: Random) -> tuple[str, str]:
    """A prompt with the story and the question, and the answer: a sentence, or a few words if that is asked for."""
    shortly = rng.random() < 1 / 2
    return asked_about(story.text, question.text, shortly, rng), question.answer if shortly else question.sentence


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


def many_questions(
    story: Story, asked: Question, rng: Random, most: int, weights: Mapping[str, int], checked: float
) -> list[Question]:
    """More questions about the story until there are `most`, of any kind that it has, none asked before.

    Where no weights are given, who has it and where it is are asked most: they are what is to be learned first.
    """
    more: list[Question] = []
    of_kind: dict[str, list[Question]] = {}
    for question in questions_about(story):
        of_kind.setdefault(question.kind, []).append(question)
    kinds = [kind for kind in of_kind for _ in range(weights.get(kind, 1))]
    for _ in range(3 * most):
        found = of_kind[pick(rng, kinds)]
        if found[0].kind == "yes_no":
            answer = pick(rng, ("yes", "no"))
            found = [question for question in found if question.answer == answer]
        one = found[int(rng.random() * len(found))]
        if not any(repeats(one.text, before.text) for before in (asked, *more)):
            more.append(one)
            if checked and one.kind in OPEN_KINDS and rng.random() < checked:
                again = as_yes_no(one, rng.random() < 1 / 2, rng)
                more += [again] if again else []
        if len(more) + 1 >= most:
            break
    return more


def repeats(one: str, other: str) -> bool:
    """Whether one question asks what the other does: "Who sang first?" and "Is it true that Tiko sang first?"."""
    shorter, longer = sorted((one, other), key=len)
    return longer.endswith(shorter.removeprefix("Who"))
