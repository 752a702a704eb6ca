"""A tool call from end to end, as OpenAI's client makes it: tools asked with, called, executed, and
answered with.

The model has learned a conversation by heart, in seconds; what it writes goes through the server as
any answer.
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
from model import LanguageModel, save
from serve import answers, openai_api
from tests.conftest import tiny_config
from tests.serve.conftest import serving

pytestmark = pytest.mark.slow

FUNCTION = {
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
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


@pytest.fixture(scope="module")
def learned():
    """The model, its tokenizer, and the ids of the conversation."""
    texts = [json.dumps(FUNCTION), *(json.dumps(message) for message in WEATHER)]
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=400), texts)
    ((ids, flags),) = encode_conversations(tokenizer, [checked_conversation(WEATHER, [FUNCTION])])
    torch.manual_seed(0)
    fields = {"vocab_size": tokenizer.vocab_size, "hidden_size": 64, "max_position_embeddings": 512}
    lm = LanguageModel(tiny_config(eos_token_id=tokenizer.stop_ids, **fields)).train()
    optimizer = torch.optim.AdamW(lm.parameters(), lr=1e-2)
    labels = torch.where(torch.tensor(flags & TRAINED, dtype=torch.bool), torch.tensor(ids), -100)
    for _ in range(60):
        loss_sum, count = lm(torch.tensor([ids]), labels=labels[None])
        (loss_sum / count).backward()
        optimizer.step()
        optimizer.zero_grad()
    return lm, tokenizer, ids


@pytest.fixture(scope="module")
def client(learned, tmp_path_factory):
    """OpenAI's client, of a server of one run."""
    lm, tokenizer, _ = learned
    run = tmp_path_factory.mktemp("tools") / "caller"
    checkpoint = run / "checkpoints/step_00000060"
    checkpoint.mkdir(parents=True)
    save(lm, checkpoint)
    tokenizer.save(checkpoint)
    (run / "checkpoints/latest").write_text("step_00000060\n", encoding="utf-8")
    with serving(run) as (address, _), OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def answer(client, stream=False, max_tokens=100, **asked):
    """The assistant's message as the client has it, its parts in the order in which they came, and
    how it ended.
    """
    asked = {"model": "caller", "temperature": 0, "max_tokens": max_tokens, "tools": TOOLS} | asked
    response = client.chat.completions.create(**asked, stream=stream)
    if not stream:
        (choice,) = response.choices
        return choice.message.model_dump(), list(PARTS), choice.finish_reason
    message = {"role": "assistant", "reasoning_content": "", "content": "", "tool_calls": []}
    order = []
    for part in response:
        for name, new in part.choices[0].delta.model_dump(include=set(PARTS), exclude_none=True).items():
            message[name] += new
            order += [name] if new else []
    return message, [name for name, _ in groupby(order)], part.choices[0].finish_reason


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_answered_and_sent_back_all_are_the_ids_of_training(client, learned, monkeypatch, stream):
    """Thoughts, content and call come apart; the call is executed; its result is used."""
    _, tokenizer, trained = learned
    prompts = []
    messages = WEATHER[:1]

    def chat_ids(*arguments):
        prompts.append(answers.chat_ids(*arguments))
        return prompts[-1]

    monkeypatch.setattr(openai_api, "chat_ids", chat_ids)
    for number in (1, 3):
        message, order, end = answer(client, stream, messages=messages)
        assert [message[name] for name in PARTS[:2]] == [WEATHER[number][name] for name in PARTS[:2]]
        assert order[:2] == list(PARTS[:2])
        messages = [*messages, message]
        assert end == ("tool_calls" if number == 1 else "stop")
        if number == 1:
            (call,) = message["tool_calls"]
            assert order == list(PARTS)
            assert call["type"] == "function"
            assert call["function"] == {"name": "weather", "arguments": '{"city": "北京", "days": [1, 2]}'}
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "晴"})
    answer(client, stream, messages=[*messages, WEATHER[0]])
    ends = [len(prompt_ids(tokenizer, WEATHER[:number], [FUNCTION])) for number in (1, 3)]
    assert prompts[:2] == [trained[:end] for end in ends]
    assert prompts[2][: len(trained)] == trained


@pytest.mark.parametrize(
    ("begun", "extra", "reasoning"),
    [
        # the prompt opens the thoughts
        ([], {"chat_template_kwargs": {"enable_thinking": True}}, "要查一下。"),
        ([{**WEATHER[1], "tool_calls": [], "content": "我"}], {"continue_final_message": True}, ""),
        ([{**WEATHER[1], "tool_calls": [], "content": ""}], {"continue_final_message": True}, ""),
    ],
)
def test_an_answer_that_was_begun_is_taken_apart_as_well(client, begun, extra, reasoning):
    message, _, _ = answer(client, messages=[WEATHER[0], *begun], extra_body=extra)
    assert message.get("reasoning_content") == (reasoning or None)
    assert (begun[0]["content"] if begun else "") + message["content"] == WEATHER[1]["content"]
    assert len(message["tool_calls"]) == 1
