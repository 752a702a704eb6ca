"""The budget against the real thing: filled caches, and the tensors that two whole steps hold."""

import sys
from contextlib import nullcontext
from dataclasses import astuple

import pytest
import torch

from configs.command import exit_on_bad_input
from data.config import DataConfig, TokenizerConfig
from data.prepare import prepare
from data.storyworld import tell
from data.tokenizer import train_tokenizer
from model import LanguageModel, ModelConfig
from model.counting import flops_per_token
from model.decoding.kv_cache import KVCache
from tests.conftest import tiny_config
from tests.train.helpers import write_config
from train import budget
from train.budget import kv_cache_bytes, with_vocabulary
from train.config import OptimizerConfig, RunConfig, load_run_config
from train.machine import timing
from train.machine.hardware import peak_tflops
from train.machine.processor import product_tflops
from train.optimizer import build_optimizers
from train.step_memory import Held, _measured, largest_micro_batch, step_memory

SHAPES = [
    {"num_key_value_heads": "mha"},
    {"num_key_value_heads": "mqa"},
    {"head_dim": 12, "num_key_value_heads": "gqa", "tie_word_embeddings": False},
    {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]},
    {"attention": "mla", "num_key_value_heads": "mha", "kv_lora_rank": 10, "qk_rope_head_dim": 4},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 7, 40])
@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_cache_bytes_are_those_of_a_filled_cache(changes, tokens, dtype):
    config = tiny_config(**changes)
    lm, cache = LanguageModel(config).to(dtype).eval(), KVCache(config)
    with torch.no_grad():
        for ids in torch.randint(0, 192, (1, tokens)).split(11, dim=1):  # as a prompt and what follows
            lm(ids, kv_cache=cache)
    assert cache.length == tokens
    assert cache.nbytes == kv_cache_bytes(config, tokens, dtype.itemsize)


def test_cache_under_other_toggles():
    config = tiny_config(num_key_value_heads="mha")
    assert kv_cache_bytes(config, 10, 2, kv_heads=1) * 4 == kv_cache_bytes(config, 10, 2)


# ---------------------------------------------------------------------------------------------------------
# memory of a training step


def run_config(optimizer: str = "muon", documents: bool = True, **changes) -> RunConfig:
    fields = {"vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = ModelConfig(**(fields | {"num_key_value_heads": 2, "max_position_embeddings": 64} | changes))
    base = RunConfig(model=model, data=DataConfig(sequence_length=64, isolate_documents=documents))
    train = base.train.model_copy(update={"optimizer": OptimizerConfig(name=optimizer), "tokens_per_step": 64 * 48})
    return base.model_copy(update={"train": train})


@pytest.mark.parametrize(
    ("rows", "half", "run"),
    [
        (8, False, run_config()),
        (8, True, run_config()),
        (1, False, run_config()),  # Muon's step is the fullest moment
        (8, False, run_config(num_experts=4)),
        (4, False, run_config("adamw", documents=False, attn_implementation="eager", tie_word_embeddings=False)),
    ],
)
def test_the_fullest_moment_is_that_of_two_real_steps(rows, half, run):
    """Tensors without memory are counted as real ones are. What an operation needs inside is seen in neither."""
    config, ids = run.model, torch.randint(0, 320, (rows, 64))
    documents = (ids.cumsum(1) // 4000) if run.data.isolate_documents else None
    with Held() as held:
        lm = LanguageModel(config).train()
        if half:  # what `auto` trains with on a CPU in bf16
            lm.set_attn_implementation("blocked")
        optimizers = build_optimizers(lm, run.train.optimizer)
        for _ in range(2):
            for _ in range(2):  # the second micro-batch meets the gradients of the first
                with torch.autocast("cpu", dtype=torch.bfloat16) if half else nullcontext():
                    loss, _ = lm(ids, labels=ids, document_ids=documents)
                loss.backward()
                del loss
            for one in optimizers:
                one.step()
    memory = step_memory(run, rows, half=half, device="cpu")
    assert memory.fullest == pytest.approx(held.most, rel=0.02)
    kept = [t for one in optimizers for state in one.state.values() for t in state.values() if t.ndim > 0]
    assert memory.optimizer_state == pytest.approx(sum(t.nbytes for t in kept), rel=0.01)
    assert memory.weights == memory.gradients == sum(p.nbytes for p in lm.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_deep_model_is_measured_from_few_layers(checkpointing):
    types = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    run = run_config(num_hidden_layers=5, layer_types=types, sliding_window=8, num_key_value_heads=1)
    train = run.train.model_copy(update={"activation_checkpointing": checkpointing})
    run = run.model_copy(update={"train": train})
    for rows, half in ((1, False), (8, True)):
        exact = _measured(run, rows, [(kind, False) for kind in types], half, "cpu")
        assert astuple(step_memory(run, rows, half=half, device="cpu")) == pytest.approx(astuple(exact), rel=0.005)


@pytest.mark.slow
def test_layers_with_experts_and_without_are_measured_apart():
    """In both precisions, although fake tensors know products of experts in bfloat16 only."""
    run = run_config(num_hidden_layers=5, num_experts=4, mlp_only_layers=[0, 2, 3])
    for half in (False, True):
        layers = [("full_attention", has_experts) for has_experts in run.model.has_experts]
        exact = _measured(run, 4, layers, half, "cpu")
        assert astuple(step_memory(run, 4, half=half, device="cpu")) == pytest.approx(astuple(exact), rel=0.005)


def test_only_what_is_trained_has_gradients_and_state():
    """The count follows the modules: frozen ones keep their weights and nothing else."""

    class Frozen(LanguageModel):
        def __init__(self, config):
            super().__init__(config)
            self.model.requires_grad_(False)

    whole = step_memory(run_config(tie_word_embeddings=False), 2, half=False, device="cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.step_memory.LanguageModel", Frozen)
        head = step_memory(run_config(tie_word_embeddings=False), 2, half=False, device="cpu")
    assert head.weights == whole.weights
    assert head.gradients == 4 * 320 * 64
    assert head.optimizer_state == pytest.approx(2 * head.gradients, rel=0.01)


def test_checkpointing_keeps_less_and_a_gpu_keeps_no_mask_matrix():
    run = run_config(max_position_embeddings=512)
    run = run.model_copy(update={"data": run.data.model_copy(update={"sequence_length": 512})})
    saving = run.model_copy(update={"train": run.train.model_copy(update={"activation_checkpointing": True})})
    plain, less = (step_memory(one, 4, half=True, device="cuda").activations for one in (run, saving))
    assert less < 0.7 * plain
    masked = run.model_copy(update={"model": run.model.model_copy(update={"attn_implementation": "sdpa"})})
    written_out = run.model_copy(update={"model": run.model.model_copy(update={"attn_implementation": "eager"})})
    with_mask, with_weights = (
        step_memory(one, 4, half=True, device="cuda").activations for one in (masked, written_out)
    )
    assert with_mask > plain + 4 * 512 * 512 * 2  # for each row, in 16 bits
    assert with_weights > plain + 4 * 4 * 512 * 512 * (4 + 2)  # of every head too: weights in float32 and 16 bits


@pytest.mark.slow
def test_the_largest_micro_batch_fits_and_a_few_rows_more_do_not():
    """It is extended from two sizes, and right within one percent."""
    run, memory = run_config(), 600e6
    rows = largest_micro_batch(run, memory, half=True, device="cuda")
    fitting, too_many = (step_memory(run, n, half=True, device="cuda").fullest for n in (rows, round(1.1 * rows)))
    assert fitting <= 1.01 * 0.9 * memory < too_many


def test_no_row_fits_into_no_memory():
    assert largest_micro_batch(run_config(), 1e5, half=False, device="cpu") == 0


# ---------------------------------------------------------------------------------------------------------
# the command


@pytest.mark.parametrize("tokenizer", [{"kind": "bpe", "vocab_size": 333}, {"kind": "byte"}], ids=str)
def test_the_vocabulary_is_the_one_that_the_tokenizer_will_have(tmp_path, tokenizer):
    planned, _ = with_vocabulary(load_run_config(write_config(tmp_path, data={"tokenizer": tokenizer})))
    text = [tell(0, index, "train").text for index in range(20)]
    assert planned.model.vocab_size == train_tokenizer(TokenizerConfig(**tokenizer), text).vocab_size


def test_a_char_vocabulary_is_assumed_until_the_text_is_prepared(tmp_path):
    path = write_config(tmp_path, data={"tokenizer": {"kind": "char"}})
    (tmp_path / "text.txt").write_text("".join(chr(0x4E00 + i) for i in range(290)) * 9, encoding="utf-8")
    run = load_run_config(path)
    planned, known = with_vocabulary(run)
    assert planned.model.vocab_size == 128
    assert "an estimate" in known
    prepared = prepare(run.data, tmp_path / "runs", show_progress=False)
    planned, known = with_vocabulary(run)
    assert planned.model.vocab_size == prepared.tokenizer.vocab_size == 320
    assert "prepared" in known
    (tmp_path / "text.txt").write_text("another text", encoding="utf-8")
    assert with_vocabulary(run)[0].model.vocab_size == 128


def test_a_vocabulary_in_the_config_wins(tmp_path):
    run = load_run_config(write_config(tmp_path), ["model.vocab_size=1000"])
    assert with_vocabulary(run)[0].model.vocab_size == 1000


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H200 MIG 1g.18gb", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA GeForce RTX 4090", 165),
        ("NVIDIA L4", 121),
        ("Tesla T4", 65),
        ("NVIDIA L40S", None),
        ("NVIDIA GH200 480GB", None),
    ],
)
def test_peaks_by_name(name, peak):
    assert peak_tflops(name) == peak


def show(monkeypatch, capsys, *arguments, code: int = 0) -> str:
    monkeypatch.setattr(sys, "argv", ["budget", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        exit_on_bad_input(budget.main)
    captured = capsys.readouterr()
    assert stopped.value.code == code, captured.err
    return captured.out if code == 0 else captured.err


def test_the_command_prints_a_table_and_writes_nothing(tmp_path, monkeypatch, capsys):
    path = write_config(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    text = show(monkeypatch, capsys, path, "--memory-gb", 80, "model.num_key_value_heads=1", "--tflops", 989)
    total = LanguageModel(with_vocabulary(load_run_config(path, ["model.num_key_value_heads=1"]))[0].model)
    assert f"{total.num_parameters():,}" in text
    assert "MQA (1) *" in text
    assert "On a GPU it is not checked yet" in text
    assert "of 989 TFLOPS (--tflops)" in text
    assert max(map(len, text.splitlines())) <= 120
    assert sorted(tmp_path.rglob("*")) == before


def test_minutes_follow_from_flops_peak_and_share(tmp_path):
    """12 steps of 256 tokens; at a peak so low that they take minutes."""
    run, _ = with_vocabulary(load_run_config(write_config(tmp_path)))
    seconds = 12 * 256 * flops_per_token(run.model, 32) / (1e-6 * 1e12 * 0.25)
    text = budget.compute_table(run, (1e-6, "--tflops"), 0.25)
    line = next(line for line in text.splitlines() if "minutes at 25%" in line)
    assert float(line.split("|")[-2].replace(",", "")) == pytest.approx(seconds / 60, abs=0.05)


@pytest.mark.slow
def test_a_cpu_is_timed_instead_of_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("train.machine.load.share_of_others", lambda: 0.4)
    text = show(monkeypatch, capsys, write_config(tmp_path), "--device", "cpu")
    (line,) = (line for line in text.splitlines() if "minutes at 40%" in line)
    assert "TFLOPS (one of its fp32 products, timed now; other programs use 40 % of the CPU)" in line
    assert float(line.split("|")[-2].replace(",", "")) > 0
    assert "give --tflops" not in text
    assert "of 7 TFLOPS (--tflops)" in show(monkeypatch, capsys, write_config(tmp_path), "--tflops", 7)


@pytest.mark.slow
def test_a_cpu_is_as_quick_as_the_processes_of_a_run(tmp_path, monkeypatch, capsys):
    """Two processes, each with half of the rows of a product."""
    sizes = []
    monkeypatch.setattr("train.machine.processor.product_tflops", lambda *size: sizes.append(size[0]) or 1.5)
    text = show(monkeypatch, capsys, write_config(tmp_path), "--device", "cpu", "train.processes=2")
    assert "of 3 TFLOPS (one of its fp32 products, timed now in one of 2 processes, and taken 2 times" in text
    show(monkeypatch, capsys, write_config(tmp_path), "--device", "cpu", "train.processes=1")
    assert sizes == [128, 256]


def test_a_product_is_timed_in_tflops(monkeypatch):
    """On a clock that says that each product takes two seconds."""
    ticks = iter(range(0, 10**6, 2))
    monkeypatch.setitem(timing.CLOCKS, "wall", lambda: next(ticks))
    assert product_tflops(64, 32, 16, torch.float32) == 64 * 32 * 16 / 1e12


def test_planning_for_a_gpu_that_is_not_here(tmp_path, monkeypatch, capsys):
    text = show(monkeypatch, capsys, write_config(tmp_path), "train.precision=auto", "--device", "cuda")
    assert "bf16 on cuda" in text
    if not torch.cuda.is_available():
        assert "give --memory-gb" in text
        assert "give --tflops" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mfu", "1.5"], "--mfu is '1.5': it must be a number above 0 and up to 1"),
        (["--memory-gb", "0"], "--memory-gb is '0': it must be a number above 0"),
        (["--tflops", "nan"], "--tflops is 'nan'"),
        (["model.num_key_value_heads=3"], "use 1, 2 or 4"),
        (["model.hiden_size=3"], "did you mean `model.hidden_size`"),
    ],
)
def test_bad_input_is_one_line_and_code_2(tmp_path, monkeypatch, capsys, arguments, words):
    message = show(monkeypatch, capsys, write_config(tmp_path), *arguments, code=2)
    assert words in message
    assert message.count("\n") == 1
