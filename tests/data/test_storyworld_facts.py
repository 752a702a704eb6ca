"""What a story knows about itself: its facts and the names that it is told with."""

import re

import pytest

from data.storyworld import Story, parse, read, tell, tell_many
from data.storyworld.lexicon import feelings
from data.storyworld.names import held_out_names, name_set
from data.storyworld.pen import Fact
from tests.data.storyworld_helpers import holders, of_plot

N = 2000
VERBS = "said|cried|whispered|called|laughed|shouted|sighed|groaned|moaned|mumbled|asked|wondered|begged"


@pytest.fixture(scope="module")
def stories() -> list[Story]:
    return tell_many(seed=3, start=0, stop=N)


def facts(story: Story, kind: str) -> list[Fact]:
    return [fact for fact in story.facts if fact.kind == kind]


def at_form(story: Story, place: str) -> str:
    return next(texts["at"] for texts in story.entities if texts.get("") == place)


@pytest.mark.slow
def test_reader_recovers_facts_and_mentions_from_the_text_alone(stories):
    for story in stories:
        again = read(story.text)
        assert again == story
        assert again.facts == story.facts
        assert story.noted
        assert story.mentions


def test_a_story_with_held_out_names_is_the_same_story(stories):
    for index in range(500):
        story = tell(3, index, held_out_names=True)
        assert read(story.text, held_out_names=True) == story
        assert parse(story.text, held_out_names=True) == story.choices
        usual, text = stories[index], story.text
        for old, new in zip(usual.people.values(), story.people.values(), strict=True):
            assert new in held_out_names()
            text = re.sub(rf"\b{new}\b", old, text)
        assert text == usual.text


def test_held_out_names_are_many_kind_and_in_no_training_text(stories):
    pool = held_out_names()
    assert len(pool) >= 1000
    assert len(set(pool)) == len(pool)
    assert not set(pool) & name_set()
    assert all(re.fullmatch("[A-Z][a-z]{5}", name) for name in pool)
    words = {word for story in stories for word in re.findall("[A-Za-z]+", story.text)}
    assert not words & set(pool)
    assert not {word.lower() for word in words} & {name.lower() for name in pool}


# The truth, read from the sentences alone


def test_the_toy_is_with_the_one_who_took_it(stories):
    handed = re.compile(
        r"(?:gave|handed|threw|passed) the \w+ to (\w+)\.|(?:asked|wondered|begged) (\w+), and"
        r"|, and (\w+) (?:took|got) it\.|, (\w+) (?:took|kept|got) the|it landed [a-z ]+ of (\w+)\."
        r"|so the \w+ went to (\w+)\.| let (\w+) have the|, so (\w+) had to (?:carry|hold|save)"
    )
    for story in of_plot(stories, "pass"):
        finder = facts(story, "did")[0].values["who"]
        takers = [finder, *("".join(groups) for groups in handed.findall(story.text))]
        assert [fact.values["who"] for fact in facts(story, "has")] == takers
        assert re.search(rf"\b{finder}\b", story.text).start() == min(story.text.find(n) for n in story.people.values())


def test_a_lost_thing_is_where_the_story_finds_it_again(stories):
    place = r"((?:by|beside|near|at|in|on|under) the (?:old )?\w+)"
    found = re.compile(rf"there, {place}, was|still {place}, |it is, {place}!|was {place}, and there lay")
    for story in of_plot(stories, "lost"):
        (left,) = [fact for fact in facts(story, "at") if fact.values["what"] not in story.people.values()]
        (came_back,) = {"".join(groups) for groups in found.findall(story.text)}
        assert at_form(story, left.values["place"]) == came_back, story.text


def test_hiders_are_in_the_place_and_the_clothes_that_are_told_with_their_name(stories):
    for story in of_plot(stories, "hide"):
        for hidden, worn in zip(facts(story, "at"), facts(story, "has"), strict=True):
            name = hidden.values["what"]
            assert worn.values["who"] == name
            (sentence,) = [part for part in re.split(r"[.!?]\"? ", story.text) if name in part][:1]
            assert at_form(story, hidden.values["place"]) in sentence, story.text
            assert re.search(rf" an? \w+ {worn.values['thing']}\b", sentence), story.text
        first = re.search(
            r'"I can see you [a-z ]+, (\w+)!|It was (\w+), of|Come out, (\w+)!|And [a-z ]+ sat (\w+),', story.text
        )
        (found,) = [fact.values["who"] for fact in facts(story, "did") if fact.values["deed"] == "was found"]
        assert found in first.groups()


def test_after_the_trade_everybody_has_what_the_last_sentences_say(stories):
    checked = 0
    for story in of_plot(stories, "trade"):
        end, holder = story.text[-160:], holders(story)
        pairs = [(thing, who) for who, thing in re.findall(r"([A-Z]\w+) had the (\w+)", end)]
        pairs += re.findall(r"the (\w+) (?:stayed )?with ([A-Z]\w+)", end)
        pairs += re.findall(r"The (\w+) stayed with ([A-Z]\w+)", end)
        for thing, who in pairs:
            assert holder[thing] == who, story.text
            checked += 1
    assert checked > 200


def test_everybody_gets_the_present_that_the_story_ends_with(stories):
    ends = re.compile(
        r"(\w+) fell asleep beside the (\w+), and (\w+) beside the (\w+)"
        r"|see (\w+) with the (\w+) and (\w+) with the (\w+)"
        r"|So (\w+) had the (\w+) and (\w+) had the (\w+)"
    )
    checked = 0
    for story in of_plot(stories, "wish"):
        holder = holders(story)
        wanted = {fact.values["thing"]: fact.values["who"] for fact in facts(story, "wants")}
        if match := ends.search(story.text):
            one, gift, two, present = [group for group in match.groups() if group]
            assert (holder[gift], holder[present]) == (wanted[gift], wanted[present]) == (one, two), story.text
            checked += 1
    assert checked > 100


def test_runners_come_in_as_the_story_says(stories):
    goal = re.compile(
        r"\. (\w+) won, (\w+) was second, and (\w+) came|First came (\w+), then (\w+), and then (\w+)\."
        r"|so (\w+) was the first to reach [a-z ]+\. (\w+) came in second and (\w+) was"
        r"|With (\w+) first, (\w+) second and (\w+) last"
    )
    for story in of_plot(stories, "race"):
        order = [group for group in goal.search(story.text).groups() if group]
        ends = ("won the race", "came second", "came last")
        assert order == [fact.values["who"] for fact in facts(story, "did") if fact.values["deed"] in ends], story.text


def test_neighbors_give_what_they_are_thanked_for(stories):
    gave = re.compile(
        r"(\w+) gave the (\w+), so|bringing the (\w+), (\w+) got|the (\w+) came from (\w+),"
        r"|that (\w+) had given the (\w+)"
    )
    for story in of_plot(stories, "soup"):
        pair = {group for group in gave.search(story.text).groups() if group}
        assert pair in [{fact.values["who"], fact.values["thing"]} for fact in facts(story, "has")], story.text


def test_the_one_who_waits_waits_where_the_story_says(stories):
    waits = re.compile(
        r"So (\w+) waited ([a-z ]+), while|stood (\w+), all alone ([a-z ]+)\.|, and (\w+) waited ([a-z ]+)\."
    )
    checked = 0
    for story in of_plot(stories, "message"):
        waiting = [f for f in facts(story, "at") if "wait" in f.values["asked"]]
        told = {(f.values["what"], at_form(story, f.values["place"])) for f in waiting}
        if match := waits.search(story.text) if waiting else None:
            who, where = [group for group in match.groups() if group]
            assert (who, where) in told, story.text
            (other_place,) = re.findall(r"(?:stood|waited|He sat|She sat) ([a-z ]+) with the", story.text)
            (other,) = {fact.values["what"] for fact in waiting} - {who}
            assert (other, other_place) in told, story.text
            checked += 1
        assert bool(waiting) == ("all alone" in story.text or " waited " in story.text)
    assert checked > 20


@pytest.mark.parametrize("level", [1, 2])
def test_quotes_belong_to_the_name_beside_them(stories, level):
    checked = 0
    for story in stories if level == 1 else tell_many(3, 0, 150, level=2):
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


def test_feelings_belong_to_the_name_before_them(stories):
    checked, moods = 0, "|".join(sorted(feelings(), key=len, reverse=True))
    for story in stories:
        felt = {(fact.values["who"], fact.values["feeling"]) for fact in facts(story, "feels")}
        plain = re.findall(rf"\b({'|'.join(story.people.values())})(?:, who)? was ({moods})\b", story.text)
        assert set(plain) <= felt, story.text
        checked += len(plain)
        for who, mood in felt - set(plain):  # by a pronoun, with others, or after more words
            assert re.search(
                rf"(?:he|everyone|both|(?:he|{who}) [a-z ]+) (?:was|were) {mood}\b|Feeling {mood}, s?he", story.text
            )
    assert checked > N / 20
