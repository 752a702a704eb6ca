"""`python -m eval.attention` as a process of its own."""

from data.config import TokenizerConfig
from data.tokenizer import train_tokenizer
from model import save
from tests.conftest import random_model, tiny_config
from tests.train.helpers import run_module


def test_the_command_line_draws_a_checkpoint(tmp_path):
    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), [])
    save(random_model(tiny_config(vocab_size=tokenizer.vocab_size)), tmp_path)
    tokenizer.save(tmp_path)
    done = run_module("eval.attention", tmp_path, "--text", "the cat", "--out", tmp_path / "pictures")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "pictures/text.png").stat().st_size > 10_000
    assert run_module("eval.attention", tmp_path, "--max-tokens", "300", "--out", tmp_path).returncode == 2
    wrong = run_module("eval.attention", tmp_path / "nowhere")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "is neither a run" in wrong.stderr
