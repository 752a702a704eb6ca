"""Decoding: one token after the other, with a key-value cache, greedy or sampled."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from model.kv_cache import KVCache
from model.transformer import LanguageModel


@torch.no_grad()
def generate(
    lm: LanguageModel,
    input_ids: Tensor,
    max_new_tokens: int = 64,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop_ids: Collection[int] | None = None,
    seed: int | None = None,
) -> Tensor:
    """Continue every prompt of a batch: input_ids (B, T) -> output_ids (B, T + up to max_new_tokens).

    temperature 0 is greedy. A row that has produced one of stop_ids is filled up with that id; generation
    ends when every row has. It ends early where the context (max_position_embeddings) is full. With a seed
    the result depends on nothing else; the global random state is left alone either way.

    Raises ValueError for an empty prompt and for settings out of range.
    """
    _check_settings(input_ids, max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty)
    generator = torch.Generator(device=input_ids.device)
    generator.manual_seed(seed) if seed is not None else generator.seed()
    stop = torch.tensor(sorted(stop_ids or ()), dtype=torch.long, device=input_ids.device)
    was_training = lm.training
    lm.eval()
    try:
        cache, output_ids, unread = KVCache(), input_ids, input_ids
        stopped = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        for _ in range(min(max_new_tokens, lm.config.max_position_embeddings - input_ids.shape[1])):
            logits = lm(unread, kv_cache=cache)[:, -1].float()  # (B, V)
            logits = penalise_repetition(logits, output_ids, repetition_penalty)
            unread = sample(logits, temperature, top_k, top_p, min_p, generator)  # (B, 1)
            unread = torch.where(stopped[:, None], output_ids[:, -1:], unread)
            output_ids = torch.cat((output_ids, unread), dim=1)
            stopped |= torch.isin(unread[:, 0], stop)
            if len(stop) and bool(stopped.all()):
                break
        return output_ids
    finally:
        lm.train(was_training)


def sample(
    logits: Tensor,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    generator: torch.Generator,
) -> Tensor:
    """Draw the next token: logits (B, V) -> ids (B, 1). Filters apply in the order top_k, top_p, min_p.

    top_k keeps the k likeliest. top_p keeps the smallest set whose probabilities reach p (Holtzman et al.
    2019, arXiv 1904.09751). min_p keeps what is at least min_p times as likely as the likeliest
    (Nguyen et al. 2024, arXiv 2407.01082).
    """
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    logits = logits / temperature
    if top_k is not None:
        kth = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if top_p is not None:
        sorted_logits, order = logits.sort(descending=True)
        probabilities = sorted_logits.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities  # the likeliest token is always kept
        drop = torch.zeros_like(logits, dtype=torch.bool).scatter(1, order, before >= top_p)
        logits = logits.masked_fill(drop, -torch.inf)
    probabilities = logits.softmax(dim=-1)
    if min_p is not None:
        floor = min_p * probabilities.amax(dim=-1, keepdim=True)
        probabilities = probabilities.masked_fill(probabilities < floor, 0.0)
    return torch.multinomial(probabilities, num_samples=1, generator=generator)


def penalise_repetition(logits: Tensor, seen_ids: Tensor, penalty: float) -> Tensor:
    """Make every id that occurred less likely: positive logits / penalty, negative ones * penalty.

    Keskar et al. 2019, CTRL (arXiv 1909.05858). penalty 1.0 changes nothing.
    """
    if penalty == 1.0:
        return logits
    seen = logits.gather(1, seen_ids)
    return logits.scatter(1, seen_ids, torch.where(seen > 0, seen / penalty, seen * penalty))


def _check_settings(
    input_ids: Tensor,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    repetition_penalty: float,
) -> None:
    if input_ids.ndim != 2 or input_ids.shape[1] == 0:
        raise ValueError(f"input_ids has shape {tuple(input_ids.shape)}: give (batch, tokens) with at least one token")
    wrong = [
        (max_new_tokens < 0, f"max_new_tokens ({max_new_tokens}) must be 0 or more"),
        (temperature < 0, f"temperature ({temperature}) must be 0 (greedy) or more"),
        (top_k is not None and top_k < 1, f"top_k ({top_k}) must be 1 or more"),
        (top_p is not None and not 0 < top_p <= 1, f"top_p ({top_p}) must be in (0, 1]"),
        (min_p is not None and not 0 <= min_p <= 1, f"min_p ({min_p}) must be in [0, 1]"),
        (repetition_penalty <= 0, f"repetition_penalty ({repetition_penalty}) must be above 0"),
    ]
    for is_wrong, message in wrong:
        if is_wrong:
            raise ValueError(message)
