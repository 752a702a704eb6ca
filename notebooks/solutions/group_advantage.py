"""The group advantage (GRPO): how much better than its group an answer is. 10 minutes.

In reinforcement learning the model answers each question several times. These answers are a group,
and a program gives each answer a reward. Answers above the mean of their group become likelier, the
others less likely. The advantage decides by how much:

    advantage = reward - mean of the group                                     scaled=False
    advantage = (reward - mean of the group) / (deviation + EPSILON)           scaled=True

    deviation    the standard deviation of the group's rewards, as torch.std computes it
                 (its division is by group_size - 1)
    EPSILON      0.0001, so that a tiny deviation makes no huge advantage

Why the mean? A right answer to an easy question is no surprise: the others are right as well.
An example: two questions, four answers each, a right one earns 1. Rewards 1 0 0 1 and 0 0 0 1.

    mean            0.5                                  0.25
    scaled=False    0.5   -0.5   -0.5   0.5              -0.25   -0.25   -0.25   0.75
    deviation       0.5774                               0.5
    scaled=True     0.866 -0.866 -0.866 0.866            -0.5    -0.5    -0.5    1.5        rounded

If all rewards of a group are equal, there is nothing to learn: its advantages are exactly 0. There
are two traps. 0 / 0 is NaN. And the mean of equal numbers can be wrong in its last digit. That
makes an advantage such as 1e-8, and an optimizer would take a step from it. The deviation can be
wrong in the same way, so do not compare it with 0: test whether the rewards are equal.

Shapes: rewards (questions · group_size,), with the answers to one question side by side. The
result has the same shape.

The same in Headlight: `advantages` and `spread` in train/grpo.py. GRPO: Shao et al. 2024, arXiv
2402.03300. Without division (Dr. GRPO): Liu et al. 2025, arXiv 2503.20783.
"""

from __future__ import annotations

from torch import Tensor

EPSILON = 1e-4


def group_advantage(rewards: Tensor, group_size: int, scaled: bool) -> Tensor:
    """Return the advantage of every answer: (questions * group_size,) -> the same shape."""
    # <solution>
    groups = rewards.view(-1, group_size)  # (questions, group_size)
    better = groups - groups.mean(dim=1, keepdim=True)
    if scaled:
        better = better / (groups.std(dim=1, keepdim=True) + EPSILON)
    differ = groups.amax(dim=1, keepdim=True) > groups.amin(dim=1, keepdim=True)  # (questions, 1)
    return better.where(differ, 0.0).flatten()
    # </solution>
