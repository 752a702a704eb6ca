"""How likely is a text? ln p of its tokens, of which every task is made, and the standard error of a mean."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from eval.language_modeling import losses_of
from model import LanguageModel

WINDOWS = 256  # of a text whose logits are wanted at a time
BLOCK = 64  # neighbouring tokens that count as one observation
BLOCKS = 20  # at least this many; in a shorter text, of fewer tokens each


def token_log_probs(lm: LanguageModel, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
    """ln p of every token of a sequence but its first, given those before it: (T - 1,) in float64, on the CPU.

    Sequences of equal ids are read once, so their numbers are exactly equal. Rounding apart (up to 3e-5 in runs/demo),
    the number is that of the sequence alone.
    Raises ValueError for a sequence without a second token, and for a model whose logits are non-finite.
    """
    if any(len(ids) < 2 for ids in sequences):
        raise ValueError("a text has no tokens for this tokenizer, so nothing can be scored: leave it out")
    unique = list({tuple(ids): None for ids in sequences})
    log_probs = {ids: -losses.double() for ids, losses in zip(unique, losses_of(lm, unique), strict=True)}
    if not all(bool(log_p.isfinite().all()) for log_p in log_probs.values()):
        raise ValueError("the model's logits are non-finite: its weights are damaged, or its training diverged")
    return [log_probs[tuple(ids)] for ids in sequences]


def windows(count: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(begin, end, first): tokens begin … end - 1 of `count` are read together, those from `first` on are scored.

    Token 0 is scored by none, every other one by exactly one, with at least window - stride tokens before it.
    With count 8, window 4, stride 2 (x = scored, . = read):

        . x x x
            . . x x
                . . x x
    """
    first = 1
    for begin in range(0, count, stride):
        end = min(begin + window, count)
        yield begin, end, first
        first = end
        if end == count:
            return


def text_log_probs(lm: LanguageModel, ids: Sequence[int], window: int, stride: int) -> Tensor:
    """ln p of every token of a text but the first: (T - 1,) in float64. Windows as `windows` lays them."""
    parts, places = list[Tensor](), list(windows(len(ids), window, stride))
    for start in range(0, len(places), WINDOWS):
        some = places[start : start + WINDOWS]
        log_probs = token_log_probs(lm, [ids[begin:end] for begin, end, _ in some])
        parts += [log_p[first - begin - 1 :] for (begin, _, first), log_p in zip(some, log_probs, strict=True)]
    return torch.cat(parts)


def accuracy_error(share: float, count: int) -> float:
    """Standard error of a share of `count` independent answers (binomial): √(p (1 - p) / n)."""
    return math.sqrt(share * (1 - share) / count)


def mean_error(values: Tensor) -> float:
    """Standard error of the mean of a sequence (N,) whose neighbours are alike: blocks of it are the observations.

    √(Σ_b (sum of b - mean · length of b)² · B / (B - 1)) / N over B blocks of 64 values, or of fewer so that there are
    20. With blocks of one value this is the usual s / √N. NaN for a single value.
    """
    count = len(values)
    blocks = (values - values.mean()).split(max(1, min(BLOCK, count // BLOCKS)))
    if len(blocks) < 2:
        return math.nan
    squares = sum(float(block.sum()) ** 2 for block in blocks)
    return math.sqrt(squares * len(blocks) / (len(blocks) - 1)) / count
