"""Conversations of one small task again and again: repeat, compare, answer about one sentence."""

import re
from collections import Counter

from data.config import CourseStep, DataConfig, Drills, StoryworldSource
from data.prepare import tokenizer_texts
from data.reading.documents import documents
from data.storyworld import tell
from data.storyworld.drills import compare, judge, one_fact, say_words
from data.storyworld.names import held_out_names, name_set
from data.storyworld.questions import place_sorts
from data.storyworld.vocabulary import known_words
from data.storyworld.wordings import feelings
from tests.train.helpers import refusal, write_config


def test_repeats_are_conversations_too_where_conversations_are_made():
    source = StoryworldSource(documents=8, validation_documents=2, repeats=0.5)
    talks = list(documents(DataConfig(source=source, records="conversations"), "train"))
    again = [
        talk
        for talk in talks
        if all(a.content == b.content for a, b in zip(talk.messages[::2], talk.messages[1::2], strict=False))
    ]
    assert len(again) == 4
    assert len({talk.messages[0].content for talk in again}) == 4


def test_names_are_compared_with_nothing_else_said_twice():
    for index in range(20):
        texts = [message["content"] for message in compare(0, index)["conversations"]]
        told = " ".join(texts[::2])
        said = Counter()
        for question, reply in zip(texts[::2], texts[1::2], strict=True):
            one, other = re.fullmatch(r"It was (.*)\. Was it (.*)\?", question).groups()
            assert reply.lower() in (
                f"{w}{one}. {other}? {'yes' if one == other else 'no'}.".lower() for w in ("It was ", "")
            )
            assert told.count(one) == 1 + (one == other)
            said[one == other] += 1
        assert min(said.values()) >= 1
    assert compare(0, 1) == compare(0, 1) != compare(1, 1)
    assert set(re.findall(r"\w+", str(compare(0, 1, "validation")))) & set(held_out_names())


def test_only_yes_or_no_is_trained_on_and_the_two_names_decide():
    came, names = Counter(), Counter()
    for index in range(60):
        messages = judge(0, index)["conversations"]
        for question, reply in zip(messages[::2], messages[1::2], strict=True):
            before, word, end = [(part["text"], part["weight"]) for part in reply["content"]]
            other, one = re.fullmatch(r"(?:It was )?(.*)\. (.*)\?", before[0]).groups()
            assert one.lower() in question["content"].lower()
            assert word == (" Yes" if one.lower() == other.lower() else " No", 1)
            assert (before[1], end) == (0, (".", 0))
            came[word] += 1
            names[index, one] += 1
    assert min(came.values()) > 0.4 * came.total()
    assert 25 < sum(max(n for (at, _), n in names.items() if at == index) > 2 for index in range(60)) < 60
    assert judge(0, 1) == judge(0, 1) != judge(1, 1)


BEFORE = r"Answer in a few words\. |Read this story and answer in a few words\. |Read this story\. |Here is a story: |"
BEFORE += r"Listen! |I have a question about a story\. "
QUESTION = r"(?:Now tell me: |My question is: )?(?P<asked>(?:Where|How)[^.?]*\?)(?P<few> Answer in a few words\.)?"
ASKED = re.compile(rf"(?:{BEFORE})?(?P<told>[^.]*)\. {QUESTION}")


def drills(repeats=0.0, **shares):
    """How many of 60 chats compare, repeat, ask about one sentence."""
    source = StoryworldSource(documents=60, validation_documents=1, chats="questions", repeats=repeats, drills=shares)
    talks = list(documents(DataConfig(source=source, records="conversations"), "train"))
    assert len(talks) == 60
    first = [[message.content for message in talk.messages[:2]] for talk in talks]
    compared = sum(bool(re.fullmatch(r"It was [^.]*\. Was it [^.]*\?", user)) for user, _ in first)
    return compared, sum(user == reply for user, reply in first), sum(bool(ASKED.fullmatch(user)) for user, _ in first)


def test_drills_are_shares_of_the_chats():
    assert drills(repeats=0.5) == (0, 30, 0)
    assert drills(compare=1.0) == (60, 0, 0)
    assert drills(words=1.0) == (0, 60, 0)
    assert drills(one_fact=1.0) == (0, 0, 60)
    found = drills(compare=0.3, words=0.3, one_fact=0.3)
    assert 40 < sum(found) < 60
    assert min(found) > 6


def test_shares_of_drills_that_are_more_than_all_are_refused(tmp_path):
    source = {"kind": "storyworld", "drills": {"words": 0.7, "pairs": 0.5}}
    said = refusal(write_config(tmp_path, data={"source": source}))
    assert "drills are shares of all chats, and these are 1.2 in all: make them 1 at most" in said


def test_words_that_are_said_again_are_known_and_no_two_alike():
    stories = " ".join(tell(0, index, level=2).text for index in range(400))
    words = set(re.findall(r"[a-z]+", stories))
    for index in range(20):
        texts = [message["content"] for message in say_words(0, index)["conversations"]]
        for told, reply in zip(texts[::2], texts[1::2], strict=True):
            assert told == reply
            assert len(set(told.split())) == len(told.split()) >= 3
    known = set(known_words())
    assert set(told.split()) <= known
    assert len(known & words) > 0.9 * len(known)
    assert say_words(0, 1) == say_words(0, 1) != say_words(1, 1)


def test_one_sentence_is_asked_about_and_the_answer_is_what_it_says():
    preposition = {at.split(" the ")[1]: at for at in place_sorts()["place"]}
    everywhere = frozenset.union(*place_sorts().values())
    came: Counter = Counter()
    for index in range(60):
        texts = [message["content"] for message in one_fact(0, index)["conversations"]]
        for prompt, reply in zip(texts[::2], texts[1::2], strict=True):
            told, asked, few = ASKED.fullmatch(prompt).group("told", "asked", "few")
            shortly = few is not None or "few words" in prompt
            if "feel" in asked:
                name, feeling = re.fullmatch(r"(\w+)(?: the \w+)? was (.*)", told).groups()
                assert name in asked
                assert feeling in feelings()
                assert reply == (feeling if shortly else f"{name} was {feeling}.")
            else:
                if "race" in asked:
                    start = re.search(r"from the ([a-z ]+?)(?: to |$)", told)[1]
                    end = re.search(r"[Tt]o the ([a-z ]+?)(?: they |$)", told)[1]
                    place = preposition[start if "start" in asked else end]
                else:
                    (place,) = (at for at in everywhere if at in told[0].lower() + told[1:])
                    (name,) = set(re.findall(r"[A-Z]\w+", asked)) & set(re.findall(r"[A-Z]\w+", told))
                    assert name in name_set()
                assert reply == (place if shortly else place[0].upper() + place[1:] + ".")
            came["feeling" if "feel" in asked else "race" if "race" in asked else "stays", shortly] += 1
    assert len(came) == 6
    assert min(came.values()) > 40


def test_the_same_arguments_give_the_same_facts_and_held_out_names_are_in_validation_alone():
    assert one_fact(0, 1) == one_fact(0, 1) != one_fact(1, 1)
    said = lambda split: set(re.findall(r"\w+", str([one_fact(0, index, split) for index in range(20)])))  # noqa: E731
    assert said("validation") & set(held_out_names())
    assert not said("train") & set(held_out_names())


def test_a_tokenizer_learns_from_the_stories_and_not_from_the_drills():
    source = StoryworldSource(documents=30, validation_documents=1, chats="questions")
    tokenizer = {"kind": "bpe", "vocab_size": 512, "train_bytes": 10_000}
    plain = DataConfig(source=source, records="conversations", tokenizer=tokenizer)
    for changes in ({"drills": Drills(words=1.0)}, {"course": [CourseStep(drills=Drills(pairs=1.0))]}):
        drilled = plain.model_copy(update={"source": source.model_copy(update=changes), "shuffle": False})
        assert list(tokenizer_texts(drilled)) == list(tokenizer_texts(plain))
