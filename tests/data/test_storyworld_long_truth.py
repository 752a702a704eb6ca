"""The other long stories are true to themselves: who has what, who is where.

Checked with the sentences alone, as a careful reader would: nothing here looks into a plot.
"""

import re

import pytest

from data.storyworld import Story
from data.storyworld.hearsay import COUNTS
from data.storyworld.lexicon import lexicon
from tests.data.storyworld_helpers import NAME, SOME, holders, long_stories, matches, of_plot, only, people


@pytest.fixture(scope="module")
def stories() -> list[Story]:
    return long_stories()


# The truth: ferry

BOAT = """
    rowed <N> over to the other side
    With a splash <N> jumped
    "Your turn, <N>,"
    Then \\w+ rowed over with <N>, past
    Over the lake went \\w+ and <N>,
"""
BACK = """
    But <N> must not stay there with <N>, so on the way back
    Was <N> to be alone with <N> now\\? No! \\w+ took \\w+ back
    "Come, <N>, you must go back with me," \\w+ \\w+, and <N> was left
"""
FERRY = {
    "over": BOAT,
    "alone": "()came back alone\n()rowed alone, with\n()rowed back in an empty boat\n()with nobody in the boat",
    "back": BACK,
    "twice": "()At first \\w+ rowed over\n()First \\w+ got into the boat\n()over and back once more\n"
    "()rowed back, and soon\n()had to row there and back",
    "one": "Now <N> was on the other side, and <N> and <N>\n<N> was over there, while <N> and <N>\n"
    "From the other side <N> waved to <N> and <N>",
    "two": "Now <N> and <N> were on the other side, and only <N>\ntwo over there, <N> and <N>\\. But <N>",
    "two, the one first": "only <N> left on the shore\\. <N> and <N>",
}


def test_everyone_crosses_the_lake_and_nobody_is_left_alone_with_the_third(stories):
    mistakes = 0
    for story in of_plot(stories, "ferry"):
        ferry, *guests = people(story)
        b = re.search(rf"(?:alone with|Never alone with) {NAME}[,.!]", story.text)[1]
        assert b in guests
        near, far, crossings = set(guests), set(), 0
        for event, names in matches(FERRY, story.text):
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


COMPLAINTS = """
    with \\w+," \\w+ <N>\\. "Last \\w+ \\w+ told me, '(.*?)\\.'
    <N> did not want to be left alone with \\w+\\. "To me \\w+ once said, '(.*?),'
    alone with \\w+," \\w+ <N>, "for \\w+ told me, '(.*?)\\.'
    "Never alone with \\w+!" \\w+ <N>\\. "In front of everyone \\w+ called out to me, '(.*?)!'
"""
ANSWERED = """
    "I am sorry, <N>," \\w+ \\w+\\. "I should never have said, '(.*?)\\.'
    went up to <N>\\. "To say, '(.*?),'
    took <N> by the hand\\. "It was a bad joke to say, '(.*?),'
    But <N> was still cross\\. "'(.*?),'
    And <N>\\? \\w+ would not look at \\w+\\. "Nobody tells me, '(.*?),' and
"""


FARE = "like to have the (\\w+)\nWho gives me the (\\w+)\npay me with the (\\w+)"
PAYS = """
    So <N> \\w+ gave \\w+ the
    It belonged to <N>, who \\w+ and gave
    "You can have it," \\w+ <N>
"""
LOST = """
    where was the (\\w+)\\?
    got in!" It was the (\\w+)
    one thing was missing\\. It was the (\\w+)
"""
FORGOT = """
    "That is mine!" \\w+ <N>
    "How could I forget it!" \\w+ <N>
    <N> [a-z ]+\\. "It is my own
"""


def test_everyone_remembers_what_was_said_to_whom_and_what_is_whose(stories):
    forgotten = 0
    things = "|".join(lexicon().roles["thing"][""].texts)
    for story in of_plot(stories, "ferry"):
        complaints = dict(groups for _, groups in matches({"": COMPLAINTS}, story.text))
        assert len(complaints) == 2, story.text
        assert dict(groups for _, groups in matches({"": ANSWERED}, story.text)) == complaints, story.text
        owned = re.findall(rf"{NAME} (?:had |carried |held |brought )?{SOME} ({things})\b", story.text)
        owner_of = {thing: who for who, thing in owned}
        assert len(owner_of) == 3, story.text
        (fare,) = only(FARE, story.text)
        assert only(PAYS, story.text) == (owner_of[fare],), story.text
        assert holders(story)[fare] == people(story)[0]
        if re.search("once more|row there|rowed back, and soon", story.text):
            (lost,) = only(LOST, story.text)
            assert only(FORGOT, story.text) == (owner_of[lost],), story.text
            forgotten += 1
    assert forgotten > 50


# The truth: feast

SEAT = f"({'|'.join(lexicon().roles['seat'][''].texts[seat][''] for seat in lexicon().roles['seat'][''].texts)})"
BROUGHT = f"""
    In came <N> the \\w+ \\w+ with .*? and {SOME} (\\w+)\\.
    It was <N>, {SOME} \\w+, who brought .*? to eat and {SOME} (\\w+) as
    under one arm and {SOME} (\\w+) under the other, <N> the
    "I have [a-z ]+ and {SOME} (\\w+)," \\w+ <N>, an?
    stood <N> the \\w+ \\w+ with [a-z ]+\\. For a gift there was {SOME} (\\w+)\\.
    came <N>, {SOME} \\w+, who had carried .*? and {SOME} (\\w+) all the way
"""
SITS = f"""
    You sit {SEAT}, dear <N>,
    The chair {SEAT} was for <N>
    <N> got a seat {SEAT}
    gave <N> the place {SEAT}
    May I sit {SEAT}\\?" \\w+ <N>,
"""
DRAWN = """
    <N> put a hand into the bag and took out the (\\w+)
    Out of the bag came the (\\w+) for <N>
    turn of <N>, who got the (\\w+)
    "What have we here\\?" \\w+ <N> \\w+\\. It was the (\\w+)
    With closed eyes <N> \\w+ drew the (\\w+)
    And <N>\\? \\w+ found the (\\w+) and
"""
SWAPPED = """
    So <N> \\w+ gave \\w+ the \\w+ and took the (\\w+) for it
    So \\w+ got the \\w+, and <N> had the (\\w+)
    <N> laughed\\. "And what I like best is the (\\w+)!"
"""
TOOK_HOME = f"""
    {SEAT}\\?(?: Who was that\\?)? It was <N>, and \\w+ went home with the (\\w+)\\.
    {SEAT}\\?(?: Who was that\\?)? That was <N>, who \\w+ carried the (\\w+) home
    {SEAT}\\?(?: Who was that\\?)? Why, <N> had sat there, and now \\w+ had the (\\w+)
"""
CAME_FROM = """
    "Who brought it\\?" \\w+ (\\w+)\\. It was <N>
    And the (\\w+) had come from <N>
    "I will take good care of it," (\\w+) promised <N>
"""


def by_name(patterns: str, text: str) -> dict[str, str]:
    """Name -> the other thing in the sentence."""
    return dict(sorted(groups, key=str.islower) for _, groups in matches({"": patterns}, text))  # capitals first


def test_guests_sit_where_they_were_put_and_take_home_what_they_got(stories):
    swaps = 0
    for story in of_plot(stories, "feast"):
        brought, sits = by_name(BROUGHT, story.text), by_name(SITS, story.text)
        has = by_name(DRAWN, story.text)
        assert len(brought) == len(sits) == len(has) == 4, story.text
        assert set(brought.values()) == set(has.values())
        assert all(brought[name] != has[name] for name in has), story.text
        for _, (holder, other) in matches({"": SWAPPED}, story.text):
            wisher = next(name for name in has if has[name] == other)
            has[holder], has[wisher] = has[wisher], has[holder]
            assert all(brought[name] != has[name] for name in has), story.text
            swaps += 1
        home = [groups for _, groups in matches({"": TOOK_HOME}, story.text)]
        assert len(home) == 2, story.text
        assert all(sits[name] == seat and has[name] == gift for seat, name, gift in home), story.text
        givers = [groups for _, groups in matches({"": CAME_FROM}, story.text)]
        assert len(givers) == 2, story.text
        for (_, taker, gift), (gift_or_taker, giver) in zip(home, givers, strict=True):
            assert gift_or_taker in (taker, gift)
            assert brought[giver] == gift, story.text
        noted = {who: thing for thing, who in holders(story).items() if thing in has.values()}
        assert noted == has, story.text
    assert swaps > 50


# The truth: bargain

BARGAIN = {
    "swap TGI": """
        <N> liked the \\w+ (\\w+) so much that \\w+ got the (\\w+) for it
        So <N> took the (\\w+), and \\w+ had the (\\w+)\\.
        <N> was [a-z ]+ to see the (\\w+) and gave \\w+ the (\\w+) for it
        Then it was back to <N>, who took the (\\w+) and \\w+ gave \\w+ the (\\w+)
        ran after <N>\\. "Take my (\\w+) for the (\\w+),"
        Luckily <N> liked the (\\w+) even better, and let \\w+ have the (\\w+)
    """,
    "swap GTI": """
        "Is that an? (\\w+)\\?" \\w+ <N>\\. "For that you can have the (\\w+) at once
        "I need an? (\\w+)," \\w+ <N> \\w+\\. And so \\w+ gave away the \\w+ and got the (\\w+)
        With the (\\w+) \\w+ \\w+ back to <N> and got the (\\w+) for it
        "Here is the (\\w+)," \\w+ \\w+\\. And <N> took it and handed over the (\\w+)
    """,
    "swap TIG": """
        word, <N> gave \\w+ the (\\w+) for the (\\w+)
        But <N> liked to swap again and again, and so \\w+ got the (\\w+) for the (\\w+)
    """,
    "gone TIBX": f"""
        Too late! <N> had swapped the (\\w+) with <N> the \\w+ \\w+, for {SOME} (\\w+)
    """,
    "gone TBXI": f"""
        "You come too late," \\w+ <N>\\. "Along came <N> the \\w+ \\w+ with {SOME} (\\w+) and .*?'Give me the (\\w+) for
    """,
    "gone ITBX": f"""
        the (\\w+) was no longer there! <N> had given it to <N>, {SOME} \\w+, for {SOME} (\\w+)
    """,
}
START = f"""
    came with {SOME} (?P<have>\\w+) and wanted {SOME} (?P<wish>\\w+)
    had {SOME} (?P<have>\\w+) and wanted to swap it for {SOME} (?P<wish>\\w+)
    I have {SOME} (?P<have>\\w+), and what I need is {SOME} (?P<wish>\\w+)
    Can you get {SOME} (?P<wish>\\w+) for {SOME} (?P<have>\\w+)
    had thought of {SOME} (?P<wish>\\w+)\\. But all \\w+ owned was {SOME} (?P<have>\\w+)
"""


ASKED = r"[Ww]ho (?:had|got|went home with) the (\w+)(?: now| in the end)?\? (?:It was|That was|Why,) (\w+)"


def test_swaps_are_made_as_agreed_and_everything_is_where_they_left_it(stories):
    late = 0
    for story in of_plot(stories, "bargain"):
        hero = people(story)[0]
        start = next(filter(None, (re.search(pattern.strip(), story.text) for pattern in START.strip().splitlines())))
        holder, swaps = {start["have"]: hero}, 0
        for event, groups in matches(BARGAIN, story.text):
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
