"""The built-in world: its floor is exact, its stories are told and read alike, clean and nested."""

import re
from collections import Counter
from math import fsum, isclose, log2, sqrt

import pytest

from data.storyworld import Story, parse, tell, tell_many
from data.storyworld.lexicon import Pool, lexicon
from data.storyworld.long_plots import LONG_PLOT_WEIGHTS, LONG_PLOTS
from data.storyworld.names import held_out_name_set, name_set, names
from data.storyworld.pen import SONG_LENGTHS, Pen
from data.storyworld.plots import PLOTS
from data.storyworld.story import tell_with
from tests.data.storyworld_helpers import long_stories, of_plot, people

N = 4000
LONG = sorted(set(LONG_PLOTS) - set(PLOTS))


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


@pytest.fixture(scope="module")
def stories() -> list[Story]:
    return tell_many(seed=7, start=0, stop=N)


@pytest.fixture(scope="module")
def told_long() -> list[Story]:
    return long_stories()


def options(story: Story, kind: str) -> list[str]:
    return [choice.option for choice in story.choices if choice.kind == kind]


# The floor


def test_reader_recovers_every_choice_from_the_text_alone(stories):
    for story in stories:
        assert parse(story.text) == story.choices
    assert {story.plot for story in stories} == set(PLOTS)


def mass_below(path: list[int], depth: int, tell_it=tell_with) -> tuple[float, int]:
    """Sum of 2**-bits over all continuations of a path, `depth` choices long, and the number of leaves."""
    pen = Surveyor(path)
    try:
        tell_it(pen)
    except StopIteration as stop:
        if depth:
            branches = [mass_below([*path, i], depth - 1, tell_it) for i in range(stop.value)]
            return fsum(mass for mass, _ in branches), sum(leaves for _, leaves in branches)
    # choices made in a bundle after the last step of the path are part of this leaf, and certain
    return pen.mass(), 1


def test_probabilities_of_all_beginnings_sum_to_one():
    total, leaves = mass_below([], depth=4)
    assert leaves > 1000
    assert total == pytest.approx(1, abs=1e-9)  # thousands of floats, each off by some 1e-16 of itself


@pytest.mark.parametrize("wrong", [{"split": "test"}, {"level": 3}, {"plot": "theft"}])
def test_an_unknown_split_level_or_plot_is_an_error(wrong):
    with pytest.raises(ValueError, match=f"unknown {next(iter(wrong))}"):
        tell(0, 0, **wrong)


def test_tampered_text_is_refused(stories):
    for story in stories[:300]:
        text = story.text
        middle = len(text) // 2
        for tampered in (
            text[:-1],
            text + " ",
            text[:middle],
            text[:middle] + "q" + text[middle:],
            text.upper(),
        ):
            with pytest.raises(ValueError, match=r"character \d+: expected"):
                parse(tampered)


def test_floor_has_the_size_we_tell_people(stories):
    size = sum(len(story.text) for story in stories)
    assert 0.23 < fsum(story.bits for story in stories) / size < 0.30  # measured: 0.26
    for story in stories:
        assert story.bits == pytest.approx(fsum(bits for _, _, bits in story.choices))
        assert all(choice.bits >= 0 for choice in story.choices)
        assert (story.song_bits > 80) == (story.plot == "song")
        assert story.name_bits == pytest.approx(len(options(story, "name")) * log2(len(names())), abs=0.01)


def test_splits_are_disjoint_and_stories_do_not_repeat(stories):
    validation = tell_many(seed=7, start=0, stop=N, split="validation")
    texts = {story.text for story in stories} | {story.text for story in validation}
    assert len(texts) == 2 * N


def test_plots_come_as_often_as_they_should(stories):
    counts = Counter(story.plot for story in stories)
    for plot in PLOTS:
        p = 0.1 if plot == "song" else 0.9 / (len(PLOTS) - 1)
        assert abs(counts[plot] - N * p) < 4 * sqrt(N * p * (1 - p)), plot
        bits = {story.choices[0].bits for story in stories if story.plot == plot}
        assert len(bits) == 1
        assert bits.pop() == pytest.approx(-log2(p))


def test_choices_come_as_often_as_their_price_says(stories):
    counts = Counter(choice.option for story in stories for choice in story.choices if choice.kind == "branch")
    counts.update(choice.option for story in stories for choice in story.choices if choice.kind == "gender")
    for option, other, p in [
        ("he", "she", 1 / 2),
        ("hide.last", "hide.give_up", 2 / 3),
        ("trade.swap", "trade.help", 2 / 3),
        ("trade.deal", "trade.gift", 2 / 3),
        ("wish.right", "wish.mixed", 1 / 2),
        ("message.wrong_place", "message.wrong_thing", 1 / 2),
        ("message.right", "message.wrong_thing", 2 / 3),
    ]:
        n = counts[option] + counts[other]
        assert n > 200
        assert abs(counts[option] - n * p) < 4 * sqrt(n * p * (1 - p)), (option, other)
    lengths = Counter(len(options(story, "song")) for story in of_plot(stories, "song"))
    n, p = sum(lengths.values()), 1 / len(SONG_LENGTHS)
    for length in SONG_LENGTHS:
        assert abs(lengths[length] - n * p) < 4 * sqrt(n * p * (1 - p)), length


def test_names_are_many_and_no_words(stories):
    pool = names()
    assert len(pool) >= 50_000
    assert len(set(pool)) == len(pool)
    assert all(re.fullmatch("[A-Z][a-z]{3,7}", name) for name in pool)
    words = {word for story in stories for word in re.findall("[A-Za-z]+", story.text)} - name_set()
    vocabulary = {word.lower() for word in words}
    assert 600 < len(vocabulary) < 1400  # 200 made-up words of songs among them
    assert not {name for name in pool if name.lower() in vocabulary}
    assert not lexicon().song_word_set & {name.lower() for name in pool}


def test_a_song_comes_back_word_for_word(stories):
    for story in of_plot(stories, "song"):
        sung = " ".join(options(story, "song"))
        assert len(sung.split()) in SONG_LENGTHS
        copies = re.findall(rf": {sung}\.", story.text)
        assert copies == [f": {sung}."] * len(copies)
        assert len(copies) == len(re.findall(":", story.text)) in (2, 3)


def test_girls_are_she_and_boys_are_he(stories):
    checked = 0
    for story in stories:
        children = {"boy", "girl"} & set(options(story, "kind"))
        if len(children) == 1 and not options(story, "gender"):  # nobody else here has shown a pronoun
            wrong = r"\b(she|her)\b" if children == {"boy"} else r"\b(he|him|his)\b"
            assert not re.search(wrong, story.text, re.IGNORECASE), story.text
            checked += 1
    assert checked > 50


def test_invented_spans_cover_first_mentions_and_nothing_else():
    songs = 0
    for index in range(200):
        story = tell(0, index, "validation")
        pieces = [story.text[start:end] for start, end in story.invented_spans]
        names = {choice.option for choice in story.choices if choice.kind == "name"}
        sung = " ".join(choice.option for choice in story.choices if choice.kind == "song")
        assert set(pieces) == names | ({sung} if sung else set())
        assert all(
            story.text.index(piece) == start for piece, (start, _) in zip(pieces, story.invented_spans, strict=True)
        )
        songs += bool(sung)
    assert songs > 5


@pytest.mark.slow
def test_reader_recovers_every_choice_of_long_stories(told_long):
    for story in told_long:
        assert parse(story.text, level=2) == story.choices
    assert {story.plot for story in told_long} == set(LONG_PLOTS)


def test_most_stories_are_long_and_the_long_plots_equally_likely(told_long):
    n, counts, total = len(told_long), Counter(story.plot for story in told_long), sum(LONG_PLOT_WEIGHTS.values())
    assert sum(counts[plot] for plot in LONG) > 0.7 * n
    for plot, weight in LONG_PLOT_WEIGHTS.items():
        p = weight / total
        assert abs(counts[plot] - n * p) < 4 * sqrt(n * p * (1 - p)), plot


def test_floor_of_long_stories_has_the_size_we_tell_people(told_long):
    long = [story for story in told_long if story.plot in LONG]
    size = sum(len(story.text) for story in long)
    assert 0.13 < fsum(story.bits for story in long) / size < 0.19  # measured: 0.155; a third of it is names


@pytest.mark.parametrize("plot", LONG_PLOTS)
def test_probabilities_sum_to_one_at_every_choice_along_a_story(plot):
    for pattern in range(2):
        pen = Recorder(pattern)
        LONG_PLOTS[plot](pen)
        for at in range(pattern, len(pen.path), 5):
            before, _ = mass_below(pen.path[:at], 0, LONG_PLOTS[plot])
            below, _ = mass_below(pen.path[:at], 1, LONG_PLOTS[plot])
            assert isclose(below, before, rel_tol=1e-9), f"after {at} choices the options do not sum to one"


def test_every_sentence_is_told_sometimes(told_long):
    used = {(choice.kind, choice.option) for story in told_long for choice in story.choices}
    beats = [beat for key, beat in lexicon().beats.items() if key.split(".")[0] in (*LONG_PLOTS, "aside", "meanwhile")]
    assert len(beats) > 150
    for beat in beats:
        for label in beat.labels:
            assert (beat.key, label) in used, f"nothing tells wording {label} of {beat.key}"


def test_every_word_is_used_sometimes(told_long):
    used = {choice.option for story in told_long for choice in story.choices}
    for role in lexicon().roles.values():
        for pool in role.values():
            assert not isinstance(pool, Pool) or set(pool.texts) <= used


def test_long_stories_are_long_and_have_many_characters(told_long):
    for plot in LONG:
        lengths = [len(story.text.split()) for story in of_plot(told_long, plot)]
        assert min(lengths) >= 220
        assert max(lengths) <= 620
        assert 300 <= sum(lengths) / len(lengths) <= 470, plot
        assert {len(people(story)) for story in of_plot(told_long, plot)} <= {4, 5, 6, 7}


def test_the_text_is_clean(told_long):
    for story in told_long:
        assert re.fullmatch(r"[A-Za-z ,.:!?'\"-]+", story.text), story.text
        assert not re.search(r"  |\n| [,.!?]|\.\.|[.!?],|\ba [aeiou]|\ban [^aeiou]", story.text), story.text
        assert story.text[0].isupper() or story.text[0] == '"'
        assert story.text[-1] in '.!?"'
        assert re.search(r"[.!?]\"? [a-z]", re.sub(r'[!?]" [a-z]', "", story.text)) is None, story.text


def test_quotes_are_balanced_and_nest(told_long):
    nested = Counter()
    for story in told_long:
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
        assert nested[plot] >= len(of_plot(told_long, plot)), f"a story of {plot} should hold speech within speech"


def test_every_mention_of_a_name_follows_a_space(told_long):
    """Otherwise a tokenizer would cut the same name in two ways and copying it would not be copying."""
    for story in told_long:
        for name in people(story):
            mentions = [match.start() for match in re.finditer(rf"\b{name}\b", story.text)]
            assert mentions
            assert all(story.text[at - 1] == " " for at in mentions if at), (name, story.text)


def test_no_word_of_a_story_could_be_a_name(told_long):
    words = {word for story in told_long for word in re.findall("[A-Za-z]+", story.text)} - name_set()
    assert len(words) > 1000
    invented = name_set() | held_out_name_set()
    assert not {word for word in words if word.capitalize() in invented}
