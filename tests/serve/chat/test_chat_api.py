"""The server's side of the page's chat, against the model itself."""

import json
import threading

import pytest
import torch

from eval.attention import capture
from eval.attention.controls import ablated, scaled
from eval.chat.attention import capture_from
from eval.chat.session import Conversation
from eval.chat.tokens import looked_at, rows_around
from eval.questions import one_question, source_of
from model import generate
from serve.limits import Limits
from tests.serve.chat.chat_runs import AND_THEN, CONTEXT, SAID, answer, client, get, look, opened, post, thoughtful
from tests.serve.conftest import serving


def greedy(lm, tokenizer, ids, new):
    return generate(lm, torch.tensor([ids]), new, temperature=0, stop_ids=tokenizer.stop_ids)[0, len(ids) :].tolist()


# choices


def test_what_can_be_chosen_is_listed(address):
    found = {one["name"]: one for one in get(address, "models").json()["models"]}
    assert found["chat"] == {"name": "chat", "steps": [10, 20], "adapters": ["adapters"], "base": None}
    assert found["text"] == {"name": "text", "steps": [10], "adapters": [], "base": None}
    assert found["adapters"]["base"] == "chat"
    about = get(address, "model", run="chat").json()
    assert (about["step"], about["is_chat"], about["layers"], about["heads"]) == (10, True, 2, 4)
    assert about["knows_questions"]
    assert about["context_length"] == CONTEXT
    text = get(address, "model", run="text", step=10).json()
    assert (text["is_chat"], text["knows_questions"]) == (False, False)


def test_every_checkpoint_and_adapter_answers_as_itself(address, runs):
    said = {}
    for step in (10, 20):
        lm, tokenizer, ids = opened(runs, step=step)
        said[step] = [token["id"] for token in answer(address, run="chat", step=step, messages=SAID, max_tokens=8)[1]]
        assert said[step] == greedy(lm, tokenizer, ids, 8)
    lm, tokenizer, ids = opened(runs)
    Conversation(lm, tokenizer).use_adapters(runs / "adapters")
    with_adapters = answer(address, run="chat", step=10, adapter="adapters", messages=SAID, max_tokens=8)[1]
    assert [token["id"] for token in with_adapters] == greedy(lm, tokenizer, ids, 8)
    assert said[10] != said[20] != [token["id"] for token in with_adapters]


def test_a_question_of_the_world_comes_with_its_answer(address, runs):
    found = get(address, "question", run="chat", number=3).json()
    expected = one_question(source_of(runs / "chat"), 3, lambda one: found["messages"] == list(one.messages))
    assert (found["reply"], found["answer"]) == (expected.reply, expected.answer)
    assert expected.answer in expected.reply
    assert found == get(address, "question", run="chat", number=3).json()
    assert found != get(address, "question", run="chat", number=4).json()
    lm, tokenizer, _ = opened(runs)
    ids, _, _ = answer(address, run="chat", messages=found["messages"], max_tokens=2)
    assert len(ids) + len(tokenizer.encode(found["reply"])) < lm.config.max_position_embeddings
    refused = get(address, "question", run="text", number=3)
    assert refused.status_code == 400
    assert "config.yaml" in refused.json()["error"]["message"]


# an answer


def test_tokens_are_those_of_generate_with_the_models_own_probabilities(address, runs):
    lm, tokenizer, ids = opened(runs)
    read, tokens, end = answer(address, run="chat", messages=SAID, max_tokens=12, top=5)
    written = [token["id"] for token in tokens]
    assert (read, written, end) == (ids, greedy(lm, tokenizer, ids, 12), "length")
    with torch.no_grad():
        log_probs = lm(torch.tensor([ids + written]))[0].log_softmax(-1)
    for at, token in enumerate(tokens, start=len(ids) - 1):
        best = log_probs[at].topk(5)
        # cached, token by token, against all at once: float32 sums in another order
        assert token["log_prob"] == pytest.approx(best.values[0].item(), abs=1e-4)
        assert [one["log_prob"] for one in token["top"]] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert token["top"][0]["id"] == token["id"] == best.indices[0]
        assert token["top"][0]["label"] == token["label"]
    assert "".join(token["text"] for token in tokens) == tokenizer.decode(written).rstrip("\ufffd")


def test_sampled_answers_depend_on_the_seed_alone(address, runs):
    lm, tokenizer, ids = opened(runs)
    asked = {"run": "chat", "messages": SAID, "max_tokens": 10, "temperature": 0.9, "top_p": 0.8}
    found = [[token["id"] for token in answer(address, **asked, seed=seed)[1]] for seed in (5, 5, 6)]
    expected = generate(lm, torch.tensor([ids]), 10, 0.9, top_p=0.8, stop_ids=tokenizer.stop_ids, seed=5)
    assert found[0] == found[1] == expected[0, len(ids) :].tolist()
    assert found[2] != found[0]


def test_a_run_on_texts_continues_a_prompt_given_as_text_or_as_ids(address, runs):
    lm, tokenizer, _ = opened(runs, "text")
    ids = [tokenizer.bos_id, *tokenizer.encode("Once there was")]
    for prompt in ("Once there was", ids):
        read, tokens, _ = answer(address, run="text", prompt=prompt, max_tokens=6)
        assert (read, [token["id"] for token in tokens]) == (ids, greedy(lm, tokenizer, ids, 6))


def test_it_goes_on_from_an_alternative(address, runs):
    lm, tokenizer, ids = opened(runs)
    _, tokens, _ = answer(address, run="chat", messages=SAID, max_tokens=10)
    forced = [*(token["id"] for token in tokens[:3]), tokens[3]["top"][1]["id"]]
    read, rest, _ = answer(address, run="chat", prompt=ids, answer_ids=forced, max_tokens=6)
    assert read == ids
    assert [token["id"] for token in rest] == greedy(lm, tokenizer, ids + forced, 6)
    end = tokenizer.special_id("<|im_end|>")
    assert answer(address, run="chat", prompt=ids, answer_ids=[*forced, end])[1:] == ([], "stop")


def test_an_answer_ends_with_its_stop_token(address, monkeypatch):
    _, tokens, _ = answer(address, run="chat", messages=SAID, max_tokens=5)
    ids = [token["id"] for token in tokens]
    monkeypatch.setattr("data.tokenizer.Tokenizer.stop_ids", property(lambda tokenizer: [ids[3]]))
    _, told, end = answer(address, run="chat", messages=SAID, max_tokens=5)
    assert ([token["id"] for token in told], end) == (ids[: ids.index(ids[3]) + 1], "stop")
    assert [token["content"] for token in told[-1:]] == [""]


def test_thoughts_and_calls_come_apart_and_sent_back_they_are_the_ids_of_training(address, runs):
    _, tokenizer, ids = opened(runs)
    message, written, following = thoughtful(tokenizer)
    response = post(address, "answer", run="chat", messages=SAID, answer_ids=written)
    first, end = (json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line)
    parts = {name: "".join(one[name] for one in [*first["answer"], end]) for name in ("reasoning_content", "content")}
    assert parts == {"reasoning_content": message.reasoning_content, "content": message.content}
    assert end["tool_calls"] == list(message.tool_calls)
    thoughts = [token["text"] for token in first["answer"] if token["is_thought"]]
    assert "".join(thoughts) == f"\n{message.reasoning_content}\n"
    said = [
        *SAID,
        {"role": "assistant", "tool_calls": end["tool_calls"], **parts},
        {"role": "user", "content": AND_THEN},
    ]
    assert answer(address, run="chat", messages=said, max_tokens=1)[0] == following
    assert following[: len(ids) + len(written)] == ids + written


# heads


def test_what_it_looked_at_is_what_capture_says(address, runs):
    lm, _, ids = opened(runs)
    _, tokens, _ = answer(address, run="chat", messages=SAID, max_tokens=8)
    text = ids + [token["id"] for token in tokens]
    maps = capture(lm, torch.tensor([text]))
    for position in (1, 5, len(ids), len(text) - 1):
        weights = look(address, run="chat", ids=text, position=position)
        assert weights.shape == (2, 4, position)
        assert torch.equal(weights, maps.weights[:, 0, :, position - 1, :position])
        assert torch.allclose(weights.sum(-1), torch.ones(2, 4))


def test_long_texts_are_captured_a_part_at_a_time(runs, monkeypatch):
    lm, _, ids = opened(runs)
    whole = capture(lm, torch.tensor([ids]))
    monkeypatch.setattr("eval.chat.tokens.MOST_TOKENS", 7)
    for position in (1, 7, 8, 14, 15, len(ids) - 1):
        first, end = rows_around(lm, ids, position)
        found = looked_at(capture_from(lm, ids[:end], first), position)
        # the keys of earlier parts come from a cache: rounding apart the same
        assert torch.allclose(found, whole.weights[:, 0, :, position - 1, :position], atol=1e-5)


def test_a_head_scaled_by_one_changes_nothing_and_one_scaled_by_zero_is_ablated(runs):
    lm, _, ids = opened(runs)
    row, heads = torch.tensor([ids]), [(0, 1), (1, 3)]
    with torch.no_grad():
        before = lm(row)
        with scaled(lm, dict.fromkeys(heads, 1.0)):
            assert torch.equal(lm(row), before)
        with ablated(lm, heads):
            without = lm(row)
        with scaled(lm, dict.fromkeys(heads, 0.0)):
            assert torch.equal(lm(row), without)
        assert not torch.equal(before, without)
        with scaled(lm, {(0, 1): 0.5}):
            assert not torch.equal(lm(row), before)
        assert torch.equal(lm(row), before)


def test_heads_that_are_off_answer_as_ablated_and_weigh_the_first_answer(address, runs):
    lm, tokenizer, ids = opened(runs)
    heads = [{"layer": 0, "head": 1, "factor": 0.0}, {"layer": 1, "head": 3, "factor": 0.0}]
    _, tokens, _ = answer(address, run="chat", messages=SAID, max_tokens=10)
    first = ids + [token["id"] for token in tokens]
    changed = [t["id"] for t in answer(address, run="chat", messages=SAID, max_tokens=10, heads=heads)[1]]
    weighed = post(address, "weigh", run="chat", ids=first, begin=len(ids), heads=heads, top=3).json()["tokens"]
    seen = look(address, run="chat", ids=first, position=len(first) - 1, heads=heads)
    with ablated(lm, [(0, 1), (1, 3)]), torch.no_grad():
        assert changed == greedy(lm, tokenizer, ids, 10)
        log_probs = lm(torch.tensor([first[:-1]]))[0].log_softmax(-1)
        maps = capture(lm, torch.tensor([first]))
    own = log_probs[range(len(ids) - 1, len(first) - 1), first[len(ids) :]].tolist()
    assert [token["log_prob"] for token in weighed] == pytest.approx(own, abs=1e-5)
    assert [token["log_prob"] for token in weighed] != pytest.approx([t["log_prob"] for t in tokens], abs=1e-3)
    assert torch.equal(seen, maps.weights[:, 0, :, len(first) - 2, : len(first) - 1])
    assert answer(address, run="chat", messages=SAID, max_tokens=10)[1] == tokens  # nothing is left behind
    ones = [one | {"factor": 1.0} for one in heads]
    asked = {"run": "chat", "ids": first, "begin": len(ids)}
    assert post(address, "weigh", **asked, heads=ones).json() == post(address, "weigh", **asked).json()


# what goes wrong


@pytest.mark.parametrize(
    ("what", "asked", "status", "says"),
    [
        ("answer", {"run": "nowhere", "prompt": "A"}, 404, "'nowhere' does not exist"),
        ("answer", {"run": "../secret.txt", "prompt": "A"}, 404, "does not exist"),
        ("answer", {"run": "chat", "step": 30, "prompt": "A"}, 404, "There are: 10, 20"),
        ("answer", {"run": "chat", "adapter": "text", "prompt": "A"}, 404, "not a run with adapters for chat"),
        ("answer", {"run": "chat"}, 400, "either messages or a prompt"),
        ("answer", {"run": "chat", "prompt": "A", "temprature": 1}, 400, "temprature"),
        ("answer", {"run": "chat", "prompt": "word " * 900}, 400, "this model sees 768 tokens"),
        ("answer", {"run": "chat", "prompt": [1] * CONTEXT}, 400, "maximum context length is 768"),
        ("answer", {"run": "chat", "prompt": "A", "heads": [{"layer": 2, "head": 0, "factor": 0}]}, 400, "has no head"),
        ("answer", {"run": "chat", "prompt": "A", "heads": [{"layer": 0, "head": 0, "factor": 0}] * 2}, 400, "once"),
        ("weigh", {"run": "chat", "ids": [1, 2], "begin": 2}, 400, "begin: 2 is not among the 2 ids"),
        ("look", {"run": "chat", "ids": [1, 999], "position": 1}, 400, "token ids must be"),
    ],
)
def test_a_wrong_request_gets_one_clear_line(address, what, asked, status, says):
    response = post(address, what, **asked)
    assert response.status_code == status, response.text[:500]
    assert says in response.json()["error"]["message"]


# limits


def test_the_limits_of_the_server_hold(runs):
    with serving(runs, Limits(seconds=60, max_new_tokens=3, api_key="k", body=5000)) as (address, _):
        assert post(address, "answer", run="chat", prompt="A").status_code == 401
        assert get(address, "models").status_code == 401
        headers = {"authorization": "Bearer k"}
        url = f"{address}/live/chat/answer"
        long = client.post(url, json={"run": "chat", "prompt": "A" * 6000}, headers=headers)
        assert long.status_code == 413
        said = client.post(url, json={"run": "chat", "prompt": "A", "max_tokens": 9}, headers=headers).text
        assert said.count('"token"') == 3


@pytest.mark.slow  # it waits for a limit of three seconds
def test_too_long_and_too_many_are_refused_and_the_server_goes_on(runs, monkeypatch):
    began, may_end = threading.Event(), threading.Event()

    def slow(*args, **given):
        began.set()
        may_end.wait(60)
        yield from ()
        return "length"

    with serving(runs, Limits(seconds=3)) as (address, _), monkeypatch.context() as patch:
        assert get(address, "model", run="chat").status_code == 200
        patch.setattr("serve.chat_api.choose", slow)
        asking = threading.Thread(target=lambda: post(address, "answer", run="chat", prompt="A"))
        asking.start()
        try:
            assert began.wait(30)
            assert get(address, "model", run="chat").status_code == 503  # behind the other
            patch.setattr("serve.workbench.MOST_WAITING", 1)
            assert get(address, "model", run="chat").status_code == 429
        finally:
            may_end.set()
            asking.join()
        patch.undo()
        assert len(answer(address, run="chat", prompt="A", max_tokens=2)[1]) == 2
