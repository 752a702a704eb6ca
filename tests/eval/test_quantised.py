"""`eval.quantised`: a row a variant, measured through the cache that it names; and `--quantise` of
the commands.
"""

import pytest
import torch

from configs.command import InputError
from eval import quantised
from eval.load_model import open_model
from model import load
from model.variants.caches import QuantisedCache
from tests.conftest import random_model, tiny_config
from tests.processes import run_main


def test_inside_every_pass_reads_through_a_cache_of_the_kind():
    lm = random_model(tiny_config())
    ids = torch.randint(0, 192, (2, 12))
    with torch.no_grad():
        exact = lm(ids)
        rounded = lm(ids, kv_cache=QuantisedCache(lm.config))
        with quantised.reading_through(lm, "int8"):
            assert torch.equal(lm(ids), rounded)
            assert torch.equal(lm(input_ids=ids), rounded)
        assert torch.equal(lm(ids), exact)
        assert not torch.equal(exact, rounded)


def test_without_torchao_its_rows_are_left_out_and_it_cannot_be_asked_for(tiny_directory, monkeypatch):
    monkeypatch.setattr("model.variants.quantised.find_spec", lambda name: None)
    monkeypatch.setattr("eval.quantised.DECODED", 4)
    monkeypatch.setattr("eval.quantised.ROUNDS", 1)
    done = run_main(quantised.main, str(tiny_directory), "--device", "cpu")
    assert done.returncode == 0
    lines = [line for line in done.stdout.splitlines() if line.startswith("| ") and "--" not in line]
    rows = {name.strip(): cells for name, *cells in (line.split("|")[1:] for line in lines[1:])}
    assert set(rows) == {"float32", "bfloat16", "int8 cache"}
    assert float(rows["float32"][-2]) == 0
    assert 0 < float(rows["int8 cache"][-2]) < 0.05
    assert int(rows["float32"][0].replace(",", "")) == 2 * int(rows["bfloat16"][0].replace(",", ""))
    with pytest.raises(InputError, match="torchao is not installed"):
        open_model(tiny_directory, "cpu", quantise="int8")


def test_a_model_is_opened_with_fewer_bits(tiny_directory):
    pytest.importorskip("torchao")
    lm, tokenizer = open_model(tiny_directory, "cpu", quantise="int8")
    ids = torch.tensor([tokenizer.encode("a fox")])
    exact = load(tiny_directory)(ids)
    assert 0 < (lm(ids) - exact).norm() < 0.05 * exact.norm()


def test_the_first_pass_of_a_model_is_not_timed_and_a_slow_model_is_slower(monkeypatch):
    """On a clock that moves when a model reads: 1 second a pass of one, 4 of the other, and the
    first one a minute.
    """
    models = {name: (random_model(tiny_config()), "dynamic") for name in ("quick", "slow")}
    seen = set()
    now = [0.0]
    monkeypatch.setattr(quantised.time, "perf_counter", lambda: now[0])

    def reads(name: str, seconds: float) -> None:
        now[0] += seconds if name in seen else 60.0
        seen.add(name)

    models["quick"][0].register_forward_pre_hook(lambda *_: reads("quick", 1.0))
    models["slow"][0].register_forward_pre_hook(lambda *_: reads("slow", 4.0))
    assert quantised.decode_speeds(models) == {"quick": 1.0, "slow": 0.25}  # a pass gives a token
