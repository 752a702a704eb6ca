"""Which question about which story: over many draws the classes are equally frequent, and no cheap guess pays.

A cheap guess needs no reading: the first name, the last one, the name before the thing, the first feeling, "yes".
Over 400 questions of every kind, at both levels, the best of those that tests/data/test_storyworld_draw.py lists is
right 57 times in 100 (the first feeling of two, at level 2), and one of a name 51 (the name before what is wanted).
"""

from collections.abc import Sequence
from random import Random
from re import search

from .levels import plots_of
from .questions import KINDS, OPEN_KINDS, Question, names_of, place_sorts, questions_about, yes_no
from .story import Split, Story, drafted, finished, names_in
from .wordings import wordings

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
    goal = Goal(kind or KINDS[which], level, so=(index if kind else turn) % 2 == 0, rng=rng)
    for attempt in range(10_000):
        author, plot = drafted(BOOK + seed, index * 10_000 + attempt, split, level, held_out_names, goal.plot())
        if not goal.suits(names_in(author.choices), author.text):
            continue  # nearly half of the stories, and this is soon seen
        story = finished(author, author.text, plot)
        fitting = goal.fitting(story)
        if fitting:
            return story, goal.asked(fitting[int(rng.random() * len(fitting))])
    raise RuntimeError(f"no story of level {level} has a question of kind {kind!r}")


class Goal:
    """What the answer to the next question shall be."""

    def __init__(self, kind: str, level: int, so: bool, rng: Random):
        self.rng = rng
        self.so = so  # yes or no, if it is a question for that
        self.yes_no = kind == "yes_no"
        self.kind = OPEN_KINDS[int(rng.random() * len(OPEN_KINDS))] if self.yes_no else kind
        self.which = rng.random()  # which of the people (or places), in the order in which the story mentions them
        self.last = rng.random() < 1 / 3  # whether it is the one whom the story names last
        self.near = rng.random() < 1 / 2  # whether the name before the thing (or, for clauses, the earlier name) is it
        if self.kind == "who_wanted" and not self.near:
            self.which *= 2 / 3  # the one named last of three always stands beside what he or she wants
        self.names = self.kind != "first" or self.yes_no or rng.random() < 1 / 2  # or a clause
        self.answers, self.plots = self._group(level)

    def _group(self, level: int) -> tuple[frozenset[str], list[str]]:
        """Answers that come equally often, the larger the group the likelier, and the plots to try for them."""
        groups = []
        for key, plots in wordings("questions")["draws"].get(self.kind, {}).items():
            answers = place_sorts()[key] if self.kind == "where" else frozenset(key.split(", "))
            tried = [plot for plot, weight in plots.items() if plot in plots_of(level)[0] for _ in range(weight)]
            groups += [(answers - {"anybody"}, tried) for _ in answers if tried]
        return groups[int(self.rng.random() * len(groups))] if groups else (frozenset(), [])

    def plot(self) -> str | None:
        """The plot of the next story to try; None for any."""
        return self.plots[int(self.rng.random() * len(self.plots))] if self.plots else None

    def suits(self, people: Sequence[str], text: str) -> bool:
        """Whether who shall be the answer is named last, if the answer shall be. people: as the text names them."""
        if self.kind in ("feeling", "where") or not self.names:
            return True
        return (self._who(people) == max(people, key=text.rfind)) == self.last

    def _who(self, people: Sequence[str]) -> str:
        return people[int(self.which * len(people))]

    def fitting(self, story: Story) -> list[Question]:
        """The questions about this story, which `suits`, whose answer is as wished."""
        found = questions_about(story, self.kind)
        if self.answers:
            found = [question for question in found if question.answer in self.answers]
        if self.kind == "feeling":
            return found
        if self.kind == "where":
            return [one for one in found if one.answer == one.candidates[int(self.which * len(one.candidates))]]
        people = names_of(story)
        if not self.names:
            return [
                one for one in found if one.answer not in people and names_in_order(story, one) in (None, self.near)
            ]
        who = self._who(people)
        found = [question for question in found if question.answer == who]
        if self.kind == "who_wanted":
            found = [one for one in found if (name_before_thing(story, one) == who) == self.near]
        return found

    def asked(self, question: Question) -> Question:
        """The question itself or, if it shall be answered by yes or no, one of those made of it."""
        if not self.yes_no:
            return question
        asked = as_yes_no(question, self.so, self.rng)
        assert asked is not None  # what happened first is not drawn for it
        return asked


def as_yes_no(question: Question, so: bool, rng: Random) -> Question | None:
    """The question with one of its candidates offered, the right one if `so`; None for "What happened first?"."""
    others = [candidate for candidate in question.candidates if candidate != question.answer]
    candidate = question.answer if so else others[int(rng.random() * len(others))]
    texts = yes_no(question, [candidate])
    return texts[int(rng.random() * len(texts))] if texts else None


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
