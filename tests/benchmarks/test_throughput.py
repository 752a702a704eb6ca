"""Benchmarks run from end to end on sizes that take a second, and measure what they say."""

import dataclasses
import itertools
import json

import pytest
import torch

from benchmarks.ladder import Rung, WithAllLogits, rungs
from benchmarks.profile import class_of
from benchmarks.step import mean_loss, random_batches
from benchmarks.timing import alternate, peak_bytes
from benchmarks.transformers_model import gpt2_like, in_transformers
from configs.command import InputError
from tests.conftest import random_model, tiny_config
from tests.train.helpers import run_module, write_config
from train.config import load_run_config
from train.machine.device import Device

CPU = torch.device("cpu")


def test_candidates_take_turns_and_the_median_is_theirs():
    """On a clock that moves in a call alone."""
    order, now = [], 0.0
    took = {"slow": iter([100.0, 5.0, 7.0, 6.0]), "quick": iter([50.0, 1.0, 1.0, 4.0])}

    def call(name):
        nonlocal now
        order.append(name)
        now += next(took[name])

    found = alternate({name: lambda name=name: call(name) for name in took}, 3, CPU, clock=lambda: now)
    assert order == ["slow", "quick"] * 4
    assert found == {"slow": 6.0, "quick": 1.0}  # the first round does not count


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


@pytest.mark.slow
def test_every_backend_of_this_machine_is_in_the_attention_table():
    done = run_module("benchmarks.throughput", "--attention", "--lengths", "128", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    columns = next(line for line in done.stdout.splitlines() if line.startswith("| length")).strip("| ").split(" | ")
    blocked = {"blocked"} if "causal, bfloat16" in done.stdout else set()  # what a trial found faster here
    assert set(columns[1:]) == {"eager", "flash", "sdpa", "flex"} | blocked
    assert "left out: varlen needs CUDA" in done.stdout
    assert done.stdout.count("\n| 128 GQA (2)") == 2  # time and memory


@pytest.mark.slow
def test_decoding_is_compared_with_transformers_and_gives_its_tokens(tmp_path):
    (tmp_path / "tiny.yaml").write_text(
        "model: {vocab_size: 64, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, "
        "num_key_value_heads: 1, max_position_embeddings: 48}\n"
        "data: {sequence_length: 32}\ntrain: {tokens_per_step: 512}\n"
    )
    done = run_module(
        "benchmarks.throughput", tmp_path / "tiny.yaml", "--decode", "--versus", "transformers", "--rounds", "1"
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
        (["--attention", "--rounds", "0"], "--rounds is '0': it must be a whole number from 1"),
        (["no.yaml", "--decode"], "no.yaml"),
        (["--clock", "cpu", "--device", "cpu"], "--clock cpu measures a single thread"),
        (["--ladder", "--seconds", "0"], "--seconds is '0': it must be a number above 0"),
        (["--ladder", "--versus", "transformers"], "--versus can only be combined with --decode"),
        (["--decode", "--profile"], "--profile cannot be combined with another mode"),
        (["model.qk_norm=true"], "model.qk_norm=true"),
    ],
)
def test_bad_arguments_are_named(arguments, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # whatever this machine has
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    done = run_module("benchmarks.throughput", *arguments)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.slow
def test_training_is_compared_beside_busy_programs(tmp_path):
    done = run_module("benchmarks.busy", write_config(tmp_path), "--busy", "1", "--seconds", "1")
    assert done.returncode == 0, done.stderr
    rows = rows_of(done.stdout)
    assert len(rows["busy programs"]) == 5
    speeds = [float(cell.replace(",", "")) for cell in rows["1"]]
    assert len(speeds) == 5
    assert min(speeds) > 0


def test_their_gpt2_is_as_wide_and_deep_as_the_config(tmp_path):
    run = load_run_config(write_config(tmp_path), ["model.vocab_size=320"])
    other, model = gpt2_like(run), run.model
    h, layers, length = model.hidden_size, model.num_hidden_layers, run.data.sequence_length
    each = 12 * h * h + 13 * h  # four products of attention, eight of the MLP, their biases, two norms
    assert other.num_parameters() == layers * each + (320 + length) * h + 2 * h
    assert other.lm_head.weight is other.transformer.wte.weight


def test_packing_is_measured_on_the_data_of_a_config(tmp_path):
    text = "".join(json.dumps({"text": "word " * (1 + i % 9)}) + "\n" for i in range(400))
    (tmp_path / "short.jsonl").write_text(text)
    source = {"source": {"kind": "files", "path": str(tmp_path / "short.jsonl")}}
    done = run_module("benchmarks.throughput", write_config(tmp_path, data=source), "--packing", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    rows = {line.split("|")[1].strip(): line.split("|")[2:] for line in done.stdout.splitlines() if "%" in line}
    # documents of 7, 12, 17, … bytes and ends, cut at 32, in rows of 32
    alone = sum(min(32, 5 * words + 2) for words in range(1, 10)) / 9 / 32
    assert float(rows["one document a row"][0].strip(" %")) == pytest.approx(100 * alone, abs=1.5)
    assert float(rows["filled rows, documents isolated"][0].strip(" %")) > 99
    assert run_module("benchmarks.throughput", "--packing").stderr.startswith(
        "error: --packing reads the data of a config"
    )


def rows_of(stdout):
    """Cells by first cell of every table line."""
    lines = [line.split("|")[1:-1] for line in stdout.splitlines() if line.startswith("|")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_configs_training_steps_are_measured_and_profiled(tmp_path, processes):
    """As a run takes them: in its processes, of which each takes its share of the 8 rows."""
    config, traces = write_config(tmp_path, train={"processes": processes}), tmp_path / "traces"
    done = run_module("benchmarks.throughput", config, "--seconds", "0.3", "--profile", traces)
    assert done.returncode == 0, done.stderr
    together = "* 2 processes of 1 thread each, which add up their gradients once a step (train.processes)"
    assert (together in done.stdout) == (processes == 2)
    rows = rows_of(done.stdout)
    tokens_per_s, ms = rows["tokens/s (median)"][0], next(v for k, v in rows.items() if k.startswith("ms a step"))[0]
    rounded = 0.051  # ms are shown with one digit
    assert 256e3 / float(tokens_per_s.replace(",", "")) == pytest.approx(float(ms.replace(",", "")), abs=rounded)
    assert rows["MFU"] == ["unknown peak"]
    assert rows["rows a forward pass × length"] == [f"{8 // processes} × 32"]
    assert rows["vocabulary"] == ["320"]  # of bytes, with the special tokens
    assert "* attention sdpa (auto: PyTorch picks its kernel" in done.stdout
    events = json.loads((tmp_path / "traces" / "tiny.trace.json").read_text())["traceEvents"]
    assert any(event.get("name") == "aten::mm" for event in events)
    shares = [float(cells[1].strip("%")) for cells in rows.values() if len(cells) == 3 and cells[1].endswith("%")]
    assert sum(shares) == pytest.approx(100, abs=4)


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("aten::mm", "matrix products"),
        ("aten::bmm", "batched matrix products (attention, Muon)"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention kernels"),
        ("aten::_fused_adamw_", "optimizer"),
        ("triton_poi_fused_add_0", "compiled loops"),
        ("aten::copy_", "copies and casts"),
        ("aten::expand", "element by element, rest"),
    ],
)
def test_operators_are_classed(operator, kind):
    assert class_of(operator) == kind


def test_random_tokens_have_the_shape_of_the_config(tmp_path):
    run = load_run_config(write_config(tmp_path), ["model.vocab_size=64", "data.isolate_documents=true"])
    (first, second), (other, _) = (random_batches(run, 40, 20, CPU) for _ in range(2))
    assert first["input_ids"].shape == first["document_ids"].shape == second["labels"].shape == (20, 32)
    assert first["input_ids"].max() < 64
    assert first["document_ids"].max() > 0
    assert not first["input_ids"].equal(other["input_ids"])


@pytest.mark.slow
def test_training_is_compared_with_transformers(tmp_path):
    arguments = ["--versus", "transformers", "--skip", "compile", "--rounds", "1"]
    done = run_module("benchmarks.throughput", write_config(tmp_path), *arguments)
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


@pytest.mark.slow
def test_the_ladder_is_climbed_on_the_data_of_a_config(tmp_path):
    done = run_module(
        "benchmarks.throughput", write_config(tmp_path), "--ladder", "--seconds", "0.3", "--skip", "compile"
    )
    assert done.returncode == 0, done.stderr
    rows = [name for name in rows_of(done.stdout) if "fp32" in name or name.startswith("+")]
    assert rows[0].startswith("fp32, eager attention, one document a row")
    assert rows[1:] == ["+ bf16", "+ attention sdpa", "+ fused AdamW", "+ packing",
                        "+ vocabulary a multiple of 64", "+ loss in chunks", "+ muon"]  # fmt: skip


def test_each_rung_changes_one_thing_and_keeps_the_rest():
    cpu = Device(CPU, "bf16", False, "blocked", ())
    ladder = rungs(cpu, [])
    fields = [f.name for f in dataclasses.fields(Rung) if f.name != "name"]
    for below, above in itertools.pairwise(ladder):
        assert sum(getattr(below, f) != getattr(above, f) for f in fields) == 1, above.name
    assert ladder[-1] == Rung("+ muon", "bf16", True, "blocked", "muon", True, True, True)
    assert not any(rung.compiled for rung in rungs(cpu, ["compile"]))
    with pytest.raises(InputError, match="--skip flash: unknown rung: use bf16, compile"):
        rungs(cpu, ["flash"])


def test_the_loss_of_all_logits_is_the_loss_in_chunks():
    lm = random_model(tiny_config())
    ids = torch.randint(0, 192, (2, 20))
    labels = ids.masked_fill(torch.rand(2, 20) < 0.3, -100)
    found, count = WithAllLogits(lm)(input_ids=ids, labels=labels)
    expected, expected_count = lm(ids, labels=labels)
    assert count == expected_count
    assert torch.allclose(found, expected, rtol=1e-5)
