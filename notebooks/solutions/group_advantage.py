"""The group advantage (GRPO): how much better than its group an answer is. 10 minutes.

In reinforcement learning the model answers each question several times. These answers are a group,
and a program gives each of them a reward. Those above their group's mean become likelier, the
others less likely. How much is their advantage:

    advantage = reward - mean of the group                                     scaled=False
    advantage = (reward - mean of the group) / (deviation + EPSILON)           scaled=True

    deviation    the standard deviation of the group's rewards, with group_size - 1 in the division,
                 as torch.std computes it
    EPSILON      0.0001, so that a tiny deviation makes no huge advantage

Why the mean? A right answer to an easy question is no surprise: the others are right as well.
An example: two questions, four answers each, a right one earns 1. Rewards 1 0 0 1 and 0 0 0 1.

    mean            0.5                                  0.25
    scaled=False    0.5   -0.5   -0.5   0.5              -0.25   -0.25   -0.25   0.75
    deviation       0.5774                               0.5
    scaled=True     0.866 -0.866 -0.866 0.866            -0.5    -0.5    -0.5    1.5        rounded

A group whose rewards are all equal has nothing to teach: its advantages are exactly 0. They are not
NaN, and not 1e-8 either: the mean of equal numbers can be wrong in its last digit, and an
optimizer would make a step of that. So ask whether the rewards are equal. A deviation can be
wrong in its last digit as well, so do not compare it with 0.

Shapes: rewards (questions · group_size,). The answers to one question stand side by side. The
result has the same shape.

The same in Headlight: `advantages` and `spread` in train/grpo.py. GRPO: Shao et al. 2024, arXiv
2402.03300. Without division (Dr. GRPO): Liu et al. 2025, arXiv 2503.20783.
"""

from __future__ import annotations

from torch import Tensor

EPSILON = 1e-4


def group_advantage(rewards: Tensor, group_size: int, scaled: bool) -> Tensor:
    """The advantage of every answer: (questions * group_size,) -> the same shape."""
    # <solution>
    groups = rewards.view(-1, group_size)  # (questions, group_size)
    better = groups - groups.mean(dim=1, keepdim=True)
    if scaled:
        better = better / (groups.std(dim=1, keepdim=True) + EPSILON)
    differ = groups.amax(dim=1, keepdim=True) > groups.amin(dim=1, keepdim=True)  # (questions, 1)
    return better.where(differ, 0.0).flatten()
    # </solution>
