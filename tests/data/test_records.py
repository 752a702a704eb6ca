"""Records: every layout gives the conversation that is meant, every fault a reason with its remedy."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.reading.messages import BadRecord, Message, split_thinking
from data.reading.pairs import Pair, pair_of
from data.reading.records import Conversation, conversation_of, text_of

HI = (Message("user", "Hi"), Message("assistant", "Hello"))
SCHEMA = {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}
CALL = {"name": "now", "arguments": {"tz": "UTC"}}
OPENAI_TOOL = {"type": "function", "function": SCHEMA}
OPENAI_CALL = {"id": "call_1", "type": "function", "function": CALL}
USER = {"role": "user", "content": "Hi"}
ASSISTANT = {"role": "assistant", "content": "Hello"}
NOTHING = dict.fromkeys(("reasoning_content", "tools", "tool_calls"))
HELLO = ("Hel", "lo")
DOCS = Path(__file__).parents[2] / "docs" / "data_formats.md"


@pytest.mark.parametrize(
    "record",
    [
        {"conversations": [USER, ASSISTANT]},
        {"messages": json.dumps([USER, ASSISTANT])},  # a column of a csv file
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}], "system": ""},
        {"instruction": "Hi", "input": "", "output": "Hello"},
        {"prompt": "Hi", "completion": "Hello"},
        {"prompt": "Hi", "response": "Hello", "text": "both in one"},
        {"prompt": [USER], "completion": [ASSISTANT]},
        {"question": "Hi", "answer": "Hello"},
        {"instruction": "Hi", "input": "", "output": "Hello", "prompt": "### Hi\n### Response:"},
        # each said once more
        {"messages": [USER, ASSISTANT], "prompt": "Hi", "answer": "Hello", "context": ""},
        {"messages": [], "conversations": [USER, ASSISTANT]},
        {"prompt": "Hi", "output": "", "response": "Hello"},
        {"messages": [USER, ASSISTANT | {"weight": 1}]},
        {"conversations": [USER | NOTHING, ASSISTANT | dict.fromkeys(NOTHING, "")]},
        {"messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": part} for part in HELLO]}]},
    ],
)
def test_every_layout_gives_the_same_conversation(record):
    assert conversation_of(record) == Conversation(HI)


@pytest.mark.parametrize(
    "record",
    [
        {"instruction": "Add.", "input": "1 2", "output": "3", "system": "Be right."},
        {"prompt": "Add.", "query": "1 2", "response": "3", "system_prompt": "Be right."},
        # Dolly
        {"instruction": "Add.", "context": "1 2", "response": "3", "category": "sum", "system": "Be right."},
        {"question": "Add.", "passage": "1 2", "answer": "3", "system": "Be right.", "system_prompt": "Be right."},
        {"prompt": "Add.\n1 2", "document": "1 2", "completion": "3", "system": "Be right."},
    ],
)
def test_a_question_in_two_fields_is_joined_and_system_and_history_come_first(record):
    expected = (Message("system", "Be right."), *HI, Message("user", "Add.\n1 2"), Message("assistant", "3"))
    assert conversation_of(record | {"history": [["Hi", "Hello"]]}).messages == expected


@pytest.mark.parametrize(
    ("names", "record"),
    [
        ({"messages": "data"}, {"id": "0", "data": ["Hi", "Hello"]}),  # UltraChat's
        ({}, {"conversations": ["Hi", "Hello"], "source": "wikihow"}),  # LIMA's
        ({}, {"source": "x", "conversation": [{"input": "Hi", "output": "Hello"}]}),  # Capybara's
        # MOSS
        ({"question": "me", "answer": "moss"}, {"conversation": [{"me": "Hi", "moss": "Hello"}]}),
        ({"answer": "target"}, {"kind": "NLI", "input": "Hi", "target": "Hello"}),  # Firefly's
        ({"question": "problem", "answer": "solution"}, {"problem": "Hi", "solution": "Hello", "answer": "5"}),
        ({"messages": "a.b"}, {"a": {"b": [USER, ASSISTANT]}}),
        # roles that are others' names
        ({"role": "who", "content": "text", "user": "bot", "assistant": "user"},
         {"messages": [{"who": "bot", "text": "Hi"}, {"who": "user", "text": "Hello"}]}),
        ({"answer": "response", "context": None}, {"prompt": "Hi", "response": "Hello", "output": "5", "context": "x"}),
        ({"question": "output", "answer": "input"}, {"input": "Hello", "output": "Hi"}),
        # a record without it
        ({"system": "SYS"}, {"prompt": "Hi", "answer": "Hello", "system_prompt": ""}),
    ],
)  # fmt: skip
def test_names_of_one_s_own_are_read_as_the_usual_ones(names, record):
    assert conversation_of(record, names) == Conversation(HI)


CALLS = {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [USER, CALLS | {"content": None, "tool_calls": [OPENAI_CALL]}], "tools": [OPENAI_TOOL]},
        {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}], "functions": [SCHEMA], "tools": None},
        {"messages": [USER, CALLS | {"function_call": CALL}], "functions": [SCHEMA]},
        {"conversations": [USER | {"tools": json.dumps([OPENAI_TOOL])}, CALLS | {"tool_calls": json.dumps([CALL])}]},
        {"conversations": [USER | {"functions": [SCHEMA]}, CALLS | {"tool_calls": CALL, "tools": None}]},
        {"messages": [USER, {"from": "function_call", "value": json.dumps(CALL)}], "tools": json.dumps([SCHEMA])},
    ],
)
def test_tools_and_calls_of_every_layout(record):
    calls = Message("assistant", "", tool_calls=(CALL,))
    assert conversation_of(record) == Conversation((HI[0], calls), (SCHEMA,))


def test_calls_that_are_written_as_text_are_calls():
    """As in Hermes' files; some of them in Python's quotes."""
    call = {"name": "now", "arguments": {"tz": 'it\'s "UTC" 🦊', "at": None}}
    for written in (json.dumps(call), str(call)):
        content = f"Let me look.\n<tool_call>\n{written}\n</tool_call>\n<tool_call>\n{written}\n</tool_call>"
        turns = [("human", "Hi"), ("gpt", content), ("tool", "<tool_response>\n12\n</tool_response>"), ("gpt", "Noon.")]
        messages = conversation_of({"conversations": [{"from": who, "value": text} for who, text in turns]}).messages
        assert messages[1:3] == (Message("assistant", "Let me look.", tool_calls=(call, call)), Message("tool", "12"))
    spoken = [USER, ASSISTANT | {"content": "Tools are in <tool_call> and </tool_call>, {like this}."}]
    assert conversation_of({"messages": spoken}).messages[1].content == spoken[1]["content"]
    with pytest.raises(BadRecord, match="<tool_call>"):
        conversation_of({"messages": [USER, ASSISTANT | {"content": "<tool_call>{name: now}</tool_call>"}]})
    with pytest.raises(BadRecord, match="<tool_call>"):  # a set that cannot be
        conversation_of({"messages": [USER, ASSISTANT | {"content": "<tool_call>{{1}}</tool_call>"}]})


def test_arguments_that_are_json_text_stay_as_they_were_written():
    call = {"name": "now", "arguments": '{"tz":  "UTC"}'}
    record = {"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]}
    assert conversation_of(record).messages[0].tool_calls == (call,)
    for nothing in ("", " ", None):
        call["arguments"] = nothing
        assert conversation_of(record).messages[0].tool_calls == ({"name": "now", "arguments": {}},)


def test_roles_have_several_names():
    asked = [{"from": role, "value": "x"} for role in ("system", "chatgpt", "observation")]
    asked += [{"role": role, "content": "x", "name": "now"} for role in ("tool", "function", "developer")]
    roles = [message.role for message in conversation_of({"conversations": asked}).messages]
    assert roles == "system assistant tool tool tool system".split()


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("<think>\nA.\n\nB.\n</think>\n\nC.\n", ("A.\n\nB.", "C.\n")),
        ("<think>\n\n A \n\n</think>\n\n\n C", (" A ", " C")),
        ("<think>\n\n</think>\n\nC", ("", "C")),
        ("<think>A</think></think>", ("A", "</think>")),
        (" <think>A</think>C", ("", " <think>A</think>C")),
        ("A</think>C", ("", "A</think>C")),
        ("\n<think>\nA\n</think>\n\nC", ("A", "C")),
        ("A\n\nB\n</think>\n\nC", ("A\n\nB", "C")),  # the prompt has begun the thoughts
        ("\n</think>\n\nC", ("", "C")),
        ("The tag\n</think> ends them.", ("", "The tag\n</think> ends them.")),
        ("Write <think>\n</think>\n", ("", "Write <think>\n</think>\n")),
    ],
)
def test_a_literal_think_block_at_the_start_is_the_reasoning(content, parts):
    assert split_thinking(content) == parts
    [message] = conversation_of({"messages": [{"role": "assistant", "content": content}]}).messages
    assert (message.reasoning_content, message.content) == parts
    said_by_user = {"messages": [{"role": "user", "content": content}, ASSISTANT]}
    assert conversation_of(said_by_user).messages[0] == Message("user", content)


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_in_its_own_field_leaves_the_content_alone(name):
    record = {"messages": [{"role": "assistant", "content": "<think>A</think>C", name: "R"}]}
    assert conversation_of(record).messages == (Message("assistant", "<think>A</think>C", "R"),)


@pytest.mark.parametrize(("value", "weight"), [(0, 0), (0.0, 0), (False, 0), (1, 1), (True, 1), (None, 1)])
def test_an_answer_or_a_part_of_it_has_a_weight(value, weight):
    switch = {"weight": value}
    record = {"messages": [USER, ASSISTANT | switch, USER, ASSISTANT]}
    assert [message.weight for message in conversation_of(record).messages] == [1, weight, 1, 1]
    renamed = {"messages": [USER, ASSISTANT | {"train": value}, USER, ASSISTANT]}
    weights = [message.weight for message in conversation_of(renamed, {"weight": "train"}).messages]
    assert weights == [1, weight, 1, 1]
    parts = [{"type": "text", "text": "Hel", **switch}, {"type": "text", "text": "lo", "weight": 1}]
    record = {"messages": [USER, {"role": "assistant", "content": parts}]}
    assert conversation_of(record).messages[1].parts == (("Hel", weight), ("lo", 1))


@pytest.mark.parametrize("name", ["train", "training", "trainable", "loss", "loss_mask", "masked", "mask"])
def test_other_names_of_weight_are_refused_wherever_they_are(name):
    parts = [{"type": "text", "text": "Hello", name: 1}]
    for record in (
        {"messages": [USER, ASSISTANT | {name: True}]},
        {"messages": [USER | {name: 0}, ASSISTANT]},
        {"messages": [USER, {"role": "assistant", "content": parts}]},
    ):
        with pytest.raises(BadRecord, match=f"message [12]: `{name}` is .*: use `weight`"):
            conversation_of(record)
    with pytest.raises(BadRecord, match=f"has `{name}` for the whole record"):
        conversation_of({"messages": [USER, ASSISTANT], name: False})


# a template that writes it reaches Python's limit
DEEP = json.loads('{"a": ' * 500 + "1" + "}" * 500)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"prompt": "Hi", "completion": "Go", "label": False}, "`label`"),
        ({"messages": [USER, ASSISTANT], "weight": 0}, "`weight`"),
        ({"messages": [USER, ASSISTANT | {"weight": 0.5}]}, "message 2: `weight` is 0.5"),
        ({"messages": [USER, ASSISTANT | {"weight": 0}]}, "no assistant message of weight 1"),
        ({"messages": [{"role": "system", "content": "B"}, USER, ASSISTANT], "system": "A"}, "`system` and a system"),
        ({"prompt": "Hi", "input": "1 2", "response": "3"}, "`input`"),
        ({"prompt": "Hi", "output": "3", "response": "4"}, "`response`"),
        ({"prompt": "Hi", "output": "3", "system": "A", "system_prompt": "B"}, "`system_prompt`"),
        ({"messages": [USER, ASSISTANT], "conversations": [USER]}, "`conversations`"),
        ({"messages": [USER, ASSISTANT], "schema": "CREATE TABLE x"}, "`schema`"),
        ({"messages": [USER, ASSISTANT], "output": "Bye"}, "`output`"),
        ({"messages": [USER, ASSISTANT], "history": [["Why?", "So."]]}, "`history`"),
        ({"prompt": [USER], "article": "News.", "output": "3"}, "`article`"),
        ({"question": "Why?", "reasoning_content": "Because.", "answer": "So."}, "`reasoning_content`"),
        ({"question": "Why?", "tool_calls": [CALL], "answer": "So."}, "`tool_calls`"),
        ({"messages": [USER, ASSISTANT], "tools": [SCHEMA], "functions": [CALL]}, "`tools`"),
        ({"conversations": [{"input": "Hi", "output": "Hello", "context": "A fox."}, "Why?"]}, "message 3: is of type"),
        ({"messages": [USER, ASSISTANT | {"thinking": "A", "reasoning": "B"}]}, "different thoughts"),
        ({"text": "x"}, "data.records: text"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "message 1: role 'bot'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ({"messages": [USER, {"role": "assistant", "content": "a\ud83d"}]}, "message 2: .*surrogate"),
        ({"messages": [{**ASSISTANT, "tool_calls": [{"name": "f", "arguments": [1]}]}]}, "arguments of f"),
        ({"messages": [{**ASSISTANT, "tool_calls": [{"name": "f", "arguments": DEEP}]}]}, "nested"),
        ({"messages": [{**ASSISTANT, "tool_calls": [{"name": "f", "arguments": json.dumps(DEEP)}]}]}, "nested"),
        ({"messages": [USER, ASSISTANT], "tools": [{"name": "f", "parameters": DEEP}]}, "nested"),
    ],
)
def test_a_faulty_conversation_is_refused_with_the_reason(record, reason):
    with pytest.raises(BadRecord, match=reason):
        conversation_of(record)


known_names = st.sampled_from(
    "messages conversations role content from value tools tool_calls function name arguments instruction input output "
    "history system prompt answer text type reasoning_content chosen rejected preferred_output non_preferred_output "
    "function_call functions weight loss masked label".split()
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["user", "assistant", "[]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(known_names | st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(known_names, json_values, max_size=5) | json_values)
def test_whatever_json_a_record_is_nothing_but_bad_record_is_raised(record):
    for read, kind in ((conversation_of, Conversation), (pair_of, Pair), (text_of, str)):
        try:
            found = read(record)
        except BadRecord as error:
            found = error
        assert isinstance(found, kind) or (isinstance(found, BadRecord) and str(found))


def test_text_of_a_field_of_an_inner_field_of_a_list_and_of_a_plain_text():
    for record, field, text in (
        ({"text": " a\n"}, "text", " a\n"),
        ({"meta": {"body": "b"}}, "meta.body", "b"),
        ({"meta.body": "c", "meta": {"body": "b"}}, "meta.body", "c"),
        ({"paragraphs": ["人之初，", "性本善。"]}, "paragraphs", "人之初，\n性本善。"),
        ("a record by itself", "text", "a record by itself"),
    ):
        assert text_of(record, field) == text


@pytest.mark.parametrize("record", [{"story": "x"}, {}, {"text": 5}, {"text": "a\udfff"}, ["a"], {"messages": [USER]}])
def test_a_record_without_text_is_refused(record):
    with pytest.raises(BadRecord):
        text_of(record)


def test_every_record_in_the_documentation_is_read():
    blocks = re.findall(r"```json\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    records = [json.loads(line) for block in blocks for line in block.splitlines()]
    pairs = [record for record in records if "messages" not in record and {"chosen", "preferred_output"} & {*record}]
    records = [record for record in records if record not in pairs]
    assert len(records) == 11
    assert [pair_of(record).shared for record in pairs] == [1] * 6
    assert text_of(records[0]).startswith("Once upon a time")
    conversations = [conversation_of(record) for record in records[1:]]
    assert [len(conversation.messages) for conversation in conversations] == [2, 5, 4, 4, 2, 5, 2, 2, 2, 5]
    assert [len(conversation.tools) for conversation in conversations] == [0, 1, 1, 1, 0, 0, 0, 0, 0, 1]
