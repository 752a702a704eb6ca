"""Muon against torch.optim.Muon, parameter groups, schedules."""

import math

import pytest
import torch

from model import LanguageModel
from tests.conftest import tiny_config
from train.config import OptimizerConfig
from train.optimizer import Muon, build_optimizers, orthogonalize, set_learning_rate
from train.schedule import lr_factor


@pytest.mark.parametrize("shape", [(24, 24), (48, 16), (16, 48)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_muon_agrees_with_pytorchs(shape, weight_decay):
    """PyTorch iterates in bfloat16, so ours does too here; the rest of the arithmetic is float32."""
    ours = [torch.nn.Parameter(torch.randn(shape)) for _ in range(3)]  # one batch of three
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    settings = {"lr": 0.02, "momentum": 0.95, "weight_decay": weight_decay}
    mine = Muon(ours, **settings, dtype=torch.bfloat16)
    reference = torch.optim.Muon(theirs, **settings)
    for _ in range(5):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(shape)
            b.grad = a.grad.clone()
        mine.step()
        reference.step()
    moved = 5 * 0.02 * math.sqrt(max(1, shape[0] / shape[1]))
    for a, b in zip(ours, theirs, strict=True):
        # singular values of a step scatter by bf16's rounding through five iterations: a few per cent of a step
        assert (a - b).abs().max().item() < 0.03 * moved


@pytest.mark.parametrize("shape", [(2, 24, 24), (1, 48, 16), (3, 16, 48)])
def test_orthogonalize_keeps_the_directions_and_evens_out_the_singular_values(shape):
    """U S Vᵀ -> about U Vᵀ, for singular values S from 0.05 to 1."""
    u, _, vh = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    found = orthogonalize(u * torch.linspace(0.05, 1, min(shape[1:])) @ vh)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.65  # Jordan's constants trade exactness for speed: between about 0.7 and 1.2
    assert values.max() < 1.25
    scaled_back = u.mT @ found @ vh.mT  # diagonal, if the directions are the same
    assert (scaled_back - torch.diag_embed(scaled_back.diagonal(dim1=-2, dim2=-1))).abs().max() < 1e-3


def test_muon_gets_the_matrices_of_the_blocks_and_decay_only_falls_on_matrices():
    lm = LanguageModel(tiny_config(tie_word_embeddings=False))
    names = {id(p): name for name, p in lm.named_parameters()}
    muon, adamw = build_optimizers(lm, OptimizerConfig(lr=0.02, adamw_lr=0.005, embedding_lr=0.1, weight_decay=0.1))
    by_muon = {names[id(p)] for p in muon.param_groups[0]["params"]}
    assert len(by_muon) == 2 * 7
    assert all(name.endswith("proj.weight") for name in by_muon)
    groups = {names[id(p)]: g for g in adamw.param_groups for p in g["params"]}
    assert by_muon.isdisjoint(groups)
    assert by_muon | set(groups) == set(names.values())
    assert {name: g["weight_decay"] for name, g in groups.items()} == {
        name: 0.1 if name == "lm_head.weight" else 0.0 for name in groups
    }
    assert set_learning_rate([muon, adamw], 0.5) == 0.01
    assert groups["model.embed_tokens.weight"]["lr"] == 0.05
    assert groups["lm_head.weight"]["lr"] == groups["model.norm.weight"]["lr"] == 0.0025


def test_adamw_alone_takes_everything():
    lm = LanguageModel(tiny_config())
    (adamw,) = build_optimizers(lm, OptimizerConfig(name="adamw", lr=1e-3))
    assert sum(len(g["params"]) for g in adamw.param_groups) == len(list(lm.parameters()))
    assert {g["lr"] for g in adamw.param_groups} == {1e-3}


def factors(schedule, warmup, cooldown=0.5, final=0.1, steps=100):
    return [lr_factor(step / steps, step, schedule, warmup, cooldown, final) for step in range(steps)]


def test_wsd_warms_up_stays_and_cools_down_linearly():
    f = factors("wsd", warmup=10)
    assert f[0] == pytest.approx(0.1)
    assert f[9:50] == [1.0] * 41
    assert f[75] == pytest.approx(0.1 + 0.9 * 0.5)
    assert f[99] == pytest.approx(0.1 + 0.9 * 0.02)
    assert sorted(f[50:], reverse=True) == f[50:]


def test_cosine_warms_up_and_falls_to_the_final_rate():
    f = factors("cosine", warmup=10)
    assert f[0] == pytest.approx(0.1)
    assert max(f) == f[9] > 0.98
    assert f[50] == pytest.approx(0.1 + 0.9 * 0.5)
    assert f[99] == pytest.approx(0.1, abs=2e-3)
    assert all(0 < x <= 1 for x in f)


def test_constant_stays_at_the_peak_after_the_warm_up():
    assert factors("constant", warmup=4) == [0.25, 0.5, 0.75] + [1.0] * 97


def test_no_cooldown_stays_at_the_peak():
    assert factors("wsd", warmup=0, cooldown=0.0) == [1.0] * 100
