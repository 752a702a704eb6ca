"""The long stories in which words travel are true to themselves: who was told what by whom, and was it so?

Checked with the sentences alone, as a careful reader would: nothing here looks into a plot.
"""

import re
from collections import Counter

import pytest

from data.storyworld import Story
from data.storyworld.hearsay import COUNTS
from data.storyworld.lexicon import lexicon
from tests.data.storyworld_helpers import NAME, PLACE, SOME, holders, long_stories, matches, of_plot, only, people


@pytest.fixture(scope="module")
def stories() -> list[Story]:
    return long_stories()


# The truth: letter

LETTER_TAKERS = f"""
    carry this to \\w+," \\w+ \\w+ to <N> the
    gave the letter to <N>, {SOME}
    "I will," \\w+ <N> the
    In the morning <N>, {SOME}
    "Take this to \\w+," \\w+ told <N> the
    Now <N>, {SOME} \\w+, was going
    Just then <N> the \\w+ \\w+ came by
    So <N> the \\w+ \\w+ took the letter
    Nobody was faster than <N> the
"""
SEAL_BREAKERS = """
    There <N> looked to the left
    <N> could not wait
    how <N> wanted to know what was in it
"""
BLAMED = """
    for it was <N> who had broken
    That must have been <N>," \\w+ \\w+, and so it was
    No, but <N> had done it
    the seal was broken! <N> (?:turned|looked|began)
    "Oh dear, I read it," <N>
    "I opened it, and I am sorry," \\w+ <N>
"""


def test_the_letter_names_everyone_through_whose_hands_it_went(stories):
    for story in of_plot(stories, "letter"):
        text = story.text
        *earlier, last = [name for _, (name,) in matches({"": LETTER_TAKERS}, text)]
        sender = only("<N> closed it with\nThen <N> shut it\nWith warm wax <N> made\n()On the back went a seal", text)
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
        breakers = [name for _, (name,) in matches({"": SEAL_BREAKERS}, story.text)]
        assert [name for _, (name,) in matches({"": BLAMED}, story.text)] == breakers, story.text
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


HEARD = """
    "I was told, '(.*?),'"
    had said\\. "It was, '(.*?),'"
    "Yes, I heard, '(.*?),'"
"""
CORRECTED = """
    "But to \\w+ I said, '(.*?)!'"
    "No, no! It was, '(.*?),' when
    What I told \\w+ was, '(.*?),'"
"""


def test_the_words_that_arrive_are_those_that_were_sent_unless_the_story_says_so(stories):
    outcomes = Counter()
    for story in of_plot(stories, "letter"):
        sent = re.search(r"'(.*?)[.,!]'", story.text)[1]
        (heard,) = only(HEARD, story.text)
        right = re.search("Just as I told|Not a word had been lost|Then everyone has a good head", story.text)
        assert (heard == sent) == bool(right), story.text
        if not right:
            assert only(CORRECTED, story.text) == (sent,), story.text
        thing = re.search(rf"(?:[Bb]ring|with) {SOME} (\w+)", story.text)[1]
        assert re.search(rf"(?:\w+ with|took) the {thing}\b", story.text), story.text
        outcomes[bool(right)] += 1
    assert min(outcomes[True], outcomes[False]) > 30


# The truth: theft

PLANS = f"""
    "I am going (to [a-z ]+?) to [a-z ]+," \\w+ <N>, {SOME}
    <N> the \\w+ \\w+ told everyone, "I will go (to .*?) there
    And <N> the \\w+ \\w+, with .*?, "I want to [a-z ]+\\. You can find me (.*?)\\."
    As for <N>, .*? wanted to [a-z ]+\\. "Look for me (.*?),"
    Another neighbor, <N> .*?"Today I shall (.*?),"
"""
ANSWERS = """
    "I was ([a-z ]+), [a-z ]+ing[a-z ]*," \\w+ <N>\\b
    <N> (?:did not blink|smiled|yawned|bowed)\\. "I (.*?) until noon
    "Me\\? I went (.*?) there," \\w+ <N>
    "From breakfast to lunch I (.*?)," \\w+ <N>
    "As I told everyone, I was (.*?)," <N>
"""
SEEN = """
    "I came past (.*?), and there was <N>,
    had seen <N> (.*?)\\. "With my own eyes
    "When I was (.*?), I met <N>,"
"""
EMPTY = """
    "As I walked past (.*?), nobody
    had been (.*?) too, and
    "But ([a-z ]+) I met nobody
"""
ACCUSED = """
    turned to <N>\\. "You told me, '(.*?)\\.'
    "Oh, <N>," \\w+ \\w+, "to me you said, '(.*?)\\.'
    "It was <N> who told me, '(.*?)\\.'
    "But <N> said, '(.*?),'
"""


HONEST = """
    <N> and <N> had told the truth
    thank you, <N>, and you too, <N>,
    As <N> and <N> had been just
"""
GIVEN_BACK = """
    So <N> got the \\w+ back
    gave the \\w+ to <N>, who
    And <N> \\w+ took the \\w+ back to
"""


def who_where(patterns: str, text: str) -> dict[str, str]:
    """Name -> place, whichever of the two the sentence has first."""
    pairs = [sorted(groups, key=str.islower) for _, groups in matches({"": patterns}, text)]
    pairs = [(one, other) if re.fullmatch(NAME, one) else (other, one) for one, other in pairs]
    return {name: PLACE.search(where)[1] for name, where in pairs}


def test_the_accused_is_the_one_whom_the_witness_did_not_see(stories):
    for story in of_plot(stories, "theft"):
        claims, answers = who_where(PLANS, story.text), who_where(ANSWERS, story.text)
        assert len(claims) == 3, story.text
        assert answers == claims, story.text
        seen = who_where(SEEN, story.text)
        empty = PLACE.search(only(EMPTY, story.text)[0])[1]
        ((thief, place),) = who_where(ACCUSED, story.text).items()
        assert seen == {name: where for name, where in claims.items() if name != thief}, story.text
        assert claims[thief] == place == empty, story.text
        assert set(only(HONEST, story.text)) == set(seen)


def test_what_was_stolen_is_found_where_the_accused_says_and_goes_back(stories):
    spots = "|".join(texts["at"] for texts in lexicon().roles["spot"][""].texts.values())
    for story in of_plot(stories, "theft"):
        places = re.findall(spots, story.text)
        counts = Counter(places)
        assert sorted(counts.values()) in ([1, 2], [1, 1, 2]), story.text  # where it is, and where others look or rest
        said = re.search(rf"(?:It is|it is|drying|Look|hid it|The \w+ is) ({spots})", story.text)[1]
        found = re.search(rf"(?:and there,|found the \w+|The \w+ was) ({spots})", story.text)[1]
        assert said == found == max(counts, key=counts.__getitem__), story.text
        owner = people(story)[0]
        assert only(GIVEN_BACK, story.text) == (owner,), story.text
        assert holders(story).popitem()[1] == owner


# The truth: rumor

SETS_OUT = r"I must see that|put on \w+ boots|So \w+ \w+ all the way"
OWNED_UP = """
    Then <N> \\w+\\. "It was me
    "Oh dear," \\w+ <N>\\. "From
"""
WRONG_NUMBER = """
    That had come from <N>
    \\. That came from <N>
    must have been <N>\\."
"""
LEARNED = """
    And <N> had to [a-z ]+ for \\w+, who had believed
    better from now on," <N>
    After that <N> wrote
"""


TRUTH = """
    There were (<NUMBER>) of them, ([a-z ]+)\\.
    It was just as I said\\. I saw (<NUMBER>) \\w+ ([a-z ]+),"
    And I saw (<NUMBER>), ([a-z ]+)\\.
"""


FOUND = """
    So they all \\w+ (to [a-z ]+), and there they saw (<NUMBER>)
    and led them (to [a-z ]+)\\. There were (<NUMBER>)
    They \\w+ (to [a-z ]+) and found (<NUMBER>)
"""
COUNTED = """
    counted again and again, and there were (<NUMBER>)()\\.
    counted (<NUMBER>) of them and not (<NUMBER>)\\.
    In the end it was (<NUMBER>) and not (<NUMBER>)\\.
    And there they were, (<NUMBER>)() \\w+, just
    counted them\\. There were (<NUMBER>)(), no more
    until it was (<NUMBER>)()\\. It was all true
"""


def test_a_rumor_is_traced_back_to_the_one_who_changed_it(stories):
    numbers = "|".join(lexicon().roles["number"][""].texts)
    outcomes = Counter()
    for story in of_plot(stories, "rumor"):
        tellers, text = people(story), story.text
        sets_out = re.search(SETS_OUT, text)
        said = re.findall(rf"\b({numbers}) \w+ [a-z ]*?{PLACE.pattern}", text[: sets_out.start()])[-5:]
        changes = {}  # the one who was told one thing and said another
        for part, key in enumerate(("number", "place")):
            who = [tellers[n] for n in range(1, 5) if said[n][part] != said[n - 1][part]]
            assert len(who) <= 1, text
            if who:
                changes[key] = who[0]
        expected = changes.get("place") or changes.get("number")
        assert [name for _, (name,) in matches({"": OWNED_UP}, text)] == [expected] * bool(changes), text
        if len(changes) == 2:
            assert only(WRONG_NUMBER, text) == (changes["number"],), text
        assert {name for _, (name,) in matches({"": LEARNED}, text)} == set(changes.values()), text
        assert PLACE.search(text, sets_out.end())[1] == said[-1][1], text
        truth = only(TRUTH.replace("<NUMBER>", numbers), text[sets_out.start() :])
        if "place" in changes:
            where, many = only(FOUND.replace("<NUMBER>", numbers), text)
            assert (many, PLACE.search(where)[1]) == said[0], text
        else:
            many, not_so_many = only(COUNTED.replace("<NUMBER>", numbers), text)
            assert many == said[0][0], text
            assert not_so_many in ("", said[-1][0]), text
        assert (truth[0], PLACE.search(truth[1])[1]) == said[0], text
        assert ("kept to the truth" in text or "nobody between" in text) == (not changes)
        outcomes[tuple(sorted(changes))] += 1
    assert min(outcomes.values()) >= 5
    assert len(outcomes) == 4
