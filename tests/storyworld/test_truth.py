"""Stories are true to themselves, and their facts to them: who has what, who is where, who told
what to whom.

Checked with the sentences alone, as a careful reader would: nothing here looks into a plot.
"""

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from storyworld import Story, read, tell
from storyworld.lexicon import feelings, words_of
from storyworld.names import held_out_names
from storyworld.pen import Fact
from tests.storyworld.helpers import holders, long_stories, of_plot, people, tell_many

PATTERNS = yaml.safe_load(Path(__file__).with_name("patterns.yaml").read_text())
NAME = r"([A-Z][a-z]{3,7})"
SOME = r"an? \w+"
PLACE = re.compile(
    r"\b(river|pond|well|mill|barn|hill|bridge|oak|gate|garden|orchard|meadow|market|stream|tower|beach)\b"
)
NUMBER = "|".join(words_of("number", ""))
SEAT = f"({'|'.join(texts[''] for texts in words_of('seat', '').values())})"


def filled(pattern: str) -> str:
    for slot, words in {"<N>": NAME, "<SOME>": SOME, "<NUMBER>": NUMBER, "<SEAT>": SEAT}.items():
        pattern = pattern.replace(slot, words)
    return pattern


def matches(key: str, text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the matches of a key's patterns in the order of the text: (pattern's key, groups)."""
    patterns = PATTERNS[key] if isinstance(PATTERNS[key], dict) else {"": PATTERNS[key]}
    lines = [(inner, line) for inner, several in patterns.items() for line in several.splitlines()]
    found = [(match.start(), key, match.groups()) for key, line in lines for match in re.finditer(filled(line), text)]
    return [(key, groups) for _, key, groups in sorted(found)]


def only(key: str, text: str) -> tuple[str, ...]:
    """Return the groups of the only sentence that fits one of the patterns."""
    ((_, groups),) = matches(key, text)
    return groups


# The truth: letter


def test_the_words_that_arrive_are_those_that_were_sent_unless_the_story_says_so():
    outcomes = Counter()
    for story in of_plot(long_stories(), "letter"):
        sent = re.search(r"'(.*?)[.,!]'", story.text)[1]
        (heard,) = only("HEARD", story.text)
        right = re.search("Just as I told|Not a word had been lost|Then everyone has a good head", story.text)
        assert (heard == sent) == bool(right), story.text
        if not right:
            assert only("CORRECTED", story.text) == (sent,), story.text
        thing = re.search(rf"(?:[Bb]ring|with) {SOME} (\w+)", story.text)[1]
        assert re.search(rf"(?:\w+ with|took) the {thing}\b", story.text), story.text
        outcomes[bool(right)] += 1
    assert min(outcomes[True], outcomes[False]) > 30


# The truth: theft


def who_where(patterns: str, text: str) -> dict[str, str]:
    """Name -> place, whichever of the two the sentence has first."""
    pairs = [sorted(groups, key=str.islower) for _, groups in matches(patterns, text)]
    pairs = [(one, other) if re.fullmatch(NAME, one) else (other, one) for one, other in pairs]
    return {name: PLACE.search(where)[1] for name, where in pairs}


def test_the_accused_is_the_one_whom_the_witness_did_not_see():
    for story in of_plot(long_stories(), "theft"):
        claims = who_where("PLANS", story.text)
        answers = who_where("ANSWERS", story.text)
        assert len(claims) == 3, story.text
        assert answers == claims, story.text
        seen = who_where("SEEN", story.text)
        empty = PLACE.search(only("EMPTY", story.text)[0])[1]
        ((thief, place),) = who_where("ACCUSED", story.text).items()
        assert seen == {name: where for name, where in claims.items() if name != thief}, story.text
        assert claims[thief] == place == empty, story.text
        assert set(only("HONEST", story.text)) == set(seen)


# The truth: rumor

SETS_OUT = r"I must see that|put on \w+ boots|So \w+ \w+ all the way"


def test_a_rumor_is_traced_back_to_the_one_who_changed_it():
    outcomes = Counter()
    for story in of_plot(long_stories(), "rumor"):
        tellers = people(story)
        text = story.text
        sets_out = re.search(SETS_OUT, text)
        said = re.findall(rf"\b({NUMBER}) \w+ [a-z ]*?{PLACE.pattern}", text[: sets_out.start()])[-5:]
        changes = {}  # the one who was told one thing and said another
        for part, key in enumerate(("number", "place")):
            who = [tellers[n] for n in range(1, 5) if said[n][part] != said[n - 1][part]]
            assert len(who) <= 1, text
            if who:
                changes[key] = who[0]
        expected = changes.get("place") or changes.get("number")
        assert [who for _, (who,) in matches("OWNED_UP", text)] == [expected] * bool(changes), text
        if len(changes) == 2:
            assert only("WRONG_NUMBER", text) == (changes["number"],), text
        assert {who for _, (who,) in matches("LEARNED", text)} == set(changes.values()), text
        assert PLACE.search(text, sets_out.end())[1] == said[-1][1], text
        truth = only("TRUTH", text[sets_out.start() :])
        if "place" in changes:
            where, many = only("FOUND", text)
            assert (many, PLACE.search(where)[1]) == said[0], text
        else:
            many, not_so_many = only("COUNTED", text)
            assert many == said[0][0], text
            assert not_so_many in ("", said[-1][0]), text
        assert (truth[0], PLACE.search(truth[1])[1]) == said[0], text
        assert ("kept to the truth" in text or "nobody between" in text) == (not changes)
        outcomes[tuple(sorted(changes))] += 1
    assert min(outcomes.values()) >= 5
    assert len(outcomes) == 4


# The truth: feast


def by_name(patterns: str, text: str) -> dict[str, str]:
    """Name -> the other thing in the sentence."""
    # capitals first
    return dict(sorted(groups, key=str.islower) for _, groups in matches(patterns, text))


def test_guests_sit_where_they_were_put_and_take_home_what_they_got():
    swaps = 0
    for story in of_plot(long_stories(), "feast"):
        brought = by_name("BROUGHT", story.text)
        sits = by_name("SITS", story.text)
        has = by_name("DRAWN", story.text)
        assert len(brought) == len(sits) == len(has) == 4, story.text
        assert set(brought.values()) == set(has.values())
        assert all(brought[name] != has[name] for name in has), story.text
        for _, (holder, other) in matches("SWAPPED", story.text):
            wisher = next(name for name in has if has[name] == other)
            has[holder], has[wisher] = has[wisher], has[holder]
            assert all(brought[name] != has[name] for name in has), story.text
            swaps += 1
        home = [groups for _, groups in matches("TOOK_HOME", story.text)]
        assert len(home) == 2, story.text
        assert all(sits[name] == seat and has[name] == gift for seat, name, gift in home), story.text
        givers = [groups for _, groups in matches("CAME_FROM", story.text)]
        assert len(givers) == 2, story.text
        for (_, taker, gift), (gift_or_taker, giver) in zip(home, givers, strict=True):
            assert gift_or_taker in (taker, gift)
            assert brought[giver] == gift, story.text
        noted = {who: thing for thing, who in holders(story).items() if thing in has.values()}
        assert noted == has, story.text
    assert swaps > 50


# Facts and names

N = 2000
VERBS = "said|cried|whispered|called|laughed|shouted|sighed|groaned|moaned|mumbled|asked|wondered|begged"


@pytest.fixture(scope="module")
def short_stories() -> list[Story]:
    return tell_many(3, N)


def facts(story: Story, kind: str) -> list[Fact]:
    return [fact for fact in story.facts if fact.kind == kind]


def at_form(story: Story, place: str) -> str:
    return next(texts["at"] for texts in story.entities if texts.get("") == place)


def test_a_story_with_held_out_names_is_the_same_story(short_stories):
    for index in range(500):
        story = tell(3, index, held_out_names=True)
        assert read(story.text, held_out_names=True) == story
        usual = short_stories[index]
        text = story.text
        for old, new in zip(usual.people.values(), story.people.values(), strict=True):
            assert new in held_out_names()
            text = re.sub(rf"\b{new}\b", old, text)
        assert text == usual.text


def test_hiders_are_in_the_place_and_the_clothes_that_are_told_with_their_name(short_stories):
    for story in of_plot(short_stories, "hide"):
        for hidden, worn in zip(facts(story, "at"), facts(story, "has"), strict=True):
            name = hidden.values["what"]
            assert worn.values["who"] == name
            (sentence,) = [part for part in re.split(r"[.!?]\"? ", story.text) if name in part][:1]
            assert at_form(story, hidden.values["place"]) in sentence, story.text
            assert re.search(rf" an? \w+ {worn.values['thing']}\b", sentence), story.text


@pytest.mark.parametrize("level", [1, 2])
def test_quotes_belong_to_the_name_beside_them(short_stories, level):
    checked = 0
    for story in short_stories if level == 1 else tell_many(3, 150, level=2):
        names_here = "|".join(story.people.values())
        said = {(fact.values["words"], fact.values["who"]) for fact in facts(story, "said")}
        plain = re.findall(rf'"([^"]+)" (?:{VERBS}) ({names_here})\b', story.text)
        plain += re.findall(rf'"([^"]+)" ({names_here}) (?:\w+ly )?(?:{VERBS}|told|promised)\b', story.text)
        assert set(plain) <= said, story.text
        checked += len(plain)
        for words, who in said - set(plain):  # by a pronoun, or before the quote
            sentence = re.split(r'[.!?"]', story.text[: story.text.index(f'"{words}"')])[-1]
            named = set(re.findall(names_here, sentence))
            pronoun = re.search(
                rf'"{re.escape(words)}" s?he |\bs?he (?:\w+ly )?(?:{VERBS}), "{re.escape(words)}', story.text
            )
            assert pronoun or named == {who} or re.search(rf"\b{who} (?:\w+ly )?(?:{VERBS}), $", sentence), story.text
            assert not sentence.endswith("was told, ")
    assert checked > 700


def test_feelings_belong_to_the_name_before_them(short_stories):
    checked = 0
    moods = "|".join(sorted(feelings(), key=len, reverse=True))
    for story in short_stories:
        felt = {(fact.values["who"], fact.values["feeling"]) for fact in facts(story, "feels")}
        plain = re.findall(rf"\b({'|'.join(story.people.values())})(?:, who)? was ({moods})\b", story.text)
        assert set(plain) <= felt, story.text
        checked += len(plain)
    assert checked > N / 20
