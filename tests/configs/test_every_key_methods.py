"""Every key of the methods that come after pretraining does what its sentence says."""

from __future__ import annotations

import pytest
import torch

from configs.command import InputError
from model.adapters.lora import adapted, add_adapters
from tests.configs.every_key import shows
from tests.conftest import random_model, tiny_config
from tests.train.helpers import write_config
from train.config import load_run_config


@shows("lora", "lora.rank", "lora.alpha", "lora.dropout", "lora.target_modules")
def test_the_keys_of_lora_decide_the_adapters(tmp_path):
    config_file, given = write_config(tmp_path), ["init_from=x"]
    assert load_run_config(config_file, given).lora is None
    with pytest.raises(InputError, match=r"`lora.rank=8`: lora trains beside .*: set init_from"):
        load_run_config(config_file, ["lora.rank=8"])

    def layers(*overrides: str):
        lora = load_run_config(config_file, [*given, *overrides]).lora
        assert lora is not None
        lm = random_model(tiny_config())
        add_adapters(lm, lora)
        return adapted(lm)

    default = layers("lora.rank=8")
    assert len(default) == 14
    assert {tuple(layer.lora_A.weight.shape) for layer in default.values()} == {(8, 32), (8, 96)}
    chosen = layers("lora.rank=2", "lora.alpha=5", "lora.dropout=0.5", "lora.target_modules=[v_proj]")
    assert {name.rpartition(".")[2] for name in chosen} == {"v_proj"}
    layer = next(iter(chosen.values()))
    assert (len(layer.lora_A.weight), layer.scaling) == (2, 2.5)
    layer.train()
    torch.nn.init.normal_(layer.lora_B.weight)
    x = torch.ones(1, 32)
    assert not torch.equal(layer(x), layer(x))
