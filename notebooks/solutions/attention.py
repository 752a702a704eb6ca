"""Attention: ask, compare, copy. 15 minutes.

Every token has a question (its query q), a label (its key k) and a content (its value v).
Attention compares a query with every key. The better they match, the more of that value
it copies.

    scores  = q kᵀ / √D                   (B, H, T, S)
    weights = softmax(scores)             (B, H, T, S)      forbidden scores are -∞ before it
    output  = weights v                   (B, H, T, D)

    B rows of a batch, H heads, T queries, S keys, D numbers a head
    q (B, H, T, D), k and v (B, H, S, D)
    mask (B, 1, T, S) or (1, 1, T, S), so that it fits every head; boolean, True = may look

One query and two keys, D = 4:

    q = (1, 1, 1, 1)     k₀ = (1, 1, 1, 1)     k₁ = (1, -1, 1, -1)       q·k = 4 and 0
    scores 4/√4 = 2 and 0        weights 0.881 and 0.119
    v₀ = 10, v₁ = 20             output 0.881 · 10 + 0.119 · 20 = 11.19

Why √D? A sum of D products of random numbers has a spread of √D. Without the division,
the softmax soon gives everything to one token. Then no gradient is left to learn from.

Why -∞ before the softmax, and not 0 after it? After it, the shares of a row would no
longer sum to 1.

To get the last bits of one_file.py, multiply by D ** -0.5. A division by √D rounds differently.

The same in Headlight: `eager` in model/attention.py. You may use torch.softmax now,
because you have written it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """q (B, H, T, D), k and v (B, H, S, D), mask (B or 1, 1, T, S), True = see -> (B, H, T, D)."""
    # <solution>
    scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5  # (B, H, T, S)
    scores = scores.masked_fill(~mask, -torch.inf)
    weights = torch.softmax(scores, dim=-1)  # each row sums to 1
    return weights @ v
    # </solution>
