"""Projects beside each other: a stand-in for nanoGPT, a program of its own that prints lines in
nanoGPT's format.
"""

import json
import math
import pickle

import numpy as np
import pytest

from benchmarks import compare, ngram
from data.prepare import prepare
from tests.benchmarks.test_benchmarks import rows_of
from tests.processes import run_module
from train.config import load_run_config

TEXT = "To be, or not to be: that is the question.\nWhether ’tis nobler, no or yes?\n" * 20
STAND_IN = """
import sys, time
print("found vocab_size = 65 (inside data/headlight/meta.pkl)")
for step in range(0, 40, 10):
    if step % 20 == 0:
        print(f"step {step}: train loss 4.2874, val loss {3 - step / 20:.4f}")
    print(f"iter {step}: loss 4.2664, time 1234.50ms, mfu -100.00%")
    time.sleep(0.1)
    if BROKEN and step == 20:
        sys.exit("RuntimeError: the disk is full")
print("step 40: train loss 1.6134, val loss 1.5000")
"""


@pytest.fixture
def given(tmp_path):
    """The arguments; a checkout that lacks its script."""
    (tmp_path / "peers" / "nanoGPT" / "data").mkdir(parents=True)
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return ["--peers", tmp_path / "peers", "--text", tmp_path / "text.txt", "--out", tmp_path / "out"]


def stand_in(given, broken=False):
    (given[1] / "nanoGPT" / "train.py").write_text(STAND_IN.replace("BROKEN", str(broken)), encoding="utf-8")


@pytest.fixture(autouse=True)
def only_nanogpt(monkeypatch):
    """The others would take minutes."""
    train = compare.train
    figures = {"command": "", "seconds": 1.0}
    monkeypatch.setattr(compare, "train", lambda p, *rest: train(p, *rest) if p.name == "nanoGPT" else figures)


def test_figures_are_read_from_what_a_project_prints(given):
    stand_in(given)
    done = run_module("benchmarks.compare", *given)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (given[5] / "compare.jsonl").read_text(encoding="utf-8").splitlines()]
    (run,) = [record for record in records if record["project"] == "nanoGPT"]
    assert "--max_iters=2000" in run["command"]
    assert [nats for _, nats, _ in run["held_out"]] == [3.0, 2.0, 1.5]
    first, second, end = (seconds for seconds, *_ in run["held_out"])
    # three looks at its log and a busy machine
    assert second - first == pytest.approx(0.2, abs=0.15)
    assert end <= run["seconds"]
    assert run["first_step_s"] == pytest.approx(first, abs=0.1)
    # ten steps of 12 rows of 64 in 0.1 s, or later
    assert 0.4 < run["tokens_per_s"] * 0.1 / (10 * 768) < 1.1
    bits = 1.5 / math.log(2) * len(TEXT) / len(TEXT.encode())
    row = rows_of(done.stdout)["nanoGPT"]
    assert float(row[0]) == pytest.approx(bits, abs=0.02)
    assert row[1] == f"{end:.1f}"  # nobody else has its last loss
    assert (given[5] / "compare.png").stat().st_size > 0


def test_a_broken_project_is_reported_in_its_row_and_the_others_go_on(given):
    stand_in(given, broken=True)
    done = run_module("benchmarks.compare", *given)
    assert done.returncode == 0, done.stderr
    assert set(rows_of(done.stdout)["nanoGPT (failed)"]) == {"–"}
    assert "nanoGPT **failed**: exit code 1" in done.stdout
    assert "the disk is full" in done.stdout
    rows = rows_of(done.stdout)
    assert {"Headlight", "Headlight 15s", "Trainer"} < set(rows)
    assert 0 < float(rows["5-gram of characters"][0]) < 3  # of a text that repeats a line


def test_nanogpt_reads_the_same_characters_and_holds_out_the_same(tmp_path):
    """Against the ids, the split and the vocabulary as its data/shakespeare_char/prepare.py defines
    them.
    """
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    overrides = [f"data.source={tmp_path / 'text.txt'}", f"output_dir={tmp_path}"]
    data = prepare(load_run_config("configs/shakespeare_char.yaml", overrides).data, tmp_path)
    size = compare.write_ids(data, tmp_path / "ids", by_characters=True)
    characters = sorted(set(TEXT))
    ids = [characters.index(character) for character in TEXT]
    boundary = int(len(ids) * 0.9)
    for name, expected in (("train.bin", ids[:boundary]), ("val.bin", ids[boundary:])):
        assert np.fromfile(tmp_path / "ids" / name, np.uint16).tolist() == expected
    assert pickle.loads((tmp_path / "ids" / "meta.pkl").read_bytes()) == {"vocab_size": size}
    assert size == len(characters)


@pytest.mark.parametrize(("extra", "message"), [([], "has no checkout"), (["--text", "none.txt"], "does not exist")])
def test_bad_arguments_are_one_line(given, extra, message):
    done = run_module("benchmarks.compare", *given, *extra)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_probabilities_of_what_may_follow_add_up_to_one():
    train = "the cat sat on the mat; a rat"
    for context in ("th", "a ", "; ", "zz"):
        alphabet = sorted(set(train + context))
        before = ngram.bits_per_byte(train, context, 4) * len(context)
        shares = []
        for character in alphabet:
            text = context + character
            shares.append(2 ** (before - ngram.bits_per_byte(train, text, 4) * len(text)))
        assert sum(shares) == pytest.approx(1)


def test_two_characters_that_take_turns_are_predicted_as_the_formula_says():
    """After "a" came "b", four times of four, so P(b) = (4 + 1 * P1(b)) / (4 + 1), where P1(b) is
    one half.
    """
    share = (4 + 0.5) / 5
    assert ngram.bits_per_byte("ab" * 4, "ab", 2) * 2 == pytest.approx(-math.log2(0.5) - math.log2(share))
