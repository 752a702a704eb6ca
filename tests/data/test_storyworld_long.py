"""The long stories of level 2: told and read alike, clean, nested and long.

Whether they are true to themselves is checked in test_storyworld_hearsay.py and test_storyworld_long_truth.py.
"""

import re
from collections import Counter
from math import fsum, isclose, sqrt

import pytest

from data.storyworld import Story, parse
from data.storyworld.lexicon import Pool, lexicon
from data.storyworld.long_plots import LONG_PLOT_WEIGHTS, LONG_PLOTS
from data.storyworld.names import held_out_name_set, name_set
from data.storyworld.plots import PLOTS
from tests.data.storyworld_helpers import (
    Recorder,
    Surveyor,
    check_names_follow_a_space,
    long_stories,
    of_plot,
    people,
)

LONG = sorted(set(LONG_PLOTS) - set(PLOTS))


@pytest.fixture(scope="module")
def stories() -> list[Story]:
    return long_stories()


# The floor


@pytest.mark.slow
def test_reader_recovers_every_choice_from_the_text_alone(stories):
    for story in stories:
        assert parse(story.text, level=2) == story.choices
    assert {story.plot for story in stories} == set(LONG_PLOTS)
    assert len(LONG) >= 4
    assert len(LONG_PLOTS) >= 10


def test_a_long_story_is_none_of_level_one(stories):
    for plot in LONG:
        with pytest.raises(ValueError, match="character 0: expected"):
            parse(of_plot(stories, plot)[0].text)


def test_most_stories_are_long_and_the_long_plots_equally_likely(stories):
    n, counts, total = len(stories), Counter(story.plot for story in stories), sum(LONG_PLOT_WEIGHTS.values())
    assert sum(counts[plot] for plot in LONG) > 0.7 * n
    for plot, weight in LONG_PLOT_WEIGHTS.items():
        p = weight / total
        assert abs(counts[plot] - n * p) < 4 * sqrt(n * p * (1 - p)), plot


def test_floor_has_the_size_we_tell_people(stories):
    long = [story for story in stories if story.plot in LONG]
    size = sum(len(story.text) for story in long)
    assert 0.13 < fsum(story.bits for story in long) / size < 0.19  # measured: 0.155; a third of it is names


class Walker(Recorder):
    """Takes the options that a fixed pattern names through one long story, and notes the path."""

    def __init__(self, plot: str, pattern: int):
        super().__init__(pattern)
        LONG_PLOTS[plot](self)


def mass(plot: str, path: list[int]) -> tuple[float, int]:
    """The probability of this beginning of a story, and how many branches leave where it stops."""
    pen, branches = Surveyor(path), 0
    try:
        LONG_PLOTS[plot](pen)
    except StopIteration as stop:
        branches = stop.value
    return pen.mass(), branches


@pytest.mark.parametrize("plot", LONG)
def test_probabilities_sum_to_one_at_every_choice_along_a_story(plot):
    for pattern in range(2):
        path = Walker(plot, pattern).path
        assert len(path) > 60
        for at in range(pattern, len(path), 5):
            before, branches = mass(plot, path[:at])
            below = fsum(mass(plot, [*path[:at], branch])[0] for branch in range(branches))
            assert isclose(below, before, rel_tol=1e-9), f"after {at} choices the options do not sum to one"


def test_every_sentence_is_told_sometimes(stories):
    used = {(choice.kind, choice.option) for story in stories for choice in story.choices}
    beats = [beat for key, beat in lexicon().beats.items() if key.split(".")[0] in (*LONG, "meanwhile")]
    assert len(beats) > 80
    for beat in beats:
        for label in beat.labels:
            assert (beat.key, label) in used, f"nothing tells wording {label} of {beat.key}"


def test_every_word_is_used_sometimes(stories):
    used = {choice.option for story in stories for choice in story.choices}
    for role in lexicon().roles.values():
        for pool in role.values():
            assert not isinstance(pool, Pool) or set(pool.texts) <= used


# The words


def test_long_stories_are_long_and_have_many_characters(stories):
    for plot in LONG:
        lengths = [len(story.text.split()) for story in of_plot(stories, plot)]
        assert min(lengths) >= 220
        assert max(lengths) <= 620
        assert 300 <= sum(lengths) / len(lengths) <= 470, plot
        assert {len(people(story)) for story in of_plot(stories, plot)} <= {4, 5, 6, 7}


def test_the_text_is_clean(stories):
    for story in stories:
        assert re.fullmatch(r"[A-Za-z ,.:!?'\"-]+", story.text), story.text
        assert not re.search(r"  |\n| [,.!?]|\.\.|[.!?],|\ba [aeiou]|\ban [^aeiou]", story.text), story.text
        assert story.text[0].isupper() or story.text[0] == '"'
        assert story.text[-1] in '.!?"'
        assert re.search(r"[.!?]\"? [a-z]", re.sub(r'[!?]" [a-z]', "", story.text)) is None, story.text


def test_quotes_are_balanced_and_nest(stories):
    nested = Counter()
    for story in stories:
        pieces = story.text.split('"')
        assert len(pieces) % 2 == 1
        if story.plot not in LONG:
            continue
        for n, piece in enumerate(pieces):
            marks = re.findall(r"(?<![a-z.,!?])'(?=[A-Z])|(?<=[.,!?])'", piece)
            assert len(marks) == piece.count("'"), piece
            assert len(marks) % 2 == 0
            assert n % 2 == 1 or not marks, "a single quote outside of double ones"
            inside = piece.split("'")[1::2]
            assert all(quote[0].isupper() and quote[-1] in ".,!?" for quote in inside), piece
            nested[story.plot] += bool(inside)
    for plot in LONG:
        assert nested[plot] >= len(of_plot(stories, plot)), f"a story of {plot} should hold speech within speech"


def test_every_mention_of_a_name_follows_a_space(stories):
    check_names_follow_a_space(stories)


def test_no_word_of_a_story_could_be_a_name(stories):
    words = {word for story in stories for word in re.findall("[A-Za-z]+", story.text)} - name_set()
    assert len(words) > 1000
    invented = name_set() | held_out_name_set()
    assert not {word for word in words if word.capitalize() in invented}


def test_no_character_is_mentioned_in_passing(stories):
    for story in stories:
        if story.plot in LONG:
            assert all(len(re.findall(rf"\b{name}\b", story.text)) >= 2 for name in people(story)), story.text
