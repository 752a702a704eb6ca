"""LoRA: fine-tune a matrix by two thin ones beside it. 10 minutes.

The matrix W does not change: it is frozen. Two thin matrices, A and B, are trained beside it:

         ┌───────── W (out × in), frozen ──────────┐
    x ───┤                                         + ─── y        y = W x + (alpha / r) · B A x
         └── A (r × in) ── B (out × r) ── × ───────┘
                                      alpha / r

    r        the rank, which is the number of rows of A. The change B A has r directions.
    alpha    a number of the config: the strength of the change.

A starts at random and B at zero. So B A is zero at first, and the model is unchanged.
A matrix of 512 × 512 has 262,144 numbers. With r = 8, A and B have 2 · 8 · 512 = 8,192.

After training comes the merge: compute W + (alpha / r) · B A once, and use it in place of W.
The outputs are the same, and the model is an ordinary one again. An example with r = 1, alpha = 2:

    x = 3    W = 1 0    A = 1 1    B = 1      A x = 7    B A x = 7    y = 3 + 2 · 7 = 17
        4        0 1                   0                         0        4 + 2 · 0    4

    merged: W + 2 · B A = 3 2      and with it   y = 3 · 3 + 2 · 4 = 17
                          0 1                        0 · 3 + 1 · 4    4

In PyTorch a token is a row, not a column: W x is written x @ weight.T.
Compute A x first, then B of that. This saves memory, because B A is as large as W.

The same in Headlight: `LoraLinear` and `merge` in model/variants/lora.py.
LoRA: Hu et al. 2021, arXiv 2106.09685.
"""

from __future__ import annotations

from torch import Tensor


def adapted(x: Tensor, weight: Tensor, a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """Compute the layer with its adapter: x (…, in), weight (out, in), a (r, in), b (out, r)."""
    # <solution>
    return x @ weight.T + (x @ a.T @ b.T) * (alpha / a.shape[0])
    # </solution>


def merged(weight: Tensor, a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """Return one matrix (out, in) that does the same, as a new tensor. Do not change the weight."""
    # <solution>
    return weight + (b @ a) * (alpha / a.shape[0])
    # </solution>
