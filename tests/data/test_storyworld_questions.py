"""Questions: one right answer each, and a wrong one that could be taken for it."""

import re
from collections import Counter

import pytest

from data.storyworld import Story, questions_about, tell_many
from data.storyworld.questions import KINDS, place_sorts, yes_no
from data.storyworld.wordings import feelings
from tests.data.storyworld_helpers import people


@pytest.fixture(scope="module")
def stories() -> list[Story]:
    return tell_many(seed=5, start=0, stop=400) + tell_many(seed=5, start=0, stop=40, level=2)


# One right answer


def test_the_same_question_never_has_two_answers(stories):
    for story in stories:
        answers: dict[str, str] = {}
        for question in questions_about(story):
            assert answers.setdefault(question.text, question.answer) == question.answer, (story.text, question)


def test_words_that_were_said_twice_or_that_are_few_are_not_asked_for(stories):
    for story in stories:
        for question in questions_about(story, "who_said"):
            words = re.search(r'"(.*)"', question.text)[1]
            assert len(words.split()) >= 3
            assert story.text.count(words.removesuffix("'")) == 1


def test_what_happened_at_the_same_time_is_not_put_in_order(stories):
    same_time = ({"was in front at the start", "was second at the start"}, {"won the race", "came last"})
    asked = 0
    for story in stories:
        if story.plot == "race":
            for question in questions_about(story, "first"):
                deeds = {clause.partition(" ")[2] for clause in question.candidates}
                assert not any(pair <= deeds for pair in same_time)
                asked += {"was in front at the start", "won the race"} <= deeds
    assert asked > 10


def test_a_character_who_felt_two_things_is_asked_when(stories):
    asked = 0
    for story in tell_many(seed=6, start=0, stop=1500):
        moods: dict[str, list[str]] = {}
        for fact in story.facts:
            if fact.kind == "feels":
                moods.setdefault(fact.values["who"], []).append(fact.values["feeling"])
        for question in questions_about(story, "feeling") if any(len(set(felt)) > 1 for felt in moods.values()) else []:
            (who,) = [name for name in moods if name in question.text]
            first, end = "first" in question.text or "beginning" in question.text, " end" in question.text
            assert (first or end) == (len(set(moods[who])) > 1)
            assert question.answer == moods[who][-1 if end else 0]
            asked += first
    assert asked > 10


def test_questions_and_answers_are_well_formed(stories):
    kinds = Counter()
    for story in stories:
        for question in questions_about(story):
            kinds[question.kind] += 1
            assert question.text.endswith("?")
            assert question.text[0].isupper()
            assert question.answer in question.candidates
            assert len(set(question.candidates)) == len(question.candidates)
            assert re.search(r"""[.!?](?:'?")?$""", question.sentence)
            assert not re.search(r"[{}|]|  | [.?,]|\.\.", question.text + question.sentence), question
            if question.kind != "yes_no":
                assert question.answer.lower() in question.sentence.lower()
                assert len(question.candidates) > 1
            if question.kind.startswith("who"):
                assert question.answer in people(story)
    assert set(kinds) == set(KINDS)
    assert min(kinds.values()) > 50


def test_answers_can_be_found_in_the_story(stories):
    for story in stories:
        for question in questions_about(story):
            if question.kind in ("who_has", "who_wanted", "who_said", "feeling"):
                assert question.answer in story.text, question
            elif question.kind == "where":
                assert question.answer.split()[-1] in story.text, question


def test_every_question_of_who_and_where_is_answered_yes_once(stories):
    for story in stories[:100]:
        for question in questions_about(story):
            made = [yes_no(question, [candidate]) for candidate in question.candidates]
            if question.kind in ("where", "who_has", "who_said", "who_did"):
                assert all(made)
                assert [all(q.answer == "yes" for q in group) for group in made].count(True) == 1
            for candidate, group in zip(question.candidates, made, strict=True):
                assert all(candidate in q.text for q in group)


def test_who_had_it_agrees_with_a_reading_of_the_sentences(stories):
    """The last word on the toy in the stories that hand it on."""
    home = re.compile(
        r"So it was (\w+) who|in the end\? It was (\w+)\.|That night the [a-z ]+ of (\w+)\.|home with (\w+)\."
    )
    checked = 0
    for story in stories:
        if story.plot == "pass":
            (keeper,) = ["".join(groups) for groups in home.findall(story.text)]
            end = [q for q in questions_about(story, "who_has") if re.search("at the end|in the end|was over", q.text)]
            assert {q.answer for q in end} == {keeper}
            checked += 1
    assert checked > 20


def test_the_one_who_opened_the_wrong_box_is_asked_for_if_the_story_says(stories):
    """Whether the first friend or the maker kept the wrong present until it came to the second is not told."""
    mixed = [story for story in stories if "wish.mixed" in [choice.option for choice in story.choices]]
    assert len(mixed) > 10
    for story in mixed:
        (first,) = {q.answer for q in questions_about(story, "first") if q.text.endswith(" to get a box?")}
        assert not [q for q in questions_about(story, "who_has") if f"after {first}" in q.text]


def test_unknown_kinds_are_an_error(stories):
    with pytest.raises(ValueError, match="unknown kind of question 'why'"):
        questions_about(stories[0], "why")


# No answer in the question


@pytest.fixture(scope="module")
def long_stories() -> list[Story]:
    return tell_many(seed=8, start=0, stop=250, level=2)


def asked_about(stories: list[Story], kind: str, plot: str = "") -> list[tuple[Story, str, str, tuple[str, ...]]]:
    """All questions of a kind: story, question, answer, candidates."""
    told = [story for story in stories if plot in ("", story.plot)]
    return [(story, q.text, q.answer, q.candidates) for story in told for q in questions_about(story, kind)]


def test_no_one_whom_the_question_names_is_a_candidate(stories, long_stories):
    for kind in ("who_has", "who_wanted", "who_said", "who_did"):
        for _, text, answer, candidates in asked_about(stories + long_stories, kind):
            assert not [name for name in candidates if re.search(rf"\b{name}\b", text)], (text, answer)
    for _, text, _, _ in asked_about(stories[:100] + long_stories[:50], "yes_no"):
        names = re.findall(r"\b[A-Z][a-z]{3,7}\b", text)
        assert len(names) == len(set(names)), text


def test_candidates_for_a_place_are_of_its_sort(stories, long_stories):
    sorts = place_sorts().values()
    asked = asked_about(stories + long_stories, "where")
    for _, text, answer, candidates in asked:
        assert any({answer, *candidates} <= sort for sort in sorts), (text, candidates)
    found = [candidates for story, text, _, candidates in asked if story.plot == "theft" and "found" in text]
    assert len(found) > 10  # there are other hiding places in the story


@pytest.mark.slow
def test_feelings_are_asked_for_where_somebody_felt_otherwise(stories, long_stories):
    asked = asked_about(tell_many(seed=6, start=0, stop=1500) + long_stories, "feeling")
    for story, text, answer, candidates in asked:
        assert len(candidates) > 1
        for name in people(story):
            if name in text:  # "the hungry fox was glad" has two answers
                described = re.search(rf"\b{name},? (?:the|an?) (\w+) \w+|\b(\w+) \w+ named {name}", story.text)
                assert not set(described.groups()) & set(feelings()), (text, answer)
    assert len(asked) > 50


# Questions with two right answers, or with none


def test_who_needs_a_thing_for_a_swap_is_not_whom_a_question_of_wishes_means(stories, long_stories):
    """The hero of a swap wants the wish alone; what the owners ask for, the hero needs, too."""
    asked = 0
    for plot in ("trade", "bargain"):
        for story, text, answer, _ in asked_about(stories + long_stories, "who_wanted", plot):
            hero = people(story)[0]
            assert "in exchange for" not in text or answer != hero
            if answer != hero and "in exchange for" not in text:  # then the hero has it, and gave it away
                (thing,) = re.findall(r"the (\w+)\?", text)
                assert next(f.values["who"] for f in story.facts if f.values.get("thing") == thing) == hero, text
            asked += "in exchange for" in text
    assert asked > 50


def test_whom_a_present_came_from_is_asked_for_and_not_who_said_thanks(stories):
    """The one who got the other box may have thanked for it, too."""
    thanked = {text for _, text, *_ in asked_about(stories, "who_has", "wish") if "thanked" in text}
    assert len(thanked) > 10
    assert all(re.fullmatch(r"Who thanked \w+ with the \w+\?", text) for text in thanked)


def test_a_buyer_who_came_earlier_is_not_put_in_order(long_stories):
    gone = [story for story in long_stories if "bargain.gone" in [choice.option for choice in story.choices]]
    assert len(gone) > 5
    for story in gone:
        hero, deeds = people(story)[0], [fact for fact in story.facts if "deed" in fact.values]
        assert {fact.values["who"] for fact in deeds} == {hero}


def test_hiding_has_no_order(stories):
    for _, text, *_ in asked_about(stories, "first", "hide"):
        assert not re.search(r"\bhid\b", text)


ORDER = re.compile(r"\b(?:first|last|second|next|after|start|won|before|earlier)\b")


def test_questions_of_order_ask_for_the_order(stories, long_stories):
    texts = {text for _, text, *_ in asked_about(stories + long_stories, "first")}
    assert len(texts) > 500
    assert not [text for text in texts if not ORDER.search(text)]
    others = {text for _, text, *_ in asked_about(stories + long_stories, "who_did")}
    assert len(others) > 200
    assert not [text for text in others if ORDER.search(text)]


# Good English


@pytest.mark.slow
def test_questions_end_with_one_mark_and_answers_of_place_are_phrases(stories, long_stories):
    quoted = 0
    for story in stories + long_stories:
        for question in questions_about(story):
            assert not re.search(r"[.,!?]['\"]+\?", question.text), question.text
            if question.kind == "where":
                assert question.sentence == f"{question.answer[0].upper()}{question.answer[1:]}."
            elif question.kind == "who_said":
                words = re.fullmatch(r'\w+ said, "(.*)"', question.sentence)[1]
                assert re.sub("[.!?]'?$", "", words) in story.text
                assert re.search("[.!?]'?$", words)
                quoted += words[-1] == "?"
    assert quoted > 50
