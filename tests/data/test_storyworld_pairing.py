"""Who goes with what: eight words, names or sentences, and then which name belongs to which thing."""

import re
from collections import Counter

import pytest

from data.chat import TRAINED, encode_conversations
from data.config import DataConfig, StoryworldSource, TokenizerConfig
from data.reading.records import conversation_of
from data.reading.sources import documents
from data.storyworld import pair_off, pair_words
from data.storyworld.names import held_out_names, name_set
from data.storyworld.pairing import WAYS
from data.storyworld.vocabulary import words_of
from data.tokenizer import train_tokenizer

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


@pytest.mark.parametrize("way", ["words", *WAYS])
def test_only_who_it_was_is_trained_on_and_it_is_who_was_told(way):
    for index in range(20):
        talk = pair_off(0, index, way=way)
        user, assistant = talk["conversations"]
        *names, end = trained_on(talk)
        assert end == "<|im_end|>"
        said = "".join(part["text"] for part in assistant["content"])
        told = user["content"].rstrip(".").split(". ")
        assert len(names) == len(told) == len(set(names)) == 8
        for name, asked in zip(names, re.split("|".join(rf"{name}\." for name in names), said), strict=False):
            (about,) = [one for one in told if re.search(rf"\b{name.strip()}\b", one)]
            assert about.split()[-1] in asked, "the thing that is asked about stands last in its sentence"


def test_each_way_comes_as_often_and_names_are_of_the_split():
    ways = Counter(pair_off(0, index)["meta"]["kind"] for index in range(200))
    assert sorted(ways) == sorted(WAYS)
    assert min(ways.values()) > 40
    for split, names in (("train", name_set()), ("validation", set(held_out_names()))):
        for index in range(20):
            told = pair_off(0, index, split, "names")["conversations"][0]["content"]
            assert set(re.findall(r"[A-Z]\w+", told)) <= names
    assert pair_off(0, 1) == pair_off(0, 1) != pair_off(1, 1)


def test_animals_are_as_in_stories():
    for index in range(5):
        told = pair_words(0, index, "validation")["conversations"][0]["content"]
        assert {pair.split()[0] for pair in told.rstrip(".").split(". ")} <= set(words_of("friend", "kind"))


def test_other_names_stand_in_every_part_of_an_answer():
    source = StoryworldSource(documents=30, validation_documents=1, drills={"pairs": 1.0}, other_names=1.0)
    talks = list(documents(DataConfig(source=source, records="conversations"), "train"))
    assert len(talks) == 30
    assert any(re.search(r"\b[A-Z][a-z]+\b", talk.messages[1].content) for talk in talks)
    for talk in talks:
        text = " ".join(message.content for message in talk.messages)
        assert not set(re.findall(r"\b[A-Z][a-z]+\b", text)) & name_set()
        for message in talk.messages:
            assert "".join(text for text, _ in message.parts) in ("", message.content)
