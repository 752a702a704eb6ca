"""Pairs of answers: every layout gives the pair that is meant, every fault a reason; the world's labels are exact."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from configs.command import InputError
from data.batches import make_rows
from data.config import DataConfig
from data.packing import IGNORED, Pairs
from data.prepare import describe, prepare
from data.reading.records import BadRecord, Conversation, Message, Pair, checked_conversation, pair_of
from data.storyworld import prefer
from data.storyworld.conversations import OTHER_BOOK
from data.storyworld.draw import draw_question

USER, GOOD, BAD = ({"role": r, "content": c} for r, c in (("user", "Hi"), ("assistant", "Hello"), ("assistant", "Go")))
HI, HELLO, GO = Message("user", "Hi"), Message("assistant", "Hello"), Message("assistant", "Go")
PAIR = Pair(Conversation((HI, HELLO)), Conversation((HI, GO)), shared=1)


@pytest.mark.parametrize(
    "record",
    [
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},  # MiniMind's, and TRL's with the prompt in both
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},  # TRL's
        {"prompt": "Hi", "chosen": "Hello", "rejected": "Go"},
        {"chosen": "Hi Hello", "rejected": "Hi Go"},
        {"prompt": "Hi", "chosen": [USER, GOOD], "rejected": [USER, BAD], "score_chosen": 8.0},
        {"prompt": "Hi", "chosen": [GOOD], "rejected": [BAD], "tools": None},
        {
            "input": {"messages": [USER], "tools": []},
            "preferred_output": [GOOD],
            "non_preferred_output": [BAD],
        },  # OpenAI's
        {  # LLaMA-Factory's
            "conversations": [{"from": "human", "value": "Hi"}],
            "chosen": {"from": "gpt", "value": "Hello"},
            "rejected": {"from": "gpt", "value": "Go"},
        },
        {"instruction": "Hi", "input": "", "chosen": "Hello", "rejected": "Go"},
    ],
)
def test_every_layout_gives_the_same_pair(record):
    assert pair_of(record) == PAIR


def talk(*texts: str) -> list[dict]:
    """user, assistant, user, …; a text `S: …` is a system message between them."""
    roles = iter(["user", "assistant"] * len(texts))
    return [
        {"role": "system", "content": text[3:]} if text.startswith("S: ") else {"role": next(roles), "content": text}
        for text in texts
    ]


CHOSEN, REJECTED = ({"role": "assistant", "content": text} for text in ("I sang", "I slept"))
ALONE = {"chosen": [CHOSEN], "rejected": [REJECTED]}
TEXTS = {"chosen": "I sang", "rejected": "I slept"}
EARLIER = {"history": [["Hi", "Hello"]]}
LISTED = [{"name": "now"}]
LONG, SHORT = "Capital of Peru? Lima. It lies by the sea.", "Capital of Peru? Lima."
SUNG, SLEPT = "Who? I sang", "Who? I slept"


def whole(*before: str) -> dict:
    """Answers that hold what was said before."""
    return {"chosen": talk(*before, "I sang"), "rejected": talk(*before, "I slept")}


@pytest.mark.parametrize(
    ("record", "prompt"),
    [
        # the prompt is in a field of its own, whatever it is called; both texts begin with "I", which is no prompt
        ({"prompt": "Who?", **TEXTS}, ["Who?"]),
        ({"question": "Who?", "system": "Be kind.", **TEXTS}, ["S: Be kind.", "Who?"]),
        ({"query": "Who?", **ALONE}, ["Who?"]),
        ({"instruction": "Say:", "input": "Who?", **TEXTS}, ["Say:\nWho?"]),
        ({"instruction": "Who?", "prompt": "### Who?\n### Answer:", **TEXTS}, ["Who?"]),  # made of the instruction
        ({"prompt": "Who?", "messages": talk("Who?", "I sang"), **whole("Who?")}, ["Who?"]),  # UltraFeedback
        ({**EARLIER, "instruction": "Who?", **TEXTS}, ["Hi", "Hello", "Who?"]),
        ({**EARLIER, "prompt": "Who?", "system": "Be kind.", **ALONE}, ["S: Be kind.", "Hi", "Hello", "Who?"]),
        # and the answers hold it as well, or a longer one, or its end
        ({"prompt": "Who?", **whole("Who?")}, ["Who?"]),
        ({"system": "Be kind.", "prompt": "Who?", **whole("S: Be kind.", "Who?")}, ["S: Be kind.", "Who?"]),
        ({"prompt": "Who?", **whole("S: Be kind.", "Who?")}, ["S: Be kind.", "Who?"]),
        ({"prompt": "Who?", **whole("Hi", "Hello", "Who?")}, ["Hi", "Hello", "Who?"]),
        ({"prompt": "Hi", **whole("Hi", "Hello", "Who?")}, ["Hi", "Hello", "Who?"]),
        ({"prompt": talk("Hi", "Hello", "Who?"), **whole("Who?")}, ["Hi", "Hello", "Who?"]),
        ({**EARLIER, "prompt": "Who?", **whole("Who?")}, ["Hi", "Hello", "Who?"]),
        # only the answers hold it
        (whole("Hi", "Hello", "Who?") | {"system": "Be kind."}, ["S: Be kind.", "Hi", "Hello", "Who?"]),
        ({"chosen": SUNG, "rejected": SLEPT}, ["Who? I"]),
        ({"chosen": LONG, "rejected": SHORT}, ["Capital of Peru?"]),
        ({"chosen": SHORT, "rejected": LONG}, ["Capital of Peru?"]),
        ({"chosen": "Who? I\n", "rejected": "Who? I sang"}, ["Who?"]),
    ],
)  # fmt: skip
def test_the_prompt_is_there_once_and_whole(record, prompt):
    pair = pair_of(record)
    assert pair.prompt.messages == checked_conversation(talk(*prompt)).messages
    answers = [answer.messages[0].content for answer in pair.answers]
    if "?" in record["chosen"]:  # a text that holds both
        assert [f"{prompt[-1]} {answer}" for answer in answers] == [record["chosen"], record["rejected"]]
    else:
        assert answers == ["I sang", "I slept"]
    assert all(len(answer.messages) == 1 for answer in pair.answers)


def test_tools_come_from_the_prompt_or_the_answers():
    system = {"role": "system", "content": "", "tools": json.dumps(LISTED)}
    for record in (
        {"prompt": "Who?", "functions": LISTED, **ALONE},
        {side: [system, *messages] for side, messages in whole("Who?").items()},
        {"prompt": [system, *talk("Who?")], **ALONE},
    ):
        assert [one.tools for one in (pair_of(record).chosen, pair_of(record).rejected)] == [tuple(LISTED)] * 2


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ("Hi", "is a text, not an object with `chosen` and `rejected`"),
        ({"chosen": [USER, GOOD]}, "has no `rejected`, which a pair needs (it has chosen): add it"),
        ({"preferred_output": [GOOD], "non_preferred_output": [BAD]}, "has no `input` with messages"),
        ({"chosen": [USER, GOOD], "rejected": [USER, GOOD]}, "are equal, so there is nothing to prefer"),
        ({"chosen": [USER, GOOD], "rejected": [BAD]}, "have no common prompt"),
        ({"chosen": "Hello", "rejected": "Go"}, "have no common prompt"),
        ({"chosen": [USER, GOOD], "rejected": [USER]}, "`rejected` has no answer of the assistant behind the common"),
        ({"prompt": "Hi", "chosen": "Hello", "rejected": [BAD]}, "`chosen` must be a text or a list of messages"),
        ({"prompt": "Who?", "chosen": SUNG, "rejected": SLEPT}, "begin with the prompt, which stands"),
        ({"post": "Who was it?", **TEXTS}, "has no prompt that is known, but a text in `post`"),
        ({"prompt": "Who?", "question": "Why?", **TEXTS}, "`prompt` and `question`, which ask different things"),
        ({"prompt": "Who?", "conversations": [USER], **TEXTS}, "as messages and in a field of its own"),
        ({"prompt": [USER, GOOD], **TEXTS}, "the prompt ends with an answer"),
        ({"prompt": "Why?", **whole("Who?")}, "`chosen` begins with another question than the prompt"),
        ({"system": "Be rude.", **whole("S: Be kind.", "Who?")}, "another system message than the prompt"),
        ({"prompt": "Why?", "chosen": talk("Who?", "I", "Why?", "So"), "rejected": talk("Who?", "We", "Why?", "So")},
         "the prompt does not stand before the place where"),
        ({"tools": LISTED, **{side: [{"role": "system", "content": "", "tools": [{"name": "x"}]}, *messages]
         for side, messages in whole("Who?").items()}}, "list different tools"),
    ],
)  # fmt: skip
def test_what_is_no_pair_is_refused_with_a_reason(record, reason):
    with pytest.raises(BadRecord, match=re.escape(reason)):
        pair_of(record)


def prepared(folder: Path, records, kind="pairs", **changes):
    file = folder / "pairs.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    config = DataConfig.model_validate(
        {"source": {"kind": "files", "path": str(file)}, "records": kind, "tokenizer": {"kind": "byte"}} | changes
    )
    return config, prepare(config, folder / "runs", show_progress=False)


def record(i: int, good: str = "Hello", bad: str = "Go"):
    return {"prompt": f"{i}. Hi", "chosen": f"{good} {i}", "rejected": f"{bad} {i}"}


def test_a_stream_holds_both_answers_and_only_they_are_trained_on(tmp_path):
    _, data = prepared(tmp_path, [record(i) for i in range(100)])
    assert "pairs" in describe(data)
    pairs, decode = Pairs(data.stream("train"), 200, data.tokenizer.bos_id), data.tokenizer.decode
    assert pairs.per_epoch == data.manifest["train"]["documents"]
    for i in range(pairs.per_epoch):
        pair = pairs.row(i)
        chosen, rejected = (
            [t for t in pair[f"{side}_labels"].tolist() if t != IGNORED] for side in ("chosen", "rejected")
        )
        number = decode(chosen).removeprefix("Hello ")
        assert (decode(chosen), decode(rejected)) == (f"Hello {number}", f"Go {number}")
        assert chosen[-1] == rejected[-1] == data.tokenizer.stop_ids[-1]  # the end of the turn is learned, too
        assert f"user\n{number}. Hi" in decode(pair["chosen_input_ids"].tolist())
    trained = sum(
        int((pairs.row(i)[f"{side}_labels"] != IGNORED).sum())
        for i in range(pairs.per_epoch)
        for side in ("chosen", "rejected")
    )
    assert trained == data.manifest["train"]["trained_tokens"]


def test_an_earlier_answer_in_the_prompt_is_not_trained_on(tmp_path):
    turns = {"chosen": [USER, GOOD, USER, GOOD], "rejected": [USER, GOOD, USER, BAD]}
    _, data = prepared(tmp_path, [turns | {"system": str(i)} for i in range(50)])
    pair = Pairs(data.stream("train"), 300, data.tokenizer.bos_id).row(0)
    for side, answer in (("chosen", "Hello"), ("rejected", "Go")):
        trained = pair[f"{side}_labels"] != IGNORED
        assert trained.sum() == len(answer) + 1  # and the end of the turn
        assert data.tokenizer.decode(pair[f"{side}_input_ids"][trained].tolist())[: len(answer)] == answer


def test_pairs_too_long_for_a_row_are_counted_and_left_out(tmp_path):
    _, data = prepared(tmp_path, [record(i, bad="Go" * (40 if i % 4 == 0 else 1)) for i in range(200)])
    stream, bos = data.stream("train"), data.tokenizer.bos_id
    all_of_them, short = Pairs(stream, 1000, bos), Pairs(stream, 100, bos)
    assert all_of_them.left_out == 0
    assert short.left_out + short.per_epoch == all_of_them.per_epoch
    assert 0.15 * all_of_them.per_epoch < short.left_out < 0.35 * all_of_them.per_epoch
    assert max(len(array) for i in range(short.per_epoch) for array in short.row(i).values()) <= 100
    with pytest.raises(InputError, match=r"data.sequence_length: none of \d+ pairs fits into 20 tokens"):
        Pairs(stream, 20, bos)


def test_held_out_pairs_are_read_as_their_chosen_answers(tmp_path):
    config, data = prepared(tmp_path, [record(i) for i in range(300)], sequence_length=96)
    rows = make_rows(config, data, "validation")
    texts = [data.tokenizer.decode(rows.row(i)[0].tolist()) for i in range(rows.per_epoch)]
    assert sum(text.count("Hello") for text in texts) == data.manifest["validation"]["documents"] > 0
    assert not any("Go" in text for text in texts)


def test_the_worlds_pairs_are_right_and_wrong_in_the_same_wording():
    """The chosen answer is the question's own; the rejected one names another candidate and is worded alike."""
    short = told = 0
    for i in range(60):
        pair = prefer(3, i, level=1 + i % 2)
        before = pair["prompt"][:-1]
        (right,), (wrong,) = pair["chosen"], pair["rejected"]
        right, wrong = right["content"], wrong["content"]
        assert right != wrong
        assert pair == prefer(3, i, level=1 + i % 2)
        assert pair_of(pair).shared == len(pair["prompt"])
        told += len(before) > 0
        if right[0].isupper() and right[-1] in '."' and " " in right:  # a sentence
            assert wrong[-1] == right[-1]
            same = len(np.intersect1d(right.split(), wrong.split()))
            assert same or len(right.split()) <= 5, (right, wrong)  # "In the garden." has no word of "By ..."
        else:
            short += right[-1] != "."
    assert told > 10
    assert short > 10


def test_the_worlds_rejected_answer_is_a_candidate_of_the_question():
    for i in range(40):
        pair = prefer(0, i)
        texts = [message["content"] for message in pair["prompt"]]
        for kind in ("who_has", "where", "who_wanted", "who_said", "first", "feeling", "yes_no", "who_did"):
            _, question = draw_question(3 * OTHER_BOOK, i, "train", 1, kind, held_out_names=False)
            if question.text not in texts[-1]:
                continue
            right, wrong = pair["chosen"][0]["content"], pair["rejected"][0]["content"]
            assert right in (question.reply(True), question.reply(False))
            if right == question.answer:
                assert wrong in question.candidates
            elif kind != "yes_no":
                assert any(one.lower() in wrong.lower() for one in question.candidates if one != question.answer)
            break
        else:
            raise AssertionError(f"pair {i} asks a question that is not drawn")


def test_a_pair_under_conversations_says_where_it_belongs(tmp_path):
    with pytest.raises(InputError, match="set data.records: pairs for train.dpo"):
        prepared(tmp_path, [record(1)], kind="conversations")
