"""`python -m eval.attention` as a process of its own."""

import numpy as np

from data import load_tokenizer
from data.config import DataConfig
from eval.attention.__main__ import main
from eval.attention.probes import build_probes
from eval.attention.snapshots import take_snapshot
from eval.config import AttentionConfig
from model import load
from tests.processes import run_main, run_module


def test_a_checkpoint_is_drawn_and_a_head_is_named_by_a_score_or_its_numbers(tiny_directory, tmp_path):
    probes = build_probes(load_tokenizer(tiny_directory), DataConfig(), 512, {"text": "the cat"})
    scores = take_snapshot(load(tiny_directory), probes, AttentionConfig(), (0, 0, 0.0)).scores
    named = {name: np.unravel_index(scores[name].argmax(), (2, 4)) for name in ("induction", "previous_token")}
    for name, (layer, head) in (named | {"1,3": (1, 3)}).items():
        done = run_module("eval.attention", tiny_directory, "--text", "the cat", "--head", name, "--out", tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / f"text_L{layer}H{head}.png").is_file(), name
        (tmp_path / f"text_L{layer}H{head}.png").unlink()
    assert {"text.png", "text.html"} <= {file.name for file in tmp_path.iterdir()}


def test_what_cannot_be_drawn_is_refused_in_a_line(tiny_directory, tmp_path):
    for options, message in (
        (["--head", "inducton"], "--head inducton: give a layer and a head, such as 0,1, or a score: previous_token, "),
        (["--head", "cross_document"], "cannot be measured here"),
        (["--head", "9,0"], "this model has layers 0 to 1, heads 0 to 3"),
        (["--max-tokens", "300"], "--max-tokens"),
        (["--text", ""], "is empty"),
    ):
        done = run_main(main, tiny_directory, "--text", "the cat", *options, "--out", tmp_path)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
