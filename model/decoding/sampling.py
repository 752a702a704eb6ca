"""Which token comes next? From logits to an id."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LEAST, MOST = 1e-6, 1e6  # float32 still divides by them, and tells tokens apart


@dataclass(frozen=True)
class Sampling:
    """How to draw. The filters apply in this order, to logits / temperature; temperature 0 takes the likeliest token.

    repetition_penalty  makes every id that occurred less likely: positive logits / penalty, negative ones * penalty
                        (Keskar et al. 2019, CTRL, arXiv 1909.05858); 1.0 changes nothing
    top_k               keeps the k likeliest
    top_p               keeps the smallest set whose probabilities reach p (Holtzman et al. 2019, arXiv 1904.09751)
    min_p               keeps what is at least min_p times as likely as the likeliest (Nguyen et al. 2024, 2407.01082)

    Raises ValueError for a number out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature != 0 and not LEAST <= self.temperature <= MOST:
            raise ValueError(f"temperature ({self.temperature}) must be 0 (greedy), or {LEAST:g} to {MOST:g}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k ({self.top_k}) must be 1 or more")
        ranges = {"top_p": (LEAST, 1), "min_p": (0, 1), "repetition_penalty": (LEAST, MOST)}
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # NaN is outside of every range
                raise ValueError(f"{name} ({value}) must be {low:g} to {high:g}")


def next_token(
    logits: Tensor, seen_ids: Tensor, sampling: Sampling, generator: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    """Draw the next token of every row: logits (B, V), the ids so far (B, T) -> ids (B,), probabilities (B, V).

    The probabilities are those that the ids were drawn from, up to a factor; None at temperature 0, where nothing is
    drawn. Raises ValueError for logits without a largest one: NaN, or infinity.
    """
    if not bool(logits.amax(dim=-1).isfinite().all()):  # NaN anywhere makes the maximum NaN
        raise ValueError("the model's logits are non-finite: its weights are damaged, or its training diverged")
    if sampling.repetition_penalty != 1.0:
        logits = penalise_repetition(logits, seen_ids, sampling.repetition_penalty)
    if sampling.temperature == 0:
        return logits.argmax(dim=-1), None
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / sampling.temperature  # at most 0, so nothing overflows
    if sampling.top_k is not None:
        kth = logits.topk(min(sampling.top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if sampling.top_p is not None:
        sorted_logits, order = logits.sort(descending=True)
        probabilities = sorted_logits.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities  # the likeliest token is always kept
        drop = torch.zeros_like(logits, dtype=torch.bool).scatter(1, order, before >= sampling.top_p)
        logits = logits.masked_fill(drop, -torch.inf)
    probabilities = logits.softmax(dim=-1)
    if sampling.min_p is not None:
        floor = sampling.min_p * probabilities.amax(dim=-1, keepdim=True)
        probabilities = probabilities.masked_fill(probabilities < floor, 0.0)
    return torch.multinomial(probabilities, num_samples=1, generator=generator)[:, 0], probabilities


def log_probabilities(ids: Tensor, probabilities: Tensor | None) -> Tensor:
    """What `next_token` returned -> ln of the probability with which each id was drawn (B,); 0 at temperature 0."""
    if probabilities is None:
        return torch.zeros(ids.shape, device=ids.device)
    chosen = probabilities.gather(1, ids[:, None])[:, 0]
    return chosen.log() - probabilities.sum(dim=-1).log()


def penalise_repetition(logits: Tensor, seen_ids: Tensor, penalty: float) -> Tensor:
    """Make every id that occurred less likely: logits (B, V), ids (B, T) -> (B, V)."""
    seen = logits.gather(1, seen_ids)
    return logits.scatter(1, seen_ids, torch.where(seen > 0, seen / penalty, seen * penalty))
