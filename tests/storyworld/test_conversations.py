"""Conversations: turns alternate, stories fit what was asked for, answers are the known ones."""

import json
import re
from collections import Counter
from itertools import permutations
from random import Random

import pytest

from data.config import DataConfig, StoryworldSource
from data.reading.documents import documents
from storyworld import converse, interview, read, renamed
from storyworld.names import CONSONANTS, VOWELS, name_set

N = 400


@pytest.fixture(scope="module")
def conversations() -> list[dict]:
    return [converse(0, index) for index in range(N)]


def test_the_form_is_the_one_that_chat_data_has(conversations):
    for conversation in conversations:
        assert json.loads(json.dumps(conversation)) == conversation
        assert set(conversation) == {"conversations", "meta"}
        messages = conversation["conversations"]
        assert all(set(message) == {"role", "content"} for message in messages)
        roles = [message["role"] for message in messages[messages[0]["role"] == "system" :]]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        for message in messages:
            assert re.fullmatch(r"[A-Za-z ,.:!?'\"-]+", message["content"])
            assert not re.search(r"[{}|]|  | [.?,]|\.\.", message["content"])
    assert sum(one["conversations"][0]["role"] == "system" for one in conversations) > N / 8


def test_a_story_fits_what_was_asked_for(conversations):
    for one in conversations:
        assert bool(one["meta"]["contains"]) == (one["meta"]["kind"] != "question")
        if one["meta"]["contains"]:
            request, told = [message["content"] for message in one["conversations"] if message["role"] != "system"][:2]
            assert read(told).plot == one["meta"]["plot"]
            for word in one["meta"]["contains"]:
                assert all(re.search(rf"\b{word}\b", text) for text in (request, told))
            for kind, name in re.findall(r"(\w+) named ([A-Z]\w+)", request):
                assert re.search(rf"\b{name}\b[^.]*\b{kind}\b|\b{kind} named {name}\b", told)


def test_answers_answer_the_question_before_them(conversations):
    for one in conversations:
        for question in one["meta"]["questions"]:
            asked, answered = one["conversations"][question["message"] - 1 : question["message"] + 1]
            assert (asked["role"], answered["role"]) == ("user", "assistant")
            assert "?" in asked["content"]
            assert question["answer"] in question["candidates"]
            if "few words" in asked["content"] and question["kind"] != "yes_no":
                assert answered["content"] == question["answer"]
            else:
                assert question["answer"].lower() in answered["content"].lower()
                assert re.search(r'[.!?]"?$', answered["content"])


def test_more_questions_a_told_story_and_the_weights_of_classes():
    weights = {"yes_no": 20, "first": 0}
    told = [interview(5, index, most=14, told=1.0, weights=weights) for index in range(20)]
    assert max(len(one["meta"]["questions"]) for one in told) == 14
    asked = Counter(question["kind"] for one in told for question in one["meta"]["questions"][1:])
    assert asked["first"] == 0
    assert asked["yes_no"] > asked.total() / 2
    for one in told:
        asked = [one["conversations"][question["message"] - 1]["content"] for question in one["meta"]["questions"]]
        assert not any(b.endswith(a.removeprefix("Who")) for a, b in permutations(asked, 2)), "nothing is asked twice"
        roles = [message["role"] for message in one["conversations"] if message["role"] != "system"]
        story = next(message["content"] for message in one["conversations"] if message["role"] == "assistant")
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert read(story).plot == one["meta"]["plot"]  # it is the assistant who tells it
        weights_of = [message.get("weight", 1) for message in one["conversations"] if message["role"] == "assistant"]
        # and only the answers are trained on
        assert weights_of == [0, *[1] * (len(weights_of) - 1)]
        for question in one["meta"]["questions"]:
            reply = one["conversations"][question["message"]]["content"]
            assert question["answer"].lower() in reply.lower()


def test_other_names_keep_who_is_who_and_never_have_the_held_out_form():
    for index in range(40):
        messages = [message["content"] for message in interview(5, index)["conversations"]]
        other = renamed(messages, Random(index))
        pairs = {
            pair
            for text, changed in zip(messages, other, strict=True)
            for pair in zip(re.findall(r"\w+", text), re.findall(r"\w+", changed), strict=True)
        }
        new = {old: new for old, new in pairs if old != new}
        assert set(new) == name_set() & {old for old, _ in pairs}  # every name, and nothing else
        assert len(set(new.values())) == len(new) == sum(old != new for old, new in pairs)
        for name in new.values():
            assert name not in name_set()
            assert not re.fullmatch(rf"([{CONSONANTS}][{VOWELS}]){{3}}", name.lower())


def test_other_names_are_for_training_alone():
    source = StoryworldSource(documents=30, validation_documents=5, other_names=0.5, repeats=0.5)
    usual = source.model_copy(update={"other_names": 0.0})
    texts = [list(documents(DataConfig(source=one), "train")) for one in (source, usual)]
    changed = sum(one != other for one, other in zip(*texts, strict=True))
    assert 8 <= changed <= 22  # of 30, drawn one by one
    held_out = [list(documents(DataConfig(source=one), "validation")) for one in (source, usual)]
    assert held_out[0] == held_out[1]


def test_a_checked_answer_is_asked_for_again_as_yes_or_no():
    """The same question, right after its answer; yes about as often as no, and the answer is
    compared, not read.
    """
    said = Counter()
    for index in range(60):
        one = interview(5, index, most=14, checked=1.0, weights={"yes_no": 0})
        questions = one["meta"]["questions"][1:]
        texts = [one["conversations"][question["message"] - 1]["content"] for question in questions]
        for number, question in enumerate(questions):
            if question["kind"] == "yes_no":
                before = questions[number - 1]
                assert texts[number][:-1].endswith(texts[number - 1][4:-1]) or before["kind"] == "where"
                reply = one["conversations"][question["message"]]["content"]
                assert before["answer"].lower() in reply.lower()
                assert reply.endswith(f"? {question['answer'].capitalize()}.")
                so = before["answer"] in texts[number]
                assert question["answer"] == ("yes" if so else "no")
                said[question["answer"]] += 1
    assert min(said.values()) > 40
