"""Attention in six functions, the online softmax, and what later cells of notebooks need.

Notebooks 01, 04, 06, 08 and 13 use them until the reader's own are right. T words, D numbers in a
head, R queries. Three dots are any dimensions in front, such as (B, H).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

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


def ablate(weight: Tensor, head: int, D: int) -> Tensor:
    """Return o_proj's weight (C, H·D) with 0 in the D columns that read this head."""
    weight = weight.clone()
    weight[:, head * D : (head + 1) * D] = 0
    return weight


def begins_to_copy(looks: list[dict[str, float]]) -> float | None:
    """Return the first step with a copy gain of 1 or more, or None."""
    for look in looks:
        if look["copy_gain"] >= 1:
            return look["step"]
    return None


def earlier(first: list[Any], second: list[Any]) -> tuple[int, int, int]:
    """Count the seeds whose first run copies earlier, whose second does, and the ties."""
    starts = {run["seed"]: begins_to_copy(run["looks"]) for run in second}
    counts = [0, 0, 0]
    for run in first:
        if run["seed"] in starts:
            pair = (begins_to_copy(run["looks"]), starts[run["seed"]])
            a, b = [math.inf if step is None else step for step in pair]  # never: after the end
            counts[0 if a < b else 1 if b < a else 2] += 1
    return counts[0], counts[1], counts[2]


def shapley(value: Callable[[Any], float], heads: Sequence[Any]) -> dict[Any, float]:
    """Return what each head adds to value(heads that are on), on average over all orders."""
    added = dict.fromkeys(heads, 0.0)
    orders = list(permutations(heads))
    for order in orders:
        for i, head in enumerate(order):
            added[head] += value(order[: i + 1]) - value(order[:i])
    return {head: added[head] / len(orders) for head in heads}


def parting(ours: dict[int, float], theirs: dict[int, float]) -> int | None:
    """Return the first step of both logs at which their losses differ; None without any."""
    both = sorted(ours.keys() & theirs.keys())
    return next((step for step in both if ours[step] != theirs[step]), None)


def in_context(losses: Tensor, early: tuple[int, int], late: tuple[int, int]) -> float:
    """Return the mean loss of late tokens minus that of early ones. losses (B, T)"""
    means = [losses[:, first : last + 1].mean() for first, last in (early, late)]
    return (means[1] - means[0]).item()


def half_way(curve: dict[int, float]) -> int:
    """Return the first step with at least half of the change from the first value to the last."""
    first, *_, last = curve.values()
    return next(step for step, x in curve.items() if abs(x - last) <= abs(first - last) / 2)


def middle(steps: list[int | None]) -> int | None:
    """Return the median, the later one of two. None among the steps, and as a result: never."""
    late = sorted(math.inf if step is None else step for step in steps)[len(steps) // 2]
    return None if late == math.inf else int(late)


State = tuple[Tensor, Tensor, Tensor]  # largest score, total and mixture: (R, 1), (R, 1), (R, D)


def nothing_read(R: int, D: int, dtype: torch.dtype = torch.float32) -> State:
    """Return the state of R queries before the first key."""
    largest = torch.full((R, 1), float("-inf"), dtype=dtype)
    return largest, torch.zeros(R, 1, dtype=dtype), torch.zeros(R, D, dtype=dtype)


def read_block(state: State, scores: Tensor, values: Tensor) -> State:
    """Read one more block of S keys: scores (R, S) and values (S, D)."""
    largest, total, mixture = state
    new_largest = torch.maximum(largest, scores.amax(dim=1, keepdim=True))
    shrink = (largest - new_largest).exp()
    weights = (scores - new_largest).exp()
    total = total * shrink + weights.sum(dim=1, keepdim=True)
    return new_largest, total, mixture * shrink + weights @ values


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
