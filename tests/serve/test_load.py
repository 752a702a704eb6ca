"""64 clients at once, one of which wants the longest answer: nothing is lost, memory is bounded,
waiting is fair.
"""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from serve.batching import Batcher, End
from tests.serve.conftest import serving

pytestmark = pytest.mark.slow

CLIENTS = 64
AT_ONCE = 8
SHORT = 12
LONG = 200


def test_nobody_waits_longer_than_a_fair_share_behind_the_longest_answer(folder, monkeypatch):
    """Counted in passes of the model, not in seconds: with AT_ONCE answers a pass, whoever is
    served in the order of coming starts after (tokens of all others) / AT_ONCE passes at most, and
    then needs a pass a token (Graham 1966).
    """
    waited = {}
    running = []
    came = []
    began = []
    submit = Batcher.submit
    step = Batcher.step

    def counting(batcher, request):
        before = len(running)
        emit = request.emit
        key = tuple(request.token_ids)
        came.append(key)

        def noting(event):
            if key not in began:
                began.append(key)
            if isinstance(event, End):
                waited[key] = (request.max_new_tokens, len(running) + 1 - before)
            emit(event)

        request.emit = noting
        submit(batcher, request)

    def stepping(batcher):
        if done := step(batcher):
            running.append(len(batcher.running))
        return done

    many = httpx.Client(timeout=600, limits=httpx.Limits(max_connections=CLIENTS))
    with serving(folder, max_running=AT_ONCE) as (address, library), many as client:

        def ask(number):
            new = LONG if number == 0 else SHORT
            body = {"model": "text", "prompt": f"Client {number}.", "max_tokens": new, "temperature": 0}
            answer = client.post(f"{address}/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()["choices"][0]["text"], answer.json()["usage"]["completion_tokens"]

        alone = [ask(number) for number in range(CLIENTS)]
        batcher = library.find("text").batcher
        room = batcher.cache.layers[0][0].shape
        monkeypatch.setattr(Batcher, "submit", counting)
        monkeypatch.setattr(Batcher, "step", stepping)
        with ThreadPoolExecutor(CLIENTS) as pool:
            together = list(pool.map(ask, range(CLIENTS)))
    assert together == alone  # none lost, none mixed up: every answer is that of its own prompt
    assert len(set(alone)) > CLIENTS / 2
    assert batcher.cache.free_blocks == len(batcher.cache.users)
    assert batcher.cache.layers[0][0].shape == room
    assert max(running) == AT_ONCE
    assert len(waited) == CLIENTS
    assert began == came  # the first to come has the first token first
    total = LONG + (CLIENTS - 1) * SHORT
    for new, rounds in waited.values():
        assert rounds <= (total - new) / AT_ONCE + new + 1  # 1: it may come in the middle of a pass
    short = [rounds for new, rounds in waited.values() if new == SHORT]
    assert max(short) <= 1.5 * total / AT_ONCE  # no short one waits for the end of the long one
    assert max(short) < LONG
