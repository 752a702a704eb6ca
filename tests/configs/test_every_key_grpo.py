"""Every key of `grpo:` changes what is sampled, what it is worth, or how far a step goes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.configs.every_key import shows
from tests.train.grpo_helpers import ROWS, begun, grpo_config, opened, rollouts
from tests.train.helpers import pretrain
from train import grpo
from train.grpo import policy_loss
from train.methods.grpo_keys import GRPOConfig


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return begun(tmp_path_factory.mktemp("grpo") / "folder")


def batch(run, **settings):
    return rollouts(run, **settings)[1].batch(0, opened(run)[0])


@shows("grpo")
def test_without_the_section_there_is_nothing_to_sample(run):
    done = pretrain(grpo_config(run), "grpo=null", script=grpo.main, code=2)
    assert "train.grpo needs this section" in done.stderr


@shows("grpo.reward", "grpo.group_size", "grpo.max_new_tokens", "grpo.temperature")
def test_what_is_sampled_and_what_it_earns(run):
    before = batch(run)
    assert int(before["copies"].sum()) == ROWS
    same = batch(run, reward="tests.train.grpo_helpers:same")  # no group is left, of which one answer stays
    assert (same.figures["reward"], same.figures["skipped_groups"], same["copies"].tolist()) == (1, 1, [0])
    assert rollouts(run, group_size=2)[1].groups == 2 * rollouts(run)[1].groups
    assert batch(run, max_new_tokens=3).figures["answer_length"] <= 3 < before.figures["answer_length"]
    colder = batch(run, temperature=0.1)
    assert colder["drawn_log_probs"].sum() / colder["copies"].sum() > before["drawn_log_probs"].sum() / ROWS


@shows("grpo.tools")
def test_a_tool_is_described_before_the_question(run):
    """tests/train/test_grpo_tools.py has rollouts that call it."""
    _, tokenizer = opened(run)
    for tools in ([], ["look_up"], ["calculator"]):
        prompt = tokenizer.decode(rollouts(run, tools=tools)[1].question(0, 0)[1])
        assert [name for name in ("calculator", "look_up") if f'"name": "{name}"' in prompt] == tools


@shows("grpo.num_iterations")
def test_how_many_steps_learn_from_the_same_answers(run):
    _, source = rollouts(run, num_iterations=2)
    batches = list(source.upcoming(0, 4, opened(run)[0]))
    assert batches[0] is batches[1]
    assert batches[2] is batches[3]
    assert batches[0] is not batches[2]
    assert [sorted(source.kept(k)) != [] for k in (4, 5)] == [False, True]


@shows("grpo.scale_advantages", "grpo.mean")
def test_what_an_answer_and_a_token_count_for(run):
    lm, _ = opened(run)
    found = {}
    for name, settings in {"": {}, "plain": {"scale_advantages": False}, "token": {"mean": "token"}}.items():
        _, source = rollouts(run, **settings)
        prompts = tuple(source.question(0, number)[1] for number in range(source.groups))
        answers = source.sample(0, lm, prompts)
        found[name] = source.rows(prompts, answers, torch.arange(float(ROWS)), torch.zeros(4))
    assert sorted(set(found["plain"]["advantages"].tolist())) == [-1.5, -0.5, 0.5, 1.5]
    assert found[""]["advantages"].max() == pytest.approx(1.5 / (torch.arange(4.0).std() + 1e-4))
    for one in found.values():
        assert one["weights"].sum() == pytest.approx(ROWS)  # a mean, whichever
    assert len(set(found["token"]["weights"][found["token"]["weights"] > 0].tolist())) == 1
    fixed = batch(run, mean="fixed")
    assert fixed["weights"].max() == pytest.approx(fixed["copies"].max() / 6)


@shows("grpo.clip", "grpo.clip_low", "grpo.clip_high")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [-1.2, 0.8]),
        ({"clip_low": 0.4}, [-1.2, 0.6]),
        ({"clip_high": 0.28}, [-1.28, 0.8]),
        ({"clip": "cispo"}, None),
    ],
)
def test_how_far_a_step_goes(settings, expected):
    """A good answer that is three times as likely as before, and a bad one that is a third as likely."""
    new = torch.tensor([[3.0], [1 / 3]]).log()
    loss, _ = policy_loss(new, torch.zeros(2, 1), torch.tensor([1.0, -1.0]), GRPOConfig(**settings))
    wanted = torch.tensor(expected)[:, None] if expected else torch.tensor([[-1.2], [1 / 3]]) * new
    torch.testing.assert_close(loss, wanted)


@shows("grpo.kl")
def test_a_reference_is_opened_only_if_it_counts(run):
    lm, tokenizer = opened(run)
    here = SimpleNamespace(device=torch.device("cpu"), attention="sdpa")
    without, with_one = (
        grpo.objective(rollouts(run, kl=kl)[0], SimpleNamespace(tokenizer=tokenizer), lm, here) for kl in (0.0, 0.5)
    )
    assert without.reference is None
    with torch.no_grad():
        with_one.reference.lm_head.weight += 1e-2 * torch.randn(with_one.reference.lm_head.weight.shape)
        one, rows = batch(run), []
        for objective in (without, with_one):
            loss, figures = objective.loss(lm, one)
            rows.append((loss, figures))
    (plain, before), (pulled, figures) = rows
    assert "kl" not in before
    torch.testing.assert_close(pulled, plain + 0.5 * figures["kl"], rtol=1e-4, atol=1e-5)
