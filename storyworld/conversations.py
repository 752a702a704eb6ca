"""Conversations for fine-tuning, made of stories and of questions whose answers are known.

converse    three kinds: somebody asks for a story; somebody gives a story and asks about it; a story is told and
            talked about over several turns
interview   many questions about one story, which makes the most of reading it once
prefer      a question, its right answer, and a wrong one in the same wording

Conversations are `{"conversations": [{"role", "content"}, ...], "meta": {...}}`, the form that OpenAI and MiniMind use
with one more key. Those of the validation split, here and in drills.py, have names that no training text holds (unless
`held_out_names` is False), and the same arguments give the same conversation on every machine.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from .lexicon import wordings
from .names import pick
from .pen import Fact
from .questions import KINDS, OPEN_KINDS, Question, as_yes_no, draw_question, judged, places_of, questions_about
from .story import Split, Story, tell

CONVERSATION_KINDS = ("tell", "question", "question", "turns")  # half of them are one question about one story
CLASS_WEIGHTS = {"who_has": 3, "where": 3}  # how often an interview asks a class of questions; 1 = the others
OTHER_BOOK = 500_009  # so that conversations are not about the stories of draw_question(seed, index)
NEAR = 200  # characters before, in which the name and the thing must stand for a name to be said again
AGAIN = 1 / 2  # share of the names that are said again: where they are not, they must be noted all the same


def converse(
    seed: int,
    index: int,
    split: Split = "train",
    level: int = 1,
    kind: str | None = None,
    held_out_names: bool | None = None,
) -> dict[str, Any]:
    """Conversation number `index`, with this "meta":

    kind:      "tell", "question" or "turns", drawn unless given
    plot:      of the story that it is about
    contains:  what a story that fits the request must contain (names, a thing); empty where none is asked for
    questions: [{message, kind, answer, candidates}]: the exact short answer to the question that message
               number `message` of the conversation answers, whether in short or in a sentence
    """
    rng = Random(f"conversation {split} {level} {seed} {index}")
    kind = kind or pick(rng, CONVERSATION_KINDS)
    if kind == "tell":
        held_out = split == "validation" if held_out_names is None else held_out_names
        story = tell(2 * OTHER_BOOK + seed, index, split, level, held_out)
    else:
        story, question = draw_question(OTHER_BOOK + seed, index, split, level, pick(rng, KINDS), held_out_names)
    talk = Talk(rng)
    if kind == "question":
        talk.ask_in_prompt(story, question, rng)
    else:
        talk.ask_for(story, rng)
    if kind == "turns":
        for following in (question, *more_questions(story, question, rng)):
            talk.ask(following)
        if rng.random() < 1 / 4:
            talk.turn(*(pick(rng, wordings("conversations")[key]) for key in ("thanks", "welcome")))
    return talk.finished(kind, plot=story.plot, contains=talk.contains)


def interview(
    seed: int,
    index: int,
    split: Split = "train",
    level: int = 1,
    held_out_names: bool | None = None,
    *,
    most: int = 8,
    told: float = 0.0,
    told_weight: int = 0,
    weights: Mapping[str, int] | None = None,
    checked: float = 0.0,
    echoed: float = 0.0,
) -> dict[str, Any]:
    """Conversation number `index`, as `converse` describes it, of the kind "questions".

    most:        questions, at most
    told:        share of the conversations in which the assistant tells the story that is asked about. It has the
                 "weight" `told_weight`: 0 = it is read, and not trained on
    weights:     how often a class of question is asked, of those that the story has; else as CLASS_WEIGHTS says
    checked:     share of the answers after which the same is asked as yes or no: only comparing is left to do. That
                 may be one question more than `most`
    echoed:      share of the stories that the assistant tells in which names are said again (`echoes`); only these
                 names are trained on, whatever `told_weight` says

    Who asks for a few words at the beginning gets them until the end.
    """
    rng = Random(f"conversation {split} {level} {seed} {index}")
    story, question = draw_question(OTHER_BOOK + seed, index, split, level, pick(rng, KINDS), held_out_names)
    talk, shortly = Talk(rng), False
    if told and rng.random() < told:
        talk.ask_for(story, rng)
        if echoed and rng.random() < echoed:
            talk.messages[-1]["content"] = with_echoes(story, rng)
        else:
            talk.messages[-1]["weight"] = told_weight
        talk.ask(question)
    else:
        shortly = talk.ask_in_prompt(story, question, rng)
    for following in many_questions(story, question, rng, most, CLASS_WEIGHTS | dict(weights or {}), checked):
        talk.ask(following, shortly)
    return talk.finished("questions", plot=story.plot, contains=talk.contains)


def prefer(seed: int, index: int, split: Split = "train", level: int = 1) -> dict[str, Any]:
    """Pair number `index`, in TRL's layout: {"prompt", "chosen", "rejected"}, each a list of messages.

    Two in three give the story and ask for a sentence or a few words. In the others the assistant has told it. The
    rejected answer is one of the question's wrong candidates. No conversation of `converse` with a small seed is about
    the same story.
    """
    rng = Random(f"pair {split} {level} {seed} {index}")
    story, question = draw_question(3 * OTHER_BOOK + seed, index, split, level, pick(rng, KINDS))
    talk, shortly = Talk(), False
    if rng.random() < 1 / 3:
        talk.ask_for(story, rng)
        talk.ask(question)
    else:
        shortly = talk.ask_in_prompt(story, question, rng)
    *prompt, right = talk.messages
    wrong = {"role": "assistant", "content": wrong_answer(story, question, shortly, rng)}
    return {"prompt": prompt, "chosen": [right], "rejected": [wrong]}


def wrong_answer(story: Story, question: Question, shortly: bool, rng: Random) -> str:
    """A wrong candidate, in short or in the sentence of the right one."""
    wrong = pick(rng, [candidate for candidate in question.candidates if candidate != question.answer])
    if question.kind == "yes_no":  # "It was Belna. Tiko? No." where yes is right; where no is right, that it was so
        about_place = question.text.split()[0] != "Is" and " who " not in question.text
        possible = places_of(story) if about_place else list(story.people.values())
        named = sorted((name for name in possible if name in question.text), key=question.text.find)
        others = [name for name in possible if name not in named] or ["somebody else"]
        return judged(named[0], named[0] if question.answer == "no" else pick(rng, others), about_place)
    if shortly:
        return wrong
    if question.kind == "where":
        return f"{wrong.capitalize()}."
    if question.kind == "feeling":  # it stands last
        return question.sentence.removesuffix(f"{question.answer}.") + f"{wrong}."
    return question.sentence.replace(question.answer, wrong, 1)


class Talk:
    """A conversation that is being made. With `rng`, every fourth has a system message."""

    def __init__(self, rng: Random | None = None):
        self.messages: list[dict[str, Any]] = []
        self.answered: list[dict[str, Any]] = []
        self.contains: list[str] = []  # what the story must contain that was asked for
        if rng and rng.random() < 1 / 4:
            self.messages.append({"role": "system", "content": pick(rng, wordings("conversations")["system"])})

    def turn(self, user: str, assistant: str | list[dict[str, Any]]) -> None:
        self.messages += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]

    def ask(self, question: Question, shortly: bool = False, prompt: str | None = None) -> None:
        """Add a question (or a prompt that holds it), its answer, and what is known about that answer.

        Yes or no always comes with what it is judged by: to judge before anything is said takes more heads in a row
        than a small model has (FINDINGS.md#reader).
        """
        reply = question.answer if shortly and question.kind != "yes_no" else question.sentence
        self.turn(prompt or question.text, reply)
        known = {"kind": question.kind, "answer": question.answer, "candidates": list(question.candidates)}
        self.answered.append({"message": len(self.messages) - 1, **known})

    def ask_in_prompt(self, story: Story, question: Question, rng: Random) -> bool:
        """Give the story and ask the question, for a few words half of the time. Returns whether for a few words."""
        shortly = rng.random() < 1 / 2
        self.ask(question, shortly, in_prompt(story.text, question.text, shortly, rng))
        return shortly

    def ask_for(self, story: Story, rng: Random) -> None:
        """Ask for a story in words that this one fits ("about a shy fox named Tiko"), and tell it."""
        texts = wordings("conversations")
        people = []
        for number in story.people:
            forms = story.entities[number]
            with_trait = "trait" in forms and rng.random() < 1 / 2
            kind = f"{forms['a_trait']} {forms['kind']}" if with_trait else forms["a_kind"]
            people.append(f"{kind} named {forms['']}")
        things = [forms for forms in story.entities if "a_colour" in forms and "" in forms]
        ways = ["about_one", *["about_two"] * (len(people) > 1), *["about_thing"] * bool(things)]
        way = pick(rng, ways + ["about_topic"] * (story.plot in texts["topics"]))
        first = int(rng.random() * len(people))
        second = (first + 1 + int(rng.random() * (len(people) - 1))) % len(people)
        values = {"one": people[first], "two": people[second], "topic": texts["topics"].get(story.plot, "")}
        names = list(story.people.values())
        self.contains = [names[first], names[second]] if way == "about_two" else [names[first]]
        if way == "about_thing":
            thing = pick(rng, things)
            values["thing"] = f"{thing['a_colour']} {thing['']}"
            self.contains.append(thing[""])
        self.turn(pick(rng, texts[way]).format(**values), story.text)

    def finished(self, kind: str, **meta: Any) -> dict[str, Any]:
        return {"conversations": self.messages, "meta": {"kind": kind, **meta, "questions": self.answered}}


def weighted(parts: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    """The content of a message of which some parts are trained on (1), and some are not (0)."""
    return [{"type": "text", "text": text, "weight": weight} for text, weight in parts]


def in_prompt(story: str, question: str, shortly: bool, rng: Random) -> str:
    """A prompt with a story and a question, which asks for a few words or does not."""
    wording = pick(rng, wordings("conversations")["ask_shortly" if shortly else "ask"])
    return wording.format(story=story, question=question)


# More questions about the same story


def more_questions(story: Story, first: Question, rng: Random) -> list[Question]:
    """One to three more questions about the story, each of another kind and none asked before, yes as likely as no."""
    more: list[Question] = []
    kinds = [kind for kind in KINDS if kind != first.kind]
    for _ in range(1 + int(rng.random() * 3)):
        kind = kinds.pop(int(rng.random() * len(kinds)))
        possible = questions_about(story, kind)
        if kind == "yes_no":
            short = pick(rng, ("yes", "no"))
            possible = [question for question in possible if question.answer == short]
        if possible := [question for question in possible if is_new(question, [first, *more])]:
            more.append(pick(rng, possible))
    return more


def many_questions(
    story: Story, first: Question, rng: Random, most: int, weights: Mapping[str, int], checked: float = 0.0
) -> list[Question]:
    """More questions about the story than the first, of any kind that it has, none of them asked before.

    Yes or no is asked of every candidate alike, so the name that is offered says nothing about the answer. Where yes is
    right half of the time, models learn to repeat that name (FINDINGS.md#reader).
    """
    questions = [first]
    of_kind = {kind: possible for kind in KINDS if (possible := questions_about(story, kind))}
    kinds = [kind for kind in of_kind for _ in range(weights.get(kind, 1))]
    for _ in range(3 * most):
        question = pick(rng, of_kind[pick(rng, kinds)])
        if is_new(question, questions):
            questions.append(question)
            if checked and question.kind in OPEN_KINDS and rng.random() < checked:
                questions += filter(None, [as_yes_no(question, rng.random() < 1 / 2, rng)])
        if len(questions) >= most:
            break
    return questions[1:]


def is_new(question: Question, asked: Sequence[Question]) -> bool:
    """Whether none asks the same: "Who sang first?" and "Is it true that Tiko sang first?" do."""
    texts = [sorted((question.text, earlier.text), key=len) for earlier in asked]
    return not any(longer.endswith(shorter.removeprefix("Who")) for shorter, longer in texts)


# Names that are said again where something has been said of them: "a slice of cheese Dulmo."


def with_echoes(story: Story, rng: Random) -> list[dict[str, Any]]:
    """The text of a story in parts, with some of the names of `echoes` in it.

    What a question asks about a thing, a reader must have noted at the thing: whose it is, who wants it. Only these
    names have a loss, so this is what is learned, in the words of stories. The drill `pairs` does the same with words.
    """
    parts: list[tuple[str, int]] = []
    start = 0
    for at, name in sorted(echoes(story).items()):
        if rng.random() < AGAIN:
            parts += [(story.text[start:at], 0), (f" {name}", 1)]
            start = at
    return weighted([*parts, (story.text[start:], 0)])


def echoes(story: Story) -> dict[int, str]:
    """Where in the text which name can be said again: after a thing that somebody has, wants or gave away, and after
    the first word of a feeling, or of the place where somebody or something is. Only where the name came shortly
    before, so that it can be known. Who gave it goes before who has it now: that comes again at the end."""
    names: dict[int, str] = {}
    for fact in story.facts:
        name, at = about_whom(story, fact)
        before = [m for m in story.mentions if at - NEAR < m.start < at]
        if any(story.text[m.start : m.end] == name for m in before):  # the name itself, not "he" or "the fox"
            names[at] = name if fact.kind == "did" else names.get(at, name)
    return names


def about_whom(story: Story, fact: Fact) -> tuple[str, int]:
    """Who or what a fact is about, and where its name can be said again; ("", 0) where that is not to be found."""
    values = fact.values
    name = values.get("who") or values["what"]
    if fact.kind == "feels":
        return name, fact.at - len(values["feeling"]) + len(first_word(values["feeling"]))
    what = values.get("thing") or values.get("place", "")
    if fact.kind == "did":  # the last word of "Who broke the seal?"
        what = values.get("who_did", "?").partition("?")[0].rpartition(" ")[2]
    for start, end, number, form in reversed(story.mentions):
        is_it = story.entities[number].get("") == what and form not in ("colour", "a_colour")
        if is_it and fact.at - NEAR < end <= fact.at:
            return name, start + len(first_word(story.text[start:end])) if fact.kind == "at" else end
    return "", 0


def first_word(text: str) -> str:
    """ "by" of "by the river": where something is said of somebody, it is known from this word on."""
    return text.partition(" ")[0]
