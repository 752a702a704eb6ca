"""Conversations of one small task again and again: repeat, compare, pair, answer about a sentence or a crowd."""

import re
from collections import Counter
from random import Random

import pytest

from data.config import CourseStep, DataConfig, StoryworldSource
from data.prepare import tokenizer_texts
from data.reading.documents import documents
from data.storyworld import interview, tell
from data.storyworld.conversations import NEAR, echoes, with_echoes
from data.storyworld.drills import CROWD_QUESTIONS, DRILLS, PAIRS, crowd, known_words
from data.storyworld.lexicon import feelings, place_sorts
from data.storyworld.names import held_out_names, name_set
from data.storyworld.questions import questions_about
from tests.train.helpers import refusal, write_config


def test_names_are_compared_with_nothing_else_said_twice():
    for index in range(20):
        texts = [message["content"] for message in DRILLS["compare"](0, index)["conversations"]]
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


def test_only_yes_or_no_is_trained_on_and_the_two_names_decide():
    came, names = Counter(), Counter()
    for index in range(60):
        messages = DRILLS["judge"](0, index)["conversations"]
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


@pytest.mark.parametrize("drill", DRILLS)
def test_a_drill_is_its_arguments_and_names_of_validation_are_held_out(drill):
    assert DRILLS[drill](0, 1) == DRILLS[drill](0, 1) != DRILLS[drill](1, 1)
    words = {
        split: set(re.findall(r"\w+", str([DRILLS[drill](0, index, split) for index in range(20)])))
        for split in ("train", "validation")
    }
    assert not words["train"] & set(held_out_names())
    assert not words["validation"] & name_set()
    assert drill == "words" or (words["train"] & name_set() and words["validation"] & set(held_out_names()))


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


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"drills": {"words": 0.7, "pairs": 0.5}}, "drills are shares of all chats, and these are 1.2 in all"),
        ({"course": [{"drills": {"words": 1.0}}]}, "source.course goes from easy to difficult, in that order"),
    ],
)
def test_impossible_shares_and_courses_are_refused(tmp_path, source, message):
    data = {"source": {"kind": "storyworld", **source}, "records": "conversations"}
    assert message in refusal(write_config(tmp_path, data=data))


def test_words_that_are_said_again_are_known_and_no_two_alike():
    stories = " ".join(tell(0, index, level=2).text for index in range(400))
    words = set(re.findall(r"[a-z]+", stories))
    for index in range(20):
        texts = [message["content"] for message in DRILLS["words"](0, index)["conversations"]]
        for told, reply in zip(texts[::2], texts[1::2], strict=True):
            assert told == reply
            assert len(set(told.split())) == len(told.split()) >= 3
    known = set(known_words())
    assert set(told.split()) <= known
    assert len(known & words) > 0.9 * len(known)


def test_one_sentence_is_asked_about_and_the_answer_is_what_it_says():
    preposition = {at.split(" the ")[1]: at for at in place_sorts()["place"]}
    everywhere = frozenset.union(*place_sorts().values())
    came: Counter = Counter()
    for index in range(60):
        texts = [message["content"] for message in DRILLS["one_fact"](0, index)["conversations"]]
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


def test_a_tokenizer_learns_from_the_stories_and_not_from_the_drills():
    source = StoryworldSource(documents=30, validation_documents=1, chats="questions")
    tokenizer = {"kind": "bpe", "vocab_size": 512, "train_bytes": 10_000}
    plain = DataConfig(source=source, records="conversations", tokenizer=tokenizer)
    for changes in ({"drills": {"words": 1.0}}, {"course": [CourseStep(drills={"pairs": 1.0})]}):
        drilled = plain.model_copy(update={"source": source.model_copy(update=changes), "shuffle": False})
        assert list(tokenizer_texts(drilled)) == list(tokenizer_texts(plain))


PAIR_DRILLS = ("pairs", "ask_pairs", "by_name", "ask_by_name")


def said_in(talk) -> str:
    """What the assistant says, with brackets around what is trained on."""
    (_, assistant) = talk["conversations"]
    return "".join("[" * part["weight"] + part["text"] + "]" * part["weight"] for part in assistant["content"])


@pytest.mark.parametrize("drill", PAIR_DRILLS)
def test_what_is_answered_is_what_was_told_and_half_of_it_is_said_again(drill):
    again = Counter()
    for index in range(100):
        said = said_in(DRILLS[drill](0, index))
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


@pytest.mark.parametrize("plot", ["hide", "wish", "soup", "trade"])
def test_of_a_crowd_each_has_a_part_and_is_asked_about(plot):
    stories = [story for story in (crowd(0, index) for index in range(60)) if story.plot == plot]
    assert len(stories) >= 8
    for story in stories:
        assert len(story.people) == (5 if plot == "soup" else 4)
        answers = {question.answer for kind in ("who_has", "who_wanted") for question in questions_about(story, kind)}
        assert len(answers & set(story.people.values())) >= 4
        assert set(story.people.values()) <= name_set()


@pytest.mark.parametrize("told", [False, True])
def test_what_a_crowd_is_asked_is_answered_as_it_was_told(told):
    for index in range(30):
        talk, story = DRILLS["told_crowds" if told else "crowds"](1, index), crowd(1, index)
        right = {question.text: question for question in questions_about(story)}
        messages, answered = talk["conversations"], talk["meta"]["questions"]
        assert 1 <= len(answered) <= CROWD_QUESTIONS
        if told:
            assert "".join(part["text"] for part in messages[1]["content"] if not part["weight"]) == story.text
        for one in answered:
            user, reply = (messages[one["message"] + at]["content"] for at in (-1, 0))
            (question,) = [right[text] for text in right if text in user and right[text].kind == one["kind"]]
            assert reply in (question.reply(True), question.reply(False))
            assert one["answer"] == question.answer


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


def test_half_of_the_names_are_said_again_and_only_these_have_a_loss():
    said = possible = 0
    for number, story in enumerate(STORIES):
        parts = with_echoes(story, Random(number))
        assert "".join(part["text"] for part in parts if not part["weight"]) == story.text
        again = [part["text"].strip() for part in parts if part["weight"]]
        assert set(again) <= set(echoes(story).values())
        said, possible = said + len(again), possible + len(echoes(story))
    assert 0.4 < said / possible < 0.6


def test_of_the_stories_that_the_assistant_tells_some_have_echoes():
    talks = [interview(0, index, told=1.0, told_weight=1, echoed=0.5)["conversations"] for index in range(40)]
    told = [
        message for talk in talks for message in talk if "weight" in message or isinstance(message["content"], list)
    ]
    in_parts = [message for message in told if isinstance(message["content"], list)]
    assert 10 < len(in_parts) < 30 < len(told) == 40
    assert not any("weight" in message for message in in_parts), "its parts have weights of their own"
