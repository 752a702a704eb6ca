"""A tool call from end to end, as OpenAI's client makes it: tools asked with, called, executed, and answered with.

The model has learned two conversations by heart, in seconds; what it writes goes through the server as any answer does.
"""

import json

import pytest
import torch
from openai import OpenAI

from data.chat import TRAINED, encode_conversations
from data.config import TokenizerConfig
from data.reading.records import checked_conversation
from data.tokenizer import train_tokenizer
from eval.tools.calls import calculate
from model import LanguageModel, save
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
def client(tmp_path_factory):
    """OpenAI's client, of a server of one run."""
    talks = [conversation(*one) for one in SUMS.items()]
    texts = [json.dumps(FUNCTION), *(json.dumps(message) for talk in talks for message in talk)]
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=400), texts)
    rows = encode_conversations(tokenizer, [checked_conversation(talk, [FUNCTION]) for talk in talks])
    torch.manual_seed(0)
    fields = {"vocab_size": tokenizer.vocab_size, "hidden_size": 64, "max_position_embeddings": 512}
    lm = LanguageModel(tiny_config(eos_token_id=tokenizer.stop_ids, **fields)).train()
    optimizer = torch.optim.AdamW(lm.parameters(), lr=1e-2)
    for step in range(120):
        ids, flags = rows[step % 2]
        labels = torch.where(torch.tensor(flags & TRAINED, dtype=torch.bool), torch.tensor(ids), -100)
        loss_sum, count = lm(torch.tensor([ids]), labels=labels[None])
        (loss_sum / count).backward()
        optimizer.step()
        optimizer.zero_grad()
    run = tmp_path_factory.mktemp("tools") / "caller"
    checkpoint = run / "checkpoints/step_00000120"
    checkpoint.mkdir(parents=True)
    save(lm, checkpoint)
    tokenizer.save(checkpoint)
    (run / "checkpoints/latest").write_text("step_00000120\n", encoding="utf-8")
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
