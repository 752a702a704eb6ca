"""The budget against the real thing: filled caches, and the tensors that a step holds."""

import sys
from contextlib import nullcontext

import pytest
import torch

from configs.command import exit_on_bad_input
from data.config import DataConfig, TokenizerConfig
from data.prepare import prepare
from data.storyworld import tell
from data.tokenizer import train_tokenizer
from model import LanguageModel, ModelConfig
from model.kv_cache import KVCache
from model.lora_config import LoraConfig
from model.transformer import on_meta
from tests.conftest import tiny_config
from tests.train.helpers import write_config
from train import budget
from train.budget import kv_cache_bytes, with_vocabulary
from train.config import OptimizerConfig, RunConfig, load_run_config
from train.fits import USABLE_SHARE, largest_micro_batch, step_memory
from train.machine import hardware
from train.machine.hardware import peak_tflops, product_tflops
from train.optimizer import build_optimizers

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


GPT2 = {"gated_mlp": False, "norm": "layernorm", "position_embedding": "learned", "num_key_value_heads": "mha"}
LATENT = {"attention": "mla", "num_key_value_heads": "mha", "kv_lora_rank": 16, "qk_rope_head_dim": 8}


@pytest.mark.parametrize(
    ("half", "run"),
    [
        (False, run_config(num_hidden_layers=2)),
        (True, run_config(num_hidden_layers=2)),  # "blocked", what `auto` trains with on a CPU in bf16
        (False, run_config(num_hidden_layers=2, num_experts=4)),
        (False, run_config(num_hidden_layers=2, **GPT2)),
        (False, run_config(num_hidden_layers=2, **LATENT)),
        (False, run_config("adamw", attn_implementation="eager", tie_word_embeddings=False)),
    ],
    ids=["fp32", "bf16", "experts", "gpt2", "latent", "eager, adamw"],
)
def test_a_step_holds_what_the_formula_says(half, run):
    """Weights, gradients and optimizer state exactly. Of what autograd keeps, the formula counts the greater part."""
    rows, ids = 8, torch.randint(0, 320, (8, 64))
    documents = (ids.cumsum(1) // 4000) if run.data.isolate_documents else None
    lm, kept = LanguageModel(run.model).train(), dict[int, int]()
    if half:
        lm.set_attn_implementation("blocked")
    mine = {parameter.untyped_storage().data_ptr() for parameter in lm.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in mine and not isinstance(tensor, torch.nn.Parameter):
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    precision = torch.autocast("cpu", dtype=torch.bfloat16) if half else nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), precision:
        loss, _ = lm(ids, labels=ids, document_ids=documents)
    found = step_memory(run, rows, half=half, device="cpu")
    assert 0.6 * sum(kept.values()) < found.activations < 1.1 * sum(kept.values())
    loss.backward()
    optimizers = build_optimizers(lm, run.train.optimizer)
    for one in optimizers:
        one.step()
    state = [t for one in optimizers for state in one.state.values() for t in state.values() if t.ndim > 0]
    assert found.optimizer_state == sum(t.nbytes for t in state)
    assert found.weights == found.gradients == sum(p.nbytes for p in lm.parameters())


def test_checkpointing_keeps_less_and_adapters_have_few_gradients():
    run = run_config(num_hidden_layers=4)
    saving = run.model_copy(update={"train": run.train.model_copy(update={"activation_checkpointing": True})})
    plain, less = (step_memory(one, 4, half=True, device="cuda") for one in (run, saving))
    assert less.activations < 0.6 * plain.activations
    adapted = step_memory(run.model_copy(update={"lora": LoraConfig(rank=2)}), 4, half=True, device="cuda")
    assert adapted.gradients < 0.1 * plain.gradients
    assert adapted.optimizer_state == 2 * adapted.gradients  # AdamW


def test_the_largest_micro_batch_fits_and_a_few_rows_more_do_not():
    run, memory = run_config(vocab_size=16), 10e6
    rows = largest_micro_batch(run, memory, half=True, device="cuda")
    fitting, too_many = (step_memory(run, n, half=True, device="cuda").total for n in (rows, rows + 4))
    assert 1 < rows < run.rows_per_step
    assert fitting <= USABLE_SHARE * memory < too_many


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
    assert "of 989 TFLOPS (--tflops)" in text
    assert max(map(len, text.splitlines())) <= 120
    assert sorted(tmp_path.rglob("*")) == before


def test_minutes_follow_from_flops_peak_and_share(tmp_path):
    """12 steps of 256 tokens; at a peak so low that they take minutes."""
    run, _ = with_vocabulary(load_run_config(write_config(tmp_path)))
    seconds = 12 * 256 * on_meta(run.model).flops_per_token(32) / (1e-6 * 1e12 * 0.25)
    text = budget.compute_table(run, (1e-6, "--tflops"), 0.25)
    line = next(line for line in text.splitlines() if "minutes at 25%" in line)
    assert float(line.split("|")[-2].replace(",", "")) == pytest.approx(seconds / 60, abs=0.05)


@pytest.mark.slow
def test_a_cpu_is_timed_instead_of_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("train.machine.hardware.share_of_others", lambda: 0.4)
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
    monkeypatch.setattr("train.machine.hardware.product_tflops", lambda *size: sizes.append(size[0]) or 1.5)
    text = show(monkeypatch, capsys, write_config(tmp_path), "--device", "cpu", "train.processes=2")
    assert "of 3 TFLOPS (one of its fp32 products, timed now in one of 2 processes, and taken 2 times" in text
    show(monkeypatch, capsys, write_config(tmp_path), "--device", "cpu", "train.processes=1")
    assert sizes == [128, 256]


def test_a_product_is_timed_in_tflops(monkeypatch):
    """On a clock that says that each product takes two seconds."""
    ticks = iter(range(0, 10**6, 2))
    monkeypatch.setitem(hardware.CLOCKS, "wall", lambda: next(ticks))
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
        (["model.num_key_value_heads=3"], "use 1, 2, 4"),
        (["model.hiden_size=3"], "did you mean `model.hidden_size`"),
    ],
)
def test_bad_input_is_one_line_and_code_2(tmp_path, monkeypatch, capsys, arguments, words):
    message = show(monkeypatch, capsys, write_config(tmp_path), *arguments, code=2)
    assert words in message
    assert message.count("\n") == 1
