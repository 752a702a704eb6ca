"""Online softmax: attention in tiles, as flash attention does it. 25 minutes.

Attention over S keys stores T x S scores. For 100,000 tokens these are 10 billion numbers
a head. Flash attention never stores them. It reads keys and values in tiles, and keeps
three things for each query:

    m   the largest score so far         (B, H, T, 1)       starts at -∞
    l   the sum of exp(score - m)        (B, H, T, 1)       starts at 0
    o   the sum of exp(score - m) · v    (B, H, T, D)       starts at 0         at the end: o / l

There is a trap. When a tile has a larger score, l and o were computed with the old m.
Correct them first:

    new_m = max(m, largest score of the tile)
    l = l · exp(m - new_m) + Σ exp(scores - new_m)
    o = o · exp(m - new_m) + exp(scores - new_m) v

One query; scores 1, 2 | 4, values 10, 20 | 30; a | separates two tiles:

    tile 1    m = 2    l = e⁻¹ + 1 = 1.368           o = 10 e⁻¹ + 20 = 23.68
    tile 2    m = 4    l = 1.368 e⁻² + 1 = 1.185     o = 23.68 e⁻² + 30 = 33.20        o / l = 28.02

In the file l is `total` and o is `out`. Each turn of the loop updates all three.
The last tile may be shorter. To keep it short, there is no mask.
The check watches your tensors: none may be as large as T x S.

Milakov and Gimelshein 2018; Dao et al. 2022 (FlashAttention). In Headlight PyTorch's
kernel does it: `fused` in model/attention.py. Notebook 08 draws it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def attention_in_tiles(q: Tensor, k: Tensor, v: Tensor, tile: int) -> Tensor:
    """q (B, H, T, D), k and v (B, H, S, D) -> (B, H, T, D), `tile` keys and values at a time."""
    m = torch.full((*q.shape[:-1], 1), -torch.inf)  # (B, H, T, 1)
    total = torch.zeros(*q.shape[:-1], 1)  # l
    out = torch.zeros_like(q)  # o
    for start in range(0, k.shape[2], tile):
        # <solution>
        keys = k[:, :, start : start + tile]
        values = v[:, :, start : start + tile]
        scores = q @ keys.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (B, H, T, tile)
        new_m = torch.maximum(m, scores.amax(dim=-1, keepdim=True))
        weights = (scores - new_m).exp()
        correction = (m - new_m).exp()
        total = total * correction + weights.sum(dim=-1, keepdim=True)
        out = out * correction + weights @ values
        m = new_m
        # </solution>
    return out / total
