"""What does a long text do to a model? Its loss by position, what it copies from where, and where its head looks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from eval.attention.capture import capture
from eval.language_modeling import evaluating
from eval.long_context.texts import RecallTexts
from model import LanguageModel

LOGITS = 2**24  # in memory at a time: 64 MB
LOOKED_AT = 6  # recall texts whose attention is kept: it grows with the square of their length


@torch.no_grad()
def read(lm: LanguageModel, input_ids: Tensor) -> tuple[Tensor, Tensor]:
    """-ln p of every token in nats (N, T), NaN for the first; and whether it was the likeliest one (N, T) bool."""
    device = next(lm.parameters()).device
    losses, right = torch.full(input_ids.shape, math.nan), torch.zeros(input_ids.shape, dtype=torch.bool)
    rows = max(1, LOGITS // (input_ids.shape[1] * lm.lm_head.out_features))
    with evaluating(lm):
        for start in range(0, len(input_ids), rows):
            some = slice(start, start + rows)
            ids = input_ids[some].to(device)
            logits = lm(ids)[:, :-1].float()
            losses[some, 1:] = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").cpu()
            right[some, 1:] = (logits.argmax(-1) == ids[:, 1:]).cpu()
    return losses, right


def by_position(losses: Tensor, bins: int) -> list[float]:
    """losses (N, T) -> the mean of each of `bins` equal stretches of positions; the first token counts nowhere."""
    return [part.nanmean().item() for part in losses.tensor_split(bins, dim=1)]


def copied(lm: LanguageModel, texts: RecallTexts) -> tuple[Tensor, Tensor]:
    """For every token that is asked for: how much its loss falls when it comes again, in nats; whether it is right.

    The first is `eval.attention.controls.copy_gain` of one token: its loss where it stood first minus its loss now.
    """
    losses, right = read(lm, texts.input_ids)
    rows, places = texts.asked
    return losses[rows, texts.source[rows, places]] - losses[rows, places], right[rows, places].float()


def induction(lm: LanguageModel, texts: RecallTexts, head: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """For tokens of the first texts that are asked for: distance, and the share of its attention that this head
    (layer, head) gives to the answer, one token before it is due (Olsson et al. 2022, arXiv 2209.11895)."""
    distances, shares = [], []
    for row in range(min(LOOKED_AT, len(texts.input_ids))):
        ids = texts.input_ids[row : row + 1].to(next(lm.parameters()).device)
        weights = capture(lm, ids, layers=[head[0]], heads=[head[1]]).weights[0, 0, 0]  # (T, T)
        places = torch.nonzero(texts.source[row] >= 0)[:, 0]
        shares.append(weights[places - 1, texts.source[row, places]])
        distances.append(places - texts.source[row, places])
    return torch.cat(distances), torch.cat(shares)


def best_head(lm: LanguageModel, texts: RecallTexts) -> tuple[int, int]:
    """(layer, head) that gives most of its attention to the answers of these texts."""
    total = torch.zeros(lm.config.num_hidden_layers, lm.config.num_attention_heads)
    for row in range(min(LOOKED_AT, len(texts.input_ids))):
        ids = texts.input_ids[row : row + 1].to(next(lm.parameters()).device)
        weights = capture(lm, ids).weights[:, 0]  # (layer, head, T, T)
        places = torch.nonzero(texts.source[row] >= 0)[:, 0]
        total += weights[:, :, places - 1, texts.source[row, places]].mean(-1)
    layer, head = divmod(int(total.argmax()), total.shape[1])
    return layer, head


def mean_by(where: Tensor, values: Tensor, end: float, bins: int) -> list[float | None]:
    """The mean of values in each of `bins` equal stretches of `where`, from 0 to `end`; None where there is nothing."""
    number = (where / end * bins).long().clamp(0, bins - 1)
    return [values[number == k].mean().item() if (number == k).any() else None for k in range(bins)]
