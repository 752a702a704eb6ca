"""Runs to compare, and a browser."""

import shutil
from pathlib import Path

import pytest

from data.config import TokenizerConfig
from data.tokenizer import train_tokenizer
from tests.eval.page.viewer_helpers import chromium
from tests.eval.scoring import save_model
from tests.train.helpers import pretrain, write_config


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> Path:
    """Two variants, mha with seeds 0 and 1 and mqa with seeds 0, 1 and 2: trained once for all
    tests.
    """
    folder = tmp_path_factory.mktemp("runs")
    config = write_config(folder, train={"max_steps": 4, "checkpoint_every": 0}, eval={"every": 2})
    for name, heads, seeds in (("mha", 4, (0, 1)), ("mqa", 1, (0, 1, 2))):
        for seed in seeds:
            pretrain(config, f"model.num_key_value_heads={heads}", f"seed={seed}", f"name={name}-seed{seed}")
    return folder / "runs"


@pytest.fixture
def own(runs, tmp_path) -> Path:
    """Copies that a test may change."""
    shutil.copytree(runs, tmp_path / "runs", ignore=shutil.ignore_patterns(".prepared"))
    return tmp_path / "runs"


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory) -> Path:
    """A model directory with random weights and a tokenizer of bytes."""
    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), [])
    fields = {"hidden_size": 64, "max_position_embeddings": 512}
    return save_model(tmp_path_factory.mktemp("tiny"), tokenizer, scale=0.05, **fields)


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser
