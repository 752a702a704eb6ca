"""Compiled decoding on one thread or on all: the quicker one is taken, and the numbers are the same."""

import pytest
import torch

from model import compiled_decoding, generate
from model.compiled_decoding import PAUSE, TRIAL, FewRows, compiled_step, openmp, quicker_way
from tests.conftest import random_model, tiny_config


class Machine:
    """Steps take what the machine needs for them: `one` seconds on one thread, `everyone` on all."""

    def __init__(self):
        self.one, self.everyone = 3.0, 2.0
        self.way = quicker_way()
        self.on_one = next(self.way)

    def run(self, steps):
        """How many of these steps one thread computed."""
        count = 0
        for _ in range(steps):
            count += self.on_one
            self.on_one = self.way.send(self.one if self.on_one else self.everyone)
        return count


def test_alone_all_threads_are_taken_after_a_trial():
    machine = Machine()
    assert machine.run(1 + 2 * TRIAL) == 1 + TRIAL
    assert machine.run(PAUSE) == 0
    assert machine.run(2 * TRIAL) == TRIAL  # the next trial


def test_beside_a_busy_program_one_slow_token_is_enough():
    machine = Machine()
    machine.run(1 + 2 * TRIAL + 5)
    machine.everyone = 150.0
    assert machine.run(1) == 0  # nobody knows yet
    assert machine.run(TRIAL) == TRIAL
    assert machine.run(1) == 0  # all threads take longer than TRIAL tokens on one: given up at once
    assert machine.run(PAUSE) == PAUSE
    machine.everyone = 2.0  # the other program ends: all threads come back with the next trial
    assert machine.run(2 * TRIAL) == TRIAL
    assert machine.run(PAUSE) == 0


@pytest.mark.skipif(openmp() is None, reason="PyTorch's threads are not OpenMP's here")
@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 16])
def test_one_thread_gives_the_bits_of_all(rows, monkeypatch):
    """Wide enough that compiled loops are shared out between threads."""
    lm = random_model(tiny_config(vocab_size=512, hidden_size=256, intermediate_size=704, max_position_embeddings=128))
    prompt = torch.randint(0, 512, (rows, 6))
    before, results = torch.get_num_threads(), {}
    torch.set_num_threads(2)
    compiled_step.cache_clear()

    def always(on_one):
        while True:
            yield on_one

    try:
        for on_one in (True, False):
            monkeypatch.setattr(compiled_decoding, "quicker_way", lambda on_one=on_one: always(on_one))
            settings = {"temperature": 1.0, "seed": 3, "return_log_probs": True, "stop_ids": ()}
            results[on_one] = generate(lm, prompt, 40, kv_cache="static", compile=True, **settings)
    finally:
        torch.set_num_threads(before)
    for one, everyone in zip(results[True], results[False], strict=True):
        assert torch.equal(one, everyone)


@pytest.mark.parametrize("shape", [(1, 1, 24), (1, 24), (4, 1, 24), (2, 3, 24), (40, 24)])
@pytest.mark.parametrize("bias", [True, False])
def test_products_of_few_rows_are_those_of_a_linear_layer(shape, bias):
    layer, x = torch.nn.Linear(24, 40, bias=bias), torch.randn(shape)
    with torch.no_grad(), FewRows():
        product = layer(x)
    torch.testing.assert_close(product, layer(x), rtol=1e-5, atol=1e-5)
