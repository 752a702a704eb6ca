"""Reinforcement learning on sampled answers: `python -m train.grpo configs/grpo_demo.yaml init_from=runs/sft_demo`

GRPO (Shao et al. 2024, arXiv 2402.03300). The model answers each question several times. Answers that earn more than
their group's mean become likelier, the others less likely. The group takes the place of PPO's value network.

    advantage = reward - mean(rewards of the group)                      / their standard deviation
    ratio     = p(token) now / p(token) when it was drawn
    loss      = - min(ratio * advantage, clip(ratio) * advantage)        + kl * KL(model || reference)

Its relatives are settings (configs/grpo_demo.yaml names them): DAPO clips higher up and weighs all tokens alike (Yu et
al. 2025, arXiv 2503.14476); Dr. GRPO divides by no deviation and no length (Liu et al. 2025, arXiv 2503.20783); CISPO
cuts the ratio and keeps the gradient (MiniMax 2025, arXiv 2506.13585). If every step samples again, the ratio is 1 but
for rounding. With grpo.num_iterations, several steps learn from the same answers; the clip bounds how far they go.
Sampling is in train/methods/rollouts.py, rewards beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from configs.command import InputError, exit_on_bad_input
from train.config import RunConfig
from train.methods.grpo_keys import GRPOConfig
from train.pretrain import parse_command_line

if TYPE_CHECKING:
    from torch import Tensor

    from data.batches import Batch
    from data.prepare import PreparedData
    from model import LanguageModel
    from train.machine.device import Device
    from train.objective import Figures, Forward


class GRPO:
    """The loss of sampled answers: the mean over answers or tokens, as `grpo.mean` says."""

    def __init__(self, settings: GRPOConfig, lm: LanguageModel, reference: LanguageModel | None):
        self.settings, self.lm, self.reference = settings, lm, reference

    def count(self, batch: Batch) -> int:
        """Answers. batch["weights"] holds what a token counts for beside that."""
        return int(batch["copies"].sum())

    def loss(self, forward: Forward, batch: Batch) -> tuple[Tensor, Figures]:
        import torch

        from data.batches import IGNORED

        is_answer = batch["labels"] != IGNORED
        used = int(is_answer.any(dim=0).nonzero().max()) + 1  # rows are sorted by length: a sync point, and it pays
        ids, labels, weights = (batch[name][:, :used] for name in ("input_ids", "labels", "weights"))
        new = self.log_probs(forward, self.lm, ids, labels)  # (B, T), 0 where there is no answer
        old, is_answer = batch["drawn_log_probs"][:, :used], is_answer[:, :used]
        loss, clipped = policy_loss(new, old, batch["advantages"], self.settings)
        figures = {"entropy": -old, "clip_share": clipped.float()}  # E[-ln p] of what is drawn is the entropy
        if self.reference is not None:
            with torch.no_grad():
                there = self.log_probs(self.reference, self.reference, ids, labels)
            figures["kl"] = divergence(new, there)
            loss = loss + self.settings.kl * figures["kl"]
        copies = batch["copies"]
        of_answers = (copies / is_answer.sum(1))[:, None] * is_answer  # each answer's tokens weigh 1 together
        summed = {name: (value.detach() * of_answers).sum() for name, value in figures.items()}
        return (loss * weights).sum(), summed

    def log_probs(self, forward: Forward, lm: LanguageModel, ids: Tensor, labels: Tensor) -> Tensor:
        """ln p of each label, at the temperature at which it was drawn: (B, T) twice -> (B, T)."""
        from model.loss import log_probs

        hidden = forward(ids, hidden_states=True)
        return log_probs(hidden / self.settings.temperature, lm.lm_head.weight, labels)


def policy_loss(new: Tensor, old: Tensor, advantages: Tensor, settings: GRPOConfig) -> tuple[Tensor, Tensor]:
    """The loss of each token, and whether it was clipped: new and old log-probabilities (B, T), advantages (B,)."""
    import torch

    ratio, better = (new - old).exp(), advantages[:, None]
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    too_high = (ratio > high) & (better > 0)
    if settings.clip == "cispo":
        return -ratio.clamp(max=high).detach() * better * new, too_high
    loss = -torch.minimum(ratio * better, ratio.clamp(low, high) * better)
    return loss, too_high | ((ratio < low) & (better < 0))


def divergence(new: Tensor, reference: Tensor) -> Tensor:
    """KL(new || reference), estimated for each token that `new` drew: never negative, right on average.

    It is the estimator "k3" of Schulman (2020, joschu.net/blog/kl-approx.html).
    """
    difference = reference - new
    return difference.exp() - difference - 1


def as_grpo(config: RunConfig) -> RunConfig:
    """The config with architecture and tokenizer of `init_from`. Raises InputError for what GRPO cannot use."""
    from data.config import StoryworldSource
    from train.methods.rewards import find_reward
    from train.sft import as_fine_tuning

    settings = config.grpo
    if settings is None:
        raise InputError("grpo: is null: train.grpo needs this section, as configs/grpo_demo.yaml has it")
    if isinstance(config.data.source, StoryworldSource) and config.data.source.recall is not None:
        raise InputError("data.source.recall: train.grpo asks in conversations, and these are facts: set it to null")
    find_reward(settings.reward)
    return as_fine_tuning(config)


def objective(config: RunConfig, data: PreparedData, lm: LanguageModel, device: Device) -> GRPO:
    """GRPO, beside the model of `init_from` if the KL divergence from it counts. A `MakeObjective`."""
    from train.methods.reference import open_reference

    assert config.grpo is not None
    assert config.init_from is not None
    reference = open_reference(config, data.tokenizer, device, config.init_from) if config.grpo.kl else None
    return GRPO(config.grpo, lm, reference)


def main() -> int:
    example = "configs/grpo_demo.yaml init_from=runs/sft_demo"
    config = parse_command_line("Let a model that answers learn from what its answers earn.", example, "train.grpo")
    from train.methods.rollouts import Rollouts
    from train.pretrain import run

    questions = config.rows_per_step // config.grpo.group_size if config.grpo else None
    return run(config, "train.grpo", objective, Rollouts, as_grpo, parts=questions or None)


if __name__ == "__main__":
    exit_on_bad_input(main)
