"""Chats about sums: right, and in the form that training reads."""

import json
import sys

import pytest

from configs.command import exit_on_bad_input
from data.reading.records import conversation_of
from eval.questions import Asked, is_right, question_of
from eval.tools import sums
from eval.tools.calls import described


def called(monkeypatch, capsys, main, *arguments):
    monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        exit_on_bad_input(main)
    return stopped.value.code, *capsys.readouterr()


def test_every_sum_is_right_and_the_share_that_calls_is_what_was_asked_for():
    for calls, least, most in ((0.0, 0, 0), (1.0, 300, 300), (0.5, 120, 180)):
        chats = [sums.sums_chat(1, index, calls) for index in range(300)]
        assert least <= sum(len(chat["messages"]) == 4 for chat in chats) <= most
        for chat in chats:
            asked, *between, reply = chat["messages"]
            expression = between[0]["tool_calls"][0]["arguments"]["expression"] if between else ""
            assert expression in asked["content"]
            assert not between or reply["content"] == f"It is {eval(expression)}."
    assert sums.sums_chat(1, 5, 0.5) == sums.sums_chat(1, 5, 0.5) != sums.sums_chat(2, 5, 0.5)


def test_the_file_is_one_that_training_reads(monkeypatch, capsys, tmp_path):
    file = tmp_path / "new/sums.jsonl"
    code, _, err = called(monkeypatch, capsys, sums.main, file, "--chats", 20, "--calls", 1)
    assert (code, "20 chats, 100% of them with a call" in err) == (0, True)
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len({record["messages"][0]["content"] for record in records}) == 20
    assert all(conversation_of(record).tools for record in records)
    code, _, err = called(monkeypatch, capsys, sums.main, tmp_path / "sums.txt")
    assert (code, err.count("\n"), "end it in .jsonl" in err) == (2, 1, True)


def test_the_last_question_of_a_conversation_is_what_the_user_said_last():
    calling = {"role": "assistant", "content": "", "tool_calls": [{"name": "calculator", "arguments": {}}]}
    messages = [
        {"role": "user", "content": "Hi!"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "How many?"},
        calling,
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "It is 42."},
    ]
    tools = list(described(["calculator"]))
    question = question_of(conversation_of({"messages": messages, "tools": tools}))
    assert isinstance(question, Asked)
    assert [message["content"] for message in question.messages] == ["Hi!", "Hello!", "How many?"]
    assert is_right(question, "It is 42.")
    assert question.tools == tuple(tools)
    assert question_of(conversation_of({"messages": messages[1:2]})) is None
    assert question_of(conversation_of({"messages": messages[:4]})) is None  # a call is not the last word
