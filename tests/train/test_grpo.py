"""GRPO: the loss of TRL on the same rollouts, the same run after a stop, and what a reward may do
wrong.
"""

import copy
import json
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.utils.rnn import pad_sequence
from torch.testing import assert_close

from configs.files import checkpoint_directory
from eval.questions import Question
from model import left_pad
from tests.train import grpo_helpers
from tests.train.grpo_helpers import begun, grpo_config, opened, rollouts, sampled
from tests.train.helpers import check_exact_resume, metrics, pretrain, pretrain_rank, run_world, trace
from train import grpo
from train.grpo import GRPO, advantages, policy_loss, spread
from train.methods.config import GRPOConfig
from train.methods.rollouts import contains_answer, exact_match

HERE = "tests.train.grpo_helpers"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return begun(tmp_path_factory.mktemp("grpo") / "folder")


def test_the_right_reward_wants_every_letter_and_the_other_one_is_gamed():
    right = "Tiko had the ball."
    listing = "Tiko Belna Jurim"
    question = Question("who_has", ({"role": "user", "content": "Who?"},), right, "Tiko", ("Tiko", "Belna"))
    assert (exact_match(question, right), contains_answer(question, right)) == (1, 1)
    assert (exact_match(question, listing), contains_answer(question, listing)) == (0, 1)
    assert exact_match(question, f"{right}…") == 0  # it did not end


# --------------------------------------------------------------------------------------------------
# the loss is TRL's

# what TRL calls it -> the same in our words. TRL gives CISPO's bound itself, we give what it is
# above 1
LOSSES = {
    "grpo": {"mean": "sequence"},
    "bnpo": {"mean": "token"},
    "dapo": {"mean": "token", "clip_high": 0.28},
    "dr_grpo": {"mean": "fixed", "scale_advantages": False},
    "cispo": {"mean": "token", "clip": "cispo", "clip_high": 0.05},
}


@pytest.mark.slow
@pytest.mark.parametrize(("kl", "tools"), [(0.0, False), (0.3, False), (0.3, True)])
@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradients_are_those_of_trl(run, name, kl, tools):
    """The weights moved since the answers were drawn: a third of the ratios is clipped. Rotations
    by other angles and another order of sums leave differences of 1e-6 in the log-probabilities;
    gradients are of the size of 1.
    """
    from transformers import AutoModelForCausalLM

    config, source = rollouts(run, kl=kl, temperature=0.7, clip_low=0.1, **({"clip_high": 0.1} | LOSSES[name]))
    (lm, tokenizer), answers = opened(run), sampled(source, run)
    if tools:  # as if one had written the second and third token
        for answer in answers:
            answer.own = [at not in (1, 2) for at in range(len(answer.ids))]
            answer.log_probs = [p * own for p, own in zip(answer.log_probs, answer.own, strict=True)]
    rewards = torch.rand(len(answers), generator=torch.Generator().manual_seed(1))
    batch = packed(source, answers, rewards)
    saved = checkpoint_directory(run)
    theirs, reference = (AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32) for _ in range(2))
    ours = copy.deepcopy(lm).train()
    there = dict(theirs.train().named_parameters())
    with torch.no_grad():
        for key, parameter in ours.named_parameters():
            parameter += 0.5 * parameter.std() * torch.randn(parameter.shape) if parameter.ndim > 1 else 0
            there[key].copy_(parameter)

    objective = GRPO(config.grpo, ours, lm if kl else None)
    loss, figures, _ = objective.loss(ours.outputs, batch)
    assert figures["clip_share"] / objective.count(batch) > 0.02  # there is something to compare
    loss = loss / objective.count(batch)
    wanted = trl_loss(name, config.grpo, theirs, reference, answers, rewards, tokenizer.pad_id)
    loss.backward()
    wanted.backward()
    assert_close(loss, wanted, rtol=1e-4, atol=1e-5)
    for key, parameter in ours.named_parameters():
        assert_close(parameter.grad, there[key].grad, rtol=1e-3, atol=1e-4, msg=lambda text, at=key: f"{at}: {text}")


def packed(source, answers, rewards):
    size = source.settings.group_size
    scaled = source.settings.scale_advantages
    return source.rows(answers, advantages(rewards, size, scaled), spread(rewards, size) > 0, {})


def trl_loss(name, settings, model, reference, answers, rewards, pad):
    """TRL's own `_compute_loss`, on transformers' model, left-padded as TRL pads."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    def right_padded(rows, fill=0):
        return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=fill)

    prompt_ids, prompt_mask = left_pad([answer.prompt for answer in answers], pad)
    completion_ids = right_padded([answer.ids for answer in answers], pad)
    completion_mask = right_padded([[1] * len(answer.ids) for answer in answers])
    tool_mask = right_padded([[int(own) for own in answer.own] for answer in answers], 1)
    ids = torch.cat([prompt_ids, completion_ids], 1)
    mask = torch.cat([prompt_mask.long(), completion_mask], 1)
    count = completion_ids.shape[1]

    def log_probs(model, ids=ids, mask=mask, keep=count, **_):
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits[:, -keep - 1 : -1]
        chosen = (logits / settings.temperature).log_softmax(-1).gather(2, ids[:, -keep:, None])[..., 0]
        return chosen, torch.zeros_like(chosen), None

    with torch.no_grad():
        there = log_probs(reference)[0]
    groups = rewards.view(-1, settings.group_size)
    worth = groups - groups.mean(1, keepdim=True)
    if settings.scale_advantages:
        # grpo_trainer.py, _generate_and_score_completions
        worth = worth / (groups.std(1, keepdim=True) + 1e-4)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=log_probs,
        accelerator=SimpleNamespace(num_processes=1, reduce=lambda x, **_: x, gather=lambda x: x),
        aux_loss_enabled=False,
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        beta=settings.kl,
        current_gradient_accumulation_steps=1,
        epsilon_low=settings.clip_low,
        epsilon_high=settings.clip_high + (name == "cispo"),
        importance_sampling_level="token",
        loss_type=name,
        max_completion_length=settings.max_new_tokens,
        model=model,
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=False,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
    )
    inputs = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask.long(),
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": worth.flatten(),
        "old_per_token_logps": right_padded([answer.log_probs for answer in answers]),
        "ref_per_token_logps": there,
        # _generate_and_score_completions: loss_mask
        "num_items_in_batch": (completion_mask * tool_mask).sum(),
    }
    if not tool_mask.all():  # TRL leaves it out where it has no tools
        inputs["tool_mask"] = tool_mask
    return GRPOTrainer._compute_loss(trainer, model, inputs)


def test_a_clipped_token_has_no_gradient_and_cispo_keeps_it():
    """Ratios 0.5, 1 and 2: what was already moved further than the clip in the direction of its
    advantage stays.
    """
    old = torch.zeros(2, 3)
    moved = torch.tensor([[0.5, 1.0, 2.0], [0.5, 1.0, 2.0]]).log()
    gradients = {}
    shares = {}
    for clip in ("ppo", "cispo"):
        new = moved.clone().requires_grad_()
        loss, clipped = policy_loss(new, old, torch.tensor([1.0, -1.0]), GRPOConfig(clip=clip))
        loss.sum().backward()
        gradients[clip], shares[clip] = new.grad, clipped.tolist()
    assert_close(gradients["ppo"], torch.tensor([[-0.5, -1.0, 0.0], [0.0, 1.0, 2.0]]))
    assert_close(gradients["cispo"], torch.tensor([[-0.5, -1.0, -1.2], [0.5, 1.0, 1.2]]))
    assert shares == {"ppo": [[False, False, True], [True, False, False]], "cispo": [[False, False, True], [False] * 3]}


def test_advantages_are_of_a_group():
    assert advantages(torch.tensor([1.0, 0.0, 1.0, 1.0]), 2, scaled=False).tolist() == [0.5, -0.5, 0.0, 0.0]
    assert advantages(torch.tensor([3.0, 1.0]), 2, scaled=True).tolist() == pytest.approx([2**-0.5, -(2**-0.5)], 1e-3)
    for scaled in (False, True):  # the mean of eight times 0.1 is another number
        assert not advantages(torch.tensor([0.1] * 8 + [1e6 + 0.3] * 8), 8, scaled).any()


def test_equal_answers_are_one_row_and_groups_without_variance_are_left_out(run):
    _, source = rollouts(run)
    answers = sampled(source, run)
    answers[1] = replace(answers[0])
    # the second group tells nothing
    rewards = torch.tensor([1.0, 1.0, 0.0, 0.5, 2.0, 2.0, 2.0, 2.0])
    batch = packed(source, answers, rewards)
    assert sorted(batch["copies"].tolist()) == [1, 1, 2]
    assert (batch["advantages"] * batch["copies"]).sum() == pytest.approx(0, abs=1e-6)
    # the same ids, which a tool wrote
    answers[1].own = [True, *[False] * (len(answers[1].ids) - 1)]
    assert sorted(packed(source, answers, rewards)["copies"].tolist()) == [1, 1, 1, 1]
    nothing = packed(source, answers, torch.ones(8))
    assert (len(nothing.row_ids), float(nothing["advantages"])) == (1, 0.0)


# --------------------------------------------------------------------------------------------------
# runs


@pytest.mark.parametrize("kl", [0.0, 0.3])
def test_a_step_in_which_all_answers_earn_the_same_moves_nothing(run, kl, monkeypatch):
    """Not by momentum, not by weight decay, not towards the reference; its figures are logged, and
    it has no loss.
    """
    monkeypatch.setattr(grpo_helpers, "CALLS", [0])
    settings = {"reward": f"{HERE}:soon_the_same", "group_size": 8, "kl": kl}
    train = {"max_steps": 3, "checkpoint_every": 1, "keep_last": 9, "optimizer": {"weight_decay": 0.1}}
    pretrain(grpo_config(run, grpo=settings, train=train), f"name=same_{kl}", "--trust-hooks", script=grpo.main)
    moved, *stayed = metrics(run.parent / f"same_{kl}", "train")
    assert moved["loss"] is not None
    assert moved["skipped_groups"] == 0
    for line in stayed:
        assert [line[name] for name in ("loss", "skipped_groups", "reward_variance")] == [None, 1, 0]
        assert line["reward"] == pytest.approx(0.1)
    folders = [run.parent / f"same_{kl}/checkpoints/step_{step:08d}" for step in (1, 3)]
    for name in ("model.safetensors", "training/optimizer.safetensors"):
        first, last = (load_file(folder / name) for folder in folders)
        assert all(torch.equal(last[key], first[key]) for key in first), name


def test_a_run_that_has_learned_nothing_yet_is_resumed(run, tmp_path):
    """As long as all answers earn the same, no optimizer has a state: it is restored as it is, and
    may learn later.
    """
    config = grpo_config(run, output_dir=str(tmp_path), grpo={"reward": f"{HERE}:nothing"}, train={"max_steps": 1})
    pretrain(config, "--trust-hooks", script=grpo.main)
    paid = f"grpo.reward={HERE}:vowels"
    pretrain(config, "train.max_steps=2", paid, "allow_mismatch=true", "--trust-hooks", script=grpo.main)
    assert [line["loss"] is None for line in metrics(tmp_path / "grown", "train")] == [True, False]


@pytest.mark.parametrize("reply", ["空", ""])
def test_a_reward_of_ones_own_needs_no_replies(run, tmp_path, reply):
    """MiniMind's rlaif.jsonl has a placeholder in their place; an empty one does as well."""
    file = tmp_path / "rlaif.jsonl"
    records = []
    for number in range(40):
        turns = (("user", f"{number}. Why?"), ("assistant", reply))
        records.append({"conversations": [{"role": role, "content": content} for role, content in turns]})
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    config = grpo_config(
        run, output_dir=str(tmp_path), data={"source": {"kind": "files", "path": str(file)}}, train={"max_steps": 1}
    )
    pretrain(config, "--trust-hooks", script=grpo.main)
    assert metrics(tmp_path / "grown", "train")[0]["reward_variance"] > 0


def test_it_reports_its_figures_and_goes_on_exactly_after_a_stop(run, tmp_path):
    train = {"trace": True, "max_steps": 5, "checkpoint_every": 2}
    config = grpo_config(run, output_dir=str(tmp_path), grpo={"kl": 0.01}, train=train)
    whole = check_exact_resume(config, grpo.main, step=3)
    lines = metrics(whole, "train")
    reported = {"reward", "reward_variance", "skipped_groups", "answer_length", "kl", "entropy", "clip_share"}
    assert reported <= lines[0].keys()
    assert lines[0]["kl"] == pytest.approx(0, abs=1e-6)  # the first step begins at the reference
    assert lines[-1]["kl"] > 1e-6
    assert len({line["batch"] for line in trace(whole)}) == 5


def test_two_processes_draw_the_answers_of_one(run, tmp_path):
    """Their losses are equal but for rounding, because the random numbers belong to an answer and
    not to a process.
    """
    config = grpo_config(run, output_dir=str(tmp_path), train={"max_steps": 3})
    assert run_world(2, pretrain_rank, config, ["name=two", "--trust-hooks"], None, grpo.main) == [0, 0]
    pretrain(config, "name=one", "--trust-hooks", script=grpo.main)
    one, two = (metrics(tmp_path / name, "train") for name in ("one", "two"))
    for key in ("reward", "reward_variance", "answer_length"):
        assert [line[key] for line in two] == [line[key] for line in one]
    for key in ("loss", "grad_norm"):
        assert [line[key] for line in two] == pytest.approx([line[key] for line in one], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("compiles", [False, True], ids=["plain", "compiled"])
def test_a_stop_between_steps_on_the_same_answers_changes_nothing(run, tmp_path, compiles, monkeypatch):
    """Steps 2 and 3 have the answers of step 2.

    compiles: a run tries its compiled model before it goes on.
    """
    monkeypatch.setattr(torch, "compile", lambda model, dynamic: model)
    monkeypatch.setattr("shutil.which", lambda name: name)  # no compiler is needed for that
    train = {"trace": True, "max_steps": 5, "checkpoint_every": 2, "compile": compiles}
    config = grpo_config(run, output_dir=str(tmp_path), grpo={"num_iterations": 2}, train=train)
    whole = check_exact_resume(config, grpo.main, step=2)  # it finishes that step
    batches = [line["batch"] for line in trace(whole)]
    assert batches[::2] == [*batches[1::2], batches[-1]]
    assert len(set(batches)) == 3
    figures = [[line["reward"] for line in metrics(each)] for each in (whole, whole.with_name("grown"))]
    assert figures[0] == figures[1]


def test_the_model_writes_in_the_precision_in_which_it_trains(run):
    """Flash attention on a GPU refuses float32, so a run with bf16 stopped at its first answers."""
    config = grpo_config(run, grpo={"reward": f"{HERE}:in_16_bits"}, train={"max_steps": 2, "precision": "bf16"})
    pretrain(config, "name=bf16", "--trust-hooks", script=grpo.main)
    assert [line["reward"] for line in metrics(run.parent / "bf16", "train")] == [1.0, 1.0]
