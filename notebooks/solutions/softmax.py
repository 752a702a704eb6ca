"""Softmax: scores become shares. 5 minutes.

A head gives every token a score. Softmax turns the scores of a row into shares: all are
positive, and their sum is 1.

    softmax(x)_i = exp(x_i) / Σ_j exp(x_j)          x (..., N) -> (..., N), along the last dimension

    x            0       1       2
    exp(x)       1    2.718   7.389      their sum: 11.107
    softmax   0.090   0.245   0.665

There is a trap. exp(1000) is too large for a computer: it becomes inf, and inf / inf is
NaN. But you can subtract the same number from every score of a row, and the shares stay
the same. So subtract the largest score first. Then no exponent is above 0.

Write it with exp, amax and sum, not with torch.softmax.
The same in Headlight: `normalise` in model/attention.py.
"""

from __future__ import annotations

from torch import Tensor


def softmax(x: Tensor) -> Tensor:
    """Return shares along the last dimension: x (..., N) -> (..., N). Do not change x itself."""
    # <solution>
    weights = (x - x.amax(dim=-1, keepdim=True)).exp()
    return weights / weights.sum(dim=-1, keepdim=True)
    # </solution>
