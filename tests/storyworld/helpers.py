"""Helpers that the tests of the built-in world share."""

from functools import cache

from storyworld import Story, tell


def tell_many(seed: int, stop: int, **options) -> list[Story]:
    return [tell(seed, index, **options) for index in range(stop)]


@cache
def long_stories() -> list[Story]:
    """Stories of level 2, told once for all test modules."""
    return tell_many(7, 2400, level=2)


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
