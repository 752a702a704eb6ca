"""How well does it predict a text? Loss over batches, bits per byte, and the bits of whole documents."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F

from configs.command import InputError, is_out_of_memory
from data.batches import Batch
from data.tokenizer import Tokenizer
from eval.eval_mode import evaluating
from model import LanguageModel


class OutOfStep(InputError):
    """One process cannot continue and the others would wait for it forever: the run must end."""


def mean_loss(
    lm: LanguageModel,
    batches: Iterable[Batch],
    autocast: Callable[[], AbstractContextManager] = nullcontext,
) -> float:
    """Mean of -ln p over every token that the batches ask for, in nats a token."""
    return mean(part for parts in loss_sums(lm, batches, autocast) for part in parts)[0]


def mean(sums: Iterable[tuple[float, int]]) -> tuple[float, int]:
    """Sums of losses and their counts -> the mean loss and the whole count. NaN where nothing was counted: a loss of 0
    would be a perfect one. They are added in their order, so that equal parts give equal bits."""
    total, count = 0.0, 0
    for loss_sum, counted in sums:
        total, count = total + loss_sum, count + counted
    return total / count if count else math.nan, count


@torch.no_grad()
def loss_sums(
    lm: LanguageModel,
    batches: Iterable[Batch],
    autocast: Callable[[], AbstractContextManager] = nullcontext,
    may_retry: bool = True,
) -> list[list[tuple[float, int]]]:
    """For every batch, the sum of -ln p in nats and the number of tokens that it asks for.

    may_retry: where memory runs out, a batch is read again in halves, and has a sum for each part. Where the processes
    of a run make each forward pass together (FSDP2), one of them cannot do that alone: OutOfStep is raised, and the run
    must end.
    """
    device = next(lm.parameters()).device
    found = []
    with evaluating(lm), autocast():
        for batch in batches:
            found.append(_loss_sum(lm, batch.to(device), may_retry))
    return found


def _loss_sum(lm: LanguageModel, batch: Batch, may_retry: bool) -> list[tuple[float, int]]:
    try:
        loss_sum, count = lm(**batch.tensors)
        return [(float(loss_sum), int(count))]
    except RuntimeError as error:
        rows = len(batch.row_ids)
        if is_out_of_memory(error) and not may_retry:
            raise OutOfStep(f"out of memory while evaluating {rows} rows: lower train.micro_batch_size") from None
        if not is_out_of_memory(error) or rows == 1:
            raise
    halves = batch.split(-(-len(batch.row_ids) // 2))
    return [part for half in halves for part in _loss_sum(lm, half, may_retry)]


def bits_per_byte(loss: float, predicted_tokens: int, text_bytes: int) -> float:
    """Nats a token -> bits a byte of text: comparable between tokenizers, as loss and perplexity are not."""
    return loss / math.log(2) * predicted_tokens / text_bytes


@torch.no_grad()
def token_bits(
    lm: LanguageModel, tokenizer: Tokenizer, texts: Sequence[str], rows_per_batch: int = 32
) -> list[list[float]]:
    """-log2 p of every token of whole documents, each read alone from its first token, end token included.

    Returns one list a text, one number per token of the text plus one for the end token. Raises ValueError
    for a document longer than max_position_embeddings.
    """
    device = next(lm.parameters()).device
    documents = tokenizer.encode_documents(texts)
    order = sorted(range(len(documents)), key=lambda i: len(documents[i]))  # like lengths together
    result: list[list[float]] = [[] for _ in documents]
    for start in range(0, len(order), rows_per_batch):
        chosen = order[start : start + rows_per_batch]
        rows = [torch.tensor(documents[i]) for i in chosen]
        # padding on the right needs no mask: nothing looks to the right
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_id).to(device)
        with evaluating(lm):
            log_p = F.log_softmax(lm(ids[:, :-1]).float(), dim=-1)
        bits = -log_p.gather(2, ids[:, 1:, None])[:, :, 0] / math.log(2)  # (rows, T - 1)
        for row, i in enumerate(chosen):
            result[i] = bits[row, : len(documents[i]) - 1].tolist()
    return result
