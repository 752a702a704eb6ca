"""What did the model think of each token that it wrote? How likely it was, and what it might have written instead."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from eval.attention.capture import AttentionMaps
from eval.chat.attention import MOST_TOKENS
from eval.language_modeling import evaluating
from model import LanguageModel
from model.generation import Sampling, stream

NUMBERS = 2**26  # weights that are kept at a time: 256 MB


class Choice(NamedTuple):
    """A token, ln of the probability that the model gave it, and the likeliest ids with theirs, likeliest first.

    The probabilities are the model's own: before temperature and top_p.
    """

    id: int
    log_prob: float
    top: tuple[tuple[int, float], ...]


def choose(
    lm: LanguageModel,
    ids: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling,
    stop_ids: Collection[int],
    seed: int | None = None,
    top: int = 8,
) -> Generator[Choice, None, Literal["stop", "length"]]:
    """Continue `ids`: every token as soon as it is drawn, a stop id included. Returns how it ended.

    "stop": by a stop id. "length": after max_new_tokens, or with the context full. The ids are those of
    `model.generate`. Raises ValueError as it does, and for non-finite logits.
    """
    logits: list[Tensor] = []
    row = torch.tensor([ids], device=next(lm.parameters()).device)
    for drawn in stream(lm, row, max_new_tokens, sampling, stop_ids, seed, watch=logits.append):
        token = int(drawn[0])
        yield _choice(token, logits.pop()[0], top)
        if token in stop_ids:
            return "stop"
    return "length"


@torch.no_grad()
def weigh(lm: LanguageModel, ids: Sequence[int], begin: int, top: int = 8) -> list[Choice]:
    """What the model thinks of the tokens of `ids` from `begin` on (1 or later), which others may have written.

    One forward pass: rounding apart, the numbers are those of `choose`. Raises ValueError for non-finite logits.
    """
    row = torch.tensor([ids], device=next(lm.parameters()).device)
    with evaluating(lm):
        logits = lm(row[:, :-1], logits_to_keep=len(ids) - begin)[0].float()  # (tokens, V)
    if not bool(logits.amax(-1).isfinite().all()):
        raise ValueError("the model's logits are non-finite: its weights are damaged, or its training diverged")
    return [_choice(token, row, top) for token, row in zip(ids[begin:], logits, strict=True)]


def _choice(token: int, logits: Tensor, top: int) -> Choice:
    """A token among the logits (V,) from which it was drawn."""
    log_probs = logits.log_softmax(-1)
    best = log_probs.topk(min(top, len(log_probs)))
    return Choice(token, log_probs[token].item(), tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)))


def rows_around(lm: LanguageModel, ids: Sequence[int], position: int) -> tuple[int, int]:
    """Which tokens' rows to capture together with the one that predicted the token at `position`: first, and end.

    In a short text all of them, so that one capture is enough for every token.
    """
    heads = lm.config.num_hidden_layers * lm.config.num_attention_heads
    rows = max(1, min(MOST_TOKENS, NUMBERS // (heads * len(ids))))
    first = (position - 1) // rows * rows
    return first, min(first + rows, len(ids))


def looked_at(maps: AttentionMaps, position: int) -> Tensor:
    """What the model looked at to predict the token at `position`: (layer, head, tokens before it), from the maps."""
    queries, keys = maps.weights.shape[3:]
    return maps.weights[:, 0, :, position - 1 - (keys - queries), :position]
