"""OpenAI's API, as OpenAI's own client speaks it, against a server that listens."""

import json
import shutil

import httpx
import openai
import pytest
import torch
from transformers import AutoTokenizer

from data.chat import prompt_ids
from data.tokenizer import load_tokenizer
from model import generate, load
from serve.limits import Limits
from tests.serve.conftest import serving

SAID = [{"role": "user", "content": "Tiko the fox found a ball. Who has it?"}]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server[0]}/v1", api_key="any", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def direct(folder):
    """text(messages or prompt, new tokens) as the model itself continues it, greedily."""

    def answer(name, given, new):
        lm = load(folder / name)
        tokenizer = load_tokenizer(folder / name)
        ids = [tokenizer.bos_id, *tokenizer.encode(given)] if isinstance(given, str) else prompt_ids(tokenizer, given)
        output = generate(lm, torch.tensor([ids]), new, temperature=0, stop_ids=tokenizer.stop_ids)[0, len(ids) :]
        written = output.tolist()
        end = next((at for at, token in enumerate(written) if token in tokenizer.stop_ids), None)
        return tokenizer.decode(written[:end]), len(ids), written[:end]

    return answer


def test_models_are_the_runs_that_have_a_checkpoint(client):
    assert [model.id for model in client.models.list()] == ["chat", "text"]
    assert client.models.retrieve("chat").owned_by == "headlight"
    with pytest.raises(openai.NotFoundError, match="There are: chat, text"):
        client.models.retrieve("unfinished")


def test_a_plain_model_directory_is_served_with_its_own_template(folder, tmp_path):
    """Somebody else's model: no run around it, and a system turn that our template does not have."""
    place = tmp_path / "downloads" / "a model"
    shutil.copytree(folder / "chat/checkpoints/step_00000010", place)
    template = "{{ '<|im_start|>system\\nBe brief.<|im_end|>' }}"
    template += "{% for m in messages %}{{ m.content }}{% endfor %}<|im_end|>"
    (place / "chat_template.jinja").write_text(template, encoding="utf-8")
    prompt = AutoTokenizer.from_pretrained(place).apply_chat_template(SAID, return_dict=False)
    for served in (place, place.parent):
        with serving(served) as (address, _), httpx.Client(base_url=address, timeout=60) as http:
            (model,) = http.get("/v1/models").json()["data"]
            asked = {"model": "a model", "messages": SAID, "max_tokens": 3}
            assert http.post("/v1/chat/completions", json=asked).json()["usage"]["prompt_tokens"] == len(prompt)
            assert [one["name"] for one in http.get("/live/models").json()["models"]] == [model["id"]]
            assert http.get(f"/live/models/{model['id']}").json()["is_chat"]


def test_a_chat_answer_is_the_models_own(client, direct):
    text, read, written = direct("chat", SAID, 20)
    answer = client.chat.completions.create(model="chat", messages=SAID, temperature=0, max_tokens=20)
    (choice,) = answer.choices
    assert choice.message.content == text
    assert choice.message.role == "assistant"
    assert choice.finish_reason == ("length" if len(written) == 20 else "stop")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (read, len(written))
    parts = [{"role": "user", "content": [{"type": "text", "text": SAID[0]["content"]}]}]
    again = client.chat.completions.create(model="chat", messages=parts, temperature=0, max_tokens=20)
    assert again.choices[0].message.content == text


def test_a_streamed_answer_is_the_same_piece_by_piece(client):
    asked = {"model": "chat", "messages": SAID, "max_tokens": 30, "seed": 5, "n": 3, "temperature": 1.0}
    whole = client.chat.completions.create(**asked)
    texts = ["", "", ""]
    ends = [None] * 3
    usage = None
    for event in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        for choice in event.choices:
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] = choice.finish_reason or ends[choice.index]
        usage = event.usage or usage
    assert texts == [choice.message.content for choice in whole.choices]
    assert ends == [choice.finish_reason for choice in whole.choices]
    assert usage == whole.usage
    assert len(set(texts)) == 3


def test_completions_continue_texts(client, direct):
    asked = {"model": "text", "prompt": "Once there was", "temperature": 0, "max_tokens": 12}
    text, _, _ = direct("text", "Once there was", 12)
    answer = client.completions.create(**asked | {"prompt": ["Once there was", "A"]}, n=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in answer.choices] == 2 * [text] + 2 * [direct("text", "A", 12)[0]]
    assert client.completions.create(**asked, echo=True).choices[0].text == "Once there was" + text
    assert "".join(event.choices[0].text for event in client.completions.create(**asked, stream=True)) == text
    # a prompt that is left out is the beginning of a document
    assert client.completions.create(model="text", prompt=None, max_tokens=1).usage.prompt_tokens == 1


def test_log_probabilities_are_those_of_the_model(client, folder):
    lm = load(folder / "chat")
    tokenizer = load_tokenizer(folder / "chat")
    answer = client.chat.completions.create(
        model="chat", messages=SAID, temperature=0, max_tokens=6, logprobs=True, top_logprobs=3
    )
    ids = prompt_ids(tokenizer, SAID)
    for one in answer.choices[0].logprobs.content:
        with torch.no_grad():
            expected = lm(torch.tensor([ids]))[0, -1].log_softmax(-1)
        best = expected.topk(3)
        assert [likely.logprob for likely in one.top_logprobs] == pytest.approx(best.values.tolist(), abs=1e-4)
        for likely, token in zip(one.top_logprobs, best.indices.tolist(), strict=True):
            assert bytes(likely.bytes) == tokenizer.decode_bytes([token])
        assert (one.token, one.bytes) == (one.top_logprobs[0].token, one.top_logprobs[0].bytes)
        ids.append(int(best.indices[0]))
    whole = b"".join(bytes(one.bytes) for one in answer.choices[0].logprobs.content)
    assert b"\xef\xbf\xbd" not in whole  # parts of characters are themselves
    assert whole.decode("utf-8", "replace") == answer.choices[0].message.content


def harness_scores(choice, context):
    """Return the scores of the text after `context` tokens, as lm-evaluation-harness reads them.

    Its `local-completions` takes the last entry for the token that `max_tokens: 1` wrote.
    """
    said = choice["logprobs"]
    numbers = said["token_logprobs"][context:-1]
    top = said["top_logprobs"][context:-1]
    return sum(numbers), all(number == max(one.values()) for number, one in zip(numbers, top, strict=True))


@pytest.mark.parametrize("ends", [False, True])
def test_choices_are_scored_as_others_score_them(address, folder, ends):
    """ends: the token that is written is a stop id, as it often is after a whole text."""
    lm = load(folder / "text")
    tokenizer = load_tokenizer(folder / "text")
    context = [tokenizer.bos_id, *tokenizer.encode("Tiko the fox 🦊 found a ball by the sea. Who has it? " * 2)]
    likeliest = generate(lm, torch.tensor([context]), 4, temperature=0)[0].tolist()
    rows = [likeliest, context + tokenizer.encode(" 你好"), context + tokenizer.encode(" Nobody")]
    with torch.no_grad():
        logits = [lm(torch.tensor([row]))[0] for row in rows]
    every = [
        of_row.log_softmax(-1)[:-1].gather(1, torch.tensor(row[1:])[:, None])[:, 0]
        for of_row, row in zip(logits, rows, strict=True)
    ]
    body = {
        "model": "text",
        "prompt": rows,
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    if ends:
        body["stop_token_ids"] = [int(of_row[-1].argmax()) for of_row in logits]
    for _ in range(2):  # the second time the beginning is in the cache
        answer = httpx.post(f"{address}/v1/completions", json=body, timeout=60).json()
        for choice, row, expected in zip(answer["choices"], rows, every, strict=True):
            score, is_greedy = harness_scores(choice, len(context))
            assert score == pytest.approx(expected[len(context) - 1 :].sum().item(), abs=1e-3)
            assert is_greedy == (row is likeliest)
            assert choice["finish_reason"] == ("stop" if ends else "length")
            said = choice["logprobs"]
            assert len(said["tokens"]) == len(said["text_offset"]) == len(said["top_logprobs"]) == len(row) + 1
            assert (said["token_logprobs"][0], said["top_logprobs"][0]) == (None, None)
    events = httpx.post(f"{address}/v1/completions", json=body | {"stream": True, "prompt": rows[0]}, timeout=60).text
    parts = [json.loads(line.removeprefix("data: ")) for line in events.splitlines() if line.startswith("data: {")]
    streamed = [part["choices"][0]["logprobs"] for part in parts]
    joined = {name: [entry for one in streamed for entry in one[name]] for name in said}
    assert joined == answer["choices"][0]["logprobs"]
    nothing = httpx.post(f"{address}/v1/completions", json=body | {"max_tokens": 0}, timeout=60).json()
    for choice, row, expected in zip(nothing["choices"], rows, every, strict=True):
        assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(expected.tolist(), abs=1e-3)
        assert choice["text"] == tokenizer.decode(row)
    assert nothing["usage"]["completion_tokens"] == 0


def test_offsets_and_likeliest_tokens_of_parts_of_characters(client, folder):
    tokenizer = load_tokenizer(folder / "text")
    prompt = "a 🦊 é 你好 fox"
    asked = {"model": "text", "prompt": prompt, "temperature": 0, "max_tokens": 12, "logprobs": 20, "echo": True}
    (choice,) = client.completions.create(**asked).choices
    said = choice.logprobs
    ids = [tokenizer.bos_id, *tokenizer.encode(prompt)]
    whole = [len(tokenizer.decode_bytes(ids[:at]).decode("utf-8", "ignore")) for at in range(len(ids))]
    assert said.text_offset[: len(ids)] == whole
    assert said.text_offset[len(ids)] == len(prompt)
    assert max(said.text_offset) <= len(choice.text)
    named = [prompt[at:].startswith(token) for token, at in zip(said.tokens[1:], whole[1:], strict=False)]
    assert named == [not token.startswith("bytes:") for token in said.tokens[1 : len(ids)]]
    assert any(token.startswith("bytes:\\x") for token in said.tokens)
    assert {len(top) for top in said.top_logprobs[1:]} == {20}


def test_settings_of_other_servers_do_what_they_do_there(client, direct, folder):
    tokenizer = load_tokenizer(folder / "chat")
    _, read, written = direct("chat", SAID, 30)
    stop = written[4]
    asked = {"model": "chat", "messages": SAID, "temperature": 0, "max_tokens": 30}
    create = client.chat.completions.create

    cut = create(**asked, extra_body={"stop_token_ids": [stop], "ignore_eos": True}, logprobs=True)
    assert cut.usage.completion_tokens == written.index(stop)
    assert cut.choices[0].finish_reason == "stop"
    begun = [*SAID, {"role": "assistant", "content": "Tiko has"}]
    more = create(**asked | {"messages": begun}, extra_body={"continue_final_message": True})
    assert more.usage.prompt_tokens == read + len(tokenizer.encode("Tiko has"))
    for thinking, extra in (
        ({"chat_template_kwargs": {"enable_thinking": True}}, len(["<think>", "\n"])),
        ({"chat_template_kwargs": {"enable_thinking": False}}, 0),
        ({"reasoning_effort": "none"}, 0),
        ({"user": "Ada", "metadata": {}, "store": False, "logit_bias": None, "guided_json": None, "best_of": 1}, 0),
    ):
        assert create(**asked, extra_body=thinking).usage.prompt_tokens == read + extra


def test_an_answer_ends_before_a_stop_text_also_when_streamed(client, direct):
    text, _, _ = direct("text", "Once there was", 40)
    stop = text[10:14]
    cut = text[: text.index(stop)]
    asked = {"model": "text", "prompt": "Once there was", "temperature": 0, "max_tokens": 40, "stop": [stop, "never"]}
    found = client.completions.create(**asked).choices[0]
    assert (found.text, found.finish_reason) == (cut, "stop")
    assert "".join(event.choices[0].text for event in client.completions.create(**asked, stream=True)) == cut


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"model": "nothing"}, 404, "does not exist"),
        ({"model": "../secret.txt"}, 404, "does not exist"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "role 'robot' is not known"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "read text only"),
        ({"temperature": 3}, 400, "temperature"),
        ({"max_tokens": 1000}, 400, "maximum context length is 256"),
        ({"frequency_penalty": 0.5}, 400, "frequency_penalty"),
        ({"response_format": {"type": "yaml"}}, 400, "response_format"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"stream_options": {"continuous_usage_stats": True}}, 400, "continuous_usage_stats"),
        ({"reasoning_effort": "high"}, 400, "'reasoning_effort' is not for this model"),
        ({"chat_template_kwargs": {"thinking_budget": 5}}, 400, "'thinking_budget' is not for this model"),
        ({"chat_template_kwargs": {"content": "x"}}, 400, "'content' is not for this model"),
        ({"chat_template_kwargs": {"enable_thinking": "false"}}, 400, "true or false"),
        ({"model": "text", "chat_template_kwargs": {"enable_thinking": True}}, 400, "not trained on chats"),
        ({"model": "text", "tools": [{"name": "f"}]}, 400, "not trained on chats"),
        ({"continue_final_message": True}, 400, "only an answer can be continued"),
        ({"stop_token_ids": [10**6]}, 400, "stop_token_ids: token ids must be"),
        # misspelt: a client must not believe that it did something
        ({"max_token": 5}, 400, "max_token"),
        # of other servers
        ({"structured_outputs": {"choice": ["yes"]}}, 400, "structured_outputs"),
        ({"top_logprobs": 3}, 400, "needs logprobs"),
    ],
)
def test_what_is_wrong_is_said_in_openais_form(address, changes, status, message):
    body = {"model": "chat", "messages": SAID, "max_tokens": 4} | changes
    for stream in (False, True):
        found = httpx.post(f"{address}/v1/chat/completions", json=body | {"stream": stream}, timeout=60)
        error = found.json()["error"]
        assert found.status_code == status
        assert message in error["message"]
        assert set(error) == {"message", "type", "param", "code"}


def test_the_key_the_host_and_the_origin_are_checked(folder):
    page = "https://chat.example"
    with serving(folder, Limits(api_key="sesame"), origins=[page]) as (address, _):
        for key in (None, "Bearer sesam", "Bearer sesames", "sesame", "Basic sesame"):
            refused = httpx.get(f"{address}/v1/models", headers={"Authorization": key} if key else {})
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "invalid_api_key"
        right = {"Authorization": "Bearer sesame"}
        answer = httpx.get(f"{address}/v1/models", headers=right | {"Origin": "https://evil.example"})
        assert answer.status_code == 200
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers
        answer = httpx.get(f"{address}/v1/models", headers=right | {"Origin": page})
        assert answer.headers["access-control-allow-origin"] == page
        assert httpx.get(f"{address}/v1/models", headers=right | {"Host": "evil.example"}).status_code == 400


def test_a_client_that_goes_away_frees_its_blocks(folder):
    with serving(folder) as (address, library):
        body = {"model": "text", "prompt": "A", "max_tokens": 200, "stream": True}
        with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=60) as found:
            next(found.iter_lines())
        batcher = library.find("text").batcher
        while not batcher.is_idle:
            pass
        assert batcher.cache.free_blocks == len(batcher.cache.users)


def test_what_is_too_much_is_refused_with_its_status(folder):
    limits = Limits(body=2000, seconds=0.0001, max_new_tokens=50)
    with serving(folder, limits, max_waiting=1) as (address, _):
        body = {"model": "text", "prompt": "A", "max_tokens": 40}
        assert httpx.post(f"{address}/v1/completions", json=body | {"prompt": "A" * 3000}).status_code == 413

        def pieces():
            yield from [b"a" * 1000] * 5

        assert httpx.post(f"{address}/v1/completions", content=pieces()).status_code == 413
        assert httpx.post(f"{address}/v1/completions", json=body).status_code == 503
        many = httpx.post(f"{address}/v1/completions", json=body | {"n": 16, "stream": True})
        assert many.status_code in (429, 503)
