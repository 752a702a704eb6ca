"""Requests that come and go in any order get what they would get alone; memory is bounded and given
back.
"""

import threading
from random import Random

import pytest
import torch

from eval.attention.controls import scaled
from model import LanguageModel, generate
from model.generation import Sampling
from serve.batching import Batcher, End, Request, Token, TooManyRequests
from tests.conftest import tiny_config

GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def lm():
    torch.manual_seed(0)
    lm = LanguageModel(tiny_config(vocab_size=96, max_position_embeddings=128)).eval()
    with torch.no_grad():
        for module in lm.attention_modules():
            module.o_proj.weight.normal_(std=0.2)
    return lm


class Client:
    """A request, and what came back."""

    def __init__(self, prompt, new=8, sampling=GREEDY, stop=(), **asked):
        self.got = []
        self.done = threading.Event()
        self.on_token = lambda: None
        self.request = Request(prompt, new, sampling, frozenset(stop), self.take, **asked)

    def take(self, event):
        self.got.append(event)
        self.on_token()
        if isinstance(event, End):
            self.done.set()

    @property
    def ids(self):
        return [event.id for event in self.got if isinstance(event, Token)]

    @property
    def end(self):
        *tokens, end = self.got
        assert isinstance(end, End)
        assert all(isinstance(token, Token) for token in tokens)
        return end.reason


def alone(lm, prompt, new, sampling=GREEDY, stop=(), seed=None):
    settings = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    return generate(lm, torch.tensor([prompt]), new, **settings, stop_ids=stop, seed=seed)[0, len(prompt) :].tolist()


def prompts(count, rng=None, longest=40):
    rng = rng or Random(1)
    return [[rng.randrange(4, 96) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def finish(batcher):
    while batcher.step():
        pass


def test_all_get_what_they_would_get_alone_whenever_they_join(lm):
    batcher = Batcher(lm, blocks=60, block_size=4, max_running=5, chunk=16)
    rng = Random(2)
    clients = []
    sampled = Sampling(temperature=0.9, top_p=0.9)
    begun = prompts(1)[0][:8]  # shared blocks, but for those that change other heads
    for number, prompt in enumerate(prompts(24)):
        heads = [{}, {(0, 1): 0.0}, {(0, 1): 0.5, (1, 3): 2.0}][number % 3]
        sampling = (GREEDY, sampled)[number % 2]
        new = rng.randint(1, 30)
        clients.append(Client(begun + prompt, new, sampling, seed=number, heads=heads))
        batcher.submit(clients[-1].request)
        for _ in range(rng.randint(0, 3)):
            batcher.step()
        assert len(batcher.running) <= 5
    finish(batcher)
    for number, client in enumerate(clients):
        asked = client.request
        with scaled(lm, asked.heads):
            expected = alone(lm, asked.token_ids, asked.max_new_tokens, asked.sampling, seed=number)
        assert client.ids == expected, number
        assert client.end == "length"
    assert batcher.cache.free_blocks == 60


def test_a_stop_id_ends_the_answer_and_is_not_part_of_it(lm):
    (prompt,), batcher = prompts(1), Batcher(lm)
    whole = alone(lm, prompt, 30)
    client = Client(prompt, 30, stop=[whole[5]])
    batcher.submit(client.request)
    finish(batcher)
    assert client.ids == whole[: whole.index(whole[5])]
    assert client.end == "stop"


def test_the_blocks_of_a_client_that_goes_away_are_free_before_the_next_token(lm):
    batcher = Batcher(lm, blocks=22, block_size=4)
    stays, leaves, waits = (Client(prompt, 20) for prompt in ([5] * 10, [6] * 30, [7] * 60))
    for client in (stays, leaves, waits):
        batcher.submit(client.request)
    batcher.step()
    assert len(batcher.running) == 2  # no room for the third
    leaves.request.cancelled = True
    batcher.step()
    assert leaves.end == "cancelled"
    assert batcher.running == [stays.request]
    stays.request.cancelled = True
    finish(batcher)
    assert waits.ids == alone(lm, [7] * 60, 20)
    assert batcher.cache.free_blocks == 22


def test_nobody_is_passed_by_those_who_came_later(lm):
    batcher = Batcher(lm, blocks=20, block_size=4)
    order = []
    clients = [Client([number + 5] * size, 8) for number, size in enumerate((50, 60, 4, 4))]
    for number, client in enumerate(clients):
        client.on_token = lambda number=number: order.append(number)
        batcher.submit(client.request)
    finish(batcher)
    assert list(dict.fromkeys(order)) == [0, 1, 2, 3]


def test_a_prompt_has_log_probabilities_too_however_it_is_read(lm):
    """In chunks, beside others, and where others read the same beginning before: shared blocks give
    no logits.
    """
    (prompt,) = prompts(1, longest=1)
    prompt = prompt + [7, 8, 9] * 15
    batcher = Batcher(lm, blocks=100, block_size=4, chunk=16)
    clients = [Client(prompt, new, top_log_probs=2, of_prompt=True) for new in (5, 0, 1)]
    for client in (Client(prompt, 3), *clients):
        batcher.submit(client.request)
        finish(batcher)
    with torch.no_grad():
        expected = lm(torch.tensor([prompt]))[0].log_softmax(-1)
    for client in clients:
        read = client.request.read
        assert [token.id for token in read] == prompt
        assert read[0] == Token(prompt[0])
        for at, token in enumerate(read[1:]):
            assert token.log_prob == pytest.approx(expected[at, token.id].item(), abs=1e-4)
            assert [p for _, p in token.top] == pytest.approx(expected[at].topk(2).values.tolist(), abs=1e-4)
        assert (client.ids, client.end) == (alone(lm, prompt, 5)[: client.request.max_new_tokens], "length")
    assert batcher.cache.free_blocks == 100


def test_a_receiver_that_fails_costs_nobody_else_anything(lm):
    batcher = Batcher(lm, blocks=200, block_size=4)
    broken = [Client(prompt, 20) for prompt in prompts(3)]
    well = [Client(prompt, 20) for prompt in prompts(6)[3:]]

    def fails(event):
        raise RuntimeError("Event loop is closed")

    for client in broken:
        client.request.emit = fails
    batcher.start()
    for one, other in zip(broken, well, strict=True):
        batcher.submit(one.request)
        batcher.submit(other.request)
    assert all(client.done.wait(30) for client in well)
    assert [client.ids for client in well] == [alone(lm, client.request.token_ids, 20) for client in well]
    batcher.stop()
    assert batcher.cache.free_blocks == 200


def test_what_cannot_be_served_is_refused_at_once(lm):
    batcher = Batcher(lm, blocks=8, block_size=4, max_waiting=2)
    for prompt, new in (([5] * 100, 50), ([5] * 20, 20), ([], 5), ([5], 0)):
        with pytest.raises(ValueError, match="to read"):
            batcher.submit(Client(prompt, new).request)
    for _ in range(2):
        batcher.submit(Client([5], 1).request)
    with pytest.raises(TooManyRequests, match="2 requests are waiting"):
        batcher.submit(Client([5], 1).request)


def test_damaged_weights_end_an_answer_with_a_reason(lm):
    broken = LanguageModel(lm.config).eval()
    with torch.no_grad():
        broken.lm_head.weight[7] = torch.nan
    batcher = Batcher(broken)
    client = Client([5, 6], 4)
    batcher.submit(client.request)
    finish(batcher)
    assert client.end == "error"
    assert "non-finite" in client.got[-1].message
    assert batcher.cache.free_blocks == len(batcher.cache.users)


def test_a_stop_finishes_what_runs(lm):
    batcher = Batcher(lm)
    clients = [Client(prompt, 40) for prompt in prompts(12)]
    for client in clients:
        batcher.submit(client.request)
    batcher.start()
    batcher.stop()
    assert [client.end for client in clients] == ["length"] * 12
    with pytest.raises(TooManyRequests, match="stopping"):
        batcher.submit(Client([5], 1).request)
    assert batcher.cache.free_blocks == len(batcher.cache.users)


def test_an_error_in_a_pass_reaches_every_client_and_the_next_is_served(lm, monkeypatch):
    batcher = Batcher(lm)
    lost = [Client([5, 6, 7], 20) for _ in range(3)]

    def fails(*arguments, **options):
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(LanguageModel, "forward", fails)
    for client in lost:
        batcher.submit(client.request)
    batcher.start()
    assert all(client.done.wait(30) for client in lost)
    assert {client.got[-1] for client in lost} == {End("error", "RuntimeError: the device is gone")}
    monkeypatch.undo()
    client = Client([5, 6, 7], 5)
    batcher.submit(client.request)
    assert client.done.wait(30)
    assert client.ids == alone(lm, [5, 6, 7], 5)
    batcher.stop()
