"""A tool call from end to end, as OpenAI's client makes it: tools asked with, called, executed, and answered with.

The model has learned three conversations by heart, in seconds; what it writes goes through the server as any answer.
"""

import json
from itertools import groupby

import pytest
import torch
from openai import OpenAI

from data.chat import TRAINED, encode_conversations, prompt_ids
from data.config import TokenizerConfig
from data.reading.records import checked_conversation
from data.tokenizer import train_tokenizer
from eval.tools import calculate
from model import LanguageModel, save
from serve import answers, openai_api
from tests.conftest import tiny_config
from tests.serve.conftest import serving

pytestmark = pytest.mark.slow

SUMS = {"What is six times seven?": "6 * 7", "How much is two plus three?": "2 + 3"}
FUNCTION = {
    "name": "calculator",
    "description": "Computes.",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
}
TOOLS = [{"type": "function", "function": FUNCTION}]
PARTS = ("reasoning_content", "content", "tool_calls")
WEATHER = [  # thoughts, and letters that JSON may write in two ways
    {"role": "user", "content": "北京的天气？"},
    {
        "role": "assistant",
        "reasoning_content": "要查一下。",
        "content": "我看看。",
        "tool_calls": [{"name": "weather", "arguments": {"city": "北京", "days": [1, 2]}}],
    },
    {"role": "tool", "content": "晴"},
    {"role": "assistant", "reasoning_content": "晴，不下雨。", "content": "晴天。"},
]


def conversation(question, expression):
    call = {"name": "calculator", "arguments": {"expression": expression}}
    result = calculate(expression)
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": result},
        {"role": "assistant", "content": f"It is {result}."},
    ]


@pytest.fixture(scope="module")
def learned():
    """The model, its tokenizer, and the ids and flags of each conversation."""
    talks = [*(conversation(*one) for one in SUMS.items()), WEATHER]
    texts = [json.dumps(FUNCTION), *(json.dumps(message) for talk in talks for message in talk)]
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=400), texts)
    rows = encode_conversations(tokenizer, [checked_conversation(talk, [FUNCTION]) for talk in talks])
    torch.manual_seed(0)
    fields = {"vocab_size": tokenizer.vocab_size, "hidden_size": 64, "max_position_embeddings": 512}
    lm = LanguageModel(tiny_config(eos_token_id=tokenizer.stop_ids, **fields)).train()
    optimizer = torch.optim.AdamW(lm.parameters(), lr=1e-2)
    for step in range(180):
        ids, flags = rows[step % 3]
        labels = torch.where(torch.tensor(flags & TRAINED, dtype=torch.bool), torch.tensor(ids), -100)
        loss_sum, count = lm(torch.tensor([ids]), labels=labels[None])
        (loss_sum / count).backward()
        optimizer.step()
        optimizer.zero_grad()
    return lm, tokenizer, rows


@pytest.fixture(scope="module")
def client(learned, tmp_path_factory):
    """OpenAI's client, of a server of one run."""
    lm, tokenizer, _ = learned
    run = tmp_path_factory.mktemp("tools") / "caller"
    checkpoint = run / "checkpoints/step_00000180"
    checkpoint.mkdir(parents=True)
    save(lm, checkpoint)
    tokenizer.save(checkpoint)
    (run / "checkpoints/latest").write_text("step_00000180\n", encoding="utf-8")
    with serving(run) as (address, _), OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize(("question", "expression"), SUMS.items())
def test_a_tool_is_called_executed_and_its_result_is_used(client, question, expression):
    messages = [{"role": "user", "content": question}]
    asked = {"model": "caller", "tools": TOOLS, "temperature": 0, "max_tokens": 64}
    choice = client.chat.completions.create(messages=messages, tool_choice="auto", **asked).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "calculator")
    assert json.loads(call.function.arguments) == {"expression": expression}

    result = calculate(**json.loads(call.function.arguments))
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    choice = client.chat.completions.create(messages=messages, **asked).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.tool_calls is None
    assert choice.message.content.strip() == f"It is {result}."


def test_a_streamed_call_comes_whole_and_never_as_text(client):
    (question, expression), *_ = SUMS.items()
    messages = [{"role": "user", "content": question}]
    asked = {"model": "caller", "tools": TOOLS, "temperature": 0, "max_tokens": 64, "stream": True}
    choices = [chunk.choices[0] for chunk in client.chat.completions.create(messages=messages, **asked)]
    calls = [call for choice in choices for call in choice.delta.tool_calls or ()]
    assert [(call.index, call.function.name) for call in calls] == [(0, "calculator")]
    assert json.loads(calls[0].function.arguments) == {"expression": expression}
    assert choices[-1].finish_reason == "tool_calls"
    assert not "".join(choice.delta.content or "" for choice in choices).strip()


def test_a_call_that_is_cut_is_no_call(client):
    (question, _), *_ = SUMS.items()
    messages = [{"role": "user", "content": question}]
    asked = {"model": "caller", "tools": TOOLS, "temperature": 0, "max_tokens": 3}
    choice = client.chat.completions.create(messages=messages, **asked).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls is None


def asked_by(client, stream, **asked):
    """The assistant's message as the client has it, and its parts in the order in which they came."""
    found = client.chat.completions.create(model="caller", temperature=0, max_tokens=100, stream=stream, **asked)
    if not stream:
        return found.choices[0].message.model_dump(), list(PARTS)
    message, order = {"role": "assistant", "reasoning_content": "", "content": "", "tool_calls": []}, []
    for part in found:
        for name, new in part.choices[0].delta.model_dump(include=set(PARTS), exclude_none=True).items():
            message[name] += new
            order += [name] if new else []
    return message, [name for name, _ in groupby(order)]


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_and_calls_come_apart_and_sent_back_they_are_the_ids_of_training(client, learned, monkeypatch, stream):
    _, tokenizer, rows = learned
    trained, prompts, messages = rows[-1][0], [], WEATHER[:1]

    def chat_ids(*arguments):
        prompts.append(answers.chat_ids(*arguments))
        return prompts[-1]

    monkeypatch.setattr(openai_api, "chat_ids", chat_ids)
    for number in (1, 3):
        message, order = asked_by(client, stream, messages=messages, tools=TOOLS)
        assert [message[name] for name in PARTS[:2]] == [WEATHER[number][name] for name in PARTS[:2]]
        assert order[:2] == list(PARTS[:2])
        messages = [*messages, message]
        if number == 1:
            (call,) = message["tool_calls"]
            assert order == list(PARTS)
            assert call["function"] == {"name": "weather", "arguments": '{"city": "北京", "days": [1, 2]}'}
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "晴"})
    asked_by(client, stream, messages=[*messages, WEATHER[0]], tools=TOOLS)
    ends = [len(prompt_ids(tokenizer, WEATHER[:number], [FUNCTION])) for number in (1, 3)]
    assert prompts[:2] == [trained[:end] for end in ends]
    assert prompts[2][: len(trained)] == trained


@pytest.mark.parametrize(
    ("said", "extra", "reasoning"),
    [
        ([], {"chat_template_kwargs": {"enable_thinking": True}}, "要查一下。"),  # the prompt opens the thoughts
        ([{**WEATHER[1], "tool_calls": [], "content": "我"}], {"continue_final_message": True}, ""),
        ([{**WEATHER[1], "tool_calls": [], "content": ""}], {"continue_final_message": True}, ""),
    ],
)
def test_an_answer_that_was_begun_is_taken_apart_as_well(client, said, extra, reasoning):
    extra |= {"add_generation_prompt": not said} if said else {}
    message, _ = asked_by(client, False, messages=[WEATHER[0], *said], tools=TOOLS, extra_body=extra)
    assert message.get("reasoning_content") == (reasoning or None)
    assert (said[0]["content"] if said else "") + message["content"] == WEATHER[1]["content"]
    assert len(message["tool_calls"]) == 1
