"""Pairs of answers: every layout gives the pair that is meant, every fault a reason; the world's
labels are exact.
"""

import json
from pathlib import Path

import pytest

from configs import IGNORED
from configs.command import InputError
from data.batches import make_rows
from data.config import DataConfig
from data.packing import Pairs
from data.prepare import prepare
from data.reading.messages import BadRecord, Message
from data.reading.pairs import Pair, pair_of
from data.reading.records import Conversation, checked_conversation
from storyworld import draw_question, prefer
from storyworld.conversations import OTHER_BOOK
from storyworld.questions import KINDS

USER, GOOD, BAD = ({"role": r, "content": c} for r, c in (("user", "Hi"), ("assistant", "Hello"), ("assistant", "Go")))
HI = Message("user", "Hi")
HELLO = Message("assistant", "Hello")
GO = Message("assistant", "Go")
PAIR = Pair(Conversation((HI, HELLO)), Conversation((HI, GO)), shared=1)


@pytest.mark.parametrize(
    "record",
    [
        # MiniMind's, and TRL's with the prompt in both
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},  # TRL's
        {"prompt": "Hi", "chosen": "Hello", "rejected": "Go"},
        {"prompt": "Hi", "chosen": [USER, GOOD], "rejected": [USER, BAD], "score_chosen": 8.0, "tools": None},
        # OpenAI's
        {"input": {"messages": [USER]}, "preferred_output": [GOOD], "non_preferred_output": [BAD]},
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
HH = "\n\nHuman: Hi\n\nAssistant: Hello\n\nHuman: Who?\n\nAssistant:"
TEXTS = {"chosen": "I sang", "rejected": "I slept"}
EARLIER = {"history": [["Hi", "Hello"]]}
LISTED = [{"name": "now"}]


def whole(*before: str) -> dict:
    """Answers that hold what was said before."""
    return {"chosen": talk(*before, "I sang"), "rejected": talk(*before, "I slept")}


@pytest.mark.parametrize(
    ("record", "prompt"),
    [
        # the prompt is in a field of its own, whatever it is called; both texts begin with "I",
        # which is no prompt
        ({"question": "Who?", "system": "Be kind.", **TEXTS}, ["S: Be kind.", "Who?"]),
        ({"instruction": "Say:", "input": "Who?", **TEXTS}, ["Say:\nWho?"]),
        ({"question": "Who?", "context": "Tiko sang.", **ALONE}, ["Who?\nTiko sang."]),
        # made of the instruction
        ({"instruction": "Who?", "prompt": "### Who?\n### Answer:", **TEXTS}, ["Who?"]),
        # UltraFeedback
        ({"prompt": "Who?", "messages": talk("Who?", "I sang"), **whole("Who?")}, ["Who?"]),
        # HH-RLHF writes a dialogue as one text
        ({"chosen": f"{HH} I sang", "rejected": f"{HH} I slept"}, ["Hi", "Hello", "Who?"]),
        ({"prompt": HH, **TEXTS}, ["Hi", "Hello", "Who?"]),
        ({**EARLIER, "prompt": "Who?", "system": "Be kind.", **ALONE}, ["S: Be kind.", "Hi", "Hello", "Who?"]),
        # and the answers hold it as well, or a longer one
        ({"system": "Be kind.", "prompt": "Who?", **whole("S: Be kind.", "Who?")}, ["S: Be kind.", "Who?"]),
        ({"prompt": "Who?", **whole("Hi", "Hello", "Who?")}, ["Hi", "Hello", "Who?"]),
        # only the answers hold it
        (whole("Hi", "Hello", "Who?") | {"system": "Be kind."}, ["S: Be kind.", "Hi", "Hello", "Who?"]),
        ({"chosen": "Peru? Lima. It lies by the sea.", "rejected": "Peru? Lima."}, ["Peru?"]),
        ({"chosen": "Who? I\n", "rejected": "Who? I sang"}, ["Who?"]),
    ],
)  # fmt: skip
def test_the_prompt_is_there_once_and_whole(record, prompt):
    pair = pair_of(record)
    assert pair.chosen.messages[: pair.shared] == checked_conversation(talk(*prompt)).messages
    answers = [side.messages[pair.shared].content for side in (pair.chosen, pair.rejected)]
    if "? " in record["chosen"]:  # a text that holds both
        assert [f"{prompt[-1]} {answer}" for answer in answers] == [record["chosen"], record["rejected"]]
    else:
        assert answers == ["I sang", "I slept"]
    assert len(pair.chosen.messages) == len(pair.rejected.messages) == pair.shared + 1


def test_one_answer_that_is_written_as_a_dialogue_stays_a_text():
    dialogue = "Human: Hi\n\nAssistant: Hello"
    pair = pair_of({"prompt": "Write a dialogue.", "chosen": dialogue, "rejected": "No."})
    assert [message.content for message in pair.chosen.messages] == ["Write a dialogue.", dialogue]


def test_names_of_one_s_own_are_read_as_the_usual_ones():
    names = {"chosen": "better", "rejected": "worse", "question": "post", "role": "who", "assistant": "bot"}
    record = {"post": "Hi", "better": [{"who": "bot", "content": "Hello"}], "worse": "Go", "chosen": "better"}
    assert pair_of(record, names) == PAIR


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
        ({"chosen": [USER, GOOD]}, "has no `rejected`"),
        ({"chosen": [USER, GOOD], "rejected": [USER, GOOD]}, "equal"),
        ({"chosen": "Hello", "rejected": "Go"}, "no common prompt"),
        ({"prompt": "Who?", "chosen": "Who? I sang", "rejected": "Who? I slept"}, "begin with the prompt"),
        ({"post": "Who was it?", **TEXTS}, "`post`"),
        ({"prompt": [USER, GOOD], **TEXTS}, "ends with an answer"),
        ({"prompt": "Why?", **whole("Who?")}, "another question"),
        ({"context": "Tiko sang.", **whole("Who?")}, "`context`"),
        ({"system": "Be kind.", **whole("S: Be rude.", "Who?")}, "system message"),
        ({"prompt": "Who?", "system": "A", "system_prompt": "B", **TEXTS}, "`system_prompt`"),
        ({"prompt": "Who?", **TEXTS, "preferred_output": "Nobody"}, "`preferred_output`"),
    ],
)
def test_what_is_no_pair_is_refused_with_a_reason(record, reason):
    with pytest.raises(BadRecord, match=reason):
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
    pairs = Pairs(data.stream("train"), 200, data.tokenizer.bos_id)
    decode = data.tokenizer.decode
    trained = 0
    assert pairs.per_epoch == data.manifest["train"]["documents"]
    for pair in map(pairs.row, range(pairs.per_epoch)):
        chosen, rejected = (
            [t for t in pair[f"{side}_labels"].tolist() if t != IGNORED] for side in ("chosen", "rejected")
        )
        number = decode(chosen).removeprefix("Hello ")
        assert (decode(chosen), decode(rejected)) == (f"Hello {number}", f"Go {number}")
        # the end of the turn is learned, too
        assert chosen[-1] == rejected[-1] == data.tokenizer.stop_ids[-1]
        assert f"user\n{number}. Hi" in decode(pair["chosen_input_ids"].tolist())
        trained += len(chosen) + len(rejected)
    assert trained == data.manifest["train"]["trained_tokens"]


def test_an_earlier_answer_in_the_prompt_is_not_trained_on(tmp_path):
    turns = {"chosen": [USER, GOOD, USER, GOOD], "rejected": [USER, GOOD, USER, BAD]}
    _, data = prepared(tmp_path, [turns | {"system": str(i)} for i in range(50)])
    pair = Pairs(data.stream("train"), 300, data.tokenizer.bos_id).row(0)
    for side, answer in (("chosen", "Hello"), ("rejected", "Go")):
        trained = pair[f"{side}_input_ids"][pair[f"{side}_labels"] != IGNORED]
        assert data.tokenizer.decode(trained.tolist(), False) == f"{answer}<|im_end|>"


def test_pairs_too_long_for_a_row_are_counted_and_left_out(tmp_path):
    _, data = prepared(tmp_path, [record(i, bad="Go" * (40 if i % 4 == 0 else 1)) for i in range(200)])
    stream = data.stream("train")
    bos = data.tokenizer.bos_id
    all_of_them = Pairs(stream, 1000, bos)
    short = Pairs(stream, 100, bos)
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
    with pytest.raises(InputError, match=f"none of {len(rows.sizes)} held-out"):
        make_rows(config.model_copy(update={"sequence_length": 20}), data, "validation")


def test_the_worlds_chosen_answer_is_right_and_the_rejected_one_a_candidate_of_the_question():
    for i in range(40):
        pair = prefer(0, i)
        text, right, wrong = (pair[name][-1]["content"] for name in ("prompt", "chosen", "rejected"))
        asked = (draw_question(3 * OTHER_BOOK, i, "train", 1, kind, held_out_names=False)[1] for kind in KINDS)
        question = next(question for question in asked if question.text in text)
        assert pair_of(pair).shared == len(pair["prompt"])
        assert right in (question.answer, question.sentence)
        assert right != wrong
        others = [name for name in question.candidates if name != question.answer]
        assert question.kind == "yes_no" or any(name.lower() in wrong.lower() for name in others)
