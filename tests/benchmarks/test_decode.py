"""`benchmarks.decode`: the bytes it predicts from are those of the cache, and where sharing begins to pay."""

import time

import pytest
import torch

from benchmarks import decode
from benchmarks.decode import Cell, Machine, cells, filled, next_token, where_it_pays
from configs.command import InputError
from tests.conftest import random_model, tiny_config
from tests.processes import run_main

DEVICE = torch.device("cpu")


def test_times_are_predicted_from_operations_and_from_all_bytes_of_weights_and_cache():
    config, machine = tiny_config(), Machine(bandwidth=1e6, rate=1e9)
    found = cells(config, [4, 1], 3, 20, machine, DEVICE, 1, time.perf_counter)
    for cell, heads in zip(found, (4, 1), strict=True):
        lm = random_model(decode.shaped(config, heads, 21))
        assert cell.cache == 2 * config.num_hidden_layers * 3 * 20 * heads * config.head_size * 4
        assert cell.next_predicted == (4 * lm.num_parameters() + cell.cache) / 1e6
        assert cell.first_predicted == 60 * lm.flops_per_token(20, training=False) / 1e9
        assert cell.first > 0
        assert cell.next > 0


def test_prompts_that_would_take_minutes_are_not_read(monkeypatch):
    monkeypatch.setattr(decode, "LONGEST_PROMPT", 59)
    (cell,) = cells(tiny_config(), [2], 3, 20, Machine(1e9, 1e9), DEVICE, 1, time.perf_counter)
    assert cell.first is None
    assert "–" in decode.shown([cell])


def test_a_step_reads_behind_the_cache_and_leaves_it_as_it_was():
    lm = random_model(tiny_config())
    cache = filled(lm, 2, 7)
    before, seen = cache.nbytes, []
    lm.model.register_forward_pre_hook(lambda module, args: seen.append(args[4].length))
    assert next_token(lm, cache, 2).shape == (2, 1)
    assert seen == [7]
    assert (cache.length, cache.nbytes) == (7, before)


def test_sharing_pays_from_the_context_on_behind_which_it_is_never_lost():
    def row(batch, *shares):
        for number, share in enumerate(shares):
            for heads, seconds in ((8, 1.0), (1, share)):
                yield Cell(heads, batch, 2**number, 0, None, 1.0, seconds, 1.0)

    found = [*row(1, 0.5, 0.95, 0.9, 0.6), *row(4, 0.8, 0.7), *row(9, 0.5, 0.91)]
    assert where_it_pays(found) == [
        "batch 1: 1 key/value head instead of 8 pays from 4 tokens on",
        "batch 4: 1 key/value head instead of 8 pays from 1 tokens on",
        "batch 9: 1 key/value head instead of 8 does not pay in these contexts",
    ]


def test_heads_that_cannot_be_shared_are_named():
    with pytest.raises(InputError, match="--kv-heads 3: 4 query heads cannot share them evenly"):
        decode.shaped(tiny_config(), 3, 8)


def test_the_command_prints_a_row_a_cell(monkeypatch):
    monkeypatch.setattr(decode, "READ", 2**20)
    small = ["--kv-heads", "8,1", "--batches", "2", "--contexts", "8", "--rounds", "1"]
    done = run_main(decode.main, *small)
    assert done.returncode == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if "2 x 8" in line]
    assert [row[1] for row in rows] == ["8", "1"]
    assert rows[0][-1] == "1.00"
