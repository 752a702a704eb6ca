"""Memory does not grow: not over 300 steps of training, not over 2,000 answers of the server.

Live tensors are counted: one that is kept at every step is seen at once, however small it is.
Resident memory shows what is kept elsewhere; malloc alone makes it differ by a few MB.
"""

import gc
import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest
import torch

from tests.serve.conftest import folder, serving  # noqa: F401  # a fixture
from tests.train.helpers import at_each_step, pretrain_rank, run_world, write_config

pytestmark = pytest.mark.slow

MORE_TENSORS = 8
MORE_MB = 6  # a server may be in the middle of something


def memory() -> tuple[int, int]:
    """Live tensors, and resident megabytes."""
    gc.collect()
    tensors = sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())
    return tensors, psutil.Process().memory_info().rss // 10**6


def assert_steady(looks: list) -> None:
    """The first look is after warming up."""
    (tensors, megabytes), *later = looks
    assert len(later) >= 3
    assert all(now <= tensors + MORE_TENSORS and mb <= megabytes + MORE_MB for now, mb in later), looks


def watched_rank(config) -> None:
    looks = []

    def look(run) -> None:
        # the step before ended with an evaluation and a save
        if run.state.step > 100 and run.state.step % 50 == 1:
            looks.append(memory())
            config.with_name("looks.json").write_text(json.dumps(looks))

    with at_each_step(look):
        pretrain_rank(config, [])


def test_training(tmp_path):
    """Without the attention hook: its page holds the scores of every look."""
    train = {"max_steps": 302, "checkpoint_every": 25, "trace": True, "micro_batch_size": 2}
    config = write_config(tmp_path, train=train, eval={"every": 25, "hooks": ["validation", "samples"]})
    assert run_world(1, watched_rank, config) == [0]
    assert_steady(json.loads((tmp_path / "looks.json").read_text()))


def test_serving(folder):  # noqa: F811
    looks = []
    said = [{"role": "user", "content": "Who has the ball?"}]
    many = httpx.Client(timeout=600, limits=httpx.Limits(max_connections=8))
    with serving(folder) as (address, _), many as client, ThreadPoolExecutor(8) as pool:

        def ask(number):
            text = {"prompt": f"Client {number}.", "model": "text"}
            chat = {"messages": said, "model": "chat", "logprobs": True, "top_logprobs": 3}
            where, body = (("completions", text), ("chat/completions", chat))[number % 2]
            more = {"max_tokens": 2, "seed": number, "stream": number % 4 > 1}
            answer = client.post(f"{address}/v1/{where}", json=body | more)
            assert answer.status_code == 200, answer.text

        for first in range(0, 2000, 250):
            list(pool.map(ask, range(first, first + 250)))
            looks.append(memory())
    assert_steady(looks[2:])
