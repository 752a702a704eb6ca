"""A story in which a name is said again where something has been said of it: "a slice of cheese Dulmo."

What a question asks about a thing, a reader must have noted at the thing: whose it is, who wants it. Only these names
have a loss, so this is what is learned, in the words of stories. `pairing.py` does the same with words alone.
"""

from random import Random
from typing import Any

from .conversations import weighted
from .pen import Fact, Mention
from .story import Story

NEAR = 200  # characters before, in which the name and the thing must stand
AGAIN = 1 / 2  # share of the names that are said again: where they are not, they must be noted all the same


def with_echoes(story: Story, rng: Random) -> list[dict[str, Any]]:
    """The text of a story in parts, with some of the names of `echoes` in it."""
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
    found: dict[int, str] = {}
    for fact in story.facts:
        if about := told_of(story, fact):
            name, at = about
            if any(named(story, one, name) and at - NEAR < one.start < at for one in story.mentions):
                found[at] = name if fact.kind == "did" else found.get(at, name)
    return found


def told_of(story: Story, fact: Fact) -> tuple[str, int] | None:
    """Who or what a fact is about, and where its name can be said again; None where that is not to be found."""
    if fact.kind == "feels":
        return fact.values["who"], fact.at - len(fact.values["feeling"]) + len(first_word(fact.values["feeling"]))
    if fact.kind in ("has", "wants") and "thing" in fact.values:
        name, what = fact.values["who"], fact.values["thing"]
    elif fact.kind == "did" and "who_did" in fact.values:
        name, what = fact.values["who"], fact.values["who_did"].partition("|")[0].removesuffix("?").split()[-1]
    elif fact.kind == "at":
        name, what = fact.values["what"], fact.values["place"]
    else:
        return None
    number = next((number for number, texts in enumerate(story.entities) if texts.get("") == what), None)
    near = [one for one in story.mentions if one.entity == number and fact.at - NEAR < one.end <= fact.at]
    near = [one for one in near if one.form not in ("colour", "a_colour")]
    if not near:
        return None
    last = near[-1]
    return name, last.start + len(first_word(story.text[last.start : last.end])) if fact.kind == "at" else last.end


def first_word(text: str) -> str:
    """ "by" of "by the river": where something is said of somebody, it is known from this word on."""
    return text.partition(" ")[0]


def named(story: Story, mention: Mention, name: str) -> bool:
    """Whether this is the name itself, and not "he" or "the fox"."""
    return story.text[mention.start : mention.end] == name
