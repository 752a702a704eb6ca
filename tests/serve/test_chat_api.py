"""The page's chat, as it asks /v1/chat/completions with `inspect`, against the model itself."""

import pytest
import torch

from eval.attention import capture
from eval.attention.controls import ablated, scaled
from eval.chat.session import Conversation
from eval.questions import one_question, source_of
from model import generate
from serve.limits import Limits
from tests.serve.chat_helpers import CONTEXT, SAID, answer, ask, get, ids_of, look, opened, weigh
from tests.serve.conftest import serving

TWO_HEADS = [[0, 1, 0.0], [1, 3, 0.0]]


def greedy(lm, tokenizer, ids, new):
    return generate(lm, torch.tensor([ids]), new, temperature=0, stop_ids=tokenizer.stop_ids)[0, len(ids) :].tolist()


@pytest.fixture
def address(chat_address):
    return chat_address


def test_what_can_be_chosen_is_listed(address):
    models = {model["name"]: model for model in get(address).json()["models"]}
    assert models["chat"] == {"name": "chat", "steps": [10, 20], "adapters": ["adapters"]}
    assert models["text"] == {"name": "text", "steps": [10], "adapters": []}
    about = get(address, "/chat").json()
    assert (about["step"], about["is_chat"], about["layers"], about["heads"]) == (10, True, 2, 4)
    assert (about["knows_questions"], about["context_length"]) == (True, CONTEXT)
    text = get(address, "/text", step=10).json()
    assert (text["is_chat"], text["knows_questions"]) == (False, False)


def test_every_checkpoint_and_adapter_answers_as_itself(address, chat_runs):
    written = {step: ids_of(answer(address, inspect={"step": step})[1]) for step in (10, 20)}
    for step, ids in written.items():
        lm, tokenizer, prompt = opened(chat_runs, step=step)
        assert ids == greedy(lm, tokenizer, prompt, 8)
    lm, tokenizer, prompt = opened(chat_runs)
    Conversation(lm, tokenizer).use_adapters(chat_runs / "adapters")
    adapted = ids_of(answer(address, inspect={"step": 10, "adapter": "adapters"})[1])
    assert adapted == greedy(lm, tokenizer, prompt, 8)
    assert written[10] != written[20] != adapted


def test_a_question_of_the_world_comes_with_its_answer(address, chat_runs):
    question = get(address, "/chat/question", number=3).json()
    expected = one_question(source_of(chat_runs / "chat"), 3, lambda one: question["messages"] == list(one.messages))
    assert (question["reply"], question["answer"]) == (expected.reply, expected.answer)
    assert expected.answer in expected.reply
    assert question == get(address, "/chat/question", number=3).json()
    assert question != get(address, "/chat/question", number=4).json()
    lm, tokenizer, _ = opened(chat_runs)
    ids, _, _ = answer(address, question["messages"], new=2)
    assert len(ids) + len(tokenizer.encode(question["reply"])) < lm.config.max_position_embeddings
    refused = get(address, "/text/question", number=3)
    assert refused.status_code == 400
    assert "config.yaml" in refused.json()["error"]["message"]


def test_tokens_are_those_of_generate_with_the_models_own_probabilities(address, chat_runs):
    lm, tokenizer, ids = opened(chat_runs)
    read, tokens, message = answer(address, new=12, top_logprobs=5)
    written = ids_of(tokens)
    assert (read, written, message["finish_reason"]) == (ids, greedy(lm, tokenizer, ids, 12), "length")
    with torch.no_grad():
        log_probs = lm(torch.tensor([ids + written]))[0].log_softmax(-1)
    for at, token in enumerate(tokens, start=len(ids) - 1):
        best = log_probs[at].topk(5)
        # cached, token by token, against all at once: float32 sums in another order
        assert [likely["logprob"] for likely in token["top_logprobs"]] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert token["logprob"] == token["top_logprobs"][0]["logprob"]
        assert token["top_logprobs"][0]["id"] == token["id"] == best.indices[0]
        assert token["top_logprobs"][0]["label"] == token["label"]
    assert "".join(token["text"] for token in tokens) == tokenizer.decode(written).rstrip("\ufffd")


def test_a_run_on_texts_continues_the_message(address, chat_runs):
    lm, tokenizer, _ = opened(chat_runs, "text")
    ids = [tokenizer.bos_id, *tokenizer.encode("Once there was")]
    read, tokens, _ = answer(address, [{"role": "user", "content": "Once there was"}], model="text")
    assert (read, ids_of(tokens)) == (ids, greedy(lm, tokenizer, ids, 8))


def test_it_goes_on_from_an_alternative(address, chat_runs):
    lm, tokenizer, ids = opened(chat_runs)
    _, tokens, _ = answer(address)
    begun = [*ids_of(tokens[:3]), tokens[3]["top_logprobs"][1]["id"]]
    read, all_tokens, _ = answer(address, inspect={"answer_ids": begun})
    assert read == ids
    assert ids_of(all_tokens) == [*begun, *greedy(lm, tokenizer, ids + begun, 8)]
    assert [token["logprob"] for token in all_tokens[:3]] == pytest.approx([t["logprob"] for t in tokens[:3]], abs=1e-4)
    end = tokenizer.special_id("<|im_end|>")
    _, ended, message = answer(address, inspect={"answer_ids": [*begun, end]})
    assert (ids_of(ended), message["finish_reason"]) == ([*begun, end], "stop")


def test_an_answer_ends_with_its_stop_token(address, monkeypatch):
    ids = ids_of(answer(address)[1])
    monkeypatch.setattr("data.tokenizer.Tokenizer.stop_ids", property(lambda tokenizer: [ids[3]]))
    _, tokens, message = answer(address)
    assert (ids_of(tokens), message["finish_reason"]) == (ids[: ids.index(ids[3]) + 1], "stop")
    assert ids_of(answer(address, ignore_eos=True)[1]) == ids


# heads


def test_what_it_looked_at_is_what_capture_says(address, chat_runs):
    lm, _, ids = opened(chat_runs)
    text = ids + ids_of(answer(address)[1])
    maps = capture(lm, torch.tensor([text]))
    for position in (1, 5, len(ids), len(text) - 1):
        weights = look(address, text, position)
        assert weights.shape == (2, 4, position)
        assert torch.equal(weights, maps.weights[:, 0, :, position - 1, :position])
        assert torch.allclose(weights.sum(-1), torch.ones(2, 4))


def test_long_texts_are_captured_a_part_at_a_time(address, chat_runs, monkeypatch):
    lm, _, ids = opened(chat_runs)
    whole = capture(lm, torch.tensor([ids]))
    monkeypatch.setattr("eval.chat.attention.MOST_TOKENS", 7)
    for position in (1, 7, 8, 14, 15, len(ids) - 1):
        # the keys of earlier parts come from a cache: rounding apart the same
        expected = whole.weights[:, 0, :, position - 1, :position]
        assert torch.allclose(look(address, ids, position), expected, atol=1e-5)


def test_a_head_scaled_by_one_changes_nothing_and_one_scaled_by_zero_is_ablated(chat_runs):
    lm, _, ids = opened(chat_runs)
    row, heads = torch.tensor([ids]), [(0, 1), (1, 3)]
    with torch.no_grad():
        before = lm(row)
        for factor, is_same in ((1.0, True), (0.5, False)):
            with scaled(lm, dict.fromkeys(heads, factor)):
                assert torch.equal(lm(row), before) == is_same
        with ablated(lm, heads):
            without = lm(row)
        with scaled(lm, dict.fromkeys(heads, 0.0)):
            assert torch.equal(lm(row), without)
        assert torch.equal(lm(row), before)


def test_heads_that_are_off_answer_as_ablated_and_weigh_the_first_answer(address, chat_runs):
    lm, tokenizer, ids = opened(chat_runs)
    plain = ids_of(answer(address)[1])
    first = ids + plain
    changed = ids_of(answer(address, inspect={"heads": TWO_HEADS})[1])
    weighed = weigh(address, plain, TWO_HEADS)
    row = look(address, first, len(first) - 1, TWO_HEADS)
    with ablated(lm, [(0, 1), (1, 3)]), torch.no_grad():
        assert changed == greedy(lm, tokenizer, ids, 8)
        log_probs = lm(torch.tensor([first[:-1]]))[0].log_softmax(-1)
        maps = capture(lm, torch.tensor([first]))
    own = log_probs[range(len(ids) - 1, len(first) - 1), plain].tolist()
    assert ids_of(weighed) == plain
    assert [token["logprob"] for token in weighed] == pytest.approx(own, abs=1e-5)
    assert torch.equal(row, maps.weights[:, 0, :, -2, : len(first) - 1])
    assert ids_of(answer(address)[1]) == plain  # nothing of it is left, in the cache neither


# what is refused


@pytest.mark.parametrize(
    ("asked", "status", "says"),
    [
        ({"model": "nothing"}, 404, "does not exist"),
        ({"inspect": {"step": 15}}, 404, "There are: 10, 20"),
        ({"inspect": {"adapter": "text"}}, 404, "no run with adapters for chat"),
        ({"model": "text", "inspect": {"adapter": "adapters"}}, 404, "no run with adapters for text"),
        ({"inspect": {"head": []}}, 400, "inspect.head"),
        ({"inspect": {"answer_ids": [9999]}}, 400, "answer_ids: token ids must be"),
        ({"inspect": {"answer_ids": [1] * CONTEXT}}, 400, f"maximum context length is {CONTEXT}"),
        ({"inspect": {"heads": [[2, 0, 0.0]]}}, 400, "has no head"),
        ({"inspect": {"heads": [[0, 0, 11.0]]}}, 400, "inspect.heads"),
        ({"inspect": {}, "max_completion_tokens": 0}, 400, "nothing to answer"),
    ],
)
def test_a_wrong_request_gets_one_clear_line(address, asked, status, says):
    response = ask(address, SAID, **asked)
    assert response.status_code == status, response.text[:500]
    assert says in response.json()["error"]["message"]


def test_the_limits_of_the_server_hold(chat_runs):
    with serving(chat_runs, Limits(max_new_tokens=3)) as (address, _):
        assert len(answer(address, new=9)[1]) == 3
