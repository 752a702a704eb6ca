"""Every key of `train.optimizer:` moves some weights otherwise; the schedule's keys are in test_every_key_train.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from model import LanguageModel
from tests.configs.every_key import Change, each, keys_of, shows
from tests.conftest import tiny_config
from tests.train.helpers import write_config
from train.config import load_run_config
from train.optimizer import build_optimizers

CHANGES = each(
    [
        Change("train.optimizer.name", "adamw", "blocks, head, vectors"),  # lr is then of all but the embedding
        Change("train.optimizer.lr", 0.03, "blocks"),
        Change("train.optimizer.adamw_lr", 0.03, "head, vectors"),
        Change("train.optimizer.embedding_lr", 0.03, "embedding"),
        Change("train.optimizer.weight_decay", 0.5, "blocks, head"),
        Change("train.optimizer.momentum", 0.5, "blocks"),
        Change("train.optimizer.betas", [0.5, 0.5], "head, embedding, vectors"),
        Change("train.optimizer.eps", 1.0, "head, embedding, vectors"),
    ]
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("optimizer"))


def moved(config_file, overrides: list[str]) -> dict[str, Any]:
    """What four steps do to the weights, with the same gradients whatever the weights are, by kind of parameter."""
    config = load_run_config(config_file, ["train.optimizer.embedding_lr=0.1", *overrides])
    torch.manual_seed(0)
    lm = LanguageModel(tiny_config(tie_word_embeddings=False))
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.add_(torch.randn_like(parameter))  # so that there is something to decay
    optimizers = build_optimizers(lm, config.train.optimizer)
    for _ in range(4):
        for parameter in lm.parameters():
            parameter.grad = torch.randn_like(parameter)
        for optimizer in optimizers:
            optimizer.step()
    found: dict[str, list] = {"blocks": [], "head": [], "embedding": [], "vectors": []}
    for name, parameter in lm.named_parameters():
        matrix = "blocks" if ".layers." in name else "embedding" if "embed" in name else "head"
        found["vectors" if parameter.ndim < 2 else matrix].append(parameter.detach())
    return found


@shows(*keys_of(CHANGES))
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_it_changes_how_weights_move(tiny, change):
    change.check(moved(tiny, []), moved(tiny, change.overrides))
