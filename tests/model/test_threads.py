"""Decoding on one thread or on all: the quicker one is taken, and the numbers are the same."""

import pytest
import torch

from model import generate
from model.decoding import threads
from model.decoding.generation import compiled_step
from model.decoding.threads import FIRST_PAUSE, LONGEST_PAUSE, TRIAL, Pace, one_thread, openmp
from tests.conftest import random_model, tiny_config


class Machine:
    """A clock on which a step takes what the machine needs for it, and a note of how each step was computed."""

    def __init__(self, monkeypatch):
        self.now, self.one, self.all, self.ways = 0.0, 3.0, 2.0, []
        self.pace = Pace(lambda: self.now)
        monkeypatch.setattr(threads, "openmp", lambda: None)

    def step(self):
        self.ways.append(self.pace.on_one)
        self.now += self.one if self.pace.on_one else self.all
        return len(self.ways)

    def run(self, steps):
        """How many of these steps one thread computed."""
        before = len(self.ways)
        assert [self.pace(self.step) for _ in range(steps)] == list(range(before + 1, before + steps + 1))
        return sum(self.ways[before:])


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def test_alone_all_threads_are_taken_after_a_trial(machine):
    assert machine.run(1 + 2 * TRIAL) == 1 + TRIAL
    assert machine.run(FIRST_PAUSE) == 0
    assert machine.run(2 * TRIAL) == TRIAL  # the next trial


def test_beside_a_busy_program_one_slow_token_is_enough(machine):
    machine.run(1 + 2 * TRIAL + 5)
    machine.all = 150.0
    assert machine.run(1) == 0  # nobody knows yet
    assert machine.run(TRIAL) == TRIAL
    assert machine.run(1) == 0  # all threads take longer than TRIAL tokens on one: given up at once
    assert machine.run(FIRST_PAUSE) == FIRST_PAUSE


def test_when_the_other_program_ends_all_threads_come_back(machine):
    machine.all = 150.0
    machine.run(1000)
    machine.all = 2.0
    machine.run(LONGEST_PAUSE + 2 * TRIAL)
    assert machine.run(2 * FIRST_PAUSE) <= 2 * TRIAL  # in trials alone


def test_beside_a_busy_program_trials_become_rare(machine):
    machine.all = 150.0
    tries = 10_000 - machine.run(10_000)
    assert 5 <= tries <= 5 + 10_000 // LONGEST_PAUSE


needs_openmp = pytest.mark.skipif(openmp() is None, reason="PyTorch's threads are not OpenMP's here")


@needs_openmp
def test_one_thread_computes_alone_and_the_number_of_threads_stays():
    library, before = openmp(), torch.get_num_threads()
    levels = library.omp_get_max_active_levels()
    torch.set_num_threads(2)
    try:
        with one_thread(library):
            assert library.omp_get_max_active_levels() == 0
            assert torch.get_num_threads() == 2
        assert library.omp_get_max_active_levels() == levels
    finally:
        torch.set_num_threads(before)


@needs_openmp
@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 16])
def test_one_thread_gives_the_bits_of_all(rows, monkeypatch):
    """Wide enough that compiled loops are shared out between threads."""
    lm = random_model(tiny_config(vocab_size=512, hidden_size=256, intermediate_size=704, max_position_embeddings=128))
    prompt = torch.randint(0, 512, (rows, 6))
    before, found, ways = torch.get_num_threads(), {}, []
    torch.set_num_threads(2)
    compiled_step.cache_clear()
    try:
        for on_one in (True, False):

            class Fixed(Pace):
                def _took(self, seconds, on_one=on_one):
                    ways.append(self.on_one)
                    self.on_one = on_one

            monkeypatch.setattr("model.decoding.generation.Pace", Fixed)
            settings = {"temperature": 1.0, "seed": 3, "return_log_probs": True, "stop_ids": ()}
            found[on_one] = generate(lm, prompt, 40, kv_cache="static", compile=True, **settings)
    finally:
        torch.set_num_threads(before)
    assert True in ways
    assert False in ways
    for one, everyone in zip(found[True], found[False], strict=True):
        assert torch.equal(one, everyone)
