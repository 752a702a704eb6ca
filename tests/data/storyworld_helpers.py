"""What the tests of the built-in world share: pens that walk its choices, and how a careful reader reads a story."""

import re
from functools import cache
from math import fsum

from data.storyworld import Story, tell_many
from data.storyworld.lexicon import lexicon
from data.storyworld.pen import Pen

NAME = r"([A-Z][a-z]{3,7})"
PLACES = "river|pond|well|mill|barn|hill|bridge|oak|gate|garden|orchard|meadow|market|stream|tower|beach"
PLACE = re.compile(rf"\b({PLACES})\b")
SOME = r"an? \w+"  # "a red" before a thing, "a shy" before a kind


class Surveyor(Pen):
    """Visits the tree of all stories: follows a path, then stops, and reports how many branches leave there.

    Names and nonsense words leave as a bundle: one of them stands for all, with their number as its weight.
    """

    def __init__(self, path: list[int]):
        super().__init__(lexicon())
        self.path = path
        self.step = 0
        self.copies = 1.0  # how many stories this one stands for
        self.write = lambda text: None

    def choose(self, n, heads, cumulative=()):
        if self.step == len(self.path):
            raise StopIteration(n)
        self.step += 1
        return self.path[self.step - 1]

    def choose_invented(self, words, known, taken):
        self.copies *= len(words) - len(taken)
        return next(word for word in words if word not in taken)

    def mass(self) -> float:
        """The probability of what has been told, all stories of the bundle together."""
        return self.copies * 2.0 ** -fsum(choice.bits for choice in self.choices)


class Recorder(Surveyor):
    """Takes the option that a fixed pattern names, everywhere, and notes the path."""

    def __init__(self, pattern: int):
        super().__init__([])
        self.pattern = pattern

    def choose(self, n, heads, cumulative=()):
        weights = [high - low for low, high in zip((0, *cumulative), cumulative, strict=False)] or [1] * n
        assert len(weights) == n
        assert min(weights) > 0
        self.path.append((self.pattern * 31 + len(self.path) * 17) % n)
        return self.path[-1]


@cache
def long_stories() -> list[Story]:
    """Stories of level 2, told once for all test modules."""
    return tell_many(seed=7, start=0, stop=2400, level=2)


def of_plot(stories: list[Story], plot: str) -> list[Story]:
    """The stories of a plot; fails where they are too few for a test of them to mean something."""
    found = [story for story in stories if story.plot == plot]
    assert len(found) > len(stories) / 20, f"too few stories of {plot!r} to say anything"
    return found


def people(story: Story) -> list[str]:
    """All names, in the order in which they appear."""
    return list(story.people.values())


def holders(story: Story) -> dict[str, str]:
    """Who has what in the end, by the facts that the plot noted."""
    return {fact.values["thing"]: fact.values["who"] for fact in story.facts if fact.kind == "has"}


def matches(patterns: dict[str, str], text: str, names: str = NAME) -> list[tuple[str, tuple[str, ...]]]:
    """What each pattern finds (N stands for a name), in the order of the text: (key, groups)."""
    found = []
    for key, alternatives in patterns.items():
        for pattern in alternatives.strip().splitlines():
            for match in re.finditer(pattern.strip().replace("<N>", names), text):
                found.append((match.start(), key, match.groups()))
    return [(key, groups) for _, key, groups in sorted(found)]


def only(patterns: str, text: str) -> tuple[str, ...]:
    """What the one sentence says that fits one of the patterns."""
    ((_, groups),) = matches({"": patterns}, text)
    return groups


def check_names_follow_a_space(stories: list[Story]) -> None:
    """Otherwise a tokenizer would cut the same name in two ways and copying it would not be copying."""
    for story in stories:
        for name in people(story):
            mentions = [match.start() for match in re.finditer(rf"\b{name}\b", story.text)]
            assert mentions
            assert all(story.text[at - 1] == " " for at in mentions if at), (name, story.text)
