"""The backward pass of attention, by hand. 30 minutes.

Attention has a backward pass of its own, because kernels must write it out. Given is g, the
gradient of the output. Wanted are the gradients of q, k and v. Go back through the three lines of
the forward pass, from the last to the first:

    scores  = q kᵀ / √D              (B, H, T, S)       forbidden scores are -∞
    weights = softmax(scores)        (B, H, T, S)
    output  = weights v              (B, H, T, D)

Two rules are enough. Write g_x for the gradient of x.

    A product of matrices, c = a b:       g_a = g_c bᵀ                 g_b = aᵀ g_c
    A softmax, p = softmax(s):            g_s = p · (g_p - Σ g_p · p)  the sum is over the row

If you forget a transpose, the shapes rarely fit. The softmax's sum is the mean of g_p in the
shares p: a score has a gradient above 0 if its g_p is above the mean of its row. So a row of g_s
sums to 0, as the gradient of the loss does.

    p = (0.5, 0.25, 0.25)       g_p = (1, 0, 0)       the mean is 0.5
    g_s = (0.5 · 0.5, 0.25 · -0.5, 0.25 · -0.5) = (0.25, -0.125, -0.125)

The example of `attention`, q = (1, 1, 1, 1), k₀ = q, k₁ = (1, -1, 1, -1), v = 10 and 20, g = 1:

    weights (0.881, 0.119)      g_v = (0.881, 0.119)      g_weights = (10, 20), their mean is 11.19
    g_scores = (0.881 · -1.19, 0.119 · 8.81) = (-1.05, 1.05)      g_q = (0, -1.05, 0, -1.05)

Where does the mask come in? Only in the forward pass. A forbidden share is 0, so its score's
gradient is 0, too.

In GQA, `groups` query heads read one key/value head. A head that is used twice gets the sum of
both gradients, like any value that is used twice. Head h read key head h // groups: repeat k and v
for the forward pass, and sum the gradients of each group on the way back.

Do not use autograd: the check compares your gradients with autograd's, in float64. You may use
torch.softmax. The backward passes of the norm and of the loss are in `rmsnorm` and `loss`.
In Headlight PyTorch's kernels do this: `fused` in model/attention.py. Flash attention stores no
weights for its backward pass. It computes them again, tile by tile (Dao et al. 2022, arXiv
2205.14135).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def softmax_backward(g: Tensor, p: Tensor) -> Tensor:
    """Return the gradient of the scores: p = softmax(scores), g the gradient of p, (..., N)."""
    # <solution>
    mean = (g * p).sum(dim=-1, keepdim=True)
    return p * (g - mean)
    # </solution>


def attention_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v.

    - g and q (B, H, T, D), k and v (B, H, S, D)
    - mask (B or 1, 1, T, S), True = may look
    """
    # <solution>
    scale = 1 / math.sqrt(q.shape[-1])
    scores = (q @ k.transpose(-2, -1) * scale).masked_fill(~mask, -torch.inf)
    weights = torch.softmax(scores, dim=-1)  # (B, H, T, S)
    g_v = weights.transpose(-2, -1) @ g
    g_weights = g @ v.transpose(-2, -1)
    g_scores = softmax_backward(g_weights, weights) * scale
    return g_scores @ k, g_scores.transpose(-2, -1) @ q, g_v
    # </solution>


def gqa_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q (B, H, T, D), and of k and v (B, H_kv, S, D)."""
    groups = q.shape[1] // k.shape[1]
    # <solution>
    keys = k.repeat_interleave(groups, dim=1)  # (B, H, S, D): 0 0 1 1
    values = v.repeat_interleave(groups, dim=1)
    g_q, g_keys, g_values = attention_backward(g, q, keys, values, mask)
    g_k = g_keys.unflatten(1, (-1, groups)).sum(2)  # (B, H_kv, groups, S, D) -> (B, H_kv, S, D)
    g_v = g_values.unflatten(1, (-1, groups)).sum(2)
    return g_q, g_k, g_v
    # </solution>
