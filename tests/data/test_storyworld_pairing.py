"""Who goes with what: in steps from two words to questions, and in crowds of four."""

import re
from collections import Counter
from itertools import pairwise
from statistics import mean

import pytest

from data.chat import TRAINED, encode_conversations
from data.config import DataConfig, StoryworldSource, TokenizerConfig
from data.reading.records import conversation_of
from data.reading.sources import documents
from data.storyworld import ask_crowd, pair_off
from data.storyworld.crowds import CROWDS, crowd
from data.storyworld.names import held_out_names, name_set
from data.storyworld.pairing import STEPS
from data.storyworld.questions import questions_about
from data.tokenizer import train_tokenizer
from tests.train.helpers import refusal, write_config

TOKENIZER = train_tokenizer(TokenizerConfig(kind="byte"), [])
WAYS = dict(zip(STEPS, map(mean, pairwise([*STEPS.values(), 1.0])), strict=True))  # the middle of each step


def trained_on(talk) -> list[str]:
    """The stretches of a conversation that are trained on."""
    ((ids, flags),) = encode_conversations(TOKENIZER, [conversation_of(talk)])
    found, before = [], 0
    for token, flag in zip(ids, flags, strict=True):
        if flag & TRAINED:
            found = [*found, []] if not before else found
            found[-1].append(token)
        before = flag & TRAINED
    return [TOKENIZER.decode(part, skip_special_tokens=False) for part in found]


def test_only_who_it_was_is_trained_on_and_it_is_who_was_told():
    for step in ("words", "names", "inline", "worded"):
        for index in range(20):
            talk = pair_off(0, index, way=WAYS[step])
            user, assistant = talk["conversations"]
            *names, end = trained_on(talk)
            assert end == "<|im_end|>"
            said = "".join(part["text"] for part in assistant["content"])
            told = user["content"].rstrip(".").split(". ")
            assert len(names) == len(told) == len(set(names))
            for name, asked in zip(names, re.split("|".join(rf"{name}\." for name in names), said), strict=False):
                (about,) = [one for one in told if re.search(rf"\b{name.strip()}\b", one)]
                assert about.split()[-1] in asked, "the thing that is asked about stands last in its sentence"


@pytest.mark.parametrize("step", STEPS)
def test_a_step_comes_when_it_has_begun_and_then_mostly(step):
    way = WAYS[step]
    kinds = Counter(pair_off(0, index, way=way)["meta"]["kind"] for index in range(200))
    kinds["asked"] = kinds.pop("crowd", 0)
    begun = [one for one, begin in STEPS.items() if begin <= way]
    assert begun[-1] == step
    assert {one for one in kinds if kinds[one]} == set(begun)
    assert kinds[step] >= 100


def test_a_source_goes_from_easy_to_difficult():
    source = StoryworldSource(documents=40, validation_documents=40, chats="pairs")
    config = DataConfig(source=source, records="conversations", shuffle=False)
    for split, names in (("train", name_set()), ("validation", set(held_out_names()))):
        talks = list(documents(config, split))
        lengths = [len(talk.messages[0].content) for talk in talks]
        assert max(lengths[:10]) < 120 < 2 * 120 < max(lengths[-6:])
        assert set(re.findall(r"[A-Z][a-z]+", " ".join(talk.messages[0].content for talk in talks[15:25]))) <= names


def test_its_order_is_asked_for(tmp_path):
    config = write_config(
        tmp_path, data={"source": {"kind": "storyworld", "chats": "pairs"}, "records": "conversations"}
    )
    assert re.search(
        r"chats: pairs goes from easy to difficult, in that order: set data.shuffle: false", refusal(config)
    )


def test_other_names_stand_in_every_part_of_an_answer():
    source = StoryworldSource(documents=30, validation_documents=1, chats="pairs", other_names=1.0)
    config = DataConfig(source=source, records="conversations", shuffle=False)
    for talk in list(documents(config, "train"))[20:]:
        text = " ".join(message.content for message in talk.messages)
        assert not set(re.findall(r"\b[A-Z][a-z]+\b", text)) & name_set()
        for message in talk.messages:
            assert "".join(text for text, _ in message.parts) in ("", message.content)


@pytest.mark.parametrize("plot", CROWDS)
def test_of_a_crowd_each_has_a_part_and_is_asked_about(plot):
    stories = [story for story in (crowd(0, index) for index in range(60)) if story.plot == plot]
    assert len(stories) >= 8
    for story in stories:
        assert len(story.people) == (5 if plot == "soup" else 4)
        answers = {question.answer for kind in ("who_has", "who_wanted") for question in questions_about(story, kind)}
        assert len(answers & set(story.people.values())) >= 4
        assert set(story.people.values()) <= name_set()


def test_what_a_crowd_is_asked_is_answered_as_it_was_told():
    held_out = set(held_out_names())
    for split in ("train", "validation"):
        for index in range(30):
            talk, story = ask_crowd(1, index, split, 6), crowd(1, index, split)
            assert set(story.people.values()) <= (held_out if split == "validation" else name_set())
            right = {question.text: question for question in questions_about(story)}
            messages, noted = talk["conversations"], talk["meta"]["questions"]
            assert 1 <= len(noted) <= 6
            for one in noted:
                user, reply = (messages[one["message"] + at]["content"] for at in (-1, 0))
                (question,) = [right[text] for text in right if text in user and right[text].kind == one["kind"]]
                assert reply in (question.answer, question.sentence)
                assert one["answer"] == question.answer
            texts = [message["content"] for message in messages[::2]]
            assert len(set(texts)) == len(texts)


def test_crowds_are_a_share_of_the_chats():
    def count(share):
        source = StoryworldSource(documents=60, validation_documents=1, chats="questions", crowds=share)
        talks = documents(DataConfig(source=source, records="conversations"), "train")
        stories = [crowd(0, index).text for index in range(60)]
        return sum(any(story in talk.messages[0].content for story in stories) for talk in talks)

    assert count(0.0) == 0
    assert 8 <= count(0.3) <= 28
    assert count(1.0) == 60
