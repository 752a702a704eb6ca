"""Muon: a step that moves every direction equally. 20 minutes.

A weight matrix has directions, its singular vectors. A gradient is often strong in a few of them
and weak in the others. Muon keeps the directions and makes all of them equally strong: it brings
every singular value near 1. For that it computes no singular value, only products of matrices.

Newton-Schulz. Divide the matrix by its norm, the root of the sum of all squares. Then no singular
value is above 1. Repeat `steps` times:

    X = a X + b (X Xᵀ) X + c (X Xᵀ)² X            a = 3.4445   b = -4.7750   c = 2.0315

All are products of matrices: (X Xᵀ)² is X Xᵀ times X Xᵀ, not the square of every number.
Each singular value s becomes a s + b s³ + c s⁵, and every direction stays the same. The constants
make small values grow fast. In exchange, no value ends exactly at 1. After five steps, every value
that was above 0.002 is between 0.68 and 1.21.

    diag(3, 4), norm 5       0.6             0.8
    after one step           1.193           0.976
    after five               0.723           1.119          up and down around 1

If a matrix has more rows than columns, transpose it first, and transpose the result back. X Xᵀ is
smaller then, and the result is the same up to rounding.

Muon's step for a weight (rows, columns). buffer is a running mean of the gradients, 0 at first:

    buffer = momentum · buffer + (1 - momentum) · grad
    update = momentum · buffer + (1 - momentum) · grad      with the new buffer (Nesterov)
    weight = weight - lr · sqrt(max(1, rows / columns)) · newton_schulz(update)

The same in Headlight: `orthogonalize` and `Muon` in train/optimizer.py.
Muon: Jordan et al. 2024, kellerjordan.github.io/posts/muon.
"""

from __future__ import annotations

from torch import Tensor

A, B, C = 3.4445, -4.7750, 2.0315


def newton_schulz(matrix: Tensor, steps: int = 5) -> Tensor:
    """Return the same directions with singular values near 1: (rows, columns) -> the same."""
    # <solution>
    if matrix.shape[0] > matrix.shape[1]:
        return newton_schulz(matrix.T, steps).T
    x = matrix / matrix.norm()
    for _ in range(steps):
        gram = x @ x.T  # (rows, rows)
        x = A * x + (B * gram + C * gram @ gram) @ x
    return x
    # </solution>


def muon(
    weight: Tensor, grad: Tensor, buffer: Tensor, lr: float, momentum: float
) -> tuple[Tensor, Tensor]:
    """Return the new weight and the new buffer. Do not change the given tensors."""
    # <solution>
    rows, columns = weight.shape
    buffer = momentum * buffer + (1 - momentum) * grad
    update = momentum * buffer + (1 - momentum) * grad
    return weight - lr * max(1, rows / columns) ** 0.5 * newton_schulz(update), buffer
    # </solution>
