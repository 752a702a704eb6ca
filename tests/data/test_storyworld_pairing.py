"""Who goes with what: eight names, alone or in sentences, and then which of them belongs to which thing."""

import re
from collections import Counter

import pytest

from data.chat import TRAINED, encode_conversations
from data.config import DataConfig, StoryworldSource, TokenizerConfig
from data.reading.documents import documents
from data.reading.records import conversation_of
from data.storyworld.names import held_out_names, name_set
from data.storyworld.pairing import TOLD, ask_by_name, ask_pairs, by_name, pairs
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


DRILLS = {"pairs": pairs, "ask_pairs": ask_pairs, "by_name": by_name, "ask_by_name": ask_by_name}


def said_in(talk) -> str:
    """What the assistant says, with brackets around what is trained on."""
    (_, assistant) = talk["conversations"]
    return "".join("[" * part["weight"] + part["text"] + "]" * part["weight"] for part in assistant["content"])


@pytest.mark.parametrize("drill", DRILLS)
def test_only_what_is_asked_for_is_trained_on(drill):
    for index in range(30):
        talk = DRILLS[drill](0, index)
        *trained, end = trained_on(talk)
        assert end == "<|im_end|>"
        assert trained == re.findall(r"\[(.*?)\]", said_in(talk))


@pytest.mark.parametrize("drill", DRILLS)
def test_what_is_answered_is_what_was_told_and_half_of_it_is_said_again(drill):
    again = Counter()
    for index in range(100):
        said = said_in(DRILLS[drill](0, index))
        sentences = re.findall(r"[A-Z][^.]*\.", said)[:TOLD]
        rest = said.removeprefix(" ".join(sentences)).strip()
        answers = re.findall(r"\[ ([^\]]*)\]\.", rest)
        assert len(set(answers)) == len(answers) == TOLD
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


@pytest.mark.parametrize("drill", DRILLS)
def test_names_are_of_the_split(drill):
    for split, names in (("train", name_set()), ("validation", set(held_out_names()))):
        for index in range(60):
            said = said_in(DRILLS[drill](0, index, split))
            found = set(re.findall(r"\b[A-Z]\w+", said)) - {"What", "In", "For", "With", "Who", "So", "It"}
            assert found - {"The", "That", "Where", "Was"} <= names
            assert len(found & names) == TOLD
    assert DRILLS[drill](0, 1) == DRILLS[drill](0, 1) != DRILLS[drill](1, 1)


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
    course = [{"weight": 1.0, "drills": {"pairs": 1.0}}, {"weight": 3.0, "drills": {"compare": 1.0}}]
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
