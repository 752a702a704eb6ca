"""Runs to look into: two checkpoints, adapters, a run on texts; and how to ask the page's chat for
things.
"""

import base64
import json
import shutil

import httpx
import numpy as np
import torch

from data.chat import encode_conversations, prompt_ids
from data.reading.messages import Message
from data.reading.records import checked_conversation
from data.tokenizer import load_tokenizer
from model import load, save
from model.variants.config import LoraConfig
from model.variants.lora import adapted, add_adapters, weights_hash

SAID = [{"role": "user", "content": "Tiko the fox found a ball. Who has it?"}]
AND_THEN = "And then?"
CONTEXT = 768  # room for a story and a question in tokens of half a word
WORLD = "data:\n  source: {kind: storyworld}\n"


def make_runs(folder, at):
    """The runs of the fixture `folder`, with a second checkpoint and with adapters for the run on
    chats.
    """
    runs = at / "runs"
    for name in ("chat", "text"):
        shutil.copytree(folder / name, runs / name)
    (runs / "chat/config.yaml").write_text(WORLD, encoding="utf-8")
    steps = runs / "chat/checkpoints"
    lm = load(steps / "step_00000010")
    lm.config = lm.config.model_copy(update={"max_position_embeddings": CONTEXT})
    save(lm, steps / "step_00000010")
    lm = load(steps / "step_00000010")
    tokenizer = load_tokenizer(steps / "step_00000010")
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for matrix in (parameter for parameter in lm.parameters() if parameter.ndim == 2):
            matrix += 0.05 * torch.randn(matrix.shape, generator=generator)
    save(lm, steps / "step_00000020")
    tokenizer.save(steps / "step_00000020")
    adapters = runs / "adapters/checkpoints/step_00000005"
    lm = load(steps / "step_00000010")
    torch.manual_seed(1)
    add_adapters(lm, LoraConfig(rank=2), str(steps / "step_00000010"), weights_hash(lm))
    for layer in adapted(lm).values():
        torch.nn.init.normal_(layer.lora_B.weight)
    save(lm, adapters)
    tokenizer.save(adapters)
    (adapters.parent / "latest").write_text("step_00000005\n", encoding="utf-8")
    return runs


def thoughtful(tokenizer):
    """An answer to SAID with thoughts, content and a call; its ids, and those up to the answer to
    `and_then`.
    """
    call = {"name": "look_up", "arguments": '{"name": "北京"}'}
    message = Message("assistant", "Let me look.", "Hm. Who?", (call,))
    ((ids, _),) = encode_conversations(tokenizer, [checked_conversation([*SAID, message])])
    begin = len(prompt_ids(tokenizer, SAID))
    return message, ids[begin:-1], prompt_ids(tokenizer, [*SAID, message, {"role": "user", "content": AND_THEN}])


client = httpx.Client(timeout=60)  # one for all: each of them loads the certificates of the world


def get(address, place="", **asked):
    """The response to GET /live/models/{place}."""
    return client.get(f"{address}/live/models{place}", params=asked)


def ask(address, messages, model="chat", inspect=(), stream=True, **more):
    """The response of /v1/chat/completions to the page."""
    top = {"logprobs": True, "top_logprobs": 8, "temperature": 0}
    body = {"model": model, "messages": messages, "stream": stream, "inspect": dict(inspect)} | top | more
    return client.post(f"{address}/v1/chat/completions", json=body)


def answer(address, messages=SAID, new=8, **more):
    """The prompt's ids, the answer's tokens, and the message with `finish_reason`, put together as
    the page does.
    """
    response = ask(address, messages, max_completion_tokens=new, **more)
    assert response.status_code == 200, response.text
    *events, done = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert done == "[DONE]", done
    choices = [json.loads(event)["choices"][0] for event in events]
    message = {}
    for choice in choices:
        for name, new in choice["delta"].items():
            message[name] = message[name] + new if name in message else new
    tokens = [token for choice in choices for token in choice["logprobs"]["content"]]
    message["finish_reason"] = choices[-1]["finish_reason"]
    return [token["id"] for token in choices[0]["prompt"]], tokens, message


def ids_of(tokens):
    return [token["id"] for token in tokens]


def weigh(address, begun, heads=()):
    """Return the scores of an existing answer to SAID, with heads changed."""
    inspect = {"answer_ids": begun, "heads": list(heads)}
    response = ask(address, SAID, inspect=inspect, stream=False, max_completion_tokens=0)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["logprobs"]["content"]


def look(address, ids, position, heads=()):
    """Return the answer of POST /live/models/chat/attention: (layer, head, key)."""
    body = {"ids": ids, "position": position, "heads": list(heads)}
    response = client.post(f"{address}/live/models/chat/attention", json=body)
    assert response.status_code == 200, response.text
    row = response.json()
    weights = np.frombuffer(base64.b64decode(row["weights"]), np.dtype("<f4"))
    return torch.from_numpy(weights.reshape(row["layers"], row["heads"], row["keys"]).copy())


def opened(runs, name="chat", step=10):
    """The model itself, its tokenizer, and the ids of SAID."""
    checkpoint = runs / f"{name}/checkpoints/step_{step:08d}"
    lm = load(checkpoint)
    tokenizer = load_tokenizer(checkpoint)
    return lm, tokenizer, prompt_ids(tokenizer, SAID)
