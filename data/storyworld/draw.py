"""Which question about which story: over many draws the classes are equally frequent, and no cheap guess pays.

A cheap guess needs no reading: the first name, the last one, the name before the thing, the first feeling, "yes".
Over 400 questions of every kind, at both levels, the best of those that tests/data/test_storyworld_draw.py lists is
right 57 times in 100 (the first feeling of two, at level 2), and one of a name 51 (the name before what is wanted).
"""

from collections.abc import Sequence
from random import Random
from re import search

from .lexicon import place_sorts, wordings
from .names import pick
from .questions import KINDS, OPEN_KINDS, Question, names_of, questions_about, yes_no
from .story import Split, Story, drafted, finished, names_in, plots_of

BOOK = 1_000_003  # the stories that questions are about are none of those that tell(seed, index) gives for small seeds


def draw_question(
    seed: int,
    index: int,
    split: Split = "train",
    level: int = 1,
    kind: str | None = None,
    held_out_names: bool | None = None,
) -> tuple[Story, Question]:
    """Question number `index` and the story that it is about; the kinds take turns unless one is given.

    Validation questions are about validation stories told with held-out names, unless `held_out_names` says
    otherwise. What the answer shall be (the second of the story's people, a certain group of feelings, yes or
    no) is settled first, and then stories are read until one has a question with such an answer. So answers
    are balanced whatever the plots prefer. The same arguments give the same question on every machine.
    """
    if held_out_names is None:
        held_out_names = split == "validation"
    turn, which = divmod(index, len(KINDS))
    rng = Random(f"question {split} {level} {seed} {index}")
    goal = Goal(kind or KINDS[which], level, rng)
    so = (index if kind else turn) % 2 == 0  # yes or no, if it is a question for that
    for attempt in range(10_000):
        plot = pick(rng, goal.plots) if goal.plots else None
        author, plot = drafted(BOOK + seed, index * 10_000 + attempt, split, level, held_out_names, plot)
        if not goal.suits(names_in(author.choices), author.text):
            continue  # nearly half of the stories, and this is soon seen
        story = finished(author, author.text, plot)
        if fitting := goal.fitting(story):
            question = pick(rng, fitting)
            offered = as_yes_no(question, so, rng) if goal.yes_no else None
            return story, offered or question
    raise RuntimeError(f"no story of level {level} has a question of kind {kind!r}")


class Goal:
    """What the answer to the next question shall be."""

    def __init__(self, kind: str, level: int, rng: Random):
        self.yes_no = kind == "yes_no"
        self.kind = pick(rng, OPEN_KINDS) if self.yes_no else kind
        self.which = rng.random()  # which of the people (or places), in the order in which the story mentions them
        self.last = rng.random() < 1 / 3  # whether it is the one whom the story names last
        self.near = rng.random() < 1 / 2  # whether the name before the thing (or, for clauses, the earlier name) is it
        if self.kind == "who_wanted" and not self.near:
            self.which *= 2 / 3  # the one named last of three always stands beside what he or she wants
        self.names = self.kind != "first" or self.yes_no or rng.random() < 1 / 2  # or a clause
        # Answers that come equally often, the larger the group the likelier, and the plots to try for them (none: all).
        groups: list[tuple[frozenset[str], list[str]]] = []
        for key, plots in wordings("questions")["draws"].get(self.kind, {}).items():
            answers = place_sorts()[key] if self.kind == "where" else frozenset(key.split(", "))
            tried = [plot for plot, weight in plots.items() if plot in plots_of(level)[0] for _ in range(weight)]
            groups += [(answers - {"anybody"}, tried) for _ in answers if tried]
        self.answers, self.plots = pick(rng, groups) if groups else (frozenset(), [])

    def suits(self, people: Sequence[str], text: str) -> bool:
        """Whether who shall be the answer is named last, if the answer shall be. people: as the text names them."""
        if self.kind in ("feeling", "where") or not self.names:
            return True
        return (people[int(self.which * len(people))] == max(people, key=text.rfind)) == self.last

    def fitting(self, story: Story) -> list[Question]:
        """The questions about this story, which `suits`, whose answer is as wished."""
        questions = [q for q in questions_about(story, self.kind) if not self.answers or q.answer in self.answers]
        if self.kind == "feeling":
            return questions
        if self.kind == "where":
            return [q for q in questions if q.answer == q.candidates[int(self.which * len(q.candidates))]]
        people = names_of(story)
        if not self.names:
            return [q for q in questions if q.answer not in people and names_in_order(story, q) in (None, self.near)]
        who = people[int(self.which * len(people))]
        questions = [q for q in questions if q.answer == who]
        if self.kind == "who_wanted":
            questions = [q for q in questions if (name_before_thing(story, q) == who) == self.near]
        return questions


def as_yes_no(question: Question, so: bool, rng: Random) -> Question | None:
    """The question with one of its candidates offered, the right one if `so`; None for "What happened first?"."""
    others = [candidate for candidate in question.candidates if candidate != question.answer]
    texts = yes_no(question, [question.answer if so else pick(rng, others)])
    return pick(rng, texts) if texts else None


def names_in_order(story: Story, question: Question) -> bool | None:
    """Whether what happened first was done by the one whom the story names first; None if one did both."""
    first, *others = sorted(dict.fromkeys(one.split()[0] for one in question.candidates), key=story.text.find)
    return question.answer.startswith(f"{first} ") if others else None


def name_before_thing(story: Story, question: Question) -> str:
    """The name right before the first mention of the thing that the question asks for; "" without one."""
    thing = search(r"the (\w+)", question.text)
    mention = thing and search(rf"\b{thing[1]}\b", story.text)
    before = story.text[: mention.start() if mention else 0]
    return max(("", *names_of(story)), key=lambda name: before.rfind(name) if name else -1)
