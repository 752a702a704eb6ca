"""The budget against the real thing: built models, filled caches, counted operations, bytes that autograd keeps."""

import sys
import weakref
from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from configs.loader import exit_on_bad_input
from data.config import DataConfig, TokenizerConfig
from data.prepare import prepare
from data.storyworld import tell
from data.tokenizer import train_tokenizer
from model import LanguageModel, ModelConfig
from model.decoding.kv_cache import KVCache
from model.masks import causal, within_window
from tests.conftest import tiny_config
from tests.train.helpers import write_config
from train import budget
from train.budget import (
    activation_bytes,
    flops_per_token,
    kv_cache_bytes,
    largest_micro_batch,
    mean_keys,
    parameter_count_by_part,
    step_memory,
    with_vocabulary,
)
from train.config import OptimizerConfig, RunConfig, load_run_config
from train.machine.hardware import peak_tflops
from train.optimizer import build_optimizers

SHAPES = [
    {},
    {"num_key_value_heads": "mha"},
    {"num_key_value_heads": "mqa"},
    {"qk_norm": False},
    {"tie_word_embeddings": False},
    {"head_dim": 12, "num_key_value_heads": "gqa", "tie_word_embeddings": False},
    {"num_hidden_layers": 3, "intermediate_size": 48, "qk_norm": False},
    {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]},
]


@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_parameters_are_those_of_the_built_model(changes):
    config = tiny_config(**changes)
    lm = LanguageModel(config)
    counts = parameter_count_by_part(config)
    assert counts["total"] == lm.num_parameters()
    where = {"embedding": "embed_tokens", "attention": "_proj", "feed-forward": "mlp.", "norms": "norm."}
    for part, word in where.items():
        found = {name: p.numel() for name, p in lm.named_parameters() if word in name}
        if part == "attention":
            found = {name: n for name, n in found.items() if "self_attn" in name}
        assert counts[part] == sum(found.values()), part
    assert counts["head"] == (0 if config.tie_word_embeddings else lm.lm_head.weight.numel())


def test_a_model_without_vocabulary_has_no_parameter_count():
    with pytest.raises(ValueError, match="vocab_size is not set"):
        parameter_count_by_part(ModelConfig())


@pytest.mark.parametrize("changes", SHAPES[:-1], ids=str)
def test_flops_are_those_that_pytorch_counts(changes):
    """PyTorch's counter sees every matrix product. `eager` multiplies all T x T scores, masked ones too, so what is
    more than ours must be exactly those: T - (T + 1) / 2 keys a token."""
    config = tiny_config(attn_implementation="eager", **changes)
    B, T = 2, 24
    ids = torch.randint(0, 192, (B, T))
    lm = LanguageModel(config)
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        lm(ids, labels=ids)
    with FlopCounterMode(display=False) as training:
        lm(ids, labels=ids)[0].backward()
    masked = 4 * config.num_hidden_layers * config.num_attention_heads * config.head_size * (T - mean_keys(T))
    assert forward.get_total_flops() == B * T * (flops_per_token(config, T, training=False) + masked)
    assert training.get_total_flops() == B * T * (flops_per_token(config, T) + 3 * masked)


@pytest.mark.parametrize("window", [None, 1, 5, 16, 17, 40])
def test_mean_keys_are_those_of_the_mask(window):
    places = torch.arange(16)
    mask = causal(places[:, None], places[None])
    if window is not None:
        mask = mask & within_window(places[:, None], places[None], window)
    assert mean_keys(16, window) == mask.sum().item() / 16


def test_a_window_saves_operations_only_in_its_own_layers():
    full, half, all_ = (
        flops_per_token(tiny_config(**changes), 64)
        for changes in (
            {},
            {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
            {"sliding_window": 8},
        )
    )
    assert full > half > all_
    assert full - half == half - all_


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

KEEPING = [
    {},
    {"num_key_value_heads": 2},
    {"num_key_value_heads": 1},
    {"qk_norm": False},
    {"head_dim": 40, "num_key_value_heads": "gqa", "tie_word_embeddings": False},
    {"attn_implementation": "eager", "num_key_value_heads": 2},
    {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]},
]


def larger_config(**changes) -> ModelConfig:
    """Large enough that what the formula leaves out (angles, causal masks) is small beside what it counts."""
    fields = {"vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return ModelConfig(**(fields | {"num_key_value_heads": "mha", "max_position_embeddings": 64} | changes))


def inputs(config: ModelConfig, rows: int, length: int, documents: bool) -> dict[str, torch.Tensor | None]:
    ids = torch.randint(0, config.vocab_size or 0, (rows, length))
    return {"input_ids": ids, "labels": ids, "document_ids": (ids.cumsum(1) // 4000) if documents else None}


def autocast(half: bool):
    return torch.autocast("cpu", dtype=torch.bfloat16) if half else nullcontext()


def training_model(config: ModelConfig, half: bool) -> LanguageModel:
    """As a run on a CPU has it: `auto` trains with blocked attention in bf16."""
    lm = LanguageModel(config).train()
    if half and config.attn_implementation == "auto":
        lm.set_attn_implementation("blocked")
    return lm


def kept_for_backward(config: ModelConfig, rows: int, length: int, half: bool, documents: bool) -> int:
    """Bytes of all storages that autograd holds on to after a forward pass, parameters aside."""
    lm = training_model(config, half)
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()  # held, so that no address is used twice
        return tensor

    with autocast(half), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        lm(**inputs(config, rows, length, documents))
    for parameter in lm.parameters():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("documents", [False, True], ids=["plain", "documents"])
@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("changes", KEEPING, ids=str)
def test_activations_are_what_autograd_keeps(changes, half, documents):
    """The goal is 20 %. It is within 2 %, and a tighter bound notices a tensor that was forgotten."""
    config, rows, length = larger_config(**changes), 3, 64
    counts = parameter_count_by_part(config)
    predicted = activation_bytes(config, length, rows, half=half, device="cpu", documents=documents)
    predicted += 4 * counts["embedding"]  # the head's gradient, which the loss computes ahead
    predicted += 2 * (counts["attention"] + counts["feed-forward"]) if half else 0  # autocast's copies
    assert predicted == pytest.approx(kept_for_backward(config, rows, length, half, documents), rel=0.02)


class Alive(TorchDispatchMode):
    """Counts the bytes of every storage from the operation that makes it to the moment when nobody holds it."""

    def __init__(self):
        super().__init__()
        self.now, self.most, self.known = 0, 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if not isinstance(tensor, torch.Tensor) or (key := tensor.untyped_storage()._cdata) in self.known:
                continue
            storage = tensor.untyped_storage()
            self.known.add(key)
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self.gone, key, storage.nbytes())
        return out

    def gone(self, key, size):
        self.known.discard(key)
        self.now -= size


def run_config(model: ModelConfig, optimizer: str = "muon", documents: bool = True) -> RunConfig:
    base = RunConfig(model=model, data=DataConfig(sequence_length=64, isolate_documents=documents))
    train = base.train.model_copy(update={"optimizer": OptimizerConfig(name=optimizer), "tokens_per_step": 64 * 48})
    return base.model_copy(update={"train": train})


@pytest.mark.parametrize(
    ("rows", "half", "optimizer"),
    [(8, False, "muon"), (8, True, "muon"), (8, False, "adamw"), (1, False, "muon")],  # 1 row: Muon's step is fuller
)
def test_the_fullest_moment_of_two_whole_steps(rows, half, optimizer):
    """The goal is 20 %; it is within 3 %. What an operation needs inside, and gives back, is not seen here."""
    config = larger_config(num_hidden_layers=4, num_key_value_heads="gqa")
    run = run_config(config, optimizer)
    with Alive() as alive:
        lm = training_model(config, half)
        optimizers = build_optimizers(lm, run.train.optimizer)
        for _ in range(2):
            for _ in range(2):  # the second micro-batch meets the gradients of the first
                with autocast(half):
                    loss, _ = lm(**inputs(config, rows, 64, documents=True))
                loss.backward()
                del loss
            for one in optimizers:
                one.step()
    memory = step_memory(run, rows, half=half, device="cpu")
    assert memory["at the fullest moment"] == pytest.approx(alive.most, rel=0.05)
    kept = [t for one in optimizers for state in one.state.values() for t in state.values() if t.ndim > 0]
    assert memory["optimizer state"] == sum(t.nbytes for t in kept)
    assert memory["weights"] == memory["gradients"] == sum(p.nbytes for p in lm.parameters())


@pytest.mark.parametrize("memory", [5e6, 40e6, 1e9])
def test_the_largest_micro_batch_fits_and_one_row_more_does_not(memory):
    run = run_config(larger_config())
    rows = largest_micro_batch(run, memory, half=True, device="cuda")

    def needed(n):
        return step_memory(run, n, half=True, device="cuda")["at the fullest moment"]

    assert rows > 0
    assert needed(rows) <= 0.9 * memory < needed(rows + 1)


def test_no_row_fits_into_no_memory():
    assert largest_micro_batch(run_config(larger_config()), 1e5, half=False, device="cpu") == 0


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
    assert "ASSUMED" in known
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
    assert "not measured yet" in text
    assert "of 989 TFLOPS (--tflops)" in text
    assert max(map(len, text.splitlines())) <= 100
    assert sorted(tmp_path.rglob("*")) == before


def test_minutes_follow_from_flops_peak_and_share(tmp_path, monkeypatch, capsys):
    """12 steps of 256 tokens; at a peak so low that they take minutes."""
    run, _ = with_vocabulary(load_run_config(write_config(tmp_path)))
    seconds = 12 * 256 * flops_per_token(run.model, 32) / (1e-6 * 1e12 * 0.25)
    text = show(monkeypatch, capsys, tmp_path / "tiny.yaml", "--tflops", 1e-6, "--mfu", 0.25)
    line = next(line for line in text.splitlines() if "minutes at 25%" in line)
    assert float(line.split()[-1].replace(",", "")) == pytest.approx(seconds / 60, abs=0.05)


def test_planning_for_a_gpu_that_is_not_here(tmp_path, monkeypatch, capsys):
    text = show(monkeypatch, capsys, write_config(tmp_path), "train.precision=auto", "--device", "cuda")
    assert "* this run: bf16 on cuda" in text
    if not torch.cuda.is_available():
        assert "give --memory-gb" in text
        assert "give --tflops" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mfu", "1.5"], "--mfu is 1.5: it must be above 0 and at most 1"),
        (["--memory-gb", "0"], "--memory-gb is 0.0: it must be above 0"),
        (["--tflops", "nan"], "--tflops is nan"),
        (["model.num_key_value_heads=3"], "use 1, 2 or 4"),
        (["model.hiden_size=3"], "did you mean `model.hidden_size`"),
    ],
)
def test_bad_input_is_one_line_and_code_2(tmp_path, monkeypatch, capsys, arguments, words):
    message = show(monkeypatch, capsys, write_config(tmp_path), *arguments, code=2)
    assert words in message
    assert message.count("\n") == 1
