"""Who goes with what: eight words, names or sentences, and then which name belongs to which thing."""

import re
from collections import Counter

import pytest

from data.chat import TRAINED, encode_conversations
from data.config import DataConfig, StoryworldSource, TokenizerConfig
from data.reading.records import conversation_of
from data.reading.sources import documents
from data.storyworld.names import held_out_names, name_set
from data.storyworld.pairing import ask_pairs, pair_names, pair_words
from data.storyworld.vocabulary import words_of
from data.tokenizer import train_tokenizer
from tests.train.helpers import refusal, write_config

TOKENIZER = train_tokenizer(TokenizerConfig(kind="byte"), [])


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


STEPS = {"pair_words": pair_words, "pair_names": pair_names, "ask_pairs": ask_pairs}


@pytest.mark.parametrize("step", STEPS)
def test_only_who_it_was_is_trained_on_and_it_is_who_was_told(step):
    for index in range(30):
        talk = STEPS[step](0, index)
        user, assistant = talk["conversations"]
        *names, end = trained_on(talk)
        assert end == "<|im_end|>"
        said = "".join(part["text"] for part in assistant["content"])
        told = user["content"].rstrip(".").split(". ")
        assert len(names) == len(told) == len(set(names)) == 8
        for name, asked in zip(names, re.split("|".join(rf"{name}\." for name in names), said), strict=False):
            (about,) = [one for one in told if re.search(rf"\b{name.strip()}\b", one)]
            if name[1].isupper() or step != "ask_pairs" or name.strip() in words_of("friend", "kind"):
                assert about.split()[-1] in asked, "the thing that is asked about stands last in its sentence"
            else:
                assert set(re.findall(r"[A-Z]\w+", about)) & set(re.findall(r"[A-Z]\w+", asked)) - {"Where", "With"}


@pytest.mark.parametrize("step", STEPS)
def test_names_are_of_the_split_and_animals_of_the_stories(step):
    animals = set(words_of("friend", "kind"))
    for split, names in (("train", name_set()), ("validation", set(held_out_names()))):
        came = Counter()
        for index in range(60):
            told = STEPS[step](0, index, split)["conversations"][0]["content"]
            found = set(re.findall(r"[A-Z][a-z]+", told)) - {"What", "In", "For", "With"}
            assert found <= names
            came[bool(found)] += 1
            assert found or {pair.split()[0] for pair in told.rstrip(".").split(". ")} <= animals
        assert sorted(came) == {"pair_words": [False], "pair_names": [True], "ask_pairs": [False, True]}[step]
    assert STEPS[step](0, 1) == STEPS[step](0, 1) != STEPS[step](1, 1)


def test_other_names_stand_in_every_part_of_an_answer():
    source = StoryworldSource(documents=30, validation_documents=1, drills={"ask_pairs": 1.0}, other_names=1.0)
    talks = list(documents(DataConfig(source=source, records="conversations"), "train"))
    assert len(talks) == 30
    assert any(re.search(r"\b[A-Z][a-z]+\.", talk.messages[1].content) for talk in talks)
    for talk in talks:
        text = " ".join(message.content for message in talk.messages)
        assert not set(re.findall(r"\b[A-Z][a-z]+\b", text)) & name_set()
        for message in talk.messages:
            assert "".join(text for text, _ in message.parts) in ("", message.content)


def test_a_course_goes_from_step_to_step_and_what_is_held_out_is_of_the_last():
    course = [{"weight": 1.0, "drills": {"pair_words": 1.0}}, {"weight": 3.0, "drills": {"compare": 1.0}}]
    source = StoryworldSource(documents=40, validation_documents=4, course=course)
    config = DataConfig(source=source, records="conversations", shuffle=False)
    kinds = ["Was it" in talk.messages[0].content for talk in documents(config, "train")]
    assert kinds == [False] * 10 + [True] * 30
    assert all("Was it" in talk.messages[0].content for talk in documents(config, "validation"))


def test_the_order_of_a_course_is_asked_for(tmp_path):
    source = {"kind": "storyworld", "course": [{"drills": {"words": 1.0}}]}
    assert "source.course goes from easy to difficult, in that order: set data.shuffle: false" in refusal(
        write_config(tmp_path, data={"source": source, "records": "conversations"})
    )
