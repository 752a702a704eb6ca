"""Repeat keys and values: query heads share them. 15 minutes.

In GQA, neighbouring query heads share one key/value head. With 4 query heads and 2
key/value heads (groups = 2), query heads 0 and 1 read key head 0. Query heads 2 and 3
read key head 1.

    x (B, H_kv, S, D)  ->  (B, H_kv * groups, S, D)

    heads of x              0     1
    repeated, groups = 2    0  0  1  1        right: head h reads head h // groups
    tiled                   0  1  0  1        wrong, though the shapes agree

Write it in three ways:

    by_interleave   one call of torch.repeat_interleave
    by_expand       add a dimension, `expand` it (copies nothing), `reshape` it away (copies)
    shared_scores   q kᵀ / √D without repeating: q gets a dimension for the group, k one of size 1

There is a trap. After `expand`, `view` in the place of `reshape` fails, because the
repeated numbers are not in memory.

Why repeat at all? The cache keeps only H_kv heads, not H. That is the purpose of GQA.
The third way repeats nothing, as a fast kernel does.
The same in Headlight: `repeat_kv` in model/attention.py.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def by_interleave(x: Tensor, groups: int) -> Tensor:
    """(B, H_kv, S, D) -> (B, H_kv * groups, S, D)."""
    # <solution>
    return torch.repeat_interleave(x, groups, dim=1)
    # </solution>


def by_expand(x: Tensor, groups: int) -> Tensor:
    """(B, H_kv, S, D) -> (B, H_kv * groups, S, D)."""
    batch, kv_heads, length, size = x.shape
    # <solution>
    x = x[:, :, None].expand(batch, kv_heads, groups, length, size)
    return x.reshape(batch, kv_heads * groups, length, size)
    # </solution>


def shared_scores(q: Tensor, k: Tensor) -> Tensor:
    """q (B, H, T, D), k (B, H_kv, S, D) -> the scores (B, H, T, S), where k is never repeated."""
    batch, heads, queries, size = q.shape
    kv_heads, keys = k.shape[1:3]
    # <solution>
    q = q.reshape(batch, kv_heads, heads // kv_heads, queries, size)
    scores = q @ k[:, :, None].transpose(-2, -1) / math.sqrt(size)  # (B, H_kv, groups, T, S)
    return scores.reshape(batch, heads, queries, keys)
    # </solution>
