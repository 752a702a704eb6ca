"""Conversations for fine-tuning, made of stories and of questions with known answers.

- converse: a request for a story; a story with a question; or a talk of several turns.
- interview: many questions about one story, which makes the most of reading it once.
- prefer: a question, its right answer, and a wrong one in the same wording.

They are `{"conversations": [{"role", "content"}, ...], "meta": {...}}`, in the form of OpenAI and
MiniMind. Those of the validation split have names that no training text has.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from .lexicon import wordings
from .names import pick
from .pen import Fact
from .questions import (
    KINDS,
    OPEN_KINDS,
    Question,
    as_yes_no,
    draw_question,
    judged,
    places_of,
    questions_about,
)
from .story import Split, Story, tell

# Half of the conversations are one question about one story.
CONVERSATION_KINDS = ("tell", "question", "question", "turns")
# The weights of the classes of questions in an interview; the others have 1.
CLASS_WEIGHTS = {"who_has": 3, "where": 3}
# An offset of the seed, so that conversations are not about the stories of draw_question.
OTHER_BOOK = 500_009
# A name is repeated only if it occurs within this many characters before.
NEAR = 200
# This share of the names is repeated. The model must note the others all the same.
AGAIN = 1 / 2


def converse(
    seed: int,
    index: int,
    split: Split = "train",
    level: int = 1,
    kind: str | None = None,
    held_out_names: bool | None = None,
) -> dict[str, Any]:
    """Make conversation number `index`, with this "meta":

    - kind: "tell", "question" or "turns".
    - plot: of the story.
    - contains: words that the requested story must contain (names, a thing).
    - questions: [{message, kind, answer, candidates}], with the number of the answer's message.
    """
    rng = Random(f"conversation {split} {level} {seed} {index}")
    kind = kind or pick(rng, CONVERSATION_KINDS)
    if kind == "tell":
        held_out = split == "validation" if held_out_names is None else held_out_names
        # another offset: a requested story is none that questions are asked about
        story = tell(2 * OTHER_BOOK + seed, index, split, level, held_out)
    else:
        question_kind = pick(rng, KINDS)
        story, question = draw_question(
            OTHER_BOOK + seed, index, split, level, question_kind, held_out_names
        )
    talk = Talk(rng)
    if kind == "question":
        talk.ask_in_prompt(story, question, rng)
    else:
        talk.ask_for(story, rng)
    if kind == "turns":
        talk.ask(question)
        for following in _more_questions(story, question, rng):
            talk.ask(following)
        if rng.random() < 1 / 4:
            thanks = pick(rng, wordings("conversations")["thanks"])
            talk.turn(thanks, pick(rng, wordings("conversations")["welcome"]))
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
    weights: Mapping[Any, int] | None = None,
    checked: float = 0.0,
    echoed: float = 0.0,
) -> dict[str, Any]:
    """Make conversation number `index`, of the kind "questions".

    The keyword arguments are keys of data.source: `most` is questions, `weights` class_weights.
    """
    rng = Random(f"conversation {split} {level} {seed} {index}")
    kind = pick(rng, KINDS)
    story, question = draw_question(OTHER_BOOK + seed, index, split, level, kind, held_out_names)
    talk = Talk(rng)
    shortly = False
    if told and rng.random() < told:
        talk.ask_for(story, rng)
        if echoed and rng.random() < echoed:
            talk.messages[-1]["content"] = with_echoes(story, rng)
        else:
            talk.messages[-1]["weight"] = told_weight
        talk.ask(question)
    else:
        shortly = talk.ask_in_prompt(story, question, rng)
    all_weights = CLASS_WEIGHTS | dict(weights or {})
    for following in many_questions(story, question, rng, most, all_weights, checked):
        talk.ask(following, shortly)
    return talk.finished("questions", plot=story.plot, contains=talk.contains)


def prefer(seed: int, index: int, split: Split = "train", level: int = 1) -> dict[str, Any]:
    """Make pair number `index`, in TRL's layout: {"prompt", "chosen", "rejected"}.

    Each is a list of messages. The rejected answer is a wrong candidate.
    """
    rng = Random(f"pair {split} {level} {seed} {index}")
    kind = pick(rng, KINDS)
    # another offset than that of `converse`, so that pairs are about other stories
    story, question = draw_question(3 * OTHER_BOOK + seed, index, split, level, kind)
    talk = Talk()
    shortly = False
    if rng.random() < 1 / 3:
        talk.ask_for(story, rng)
        talk.ask(question)
    else:
        shortly = talk.ask_in_prompt(story, question, rng)
    *prompt, right = talk.messages
    wrong = {"role": "assistant", "content": _wrong_answer(story, question, shortly, rng)}
    return {"prompt": prompt, "chosen": [right], "rejected": [wrong]}


def _wrong_answer(story: Story, question: Question, shortly: bool, rng: Random) -> str:
    candidates = [text for text in question.candidates if text != question.answer]
    wrong = pick(rng, candidates)
    if question.kind == "yes_no":
        # "Was it Tiko who sang?" is about the first name in it
        is_place = question.text.split()[0] != "Is" and " who " not in question.text
        possible = places_of(story) if is_place else list(story.people.values())
        named = [name for name in possible if name in question.text]
        # find returns a position, so this is the first name
        candidate = min(named, key=question.text.find)
        # with another name, but judged rightly
        if question.answer == "no":
            return judged(candidate, candidate, is_place)
        unnamed = [name for name in possible if name not in named] or ["somebody else"]
        return judged(candidate, pick(rng, unnamed), is_place)
    if shortly:
        return wrong
    # a whole sentence
    if question.kind == "where":
        return f"{wrong.capitalize()}."
    if question.kind == "feeling":
        # the feeling is the last word
        return question.sentence.removesuffix(f"{question.answer}.") + f"{wrong}."
    # once: the sentence may name this person again further on
    return question.sentence.replace(question.answer, wrong, 1)


class Talk:
    """A conversation under construction. With `rng`, every fourth has a system message."""

    def __init__(self, rng: Random | None = None):
        self.messages: list[dict[str, Any]] = []
        self.questions: list[dict[str, Any]] = []
        self.contains: list[str] = []
        if rng and rng.random() < 1 / 4:
            text = pick(rng, wordings("conversations")["system"])
            self.messages.append({"role": "system", "content": text})

    def turn(self, user: str, assistant: str | list[dict[str, Any]]) -> None:
        self.messages.append({"role": "user", "content": user})
        self.messages.append({"role": "assistant", "content": assistant})

    def ask(self, question: Question, shortly: bool = False, prompt: str | None = None) -> None:
        """Add a question (or a prompt with it), its answer, and its entry in "meta"."""
        # yes or no always comes after its reason: to judge at once takes more heads in a row than a
        # small model has (FINDINGS.md#reader)
        shortly = shortly and question.kind != "yes_no"
        self.turn(prompt or question.text, question.answer if shortly else question.sentence)
        self.questions.append(
            {
                "message": len(self.messages) - 1,
                "kind": question.kind,
                "answer": question.answer,
                "candidates": list(question.candidates),
            }
        )

    def ask_in_prompt(self, story: Story, question: Question, rng: Random) -> bool:
        """Ask with the story in the prompt. Returns True if a short answer is requested."""
        shortly = rng.random() < 1 / 2
        self.ask(question, shortly, in_prompt(story.text, question.text, shortly, rng))
        return shortly

    def ask_for(self, story: Story, rng: Random) -> None:
        """Ask for a story that this one fits ("about a shy fox named Tiko"), and tell it."""
        texts = wordings("conversations")
        # "shy fox named Tiko", or "fox named Tiko"
        people = []
        for number in story.people:
            forms = story.entities[number]
            kind = forms["a_kind"]
            if "trait" in forms and rng.random() < 1 / 2:
                kind = f"{forms['a_trait']} {forms['kind']}"
            people.append(f"{kind} named {forms['']}")
        # only things have colours
        things = [forms for forms in story.entities if "a_colour" in forms and "" in forms]
        ways = ["about_one"]
        if len(people) > 1:
            ways.append("about_two")
        if things:
            ways.append("about_thing")
        if story.plot in texts["topics"]:
            ways.append("about_topic")
        way = pick(rng, ways)
        first = int(rng.random() * len(people))
        # any but the first
        second = (first + 1 + int(rng.random() * (len(people) - 1))) % len(people)
        names = list(story.people.values())
        values = {"one": people[first], "two": people[second]}
        values["topic"] = texts["topics"].get(story.plot, "")
        self.contains = [names[first]]
        if way == "about_two":
            self.contains.append(names[second])
        elif way == "about_thing":
            thing = pick(rng, things)
            values["thing"] = f"{thing['a_colour']} {thing['']}"
            self.contains.append(thing[""])
        self.turn(pick(rng, texts[way]).format(**values), story.text)

    def finished(self, kind: str, **meta: Any) -> dict[str, Any]:
        meta = {"kind": kind, **meta, "questions": self.questions}
        return {"conversations": self.messages, "meta": meta}


def weighted(parts: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    """Return message content of (text, weight) parts. Weight 0 is not trained on."""
    return [{"type": "text", "text": text, "weight": weight} for text, weight in parts]


def in_prompt(story: str, question: str, shortly: bool, rng: Random) -> str:
    wording = pick(rng, wordings("conversations")["ask_shortly" if shortly else "ask"])
    return wording.format(story=story, question=question)


# More questions about the same story


def _more_questions(story: Story, first: Question, rng: Random) -> list[Question]:
    # one to three new questions of different kinds, yes as likely as no
    more: list[Question] = []
    kinds = [kind for kind in KINDS if kind != first.kind]
    for _ in range(1 + int(rng.random() * 3)):
        # pop: a talk asks for each kind once at most
        kind = kinds.pop(int(rng.random() * len(kinds)))
        possible = questions_about(story, kind)
        if kind == "yes_no":
            short = pick(rng, ("yes", "no"))
            possible = [question for question in possible if question.answer == short]
        possible = [question for question in possible if _is_new(question, [first, *more])]
        if possible:
            more.append(pick(rng, possible))
    return more


def many_questions(
    story: Story,
    first: Question,
    rng: Random,
    most: int,
    weights: Mapping[str, int],
    checked: float = 0.0,
) -> list[Question]:
    """Draw new questions about the story, of any kind."""
    # Yes or no is asked about every candidate alike. If yes were right half of the time, models
    # would learn to repeat the name in the question (FINDINGS.md#reader).
    questions = [first]
    by_kind: dict[str, list[Question]] = {}
    # each kind as often as its weight
    kinds: list[str] = []
    for kind in KINDS:
        possible = questions_about(story, kind)
        if possible:
            by_kind[kind] = possible
            kinds += [kind] * weights.get(kind, 1)
    # a short story may have fewer new questions than `most`
    for _ in range(3 * most):
        question = pick(rng, by_kind[pick(rng, kinds)])
        if _is_new(question, questions):
            questions.append(question)
            if checked and question.kind in OPEN_KINDS and rng.random() < checked:
                # only comparing is left to do; this may be one question more than `most`
                check = as_yes_no(question, rng.random() < 1 / 2, rng)
                if check:
                    questions.append(check)
        if len(questions) >= most:
            break
    return questions[1:]


def _is_new(question: Question, earlier: Sequence[Question]) -> bool:
    # "Who sang first?" and "Is it true that Tiko sang first?" are the same question
    for other in earlier:
        # the ends are compared, because wordings differ at their beginnings
        shorter, longer = sorted((question.text, other.text), key=len)
        if longer.endswith(shorter.removeprefix("Who")):
            return False
    return True


# Names that are repeated after a fact about them: "a slice of cheese Dulmo."


def with_echoes(story: Story, rng: Random) -> list[dict[str, Any]]:
    """Return the text of a story in parts, with some of the names of `echoes` in it."""
    # Only these names have a loss. So the model learns to note at a thing whose it is, as in the
    # drill `pairs`.
    parts: list[tuple[str, int]] = []
    start = 0
    for at, name in sorted(echoes(story).items()):
        if rng.random() < AGAIN:
            parts += [(story.text[start:at], 0), (f" {name}", 1)]
            start = at
    return weighted([*parts, (story.text[start:], 0)])


def echoes(story: Story) -> dict[int, str]:
    """Find the names that can be repeated: number of characters before -> name."""
    # they come after a thing, or after the first word of a feeling or a place
    names: dict[int, str] = {}
    for fact in story.facts:
        name, at = _about_whom(story, fact)
        near = [mention for mention in story.mentions if at - NEAR < mention.start < at]
        # the name itself, not "he" or "the fox"
        if any(story.text[mention.start : mention.end] == name for mention in near):
            # the giver comes before the new holder, who is repeated at the end
            names[at] = name if fact.kind == "did" else names.get(at, name)
    return names


def _about_whom(story: Story, fact: Fact) -> tuple[str, int]:
    # the subject of a fact, and where it can be repeated; ("", 0) if nowhere
    values = fact.values
    name = values.get("who") or values["what"]
    if fact.kind == "feels":
        return name, fact.at - len(values["feeling"]) + len(first_word(values["feeling"]))
    noun = values.get("thing") or values.get("place", "")
    if fact.kind == "did":
        # the last word of "Who broke the seal?"
        noun = values.get("who_did", "?").partition("?")[0].rpartition(" ")[2]
    for start, end, number, form in reversed(story.mentions):
        # "red" mentions the kite, but is not its noun
        if story.entities[number].get("") != noun or form in ("colour", "a_colour"):
            continue
        if fact.at - NEAR < end <= fact.at:
            if fact.kind == "at":
                end = start + len(first_word(story.text[start:end]))
            return name, end
    return "", 0


def first_word(text: str) -> str:
    """Return "by" of "by the river": from this word on, a place can be known."""
    return text.partition(" ")[0]
