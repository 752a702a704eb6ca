"""The choice of a backend: explicit means explicit, auto says why, and what cannot serve is refused first."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from model.backends import kernels
from model.backends.choice import Situation, choose_attention, why_not
from tests.conftest import random_model, tiny_config
from train.config import load_run_config

HALF = torch.bfloat16
CONFIGS = Path(__file__).parents[3] / "configs"


@pytest.mark.parametrize(
    ("name", "situation", "reason"),
    [
        ("flash", Situation("cpu", torch.float32, 64, dropout=0.1), "has no dropout"),
        ("flash", Situation("cpu", torch.float32, 64, value_dim=32), "takes values as large as keys"),
        ("flash", Situation("cuda", torch.float32, 64), "computes in 16 bits only"),
        ("flash", Situation("cuda", HALF, 320), "heads of at most 256, not 320"),
        ("flash", Situation("cuda", HALF, 64, documents=True, dropout=0.1), "has no dropout with documents"),
        ("flash", Situation("mps", HALF, 64), "no kernel on mps"),
        ("flash3", Situation("cpu", HALF, 64), "needs CUDA"),
        ("flash3", Situation("cuda", HALF, 64), "does not start (No module named 'flash_attn_interface')"),
        ("flash4", Situation("cuda", HALF, 64), "does not start (No module named 'flash_attn"),
        ("flex", Situation("cpu", torch.float32, 64, gradients=True), "no gradients on CPU"),
        ("flex", Situation("cuda", HALF, 64, dropout=0.1), "no dropout"),
        ("flex", Situation("cuda", torch.float32, 64, compiled=True), "on a GPU in float32, compiled"),
        ("blocked", Situation("cuda", HALF, 64), "is for CPUs"),
        ("blocked", Situation("cpu", HALF, 64, dropout=0.1), "no dropout"),
        ("blocked", Situation("cpu", torch.float16, 64, gradients=True), "does not train in float16"),
        ("varlen", Situation("cpu", HALF, 64), "needs CUDA"),
        ("varlen", Situation("cuda", HALF, 64, dropout=0.1), "has no dropout"),
    ],
)
def test_what_cannot_serve_says_why(name, situation, reason):
    assert reason in (why_not(name, situation) or "")


@pytest.mark.parametrize(("name", "generation"), [("flash", 7), ("flash3", 8), ("flash3", 10), ("flash4", 8)])
def test_a_gpu_of_another_generation_is_named(monkeypatch, name, generation):
    monkeypatch.setattr(kernels, "use_flash", lambda kernel: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (generation, 0))
    assert f"of compute capability {generation}" in (why_not(name, Situation("cuda", HALF, 64)) or "")


def situations(run, device: str) -> list[Situation]:
    """What a backend meets in a run of this config: training, evaluation, generation with every cache."""
    model = run.model
    alone = Situation.of(model, device, HALF)
    packed = replace(alone, documents=run.data.isolate_documents)
    training = [replace(packed, gradients=True, dropout=model.attention_dropout, compiled=c) for c in (False, True)]
    prompts = [replace(alone, padding=padding) for padding in (False, True)]
    return [*training, packed, replace(packed, padding=True), *prompts, *(replace(p, compiled=True) for p in prompts)]


@pytest.mark.parametrize("config", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("backend", ["eager", "flash", "flash3", "flash4"])
def test_nothing_in_a_run_of_a_shipped_config_is_refused(monkeypatch, backend, config):
    monkeypatch.setattr(kernels, "use_flash", lambda kernel: None)
    run = load_run_config(config)
    for device in ("cuda",) if backend in ("flash3", "flash4") else ("cpu", "cuda"):
        for here in situations(run, device):
            assert why_not(backend, here) is None, here


@pytest.mark.parametrize(
    ("name", "message"), [("varlen", "needs CUDA"), ("flex", "has no gradients on CPU"), ("flash", "has no dropout")]
)
def test_a_model_refuses_before_it_computes(name, message):
    dropout = 0.1 if name == "flash" else 0.0
    lm = random_model(tiny_config(attention_dropout=dropout, attn_implementation=name)).train()
    lm.model.embed_tokens.register_forward_hook(lambda *_: pytest.fail("something was computed"))
    with pytest.raises(ValueError, match=f"attn_implementation: {name} {message}"):
        lm(torch.randint(0, 192, (1, 8)))


def test_an_unknown_name_lists_those_that_there_are():
    lm = random_model(tiny_config())
    with pytest.raises(ValueError, match="'flashy'.* auto, eager, flash, flex, "):
        lm.set_attn_implementation("flashy")
    assert lm.attn_implementation == "sdpa"


def test_auto_on_a_cpu_trains_in_blocks_where_that_can_serve():
    assert choose_attention(Situation("cpu", torch.float32, 64)) == ("sdpa", "PyTorch picks its kernel")
    here = Situation("cpu", HALF, 64, gradients=True, documents=True, compiled=True)
    assert choose_attention(here)[0] == choose_attention(replace(here, dtype=torch.float32))[0] == "blocked"
    for changes in ({"dropout": 0.1}, {"dtype": torch.float16}, {"gradients": False}, {"device": "mps"}):
        assert choose_attention(replace(here, **changes))[0] == "sdpa", changes


def test_auto_on_a_gpu_takes_the_first_that_can_serve_and_says_what_it_skipped(monkeypatch):
    packed = Situation("cuda", HALF, 64, gradients=True, documents=True)
    backend, reason = choose_attention(packed)
    assert backend == "flash"
    assert "not flash3: does not start (No module named" in reason
    assert choose_attention(replace(packed, documents=False))[0] == "sdpa"
    assert choose_attention(replace(packed, dtype=torch.float32))[0] == "sdpa"
    monkeypatch.setattr(kernels, "use_flash", lambda kernel: None)
    assert choose_attention(packed)[0] == "flash4"
