"""The choice of a backend: explicit means explicit, auto says why, and what cannot serve is refused first."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from model.backends import choice as attention_backends
from model.backends.choice import BACKENDS, Backend, Situation, choose_attention, try_out, why_not
from tests.conftest import random_model, tiny_config
from train.config import load_run_config
from train.machine.device import resolve_attention

HALF = torch.bfloat16
CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize(
    ("name", "situation", "message"),
    [
        (
            "flash",
            Situation("cpu", torch.float32, 64, dropout=0.1),
            "no dropout on CPU: use sdpa, or attention_dropout: 0",
        ),
        ("flash", Situation("cuda", torch.float32, 64), "not in float32: use sdpa, or train.precision: bf16"),
        ("flash", Situation("cuda", HALF, 320), "heads of at most 256, not 320: use sdpa, or a smaller head_dim"),
        (
            "flash",
            Situation("cuda", HALF, 64, documents=True, dropout=0.1),
            "has no dropout with documents: use sdpa, or attention_dropout: 0",
        ),
        ("flash", Situation("mps", HALF, 64), "no kernel on mps: use sdpa"),
        ("flash3", Situation("cpu", HALF, 64), "needs CUDA: use flash or sdpa"),
        ("sdpa_efficient", Situation("cpu", torch.float32, 64), "needs CUDA: use sdpa"),
        ("sdpa_cudnn", Situation("cuda", torch.float32, 64), "16 bits, not in float32"),
        ("flex", Situation("cpu", torch.float32, 64, gradients=True), "no gradients on CPU: train with sdpa"),
        ("flex", Situation("cuda", HALF, 64, dropout=0.1), "no dropout: use sdpa, or attention_dropout: 0"),
        ("flex", Situation("cuda", torch.float32, 64, compiled=True), "failed on a GPU in float32, compiled"),
        ("blocked", Situation("cuda", HALF, 64), "is for CPUs: use sdpa"),
        ("blocked", Situation("cpu", HALF, 64, dropout=0.1), "no dropout: use sdpa, or attention_dropout: 0"),
        (
            "blocked",
            Situation("cpu", torch.float32, 64, gradients=True),
            "trains in bfloat16, not in float32: use sdpa",
        ),
        ("varlen", Situation("cpu", HALF, 64), "needs CUDA: use sdpa"),
        ("varlen", Situation("cuda", torch.float32, 64), "16 bits, not in float32"),
        ("varlen", Situation("cuda", HALF, 512), "heads of at most 256, not 512"),
        ("varlen", Situation("cuda", HALF, 64, dropout=0.1), "has no dropout with lengths"),
    ],
)
def test_what_cannot_serve_says_why_and_what_to_do(name, situation, message):
    found = why_not(name, situation)
    assert found is not None
    assert found.startswith(f"attn_implementation: {name} ")
    assert message in found


@pytest.mark.parametrize("config", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("backend", ["eager", "flash"])
def test_every_shipped_config_trains_with_eager_and_flash_wherever_there_is_a_kernel(backend, config):
    run = load_run_config(config, [f"model.attn_implementation={backend}"])
    for device in ("cpu", "cuda"):
        for compiled in (False, True):
            assert resolve_attention(run, device, "bf16", compiled) == (backend, "asked for")


def situations(run, device: str) -> list[Situation]:
    """What a backend meets in a run of this config: training, evaluation, generation with every cache."""
    model = run.model
    alone = Situation(
        device, HALF, model.head_size, model.num_key_value_groups, windows=model.sliding_window is not None
    )
    packed = replace(alone, documents=run.data.isolate_documents)
    training = [replace(packed, gradients=True, dropout=model.attention_dropout, compiled=c) for c in (False, True)]
    prompts = [replace(alone, padding=padding) for padding in (False, True)]
    later = [replace(prompt, after_cached_tokens=True) for prompt in prompts]
    static = [replace(prompt, static_cache=True, compiled=c) for prompt in prompts for c in (False, True)]
    return [*training, packed, replace(packed, padding=True), *prompts, *later, *static]


@pytest.mark.parametrize("config", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("backend", ["eager", "flash", "flash3", "flash4"])
def test_nothing_in_a_run_of_a_shipped_config_is_refused(monkeypatch, backend, config):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(attention_backends, "_is_installed", lambda package: True)
    run = load_run_config(config)
    for device in ("cuda",) if backend in ("flash3", "flash4") else ("cpu", "cuda"):
        for here in situations(run, device):
            assert why_not(backend, here) is None, here


def test_what_can_serve_is_let_through():
    for masked in ("documents", "windows", "padding", "after_cached_tokens", "static_cache"):
        assert why_not("flash", Situation("cuda", HALF, 64, **{masked: True})) is None
    assert why_not("flash", Situation("cuda", HALF, 256, dropout=0.1)) is None
    assert why_not("varlen", Situation("cuda", HALF, 64, documents=True, windows=True)) is None
    assert why_not("varlen", Situation("cuda", HALF, 64, padding=True, after_cached_tokens=True)) is None
    assert why_not("varlen", Situation("cuda", HALF, 64, documents=True, padding=True, compiled=True)) is None
    assert all(why_not(name, Situation("cpu", torch.float32, 64)) is None for name in ("eager", "sdpa", "sdpa_math"))


@pytest.mark.parametrize(
    ("name", "message"), [("varlen", "varlen needs CUDA"), ("flex", "flex has no gradients on CPU")]
)
def test_a_model_refuses_before_it_computes(name, message):
    lm = random_model(tiny_config(attn_implementation=name)).train()
    lm.model.embed_tokens.register_forward_hook(lambda *_: pytest.fail("something was computed"))
    with pytest.raises(ValueError, match=f"attn_implementation: {message}"):
        lm(torch.randint(0, 192, (1, 8)))


def test_dropout_is_refused_by_flash_in_training_only():
    lm = random_model(tiny_config(attention_dropout=0.1, attn_implementation="flash"))
    ids = torch.randint(0, 192, (1, 8))
    lm(ids)
    with pytest.raises(ValueError, match="flash has no dropout on CPU: use sdpa"):
        lm.train()(ids)


def test_an_unknown_name_lists_the_everyday_ones_and_says_where_the_others_are():
    lm = random_model(tiny_config())
    with pytest.raises(ValueError, match=r"'flashy'.* auto, eager, flash or flex \(docs/attention.md has the others"):
        lm.set_attn_implementation("flashy")
    assert lm.attn_implementation == "sdpa"


def test_auto_gives_its_reason():
    assert choose_attention(Situation("cpu", torch.float32, 64)) == (
        "sdpa",
        "PyTorch picks its kernel; on cpu none is faster",
    )


def test_auto_on_a_cpu_trains_in_blocks_where_that_can_serve():
    here = Situation("cpu", HALF, 64, gradients=True, documents=True, compiled=True)
    assert choose_attention(here)[0] == "blocked"
    for changes in ({"dropout": 0.1}, {"dtype": torch.float32}, {"gradients": False}, {"device": "mps"}):
        assert choose_attention(replace(here, **changes))[0] == "sdpa", changes


def test_a_trial_finds_a_kernel_that_fails_or_computes_something_else(monkeypatch):
    here = Situation("cpu", torch.float32, 16, num_key_value_groups=2, gradients=True, documents=True, windows=True)
    assert try_out("flash", here) is None
    assert "FlexAttention does not support backward on CPU" in (try_out("flex", here) or "")
    sdpa = BACKENDS["sdpa"].compute
    monkeypatch.setitem(BACKENDS, "wrong", Backend(lambda q, k, v, mask, p: sdpa(q, k.flip(1), v, mask, p)))
    assert "differed from the formula in a trial" in (try_out("wrong", here) or "")


def test_auto_on_a_gpu_takes_the_first_that_passes_and_says_what_it_skipped(monkeypatch):
    """The order and the words; which kernel passes on a real GPU is not yet known."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))  # no flash3, no flash4
    trials = {"flash": "failed in a trial (RuntimeError: no kernel image)", "flex": None}
    monkeypatch.setattr(attention_backends, "try_out", lambda name, here: trials[name])
    packed = Situation("cuda", HALF, 64, gradients=True, documents=True)
    backend, reason = choose_attention(packed)
    assert backend == "flex"
    assert "not flash: failed in a trial (RuntimeError: no kernel image)" in reason
    assert choose_attention(replace(packed, dtype=torch.float32))[0] == "sdpa"  # flex passed, and failed compiled
    trials["flex"] = "failed in a trial (RuntimeError: out of registers)"
    assert choose_attention(packed)[0] == "sdpa"
