"""`python -m eval.attention` as a process of its own."""

import numpy as np
import pytest

from data.config import DataConfig, TokenizerConfig
from data.tokenizer import train_tokenizer
from eval.attention.__main__ import main
from eval.attention.probes import build_probes
from eval.attention.snapshots import take_snapshot
from eval.config import AttentionConfig
from model import load, save
from tests.conftest import random_model, tiny_config
from tests.processes import run_main, run_module


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TokenizerConfig(kind="byte"), [])


@pytest.fixture(scope="module")
def directory(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("model")
    save(random_model(tiny_config(vocab_size=tokenizer.vocab_size, max_position_embeddings=512)), folder)
    tokenizer.save(folder)
    return folder


def test_the_command_line_draws_a_checkpoint(directory, tmp_path):
    done = run_module("eval.attention", directory, "--text", "the cat", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "text.png").is_file()
    assert (tmp_path / "text.html").is_file()


def test_a_head_is_named_by_a_score_or_its_numbers(directory, tokenizer, tmp_path):
    probes = build_probes(tokenizer, DataConfig(), 512, {"text": "the cat"})
    scores = take_snapshot(load(directory), probes, AttentionConfig(), (0, 0, 0.0)).scores
    named = {name: np.unravel_index(scores[name].argmax(), (2, 4)) for name in ("induction", "previous_token")}
    for name, (layer, head) in (named | {"1,3": (1, 3)}).items():
        done = run_main(main, directory, "--text", "the cat", "--head", name, "--out", tmp_path / name)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / name / f"text_L{layer}H{head}.png").is_file(), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--head", "inducton"], "--head inducton: give a layer and a head, such as 0,1, or a score: previous_token, "),
        (["--head", "cross_document"], "cannot be measured here"),
        (["--head", "9,0"], "this model has layers 0 to 1, heads 0 to 3"),
        (["--head", "1"], "--head 1: give a layer and a head"),
        (["--max-tokens", "300"], "--max-tokens"),
        (["--text", ""], "is empty"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_a_line(directory, tmp_path, options, message):
    done = run_main(main, directory, "--text", "the cat", *options, "--out", tmp_path)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
