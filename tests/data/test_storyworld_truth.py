"""The long stories are true to themselves: who was told what by whom, who has what, who is where.

Checked with the sentences alone, as a careful reader would: nothing here looks into a plot.
"""

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from data.storyworld import Story
from data.storyworld.lexicon import words_of
from data.storyworld.long_plots import COUNTS
from tests.data.storyworld_helpers import holders, long_stories, of_plot, people

PATTERNS = yaml.safe_load(Path(__file__).with_name("storyworld_patterns.yaml").read_text())
NAME, SOME = r"([A-Z][a-z]{3,7})", r"an? \w+"
PLACE = re.compile(
    r"\b(river|pond|well|mill|barn|hill|bridge|oak|gate|garden|orchard|meadow|market|stream|tower|beach)\b"
)
NUMBER, THING = "|".join(words_of("number", "")), "|".join(words_of("thing", ""))
SPOT = "|".join(texts["at"] for texts in words_of("spot", "").values())
SEAT = f"({'|'.join(texts[''] for texts in words_of('seat', '').values())})"


@pytest.fixture(scope="module")
def stories() -> list[Story]:
    return long_stories()


def filled(pattern: str) -> str:
    for slot, words in {"<N>": NAME, "<SOME>": SOME, "<NUMBER>": NUMBER, "<SEAT>": SEAT}.items():
        pattern = pattern.replace(slot, words)
    return pattern


def matches(key: str, text: str) -> list[tuple[str, tuple[str, ...]]]:
    """What the patterns of a key find, in the order of the text: (key of the pattern, groups)."""
    patterns = PATTERNS[key] if isinstance(PATTERNS[key], dict) else {"": PATTERNS[key]}
    lines = [(inner, line) for inner, several in patterns.items() for line in several.splitlines()]
    found = [(match.start(), key, match.groups()) for key, line in lines for match in re.finditer(filled(line), text)]
    return [(key, groups) for _, key, groups in sorted(found)]


def names_in(key: str, text: str) -> list[str]:
    return [name for _, (name,) in matches(key, text)]


def only(key: str, text: str) -> tuple[str, ...]:
    """What the one sentence says that fits one of the patterns."""
    ((_, groups),) = matches(key, text)
    return groups


# The truth: letter


def test_the_letter_names_everyone_through_whose_hands_it_went(stories):
    for story in of_plot(stories, "letter"):
        text = story.text
        *earlier, last = names_in("LETTER_TAKERS", text)
        sender = only("SEALED", text)
        forwards = re.search(r"First there was (.*?), and then I came", text)
        backwards = re.search(r"I have it from (.*?)\.\"|It was (\w+ who gave it to me.*?)\.'", text)
        named = [name for name in re.findall(NAME, (forwards or backwards)[0]) if name in people(story)]
        named = [name for name in dict.fromkeys(named) if name != last]
        if forwards:
            assert named == earlier, text
        else:
            assert named[:-1] == earlier[::-1], text
            assert named[-1] in people(story)[:2]
            assert sender in {("",), (named[-1],)}
        count = COUNTS[len(earlier) - 1]
        assert re.search(rf"through {count} pairs|with {count} carriers|There were {count}, from", text), text
        assert holders(story)["letter"] in people(story)[:2]


def test_the_one_who_broke_the_seal_is_blamed_for_it_and_knows_what_the_letter_said(stories):
    broken = helped = 0
    for story in of_plot(stories, "letter"):
        breakers = names_in("SEAL_BREAKERS", story.text)
        assert names_in("BLAMED", story.text) == breakers, story.text
        whole = re.search(r"was whole, so|It was not broken|Nobody had broken the seal", story.text)
        assert bool(whole) == (not breakers)
        broken += bool(breakers)
        helper = re.search(r"Luckily (\w+) had read it|It was (\w+), who had opened the letter", story.text)
        if helper:
            assert breakers == [helper[1] or helper[2]]
            wet = re.search("ran into the bag|fell into a puddle|fell into the mud", story.text)
            peek = re.search("looked to the left|could not wait|how \\w+ wanted to know what", story.text)
            assert peek.start() < wet.start(), "read only when it was wet"
            helped += 1
    assert broken > 50
    assert helped > 10


def test_the_words_that_arrive_are_those_that_were_sent_unless_the_story_says_so(stories):
    outcomes = Counter()
    for story in of_plot(stories, "letter"):
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


def test_the_accused_is_the_one_whom_the_witness_did_not_see(stories):
    for story in of_plot(stories, "theft"):
        claims, answers = who_where("PLANS", story.text), who_where("ANSWERS", story.text)
        assert len(claims) == 3, story.text
        assert answers == claims, story.text
        seen = who_where("SEEN", story.text)
        empty = PLACE.search(only("EMPTY", story.text)[0])[1]
        ((thief, place),) = who_where("ACCUSED", story.text).items()
        assert seen == {name: where for name, where in claims.items() if name != thief}, story.text
        assert claims[thief] == place == empty, story.text
        assert set(only("HONEST", story.text)) == set(seen)


def test_what_was_stolen_is_found_where_the_accused_says_and_goes_back(stories):
    for story in of_plot(stories, "theft"):
        places = re.findall(SPOT, story.text)
        counts = Counter(places)
        assert sorted(counts.values()) in ([1, 2], [1, 1, 2]), story.text  # where it is, and where others look or rest
        said = re.search(rf"(?:It is|it is|drying|Look|hid it|The \w+ is) ({SPOT})", story.text)[1]
        found = re.search(rf"(?:and there,|found the \w+|The \w+ was) ({SPOT})", story.text)[1]
        assert said == found == max(counts, key=counts.__getitem__), story.text
        owner = people(story)[0]
        assert only("GIVEN_BACK", story.text) == (owner,), story.text
        assert holders(story).popitem()[1] == owner


# The truth: rumor

SETS_OUT = r"I must see that|put on \w+ boots|So \w+ \w+ all the way"


def test_a_rumor_is_traced_back_to_the_one_who_changed_it(stories):
    outcomes = Counter()
    for story in of_plot(stories, "rumor"):
        tellers, text = people(story), story.text
        sets_out = re.search(SETS_OUT, text)
        said = re.findall(rf"\b({NUMBER}) \w+ [a-z ]*?{PLACE.pattern}", text[: sets_out.start()])[-5:]
        changes = {}  # the one who was told one thing and said another
        for part, key in enumerate(("number", "place")):
            who = [tellers[n] for n in range(1, 5) if said[n][part] != said[n - 1][part]]
            assert len(who) <= 1, text
            if who:
                changes[key] = who[0]
        expected = changes.get("place") or changes.get("number")
        assert names_in("OWNED_UP", text) == [expected] * bool(changes), text
        if len(changes) == 2:
            assert only("WRONG_NUMBER", text) == (changes["number"],), text
        assert set(names_in("LEARNED", text)) == set(changes.values()), text
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


# The truth: ferry


def test_everyone_crosses_the_lake_and_nobody_is_left_alone_with_the_third(stories):
    mistakes = 0
    for story in of_plot(stories, "ferry"):
        ferry, *guests = people(story)
        b = re.search(rf"(?:alone with|Never alone with) {NAME}[,.!]", story.text)[1]
        assert b in guests
        near, far, crossings = set(guests), set(), 0
        for event, names in matches("FERRY", story.text):
            if event in ("over", "back"):
                here, there = (near, far) if event == "over" else (far, near)
                here.remove(names[0])
                there.add(names[0])
                assert event == "over" or here == {names[1]}, story.text
                assert not (b in here and len(here) == 2), story.text  # the boat has gone to the other side
            elif event == "one":
                assert {names[0]} == far
                assert set(names[1:]) == near
            elif event.startswith("two"):
                over, left = (names[:2], names[2]) if event == "two" else (names[1:], names[0])
                assert set(over) == far, story.text
                assert near == {left}
            elif event == "alone":
                assert not (b in far and len(far) == 2), story.text
            crossings += {"over": 1, "back": 1, "alone": 1, "twice": 2}.get(event, 0)
        assert far == set(guests), story.text
        assert re.search(
            rf"\b{COUNTS[crossings - 2]} times (?:for|across)|across {COUNTS[crossings - 2]} times", story.text
        )
        mistakes += bool(re.search("At first|First \\w+ got", story.text))
        assert ferry not in guests
    assert mistakes > 30


def test_everyone_remembers_what_was_said_to_whom_and_what_is_whose(stories):
    forgotten = 0
    for story in of_plot(stories, "ferry"):
        complaints = dict(groups for _, groups in matches("COMPLAINTS", story.text))
        assert len(complaints) == 2, story.text
        assert dict(groups for _, groups in matches("ANSWERED", story.text)) == complaints, story.text
        owned = re.findall(rf"{NAME} (?:had |carried |held |brought )?{SOME} ({THING})\b", story.text)
        owner_of = {thing: who for who, thing in owned}
        assert len(owner_of) == 3, story.text
        (fare,) = only("FARE", story.text)
        assert only("PAYS", story.text) == (owner_of[fare],), story.text
        assert holders(story)[fare] == people(story)[0]
        if re.search("once more|row there|rowed back, and soon", story.text):
            (lost,) = only("LOST", story.text)
            assert only("FORGOT", story.text) == (owner_of[lost],), story.text
            forgotten += 1
    assert forgotten > 50


# The truth: feast


def by_name(patterns: str, text: str) -> dict[str, str]:
    """Name -> the other thing in the sentence."""
    return dict(sorted(groups, key=str.islower) for _, groups in matches(patterns, text))  # capitals first


def test_guests_sit_where_they_were_put_and_take_home_what_they_got(stories):
    swaps = 0
    for story in of_plot(stories, "feast"):
        brought, sits = by_name("BROUGHT", story.text), by_name("SITS", story.text)
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


# The truth: bargain


ASKED = r"[Ww]ho (?:had|got|went home with) the (\w+)(?: now| in the end)?\? (?:It was|That was|Why,) (\w+)"


def test_swaps_are_made_as_agreed_and_everything_is_where_they_left_it(stories):
    late = 0
    for story in of_plot(stories, "bargain"):
        hero = people(story)[0]
        start = next(filter(None, (re.search(filled(line), story.text) for line in PATTERNS["START"].splitlines())))
        holder, swaps = {start["have"]: hero}, 0
        for event, groups in matches("BARGAIN", story.text):
            kind, order = event.split()
            said = dict(zip(order, groups, strict=True))
            if kind == "gone":
                assert holder.get(said["I"], said["T"]) == said["T"]
                holder |= {said["I"]: said["B"], said["X"]: said["T"]}
                late += 1
                continue
            assert holder[said["G"]] == hero, story.text
            assert holder.get(said["I"], said["T"]) == said["T"], story.text
            holder |= {said["G"]: said["T"], said["I"]: hero}
            swaps += 1
        assert holder[start["wish"]] == hero
        assert holder == holders(story), story.text
        asked = re.findall(ASKED, story.text)
        assert len(asked) == 3, story.text
        assert all(holder[thing] == who for thing, who in asked), story.text
        counted = re.search(r"took (\w+) swaps|There had been (\w+)", story.text)
        assert counted is None or COUNTS[swaps - 2] in counted.groups(), story.text
    assert late > 50
