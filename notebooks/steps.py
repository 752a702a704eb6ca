"""Attention in six functions, and a label mask: notebooks 01 and 13 use them until the reader's own
are right.

T words, D numbers in a head. Three dots are any dimensions in front, such as (B, H).
"""

from __future__ import annotations

import torch
from torch import Tensor


def score(q: Tensor, k: Tensor) -> Tensor:
    """Compare every query with every key: (…, T, D) each -> (…, T, T)."""
    return q @ k.mT


def divide(scores: Tensor, D: int) -> Tensor:
    """Give the scores of a head with D numbers the same size for every D."""
    return scores / D**0.5


def hide(scores: Tensor) -> Tensor:
    """Put minus infinity where a word would look to its right: (…, T, T) -> (…, T, T)."""
    to_the_right = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(to_the_right, -torch.inf)


def softmax(x: Tensor) -> Tensor:
    """Turn each row into shares that sum to 1."""
    return x.softmax(dim=-1)


def mix(weights: Tensor, v: Tensor) -> Tensor:
    """Mix the values in these shares: (…, T, T) and (…, T, D) -> (…, T, D)."""
    return weights @ v


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return causal attention: (…, T, D) each -> (…, T, D)."""
    scores = divide(score(q, k), q.shape[-1])
    return mix(softmax(hide(scores)), v)


FUNCTIONS = (score, hide, softmax, mix, divide, attend)


def label_mask(ids: list[int], header: list[int], end: int) -> list[int]:
    """Return the labels of a chat: an answer's ids from its header to its end, -100 elsewhere."""
    labels = [-100] * len(ids)
    start = 0
    while start <= len(ids) - len(header):
        if ids[start : start + len(header)] != header:
            start += 1
            continue
        start += len(header)
        stop = ids.index(end, start) + 1 if end in ids[start:] else len(ids)
        labels[start:stop] = ids[start:stop]
        start = stop
    return labels
