"""The optimizer's step: SGD with momentum, and AdamW. 20 minutes.

A gradient gives the direction in which the loss rises. An optimizer decides how far to go the other
way. Both optimizers below keep averages of earlier gradients, which start at 0. All tensors of a
weight have the same shape. Compute everything number by number.

SGD with momentum is like a ball that rolls: it keeps some of its speed (buffer).

    buffer = momentum · buffer + grad
    weight = weight - lr · buffer

AdamW gives every number steps of about the size lr, even if its gradients are small. step is
1, 2, 3 and so on.

    weight = weight · (1 - lr · weight_decay)                weight decay: pull weights towards 0
    mean   = beta1 · mean   + (1 - beta1) · grad             the direction
    square = beta2 · square + (1 - beta2) · grad²            the usual size of the gradients
    mean'   = mean / (1 - beta1^step)                        both began at 0, so at first they are
    square' = square / (1 - beta2^step)                      too small: this corrects them
    weight = weight - lr · mean' / (sqrt(square') + eps)

The corrected mean' and square' are used once. Keep mean and square for the next step.
An example: weight 1, grad 0.5, lr 0.1, beta1 0.9, beta2 0.999, weight_decay 0.1, the first step.

    SGD      buffer 0.5, weight 1 - 0.05 = 0.95
    AdamW    weight 1 · (1 - 0.01) = 0.99, then mean 0.05, mean' 0.5, square 0.00025, square' 0.25
             0.99 - 0.1 · 0.5 / 0.5 = 0.89: a whole lr, and with a gradient of 0.005 too

The same in Headlight: `build_optimizers` in train/optimizer.py makes torch.optim.AdamW from these
settings, and train/loop.py takes the step.
Adam: Kingma and Ba 2015, arXiv 1412.6980. AdamW: Loshchilov and Hutter 2019, arXiv 1711.05101.
"""

from __future__ import annotations

from torch import Tensor


def sgd(
    weight: Tensor, grad: Tensor, buffer: Tensor, lr: float, momentum: float
) -> tuple[Tensor, Tensor]:
    """Return the new weight and the new buffer. Do not change the given tensors."""
    # <solution>
    buffer = momentum * buffer + grad
    return weight - lr * buffer, buffer
    # </solution>


def adamw(
    weight: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the new weight, mean and square. betas: beta1 and beta2. step: 1 for the first."""
    # <solution>
    beta1, beta2 = betas
    weight = weight * (1 - lr * weight_decay)
    mean = beta1 * mean + (1 - beta1) * grad
    square = beta2 * square + (1 - beta2) * grad**2
    corrected_mean = mean / (1 - beta1**step)
    corrected_square = square / (1 - beta2**step)
    return weight - lr * corrected_mean / (corrected_square.sqrt() + eps), mean, square
    # </solution>
