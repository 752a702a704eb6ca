"""The loop: forward, backward, clip, step. 20 minutes.

Everything is there: a model, batches, targets and a loss. A training repeats five lines.

    forward    the summed loss of a batch, divided by the number of trained targets
    backward   how does the loss change with each weight?
    clip       if all gradients together are longer than grad_clip, shorten them to it: one strange
               batch cannot throw the model away (`nn.utils.clip_grad_norm_`)
    rate       the learning rate of this step
    step       each weight moves a little against its gradient. Then the gradients are set to
               zero: otherwise the next ones would be added to them.

The learning rate goes up in a line, stays at 1, and falls in a line. It depends on the step alone:

    warmup   = (step + 1) / warmup_steps                                       at most 1
    shape    = (1 - step / (max_steps - 1)) / cooldown                         at most 1
    rate     = warmup · (final + (1 - final) · shape)

There is a trap. warmup_steps may be 0, and max_steps may be 1: never divide by 0.

    warmup_steps 50, max_steps 1000, cooldown 0.7, final 0.05
    step 0: 0.02     step 49: 1     step 299: 1     step 500: 0.728     step 999: 0.05

Steps begin small, because AdamW knows the size of the gradients only after some steps. They end
small, because the noise of the batches settles then. `optimizer_of` is given: each group has its
`highest` rate, and your loop sets group["lr"] = rate · group["highest"] before each step.

Shapes, and the order of the batches, are those of `batches`. Return the mean loss of every step,
as numbers (not tensors: those would keep every step's computation in memory).
The same in Headlight: train/loop.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from notebooks.solutions.batches import targets_of
from notebooks.solutions.loss import IGNORED


@dataclass(frozen=True)
class Training:
    """Numbers of a training, with the names of one_file.py."""

    max_steps: int = 1000
    lr: float = 0.005
    embedding_lr: float = 0.1
    weight_decay: float = 0.01
    warmup_steps: int = 50
    cooldown: float = 0.7
    final_lr_fraction: float = 0.05
    grad_clip: float = 1.0


def optimizer_of(model: nn.Module, training: Training) -> torch.optim.Optimizer:
    """Return AdamW. The embedding learns fast: a row moves only in steps where its token occurs."""
    groups = []
    for name, weight in model.named_parameters():
        group = {"params": [weight], "highest": training.lr, "weight_decay": 0.0}
        if "embed" in name:
            group["highest"] = training.embedding_lr
        elif weight.ndim > 1:
            group["weight_decay"] = training.weight_decay
        groups.append(group)
    return torch.optim.AdamW(groups, lr=training.lr, betas=(0.9, 0.95), eps=1e-10, fused=True)


def rate_at(step: int, training: Training) -> float:
    """Return the learning rate of a step as a share of the highest one. Steps begin at 0."""
    # <solution>
    warmup = min(1.0, (step + 1) / max(1, training.warmup_steps))
    shape = min(1.0, (1 - step / max(1, training.max_steps - 1)) / training.cooldown)
    return warmup * (training.final_lr_fraction + (1 - training.final_lr_fraction) * shape)
    # </solution>


def train(model: nn.Module, batches: Iterator[Tensor], training: Training) -> list[float]:
    """Train for max_steps steps. Return the mean loss of every step."""
    optimizer = optimizer_of(model, training)
    losses: list[float] = []
    # <solution>
    for step in range(training.max_steps):
        ids = next(batches)
        targets = targets_of(ids)
        trained = int((targets != IGNORED).sum())
        loss_sum = model(ids, targets)
        (loss_sum * (1 / trained)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), training.grad_clip)
        rate = rate_at(step, training)
        for group in optimizer.param_groups:
            group["lr"] = rate * group["highest"]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss_sum.detach() / trained))
    # </solution>
    return losses
