"""A story in which names are said again: where it says something of them, and nowhere else."""

import re
from collections import Counter
from random import Random

import pytest

from data.config import DataConfig, StoryworldSource
from data.reading.documents import documents
from data.storyworld.crowds import crowd, tell_crowd
from data.storyworld.echoes import NEAR, echoes, with_echoes
from data.storyworld.interviews import Asked, interview
from data.storyworld.questions import questions_about
from data.storyworld.story import tell
from train.rollouts import questions_to_draw

STORIES = [tell(0, index) for index in range(150)] + [crowd(0, index) for index in range(40)]


def test_a_name_is_said_again_where_something_can_first_be_known_of_it():
    came = Counter()
    for story in STORIES:
        kinds = ("has", "wants", "did", "at", "feels")
        of = {kind: [fact.values for fact in story.facts if fact.kind == kind] for kind in kinds}
        forms = {texts[""]: set(texts.values()) for texts in story.entities if "" in texts}
        for at, name in echoes(story).items():
            before, after = story.text[:at], story.text[at:]
            assert re.search(rf"\b{name}\b", before[-NEAR:]), "it can be known"
            owned = [one["thing"] for one in of["has"] + of["wants"] if one["who"] == name and "thing" in one]
            gave = [one["who_did"] for one in of["did"] if one["who"] == name and "who_did" in one]
            stays = [form for one in of["at"] if one["what"] == name for form in forms[one["place"]]]
            felt = [one["feeling"] for one in of["feels"] if one["who"] == name]
            last_word = before.split()[-1]
            of_it = {
                "thing": any(before.endswith(thing) for thing in owned),
                "given": any(f" {last_word}?" in who_did for who_did in gave),
                "place": any(f"{last_word}{after}".lower().startswith(form.lower()) for form in stays),
                "feeling": any(f"{last_word}{after}".startswith(feeling) for feeling in felt),
            }
            found = [kind for kind, holds in of_it.items() if holds]
            assert found
            came.update(found)
    assert len(came) == 4
    assert min(came.values()) > 20


def test_who_gave_something_goes_before_who_has_it_now():
    given = 0
    for index in range(200):
        story = tell(0, index)
        for fact in story.facts:
            if story.plot == "trade" and fact.kind == "did" and "who_did" in fact.values:
                thing = fact.values["who_did"].removesuffix("?").split()[-1]
                at = story.text.rfind(thing, 0, fact.at) + len(thing)
                name = echoes(story).get(at)
                assert name in (None, fact.values["who"])
                given += name is not None
    assert given > 10


def test_half_of_the_names_are_said_again_and_only_these_have_a_loss():
    said = possible = 0
    for number, story in enumerate(STORIES):
        parts = with_echoes(story, Random(number))
        assert "".join(part["text"] for part in parts if not part["weight"]) == story.text
        again = [part["text"].strip() for part in parts if part["weight"]]
        assert set(again) <= set(echoes(story).values())
        said, possible = said + len(again), possible + len(echoes(story))
    assert 0.4 < said / possible < 0.6


@pytest.mark.parametrize("told_weight", [0, 1])
def test_of_the_stories_that_the_assistant_tells_some_have_echoes(told_weight):
    how = Asked(told=1.0, told_weight=told_weight)
    plain = [interview(0, index, asked=how) for index in range(40)]
    some = [interview(0, index, asked=how._replace(echoed=0.5)) for index in range(40)]
    told = [[one for one in talk["conversations"] if isinstance(one["content"], list)] for talk in some]
    assert 10 < sum(map(bool, told)) < 30
    assert all(one["weight"] == told_weight for talk in plain for one in talk["conversations"] if "weight" in one)
    assert not any("weight" in one for several in told for one in several), "its parts have weights of their own"
    assert {len(several) for several in told} == {0, 1}


def test_a_told_crowd_is_answered_as_it_was_told():
    for index in range(40):
        talk, story = tell_crowd(1, index), crowd(1, index)
        right = {question.text: question for question in questions_about(story)}
        messages, noted = talk["conversations"], talk["meta"]["questions"]
        assert "".join(part["text"] for part in messages[1]["content"] if not part["weight"]) == story.text
        assert noted
        for one in noted:
            question = right[messages[one["message"] - 1]["content"]]
            assert messages[one["message"]]["content"] in (question.reply(True), question.reply(False))


def test_the_configuration_says_how_many():
    source = StoryworldSource(documents=20, validation_documents=1, chats="questions", told=1.0, echoed=1.0)
    talks = documents(DataConfig(source=source, records="conversations"), "train")
    with_parts = [any(len(message.parts) > 1 for message in talk.messages) for talk in talks]
    assert len(with_parts) == 20
    assert sum(with_parts) > 10


def test_what_reinforcement_learning_asks_about_has_no_echoes():
    source = StoryworldSource(documents=20, validation_documents=1, chats="questions", told=1.0, echoed=1.0)
    draw, rng = questions_to_draw(DataConfig(source=source, records="conversations")), Random(0)
    asked = [one for one in (draw(rng) for _ in range(20)) if one is not None]
    assert len(asked) > 10
    assert all(isinstance(message["content"], str) for one in asked for message in one.messages)
