"""Conversations of one small task again and again: repeat, compare, pair, answer about a sentence
or a crowd.
"""

import re
from collections import Counter
from random import Random

import pytest

from data.config import CourseStep, DataConfig, StoryworldSource
from data.prepare import tokenizer_texts
from data.reading.documents import documents
from storyworld import converse, interview, tell
from storyworld.conversations import NEAR, echoes, with_echoes
from storyworld.drills import CROWD_QUESTIONS, DRILLS, PAIRS, crowd
from storyworld.lexicon import place_sorts
from storyworld.names import held_out_names, name_set
from storyworld.questions import questions_about
from tests.train.helpers import refusal, write_config


def turns(drill: str, index: int) -> list[tuple]:
    """Return the turns of the user and the assistant in a drill's conversation."""
    contents = [message["content"] for message in DRILLS[drill](0, index)["conversations"]]
    return list(zip(contents[::2], contents[1::2], strict=True))


def test_names_are_compared_with_nothing_else_said_twice():
    for index in range(20):
        said = Counter()
        told = " ".join(question for question, _ in turns("compare", index))
        for question, reply in turns("compare", index):
            one, other = re.fullmatch(r"It was (.*)\. Was it (.*)\?", question).groups()
            verdict = "yes" if one == other else "no"
            assert reply.lower().removeprefix("it was ") == f"{one}. {other}? {verdict}.".lower()
            assert told.count(one) == 1 + (one == other)
            said[one == other] += 1
        assert min(said.values()) >= 1


def test_only_yes_or_no_is_trained_on_and_the_two_names_decide():
    came = Counter()
    names = Counter()
    for index in range(60):
        for question, reply in turns("judge", index):
            before, word, end = [(part["text"], part["weight"]) for part in reply]
            other, one = re.fullmatch(r"(?:It was )?(.*)\. (.*)\?", before[0]).groups()
            assert one.lower() in question.lower()
            assert word == (" Yes" if one.lower() == other.lower() else " No", 1)
            assert (before[1], end) == (0, (".", 0))
            came[word] += 1
            names[index, one] += 1
    assert min(came.values()) > 0.4 * came.total()
    assert 25 < sum(max(n for (at, _), n in names.items() if at == index) > 2 for index in range(60)) < 60


@pytest.mark.parametrize("name", [*DRILLS, "converse"])
def test_a_conversation_is_its_arguments_and_names_of_validation_are_held_out(name):
    make = DRILLS.get(name, converse)
    assert make(0, 1) == make(0, 1) != make(1, 1)
    words = {
        split: set(re.findall(r"\w+", str([make(0, index, split) for index in range(40)])))
        for split in ("train", "validation")
    }
    assert not words["train"] & set(held_out_names())
    assert not words["validation"] & name_set()
    assert name == "words" or (words["train"] & name_set() and words["validation"] & set(held_out_names()))


def test_drills_and_repeats_are_shares_of_the_chats_and_other_names_stand_in_every_part():
    def chats(**settings):
        source = StoryworldSource(documents=60, validation_documents=1, chats="questions", **settings)
        return list(documents(DataConfig(source=source, records="conversations"), "train"))

    def count(**settings):
        """Count those of 60 that compare, and those that repeat."""
        first = [[message.content for message in talk.messages[:2]] for talk in chats(**settings)]
        compared = sum(bool(re.fullmatch(r"It was [^.]*\. Was it [^.]*\?", user)) for user, _ in first)
        return compared, sum(user == reply for user, reply in first)

    assert count(repeats=0.5) == (0, 30)
    assert count(drills={"compare": 1.0}) == (60, 0)
    assert count(drills={"words": 1.0}) == (0, 60)
    assert all(10 < number < 40 for number in count(drills={"compare": 0.4, "words": 0.4, "one_fact": 0.2}))
    for talk in chats(drills={"ask_pairs": 1.0}, other_names=1.0):
        text = " ".join(message.content for message in talk.messages)
        assert not set(re.findall(r"\b[A-Z][a-z]+\b", text)) & name_set()
        assert all("".join(text for text, _ in one.parts) in ("", one.content) for one in talk.messages)


def test_the_answer_is_in_the_one_sentence_that_is_asked_about():
    preposition = {at.split(" the ")[1]: at for at in place_sorts()["place"]}
    came: Counter = Counter()
    for index in range(60):
        for prompt, reply in turns("one_fact", index):
            assert (reply[-1] != ".") == ("few words" in prompt)
            answer = reply.removesuffix(".")
            if race := re.search(r"(start|end)\b[^?]*\?", prompt):
                places = re.search(r"(from|[Tt]o) the ([a-z ]+?) (?:to|they raced from) the ([a-z ]+?)\.", prompt)
                from_first = places[1] == "from"
                place = places[2 if (race[1] == "start") == from_first else 3]
                assert answer.lower() == preposition[place]
            else:
                subject, _, feeling = answer.rpartition(" was ")
                assert subject in prompt
                assert feeling.lower() in prompt.lower()
            came["race" if race else "rest", reply[-1] == "."] += 1
    assert min(came.values()) > 40


@pytest.mark.parametrize("source", [{"drills": {"words": 0.7, "pairs": 0.5}}, {"course": [{"drills": {"words": 1.0}}]}])
def test_impossible_shares_and_courses_are_refused(tmp_path, source):
    refusal(write_config(tmp_path, data={"source": {"kind": "storyworld", **source}, "records": "conversations"}))


def test_a_tokenizer_learns_from_the_stories_and_not_from_the_drills():
    source = StoryworldSource(documents=30, validation_documents=1, chats="questions")
    tokenizer = {"kind": "bpe", "vocab_size": 512, "train_bytes": 10_000}
    plain = DataConfig(source=source, records="conversations", tokenizer=tokenizer)
    for changes in ({"drills": {"words": 1.0}}, {"course": [CourseStep(drills={"pairs": 1.0})]}):
        drilled = plain.model_copy(update={"source": source.model_copy(update=changes), "shuffle": False})
        assert list(tokenizer_texts(drilled)) == list(tokenizer_texts(plain))


PAIR_DRILLS = ("pairs", "ask_pairs", "by_name", "ask_by_name")


@pytest.mark.parametrize("drill", PAIR_DRILLS)
def test_what_is_answered_is_what_was_told_and_half_of_it_is_said_again(drill):
    again = Counter()
    for index in range(100):
        ((_, parts),) = turns(drill, index)
        said = "".join(f"[{part['text']}]" if part["weight"] else part["text"] for part in parts)
        sentences = re.findall(r"[A-Z][^.]*\.", said)[:PAIRS]
        rest = said.removeprefix(" ".join(sentences)).strip()
        answers = re.findall(r"\[ ([^\]]*)\]\.", rest)
        assert len(set(answers)) == len(answers) == PAIRS
        plain = [re.sub(r"\[.*?\]", "", sentence) for sentence in sentences]
        for answer, asked in zip(answers, re.split(r"\[[^\]]*\]\.", rest), strict=False):
            (told,) = [one for one in plain if re.search(rf"\b{answer}\b", one)]
            before, _, echo = re.sub(r"\]", "", asked).partition("[ ")
            if "by_name" in drill:
                assert set(re.findall(r"[A-Z]\w+", told)) & set(re.findall(r"[A-Z]\w+", before)) & name_set()
            else:  # asked about by the thing, which stands last
                assert told.rstrip(".").split()[-1] in before
            assert not echo or echo.startswith(answer), "what is said again in a question is its answer"
            again["asked", bool(echo)] += 1
            again["place"] += " " in answer
        for sentence, one in zip(sentences, plain, strict=True):
            (name,) = set(re.findall(r"\b[A-Z]\w+", one)) & name_set()
            assert re.findall(r"\[ (.*?)\]", sentence) in ([], [name])
            assert not re.search(r"\]\w", sentence), "a word is not cut"
            again["told", "[" in sentence] += 1
    assert 300 < again["told", True] < 500 > again["told", False] > 300
    assert again["asked", True] in (range(200, 400) if drill.startswith("ask") else (0,))
    assert again["place"] in (range(200, 600) if drill == "ask_by_name" else (0,))


def test_a_course_goes_from_step_to_step_and_what_is_held_out_is_of_the_last():
    course = [{"weight": 1.0, "drills": {"pairs": 1.0}}, {"weight": 3.0, "drills": {"compare": 1.0}}]
    source = StoryworldSource(documents=40, validation_documents=4, course=course)
    config = DataConfig(source=source, records="conversations", shuffle=False)
    kinds = ["Was it" in talk.messages[0].content for talk in documents(config, "train")]
    assert kinds == [False] * 10 + [True] * 30
    assert all("Was it" in talk.messages[0].content for talk in documents(config, "validation"))


@pytest.mark.parametrize("plot", ["hide", "wish", "soup", "trade"])
def test_of_a_crowd_each_has_a_part_and_is_asked_about(plot):
    stories = [story for story in (crowd(0, index) for index in range(60)) if story.plot == plot]
    assert len(stories) >= 8
    for story in stories:
        assert len(story.people) == (5 if plot == "soup" else 4)
        assert len({q.answer for kind in ("who_has", "who_wanted") for q in questions_about(story, kind)}) >= 4
        assert set(story.people.values()) <= name_set()


@pytest.mark.parametrize("told", [False, True])
def test_what_a_crowd_is_asked_is_answered_as_it_was_told(told):
    for index in range(30):
        talk = DRILLS["told_crowds" if told else "crowds"](1, index)
        story = crowd(1, index)
        right = {question.text: question for question in questions_about(story)}
        messages = talk["conversations"]
        answered = talk["meta"]["questions"]
        assert 1 <= len(answered) <= CROWD_QUESTIONS
        if told:
            assert "".join(part["text"] for part in messages[1]["content"] if not part["weight"]) == story.text
        for one in answered:
            user, reply = (messages[one["message"] + at]["content"] for at in (-1, 0))
            (question,) = [right[text] for text in right if text in user and right[text].kind == one["kind"]]
            assert reply in (question.answer, question.sentence)
            assert one["answer"] == question.answer


STORIES = [tell(0, index) for index in range(150)] + [crowd(0, index) for index in range(40)]


def test_a_name_is_said_again_where_something_can_first_be_known_of_it():
    came = Counter()
    for story in STORIES:
        for at, name in echoes(story).items():
            before = story.text[:at]
            assert re.search(rf"\b{name}\b", before[-NEAR:]), "it can be known"
            of_it = [fact for fact in story.facts if name in (fact.values.get("who"), fact.values.get("what"))]
            kinds = [f.kind for f in of_it if before.endswith(f.values.get("thing", "!")) or at <= f.at < at + NEAR]
            assert kinds
            came.update(kinds)
    assert min(came[kind] for kind in ("has", "wants", "at", "feels")) > 20


def test_half_of_the_names_are_said_again_and_only_these_have_a_loss():
    said = possible = 0
    for number, story in enumerate(STORIES):
        parts = with_echoes(story, Random(number))
        assert "".join(part["text"] for part in parts if not part["weight"]) == story.text
        again = [part["text"].strip() for part in parts if part["weight"]]
        assert set(again) <= set(echoes(story).values())
        said = said + len(again)
        possible = possible + len(echoes(story))
    assert 0.4 < said / possible < 0.6
    talks = [interview(0, index, told=1.0, told_weight=1, echoed=0.5)["conversations"] for index in range(40)]
    told = [one for talk in talks for one in talk if "weight" in one or isinstance(one["content"], list)]
    assert 10 < sum(isinstance(one["content"], list) for one in told) < 30 < len(told) == 40
    assert not any("weight" in one for one in told if isinstance(one["content"], list)), "its parts have their own"
