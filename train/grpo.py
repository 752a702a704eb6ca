"""Reinforcement learning on sampled answers: `python -m train.grpo configs/grpo_demo.yaml
init_from=runs/sft_demo`

GRPO (Shao et al. 2024, arXiv 2402.03300). The model answers each question several times. Answers
that earn more than their group's mean become likelier, the others less likely. The group takes the
place of PPO's value network.

    advantage = reward - mean(rewards of the group)                      / their standard deviation
    ratio     = p(token) now / p(token) when it was drawn
    loss      = - min(ratio * advantage, clip(ratio) * advantage)     + kl * KL(model || reference)

Its relatives are settings (configs/grpo_demo.yaml names them): DAPO clips higher up and weighs all
tokens alike (Yu et al. 2025, arXiv 2503.14476); Dr. GRPO divides by no deviation and no length (Liu
et al. 2025, arXiv 2503.20783); CISPO cuts the ratio and keeps the gradient (MiniMax 2025, arXiv
2506.13585). If every step samples again, the ratio is 1 but for rounding. With grpo.num_iterations,
several steps learn from the same answers; the clip bounds how far they go.

Which questions are asked, what a reply earns, and how answers become a batch:
train/methods/rollouts.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from random import Random
from statistics import fmean

import torch
from torch import Tensor

from configs import IGNORED
from configs.command import InputError, exit_on_bad_input
from data.batches import Batch
from data.packing import PreparedData
from eval.questions import Question
from eval.tools import Written, write_answers
from model import LanguageModel
from model.loss import log_probs
from model.transformer import Output
from train.config import RunConfig
from train.machine.device import Device
from train.methods.config import GRPOConfig
from train.methods.reference import open_reference
from train.methods.rollouts import AnswerBatches, rewards_of
from train.objective import Forward, Loss
from train.pretrain import run
from train.run.command_line import parse_command_line

EPSILON = 1e-4  # of the division by a standard deviation, as in TRL


class Rollouts(AnswerBatches):
    """Questions of the training text, each with a group of answers that the model samples."""

    def batch(self, k: int, lm: LanguageModel) -> Batch:
        """Sample, reward, compare. Nothing is remembered: what a trial asks for changes no run."""
        size = self.settings.group_size
        questions = [self.question(k, number) for number in self.numbers]

        # 1. A group of answers to each question, by the model as it is now.
        answers = self.sample(k, lm, questions)

        # 2. What each is worth. If a reward fails, all processes stop.
        replies = [answer.reply(self.tokenizer) for answer in answers]
        rewards, problem = rewards_of(
            self.reward, [question for question, _ in questions for _ in range(size)], replies
        )
        counts = [(sum(answer.own), answer.calls, answer.errors) for answer in answers]
        problems, all_rewards, all_counts = zip(
            *self.world.gather((problem, rewards, counts)), strict=True
        )
        if any(problems):
            raise InputError(next(filter(None, problems)))

        # 3. How much better than its group's mean each is. The figures are those of all processes.
        deviations = spread(torch.tensor(list(chain(*all_rewards))), size)
        lengths, calls, errors = map(fmean, zip(*chain(*all_counts), strict=True))
        figures = {
            "reward": fmean(chain(*all_rewards)),
            "reward_variance": float(deviations.square().mean()),
            "skipped_groups": float((deviations == 0).float().mean()),
            "answer_length": lengths,
        }
        if self.tools:
            figures |= {"tool_calls": calls, "tool_errors": errors}
        mine = torch.tensor(rewards)
        differ = spread(mine, size) > 0  # a group whose answers earn the same has nothing to teach
        return self.rows(
            answers, advantages(mine, size, self.settings.scale_advantages), differ, figures
        )

    def sample(
        self, k: int, lm: LanguageModel, questions: Sequence[tuple[Question, list[int]]]
    ) -> list[Written]:
        """Sample a group of answers to each question; with tools, their calls are run."""
        size = self.settings.group_size
        rows = [number * size + copy for number in self.numbers for copy in range(size)]
        return write_answers(
            lm,
            self.tokenizer,
            [prompt for _, prompt in questions],
            max_new_tokens=self.settings.max_new_tokens,
            temperature=self.settings.temperature,
            rngs=[Random(f"answer {self.seed} {k} {row}") for row in rows],
            copies=size,
            tools=bool(self.tools),
        )


def advantages(rewards: Tensor, group_size: int, scaled: bool) -> Tensor:
    """Return each reward minus the mean of its group; scaled: in standard deviations.

    Both (answers,).
    """
    groups = rewards.view(-1, group_size)
    deviations = spread(rewards, group_size)[:, None]
    better = (groups - groups.mean(dim=1, keepdim=True)).where(deviations > 0, 0.0)
    return (better / (deviations + EPSILON) if scaled else better).flatten()


def spread(rewards: Tensor, group_size: int) -> Tensor:
    """Standard deviation of each group's rewards: (groups * group_size,) -> (groups,).

    Exactly 0 where all are equal. The mean of eight times 0.1 is not 0.1, and optimizers scale
    whatever is left of such a difference up to a whole step.
    """
    groups = rewards.view(-1, group_size)
    return groups.std(dim=1).where(groups.amax(dim=1) > groups.amin(dim=1), 0.0)


class GRPO:
    """The loss of sampled answers: the mean over answers or tokens, as `grpo.mean` says."""

    def __init__(self, settings: GRPOConfig, lm: LanguageModel, reference: LanguageModel | None):
        self.settings = settings
        self.lm = lm
        self.reference = reference

    def count(self, batch: Batch) -> int:
        """Return the number of answers. batch["weights"] has the weight of each token."""
        return int(batch["copies"].sum())

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        is_answer = batch["labels"] != IGNORED
        used = (
            int(is_answer.any(dim=0).nonzero().max()) + 1
        )  # rows are sorted by length: a sync point, and it pays
        ids, labels, weights = (
            batch[name][:, :used] for name in ("input_ids", "labels", "weights")
        )
        output = forward(ids, logits_to_keep=None)
        new = self.log_probs(output, self.lm, labels)  # (B, T), 0 where there is no answer
        old = batch["drawn_log_probs"][:, :used]
        is_answer = is_answer[:, :used]
        loss, clipped = policy_loss(new, old, batch["advantages"], self.settings)
        figures = {
            "entropy": -old,
            "clip_share": clipped.float(),
        }  # E[-ln p] of what is drawn is the entropy
        if self.reference is not None:
            with torch.no_grad():
                theirs = self.reference.outputs(ids, logits_to_keep=None)
                reference = self.log_probs(theirs, self.reference, labels)
            figures["kl"] = divergence(new, reference)
            loss = loss + self.settings.kl * figures["kl"]
        of_answers = (batch["copies"] / is_answer.sum(1))[
            :, None
        ] * is_answer  # an answer's tokens weigh 1 together
        summed = {name: (value.detach() * of_answers).sum() for name, value in figures.items()}
        return Loss((loss * weights).sum(), summed, output.auxiliary)

    def log_probs(self, output: Output, lm: LanguageModel, labels: Tensor) -> Tensor:
        """Return ln p of each label (B, T), at the temperature at which it was drawn."""
        return log_probs(output.hidden / self.settings.temperature, lm.lm_head.weight, labels)


def policy_loss(
    new: Tensor, old: Tensor, advantages: Tensor, settings: GRPOConfig
) -> tuple[Tensor, Tensor]:
    """Return the loss of each token (B, T), and whether it was clipped.

    new, old: log-probabilities (B, T). advantages (B,).
    """
    ratio = (new - old).exp()
    better = advantages[:, None]
    low = 1 - settings.clip_low
    high = 1 + settings.clip_high
    too_high = (ratio > high) & (better > 0)
    if settings.clip == "cispo":
        return -ratio.clamp(max=high).detach() * better * new, too_high
    loss = -torch.minimum(ratio * better, ratio.clamp(low, high) * better)
    return loss, too_high | ((ratio < low) & (better < 0))


def divergence(new: Tensor, reference: Tensor) -> Tensor:
    """KL(new || reference), estimated for each token that `new` drew: never negative, right on
    average.

    It is the estimator "k3" of Schulman (2020, joschu.net/blog/kl-approx.html).
    """
    difference = reference - new
    return difference.exp() - difference - 1


def open_grpo(config: RunConfig, data: PreparedData, lm: LanguageModel, device: Device) -> GRPO:
    """GRPO, beside the model of `init_from` if the KL divergence from it counts.

    A `MakeObjective`.
    """
    assert config.grpo is not None  # check_script
    return GRPO(
        config.grpo, lm, open_reference(config, data.tokenizer, device) if config.grpo.kl else None
    )


def main() -> int:
    example = "configs/grpo_demo.yaml init_from=runs/sft_demo"
    config = parse_command_line(
        "Let a model that answers learn from what its answers earn.", example, "train.grpo"
    )
    assert config.grpo is not None  # check_script
    questions = config.rows_per_step // config.grpo.group_size
    return run(config, "train.grpo", open_grpo, Rollouts, parts=questions)


if __name__ == "__main__":
    exit_on_bad_input(main)
