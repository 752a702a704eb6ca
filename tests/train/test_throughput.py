"""Benchmarks run from end to end on sizes that take a second, and measure what they say."""

import json
import time

import pytest
import torch

from tests.train.helpers import run_module, write_config
from train.timing import alternate, peak_bytes, table

CPU = torch.device("cpu")


def test_candidates_take_turns_and_the_median_is_theirs():
    order = []

    def call(name, seconds):
        order.append(name)
        time.sleep(seconds)

    found = alternate({"slow": lambda: call("slow", 0.05), "quick": lambda: call("quick", 0.001)}, 3, CPU)
    assert order == ["slow", "quick"] * 4  # the first round does not count
    assert found["slow"] >= 0.05 > found["quick"]


def test_patience_ends_after_a_whole_round():
    calls = []
    alternate({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 100, CPU, patience_s=0)
    assert calls == ["a", "b"] * 2


def test_the_peak_is_what_is_held_at_once():
    def call():
        first = torch.zeros(1_000_000)  # 4 MB
        second = first + 1  # 8 MB together
        del first
        return second * 2  # 8 MB again

    assert peak_bytes(call, CPU) == pytest.approx(8e6, rel=0.01)


def test_a_table_is_aligned_markdown():
    assert table(["name", "x"], [["a", "1,000"]]) == "| name |     x |\n|------|-------|\n| a    | 1,000 |"


@pytest.mark.slow
def test_every_backend_of_this_machine_is_in_the_attention_table():
    done = run_module("train.throughput", "--attention", "--lengths", "64", "128", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    assert "| length, key/value heads | eager | flash | sdpa | sdpa_math | flex |" in done.stdout
    assert "left out: varlen needs CUDA" in done.stdout
    assert done.stdout.count("\n| 128 GQA (2)") == 2  # time and memory


@pytest.mark.slow
def test_decoding_is_compared_with_transformers_and_gives_its_tokens(tmp_path):
    (tmp_path / "tiny.yaml").write_text(
        "model: {vocab_size: 64, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, "
        "max_position_embeddings: 48}\ndata: {sequence_length: 32}\ntrain: {tokens_per_step: 512}\n"
    )
    done = run_module(
        "train.throughput", tmp_path / "tiny.yaml", "--decode", "--versus", "transformers", "--rounds", "1"
    )
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| batch")]
    assert [row.split(":")[1].split("|")[0].strip() for row in rows[:6]] == [
        "no cache", "dynamic", "static", "static, compiled", "offloaded", "transformers"]  # fmt: skip
    assert all(row.rstrip(" |").endswith("100%") for row in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--decode", "--device", "cuda"], "finds none here"),
        (["--attention", "--rounds", "0"], "must be 1 or more"),
        (["no.yaml", "--decode"], "no.yaml"),
        ([], "one of the arguments --attention --decode --packing is required"),
    ],
)
def test_bad_arguments_are_named(arguments, message, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # whatever this machine has
    done = run_module("train.throughput", *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_packing_is_measured_on_the_data_of_a_config(tmp_path):
    text = "".join(json.dumps({"text": "word " * (1 + i % 9)}) + "\n" for i in range(400))
    (tmp_path / "short.jsonl").write_text(text)
    source = {"source": {"kind": "files", "path": str(tmp_path / "short.jsonl")}}
    done = run_module("train.throughput", write_config(tmp_path, data=source), "--packing", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    rows = {line.split("|")[1].strip(): line.split("|")[2:] for line in done.stdout.splitlines() if "%" in line}
    # documents of 7, 12, 17, … bytes and ends, cut at 32, in rows of 32
    alone = sum(min(32, 5 * words + 2) for words in range(1, 10)) / 9 / 32
    assert float(rows["one document a row"][0].strip(" %")) == pytest.approx(100 * alone, abs=1.5)
    assert float(rows["filled rows, documents isolated"][0].strip(" %")) > 99
    assert run_module("train.throughput", "--packing").stderr.startswith("error: --packing reads the data of a config")
