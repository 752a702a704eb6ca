"""Benchmarks run from end to end on sizes that take a second, and measure what they say."""

import json

import pytest
import torch

from benchmarks import decoding
from benchmarks.timing import alternate, in_transformers
from benchmarks.training import mean_loss, random_batches
from tests.conftest import random_model, tiny_config
from tests.train.helpers import run_module, write_config
from train.config import load_run_config

CPU = torch.device("cpu")
TINY = (
    "model: {vocab_size: 64, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, "
    "num_key_value_heads: 1, max_position_embeddings: 48}\n"
    "data: {sequence_length: 32}\ntrain: {tokens_per_step: 512}\n"
)


def rows_of(stdout):
    """Cells by first cell of every table line."""
    lines = [line.split("|")[1:-1] for line in stdout.splitlines() if line.startswith("|")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}


def test_candidates_take_turns_and_the_median_is_theirs():
    """On a clock that moves in a call alone."""
    order, now = [], 0.0
    took = {"slow": iter([100.0, 5.0, 7.0, 6.0]), "quick": iter([50.0, 1.0, 1.0, 4.0])}

    def call(name):
        nonlocal now
        order.append(name)
        now += next(took[name])

    medians = alternate({name: lambda name=name: call(name) for name in took}, 3, CPU, clock=lambda: now)
    assert order == ["slow", "quick"] * 4
    assert medians == {"slow": 6.0, "quick": 1.0}  # the first round does not count


def test_patience_ends_after_a_whole_round():
    calls = []
    alternate({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 100, CPU, patience_s=0)
    assert calls == ["a", "b"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_configs_training_steps_are_measured_and_profiled(tmp_path, processes):
    """As a run takes them: in its processes, of which each takes its share of the 8 rows."""
    config, traces = write_config(tmp_path, train={"processes": processes}), tmp_path / "traces"
    done = run_module("benchmarks.training", config, "--seconds", "0.3", "--profile", traces)
    assert done.returncode == 0, done.stderr
    assert ("* 2 processes of 1 thread each" in done.stdout) == (processes == 2)
    rows = rows_of(done.stdout)
    tokens_per_s, ms = rows["tokens/s (median)"][0], next(v for k, v in rows.items() if k.startswith("ms a step"))[0]
    rounded = 0.051  # ms are shown with one digit
    assert 256e3 / float(tokens_per_s.replace(",", "")) == pytest.approx(float(ms.replace(",", "")), abs=rounded)
    assert rows["rows a forward pass × length"] == [f"{8 // processes} × 32"]
    events = json.loads((tmp_path / "traces" / "tiny.trace.json").read_text())["traceEvents"]
    assert any(event.get("name") == "aten::mm" for event in events)
    assert "aten::mm" in done.stdout


@pytest.mark.slow
def test_training_is_compared_with_transformers(tmp_path):
    options = ["train.compile=false", "--versus", "transformers", "--rounds", "1"]
    done = run_module("benchmarks.training", write_config(tmp_path), *options)
    assert done.returncode == 0, done.stderr
    rows = rows_of(done.stdout)
    assert rows["transformers"][2] == "1.00"
    assert float(rows["Headlight"][2]) > 0


def test_both_models_of_the_comparison_compute_the_same_loss():
    """Otherwise their times could not be compared; the labels of both are shifted by one."""
    lm = random_model(tiny_config())
    ids = torch.randint(0, 192, (2, 16))
    batch = {"input_ids": ids, "labels": ids}
    with torch.no_grad():
        ours, their = (mean_loss(forward(**batch)) for forward in (lm, in_transformers(lm, attn_implementation="sdpa")))
    assert ours.item() == pytest.approx(their.item(), rel=1e-5)


def test_random_tokens_have_the_shape_of_the_config(tmp_path):
    run = load_run_config(write_config(tmp_path), ["model.vocab_size=64", "data.isolate_documents=true"])
    (first, second), (other, _) = (random_batches(run, 40, 20, CPU) for _ in range(2))
    assert first["input_ids"].shape == first["document_ids"].shape == second["labels"].shape == (20, 32)
    assert first["input_ids"].max() < 64
    assert first["document_ids"].max() > 0
    assert not first["input_ids"].equal(other["input_ids"])


@pytest.mark.slow
def test_decoding_is_compared_with_transformers_and_gives_its_tokens(tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY)
    done = run_module("benchmarks.decoding", tmp_path / "tiny.yaml", "--versus", "transformers", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| batch")]
    assert [row.split(":")[1].split("|")[0].strip() for row in rows[:6]] == [*decoding.WAYS, "transformers"]
    assert all(row.rstrip(" |").endswith("100%") for row in rows)


def test_shared_keys_make_the_cache_smaller_and_the_next_token_is_predicted_from_the_bytes(tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY)
    options = ["--kv-heads", "2,1", "--batches", "3", "--contexts", "20,9000", "--rounds", "1"]
    done = run_module("benchmarks.decoding", tmp_path / "tiny.yaml", *options)
    assert done.returncode == 0, done.stderr
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if "3 x" in line]
    assert [row[:2] for row in cells] == [["3 x 20", "2"], ["3 x 20", "1"], ["3 x 9,000", "2"], ["3 x 9,000", "1"]]
    assert [row[3] == "–" for row in cells] == [False, False, True, True]  # long prompts would take minutes
    assert [row[2] for row in cells[2:]] == ["6.9", "3.5"]  # 2 x 27,000 x H_kv x 16 x 4 bytes
    assert [row[-1] for row in cells[::2]] == ["1.00", "1.00"]


def test_a_step_reads_behind_the_cache_and_leaves_it_as_it_was():
    lm = random_model(tiny_config())
    cache = decoding.filled(lm, 2, 7)
    before, seen = cache.nbytes, []
    lm.model.register_forward_pre_hook(lambda module, args: seen.append(args[4].length))
    assert decoding.next_token(lm, cache, 2).shape == (2, 1)
    assert seen == [7]
    assert (cache.length, cache.nbytes) == (7, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no.yaml"], "no.yaml"),
        (["--rounds", "0"], "--rounds is '0': it must be a whole number from 1"),
        (["--seconds", "0"], "--seconds is '0': it must be a number from 0.01"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    done = run_module("benchmarks.training", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
