"""Estimated costs equal measured ones: filled caches, a step's tensors. Too large runs are refused."""

from contextlib import nullcontext

import pytest
import torch

from configs.command import InputError
from data.config import DataConfig
from model import LanguageModel, ModelConfig
from model.accounting import flops_per_token
from model.kv_cache import KVCache
from model.transformer import on_meta
from model.variants.config import LoraConfig
from tests.conftest import tiny_config
from tests.train.helpers import run_module, write_config
from train.config import OptimizerConfig, RunConfig, load_run_config
from train.machine import budget
from train.machine.budget import (
    USABLE_SHARE,
    check_memory,
    kv_cache_bytes,
    largest_micro_batch,
    step_memory,
    with_vocabulary,
)
from train.machine.device import Device, resolve_device, sized
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
    lm = LanguageModel(config).to(dtype).eval()
    cache = KVCache(config)
    with torch.no_grad():
        # as a prompt and what follows
        for ids in torch.randint(0, 192, (1, tokens)).split(11, dim=1):
            lm(ids, kv_cache=cache)
    assert cache.length == tokens
    assert cache.nbytes == kv_cache_bytes(config, tokens, dtype.itemsize)


# --------------------------------------------------------------------------------------------------
# memory of a training step


def run_config(optimizer: str = "muon", documents: bool = True, **changes) -> RunConfig:
    fields = {"vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = ModelConfig(**(fields | {"num_key_value_heads": 2, "max_position_embeddings": 64} | changes))
    base = RunConfig(model=model, data=DataConfig(sequence_length=64, isolate_documents=documents))
    train = base.train.model_copy(update={"optimizer": OptimizerConfig(name=optimizer), "tokens_per_step": 64 * 48})
    return base.model_copy(update={"train": train})


def on(kind: str, precision: str, attention: str = "sdpa") -> Device:
    return Device(torch.device(kind), precision, False, attention, ())


GPT2 = {"gated_mlp": False, "norm": "layernorm", "position_embedding": "learned", "num_key_value_heads": "mha"}
LATENT = {"attention": "mla", "num_key_value_heads": "mha", "kv_lora_rank": 16, "qk_rope_head_dim": 8}
HYBRID = {"layer_types": ["linear_attention", "full_attention"], "loadable_elsewhere": False}
KEPT = "kept for the backward pass"
STATE = "optimizer state"


@pytest.mark.parametrize(
    ("half", "run"),
    [
        (False, run_config(num_hidden_layers=2)),
        (True, run_config(num_hidden_layers=2)),  # "blocked", what `auto` trains with on a CPU
        (False, run_config(num_hidden_layers=2, num_experts=4)),
        (False, run_config(num_hidden_layers=2, **GPT2)),
        (False, run_config(num_hidden_layers=2, **LATENT)),
        (False, run_config(num_hidden_layers=2, **HYBRID)),
        (True, run_config(num_hidden_layers=2, **HYBRID)),
        (False, run_config("adamw", attn_implementation="eager", tie_word_embeddings=False)),
    ],
    ids=["fp32", "bf16", "experts", "gpt2", "latent", "linear", "linear, bf16", "eager, adamw"],
)
def test_a_step_holds_what_the_formula_says(half, run):
    """Weights, gradients and optimizer state exactly.

    Of what autograd keeps, the formula counts the greater part.
    """
    rows = 8
    ids = torch.randint(0, 320, (8, 64))
    documents = (ids.cumsum(1) // 4000) if run.data.isolate_documents else None
    lm = LanguageModel(run.model).train()
    kept = dict[int, int]()
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
    found = step_memory(run, rows, on("cpu", "bf16", "blocked") if half else on("cpu", "fp32"))
    assert 0.6 * sum(kept.values()) < found[KEPT] < 1.1 * sum(kept.values())
    loss.backward()
    optimizers = build_optimizers(lm, run.train.optimizer)
    for one in optimizers:
        one.step()
    state = [t for one in optimizers for state in one.state.values() for t in state.values() if t.ndim > 0]
    assert found[STATE] == sum(t.nbytes for t in state)
    assert found["weights"] == found["gradients"] == sum(p.nbytes for p in lm.parameters())


def test_checkpointing_keeps_less_and_adapters_have_few_gradients():
    run = run_config(num_hidden_layers=4)
    device = on("cuda", "bf16")
    saving = run.model_copy(update={"train": run.train.model_copy(update={"activation_checkpointing": True})})
    plain, less = (step_memory(one, 4, device) for one in (run, saving))
    assert less[KEPT] < 0.6 * plain[KEPT]
    adapted = step_memory(run.model_copy(update={"lora": LoraConfig(rank=2)}), 4, device)
    assert adapted["gradients"] < 0.1 * plain["gradients"]
    assert adapted[STATE] == 2 * adapted["gradients"]  # AdamW
    rows = largest_micro_batch(run, 10e6, device)
    fitting, too_many = (sum(step_memory(run, n, device).values()) for n in (rows, rows + 4))
    assert fitting <= USABLE_SHARE * 10e6 < too_many


# --------------------------------------------------------------------------------------------------
# what does not fit is refused


@pytest.mark.parametrize(("share", "processes", "fits"), [(0.99, 1, False), (1.01, 1, True), (1.01, 2, False)])
def test_the_limit_is_what_a_step_needs_of_memory_that_processes_share(tmp_path, monkeypatch, share, processes, fits):
    config = load_run_config(write_config(tmp_path), ["train.device=cpu", "train.micro_batch_size=8"])
    needed = step_memory(sized(config), 8, resolve_device(config))
    monkeypatch.setattr(budget, "memory_of", lambda kind: (share * sum(needed.values()), "all RAM"))
    with nullcontext() if fits else pytest.raises(InputError, match=r"rows x 32 tokens at a time .*\(all RAM\)"):
        check_memory(config, resolve_device(config), processes)


# --------------------------------------------------------------------------------------------------
# the command


def test_the_command_prints_tables_and_writes_nothing(tmp_path):
    path = write_config(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    text = run_module("train.budget", path, "--memory-gb", 80, "--tflops", 0.001, "--mfu", 0.01).stdout
    run, _ = with_vocabulary(load_run_config(path))
    assert f"{LanguageModel(run.model).num_parameters():,}" in text
    (line,) = [line for line in text.splitlines() if "minutes at 1e-05 TFLOPS" in line]
    flops = run.max_steps * run.train.tokens_per_step * flops_per_token(on_meta(run.model), 32)
    seconds = flops / (0.001 * 1e12 * 0.01)
    assert float(line.split("|")[-2].replace(",", "")) == pytest.approx(seconds / 60, abs=0.05)
    assert "bf16 on cuda" in run_module("train.budget", path, "--device", "cuda", "train.precision=auto").stdout
    assert sorted(tmp_path.rglob("*")) == before
