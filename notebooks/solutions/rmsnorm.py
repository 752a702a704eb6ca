"""RMSNorm, forward and backward. 30 minutes.

A layer adds to the stream, so the stream grows from layer to layer. A norm brings each token back
to one size before the next layer reads it: RMS is the root of the mean of squares.

    factor = 1 / sqrt(mean(x²) + eps)      (B, T, 1)   the mean over C; eps: never divide by 0
    normal = x · factor                    (B, T, C)   its mean square is 1
    out    = weight · normal               (B, T, C)   weight (C,) is learned

    x = (3, 4), weight = (1, 2)            mean(x²) = 12.5, factor = 0.2828
    normal = (0.849, 1.131)                out = (0.849, 2.263)

Now the way back. The gradient of `out` is given, one number g for each number of out. What is the
gradient of weight and of x?

    weight   out = weight · normal, so each token adds g · normal. Sum over all tokens: (C,).
             The norm of queries reads (B, T, H, D), so sum over all dimensions except the last.
    x        A change of x moves `out` directly, and through the factor, which all numbers of a
             token share. The second part takes away what points along `normal`: a longer x has
             the same `out`, so the gradient cannot ask for a longer x.

             along  = mean(g · normal · weight)                          (B, T, 1)
             x_gradient = (g · weight - normal · along) · factor         (B, T, C)

`RMSNorm` below uses your two functions in PyTorch's autograd. To get the same last bits as
one_file.py, use torch.rsqrt and compute g · normal once for both gradients. Write the mean as a
product of matrices, (g · normal) @ weight / C. Subtract with torch.addcmul, which rounds once where
a product and a difference round twice.

The same in Headlight: model/norm.py. RMSNorm: Zhang and Sennrich 2019, arXiv 1910.07467.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def normalise(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return normal (B, T, C) and factor (B, T, 1) of x (B, T, C)."""
    # <solution>
    factor = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return x * factor, factor
    # </solution>


def norm_backward(
    g: Tensor, normal: Tensor, factor: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x (B, T, C) and of weight (C,) for g, the gradient of `out`."""
    # <solution>
    product = g * normal
    along = (product @ weight / len(weight))[..., None]  # (B, T, 1)
    x_gradient = torch.addcmul(g * weight, normal, along, value=-1) * factor
    return x_gradient, product.flatten(0, -2).sum(0)
    # </solution>


class Normalise(torch.autograd.Function):
    """Your two functions, as one operation of autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        normal, factor = normalise(x, eps)
        ctx.save_for_backward(normal, factor, weight)
        return weight * normal

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        x_gradient, weight_gradient = norm_backward(g, *ctx.saved_tensors)
        return x_gradient, weight_gradient, None


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float = 1e-6, gain: float = 1.0):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.full((size,), gain))

    def forward(self, x: Tensor) -> Tensor:
        return Normalise.apply(x, self.weight, self.eps)
