"""`python -m eval.attention` as a process of its own."""

import numpy as np
import pytest

from data import load_tokenizer
from data.config import DataConfig, TokenizerConfig
from data.tokenizer import train_tokenizer
from eval.attention.__main__ import main
from eval.attention.probes import build_probes
from eval.attention.snapshots import look
from eval.config import AttentionConfig
from model import load, save
from tests.conftest import random_model, tiny_config
from tests.processes import run_main, run_module


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), [])
    save(random_model(tiny_config(vocab_size=tokenizer.vocab_size, max_position_embeddings=512)), folder)
    tokenizer.save(folder)
    return folder


def test_the_command_line_draws_a_checkpoint(directory, tmp_path):
    done = run_module("eval.attention", directory, "--text", "the cat", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "text.png").is_file()
    assert run_main(main, directory, "--max-tokens", "300").returncode == 2


def test_a_head_is_named_by_a_score(directory, tmp_path):
    lm, tokenizer = load(directory), load_tokenizer(directory)
    probes = build_probes(tokenizer, DataConfig(), lm.config.max_position_embeddings, {"text": "the cat"})
    scores = look(lm, probes, AttentionConfig(), (0, 0, 0.0)).scores
    for name in ("induction", "previous_token"):  # of random tokens, and of the text itself
        layer, head = np.unravel_index(scores[name].argmax(), scores[name].shape)
        done = run_main(main, directory, "--text", "the cat", "--head", name, "--out", tmp_path / name)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / name / f"text_L{layer}H{head}.png").is_file(), name
    for name, message in (
        ("inducton", "--head inducton: there is no such score, did you mean induction?"),
        ("cross_document", "cannot be measured here"),
    ):
        done = run_main(main, directory, "--text", "the cat", "--head", name, "--out", tmp_path)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
