"""Muon against torch.optim.Muon, whole and sharded; steps that must not happen; parameter groups,
schedules.
"""

import math

import pytest
import torch
import torch.multiprocessing

from model import LanguageModel
from tests.conftest import tiny_config
from train.config import OptimizerConfig, RunConfig
from train.optimizer import NEWTON_SCHULZ, Muon, build_optimizers, lr_factor, orthogonalize, set_learning_rate


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
        # singular values of a step scatter by bf16's rounding through five iterations: a few per
        # cent of a step
        assert (a - b).abs().max().item() < 0.03 * moved


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_the_quick_iteration_for_wide_matrices_is_the_plain_one(steps):
    wide, (a, b, c) = torch.randn(3, 16, 48), NEWTON_SCHULZ
    plain = wide / wide.norm(dim=(-2, -1), keepdim=True)
    for _ in range(steps):
        gram = plain @ plain.mT
        plain = a * plain + (b * gram + c * gram @ gram) @ plain
    torch.testing.assert_close(orthogonalize(wide, steps), plain, rtol=1e-4, atol=1e-5)


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
    assert [g["name"] for g in (*muon.param_groups, *adamw.param_groups)] == ["blocks", "head", "embedding", "vectors"]
    assert set_learning_rate([muon, adamw], 0.5) == 0.01
    assert groups["model.embed_tokens.weight"]["lr"] == 0.05
    assert groups["lm_head.weight"]["lr"] == groups["model.norm.weight"]["lr"] == 0.0025


def factors(schedule, warmup, cooldown=0.5, final=0.1, steps=100):
    shape = {"schedule": schedule, "warmup_steps": warmup, "cooldown": cooldown, "final_lr_fraction": final}
    config = RunConfig.model_validate({"train": {"max_steps": steps, **shape}})
    return [lr_factor(config, step) for step in range(steps)]


def test_schedules_warm_up_stay_and_fall_to_the_final_rate():
    f = factors("wsd", warmup=10)
    assert f[0] == pytest.approx(0.1)
    assert f[9:50] == [1.0] * 41
    assert f[75] == pytest.approx(0.1 + 0.9 * 24 / 49.5)
    assert f[99] == 0.1
    f = factors("cosine", warmup=10)
    assert max(f) == f[9] > 0.98
    assert (f[49] + f[50]) / 2 == pytest.approx(0.1 + 0.9 * 0.5)
    assert f[99] == 0.1
    assert all(0 < x <= 1 for x in f)
    assert factors("constant", warmup=4) == [0.25, 0.5, 0.75] + [1.0] * 97
    assert factors("wsd", warmup=0, cooldown=0.0) == [1.0] * 100
    assert [factors(schedule, warmup=0, steps=1) for schedule in ("wsd", "cosine")] == [[0.1], [0.1]]


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_frozen_parameters_are_in_no_group_and_stay(name):
    lm = LanguageModel(tiny_config(tie_word_embeddings=False))
    lm.model.requires_grad_(False)
    lm.model.layers[1].mlp.down_proj.requires_grad_(True)
    before = {key: p.detach().clone() for key, p in lm.named_parameters()}
    optimizers = build_optimizers(lm, OptimizerConfig(name=name, weight_decay=0.1))
    ids = torch.randint(0, 192, (2, 12))
    lm.train()(ids, labels=ids)[0].backward()
    for optimizer in optimizers:
        optimizer.step()
    moved = {key for key, p in lm.named_parameters() if not torch.equal(p, before[key])}
    assert moved == {"lm_head.weight", "model.layers.1.mlp.down_proj.weight"}
    assert sum(len(optimizer.state) for optimizer in optimizers) == 2
    assert {key for key, p in lm.named_parameters() if p.grad is not None} == moved


@pytest.mark.parametrize("shape", [(24, 24), (48, 16), (16, 48)])
def test_a_stack_of_matrices_steps_as_its_matrices_do(shape):
    """Experts: (number, rows, columns) in one parameter; a tall matrix shares a batch with wide
    ones.
    """
    stack = torch.nn.Parameter(torch.randn(3, *shape))
    alone = [torch.nn.Parameter(matrix.detach().clone()) for matrix in stack]
    wide = torch.nn.Parameter(torch.randn(16, 48))
    stack.grad = torch.randn(3, *shape)
    wide.grad = torch.randn(16, 48)
    for matrix, gradient in zip(alone, stack.grad, strict=True):
        matrix.grad = gradient.clone()
    Muon([stack, wide], weight_decay=0.1).step()
    for matrix in alone:
        Muon([matrix], weight_decay=0.1).step()
    assert torch.allclose(stack, torch.stack(alone), atol=1e-6)
