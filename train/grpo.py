"""Reinforcement learning on sampled answers: `python -m train.grpo configs/grpo_demo.yaml
init_from=runs/sft_demo`

GRPO (Shao et al. 2024, arXiv 2402.03300). The model answers each question several times: a group.
Answers with a higher reward than the group's mean become likelier, the others less likely. The
group takes the place of PPO's value network.

    advantage = (reward - mean(rewards of the group)) / their standard deviation
    ratio     = p(token) now / p(token) when it was drawn
    loss      = - min(ratio * advantage, clip(ratio) * advantage) + kl * KL(model || reference)

DAPO (Yu et al. 2025, arXiv 2503.14476), Dr. GRPO (Liu et al. 2025, arXiv 2503.20783) and CISPO
(MiniMax 2025, arXiv 2506.13585) are settings: see configs/grpo_demo.yaml. Questions, rewards and
the batch of answers are in train/methods/rollouts.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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

# Added to a standard deviation before the division, as in TRL.
EPSILON = 1e-4


class Rollouts(AnswerBatches):
    """A source of batches: questions, each with a group of answers that the model samples."""

    def batch(self, k: int, lm: LanguageModel) -> Batch:
        """Sample, reward, compare. It changes nothing here, so a trial changes no run."""
        size = self.settings.group_size
        questions = [self.question(k, number) for number in self.numbers]

        # 1. Sample a group of answers to each question, from the model as it is now.
        answers = self.sample(k, lm, questions)

        # 2. Reward each answer. The reward may be a user's code: if it fails in one process, all
        # must stop, so the problem is gathered and raised everywhere.
        replies = [answer.reply(self.tokenizer) for answer in answers]
        repeated = [question for question, _ in questions for _ in range(size)]
        rewards, problem = rewards_of(self.reward, repeated, replies)
        counts = [(sum(answer.own), answer.calls, answer.errors) for answer in answers]
        problems, all_rewards, all_counts = zip(
            *self.world.gather((problem, rewards, counts)), strict=True
        )
        if any(problems):
            raise InputError(next(filter(None, problems)))

        # 3. Compare each with its group. Groups stay in one process, but figures are of all.
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
        differ = spread(mine, size) > 0  # if all answers earn the same, there is nothing to learn
        better = advantages(mine, size, self.settings.scale_advantages)
        return self.rows(answers, better, differ, figures)

    def sample(
        self, k: int, lm: LanguageModel, questions: Sequence[tuple[Question, list[int]]]
    ) -> list[Written]:
        """Sample a group of answers to each question; with tools, their calls are run."""
        size = self.settings.group_size
        # Each answer has its own random numbers, by its row in the whole step. So the answers do
        # not depend on the number of processes.
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
    """Return each reward minus its group's mean, (answers,); scaled: in standard deviations."""
    groups = rewards.view(-1, group_size)  # (groups, group_size)
    deviations = spread(rewards, group_size)[:, None]  # (groups, 1)
    better = (groups - groups.mean(dim=1, keepdim=True)).where(deviations > 0, 0.0)
    if scaled:  # Dr. GRPO does not: it makes nearly solved and nearly hopeless questions weigh most
        better = better / (deviations + EPSILON)
    return better.flatten()


def spread(rewards: Tensor, group_size: int) -> Tensor:
    """Return the standard deviation of each group's rewards: (answers,) -> (groups,)."""
    groups = rewards.view(-1, group_size)
    # Make it exactly 0 where all are equal. In floating point the mean of eight times 0.1 is not
    # 0.1, and optimizers scale such a tiny difference up to a whole step.
    return groups.std(dim=1).where(groups.amax(dim=1) > groups.amin(dim=1), 0.0)


@dataclass(frozen=True)
class GRPO:
    """The loss of sampled answers."""

    settings: GRPOConfig
    lm: LanguageModel
    reference: LanguageModel | None  # None: grpo.kl is 0

    def count(self, batch: Batch) -> int:
        return int(batch["copies"].sum())  # answers; equal ones share a row

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        # Rows are sorted by length, so a micro-batch of short ones needs fewer columns. This waits
        # for the GPU, and pays: a forward pass costs more.
        is_answer = batch["labels"] != IGNORED
        used = int(is_answer.any(dim=0).nonzero().max()) + 1
        is_answer = is_answer[:, :used]
        ids = batch["input_ids"][:, :used]  # (B, T)
        labels = batch["labels"][:, :used]
        output = forward(ids, logits_to_keep=None)
        new = self.log_probs(output, self.lm, labels)  # (B, T), 0 where there is no answer
        old = batch["drawn_log_probs"][:, :used]
        loss, clipped = policy_loss(new, old, batch["advantages"], self.settings)
        # The entropy is E[-ln p] over what the model draws, so the mean of -old estimates it.
        figures = {"entropy": -old, "clip_share": clipped.float()}
        if self.reference is not None:
            with torch.no_grad():
                theirs = self.reference.outputs(ids, logits_to_keep=None)
                reference = self.log_probs(theirs, self.reference, labels)
            figures["kl"] = divergence(new, reference)
            loss = loss + self.settings.kl * figures["kl"]
        # Weights (B, T): in the loss as grpo.mean sets them, in figures 1 for each answer.
        weights = batch["weights"][:, :used]
        even = (batch["copies"] / is_answer.sum(1))[:, None] * is_answer
        sums = {name: (value.detach() * even).sum() for name, value in figures.items()}
        return Loss((loss * weights).sum(), sums, output.auxiliary)

    def log_probs(self, output: Output, lm: LanguageModel, labels: Tensor) -> Tensor:
        """Return ln p of each label (B, T), at the temperature at which it was drawn."""
        return log_probs(output.hidden / self.settings.temperature, lm.lm_head.weight, labels)


def policy_loss(
    new: Tensor, old: Tensor, advantages: Tensor, settings: GRPOConfig
) -> tuple[Tensor, Tensor]:
    """Return the loss of each token (B, T), and True where it was clipped.

    new, old: log-probabilities (B, T). advantages (B,).
    """
    # If every step samples anew, the ratio is 1 up to rounding. Its gradient is that of ln p, so
    # this is plain policy gradient. It moves in the later steps of grpo.num_iterations.
    ratio = (new - old).exp()
    better = advantages[:, None]  # (B, 1): all tokens of an answer share its advantage
    low = 1 - settings.clip_low
    high = 1 + settings.clip_high
    too_high = (ratio > high) & (better > 0)
    # CISPO cuts the ratio, but every token keeps the gradient of ln p.
    if settings.clip == "cispo":
        return -ratio.clamp(max=high).detach() * better * new, too_high
    # PPO (Schulman et al. 2017, arXiv 1707.06347): a token that has moved far enough has a constant
    # loss, so no gradient. `minimum` clips only moves in the direction of the advantage.
    loss = -torch.minimum(ratio * better, ratio.clamp(low, high) * better)
    return loss, too_high | ((ratio < low) & (better < 0))


def divergence(new: Tensor, reference: Tensor) -> Tensor:
    """Return KL(new || reference), estimated from the tokens that `new` drew (B, T)."""
    # The estimator "k3" of Schulman (2020, joschu.net/blog/kl-approx.html): right on average, as
    # -difference is, but never negative and less noisy.
    difference = reference - new
    return difference.exp() - difference - 1


def open_grpo(config: RunConfig, data: PreparedData, lm: LanguageModel, device: Device) -> GRPO:
    """Make the objective of a run. The model of init_from is loaded only if grpo.kl needs it."""
    assert config.grpo is not None  # check_script
    reference = open_reference(config, data.tokenizer, device) if config.grpo.kl else None
    return GRPO(config.grpo, lm, reference)


def main() -> int:
    description = "Train a model that answers by the rewards of its answers."
    example = "configs/grpo_demo.yaml init_from=runs/sft_demo"
    config = parse_command_line(description, example, "train.grpo")
    assert config.grpo is not None  # check_script
    questions = config.rows_per_step // config.grpo.group_size  # a group stays in one process
    return run(config, "train.grpo", open_grpo, Rollouts, parts=questions)


if __name__ == "__main__":
    exit_on_bad_input(main)
