"""How well does it predict a text? Loss over batches, bits of whole documents; and how far they are above the entropy
floor: the built-in world knows the entropy of its own stories."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs.command import InputError, is_out_of_memory
from data.batches import Batch
from data.tokenizer import Tokenizer
from model import LanguageModel

if TYPE_CHECKING:
    from storyworld import Story

Autocast = Callable[[], AbstractContextManager]
LOGITS = 2**25  # that are in memory at a time: 128 MB


class OutOfStep(InputError):
    """One process cannot continue and the others would wait for it forever: the run must end."""


@contextmanager
def evaluating(lm: nn.Module) -> Iterator[None]:
    """Within this context lm is in evaluation mode; afterwards every module is in its old mode."""
    modes = {module: module.training for module in lm.modules()}
    lm.eval()
    try:
        yield
    finally:
        for module, was_training in modes.items():
            module.training = was_training


def mean_loss(lm: LanguageModel, batches: Iterable[Batch], autocast: Autocast = nullcontext) -> float:
    """Mean of -ln p over every token that the batches ask for, in nats a token."""
    return mean(part for parts in loss_sums(lm, batches, autocast) for part in parts)[0]


def mean(sums: Iterable[tuple[float, int]]) -> tuple[float, int]:
    """Sums of losses and their counts, added in their order -> the mean loss and the whole count; NaN for none."""
    total, count = 0.0, 0
    for loss_sum, counted in sums:
        total, count = total + loss_sum, count + counted
    return total / count if count else math.nan, count


@torch.no_grad()
def loss_sums(
    lm: LanguageModel, batches: Iterable[Batch], autocast: Autocast = nullcontext, may_retry: bool = True
) -> list[list[tuple[float, int]]]:
    """For every batch, the sum of -ln p in nats and the number of tokens that it asks for.

    may_retry: where memory runs out, a batch is read again in halves, and has a sum for each part. Where processes make
    each forward pass together (FSDP2), one cannot do that alone: OutOfStep is raised.
    """
    device = next(lm.parameters()).device
    with evaluating(lm), autocast():
        return [_loss_sum(lm, batch.to(device), may_retry) for batch in batches]


def _loss_sum(lm: LanguageModel, batch: Batch, may_retry: bool) -> list[tuple[float, int]]:
    rows = len(batch.row_ids)
    try:
        loss_sum, count = lm(**batch.tensors)
        return [(float(loss_sum), int(count))]
    except RuntimeError as error:
        if is_out_of_memory(error) and not may_retry:
            raise OutOfStep(f"out of memory while evaluating {rows} rows: lower train.micro_batch_size") from None
        if not is_out_of_memory(error) or rows == 1:
            raise
    return [part for half in batch.split(-(-rows // 2)) for part in _loss_sum(lm, half, may_retry)]


def bits_per_byte(loss: float, predicted_tokens: int, text_bytes: int) -> float:
    """Nats a token -> bits a byte of text: comparable between tokenizers, as loss and perplexity are not."""
    return loss / math.log(2) * predicted_tokens / text_bytes


@torch.no_grad()
def predictions(lm: LanguageModel, input_ids: Tensor, document_ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """How well every token is foreseen by those before it: -ln p of it in nats, and whether it was the likeliest one.

    input_ids (B, T) -> (B, T) float32 and bool, on the CPU; NaN and False for the first token, which nothing precedes.
    Rows of unlike lengths are padded on the right, without a mask: nothing looks to the right.
    """
    device, shape = next(lm.parameters()).device, input_ids.shape
    losses, likeliest = torch.full(shape, math.nan), torch.zeros(shape, dtype=torch.bool)
    rows = max(1, LOGITS // (shape[1] * lm.lm_head.out_features))
    with evaluating(lm):
        for start in range(0, len(input_ids), rows):
            some = slice(start, start + rows)
            ids = input_ids[some].to(device)
            documents = None if document_ids is None else document_ids[some].to(device)
            logits = lm(ids, document_ids=documents)[:, :-1].float()  # (rows, T - 1, V)
            losses[some, 1:] = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").cpu()
            likeliest[some, 1:] = (logits.argmax(-1) == ids[:, 1:]).cpu()
    return losses, likeliest


def losses_of(lm: LanguageModel, sequences: Sequence[Sequence[int]], rows: int = 32) -> list[Tensor]:
    """-ln p of every token of each sequence but its first: (T - 1,) in nats, on the CPU. So many rows are read at a
    time, like lengths together. Raises ValueError for a sequence longer than max_position_embeddings."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    losses: dict[int, Tensor] = {}
    for start in range(0, len(order), rows):
        chosen = order[start : start + rows]
        padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(sequences[i]) for i in chosen], batch_first=True)
        read, _ = predictions(lm, padded)
        losses |= {i: row[1 : len(sequences[i])].clone() for i, row in zip(chosen, read, strict=True)}
    return [losses[i] for i in range(len(sequences))]


def token_bits(lm: LanguageModel, tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[float]]:
    """-log2 p of every token of whole documents, each read alone from its first token: a list a text, one number per
    token and one for the end token. Raises ValueError for a document longer than max_position_embeddings."""
    return [(losses / math.log(2)).tolist() for losses in losses_of(lm, tokenizer.encode_documents(texts))]


def compare_with_floor(lm: LanguageModel, tokenizer: Tokenizer, stories: Sequence[Story]) -> tuple[int, float, float]:
    """How many stories the model can read whole, with a token before and one behind; its bits per byte on these, and
    the entropy of the choices that made them: on average no model can do better. NaN where there is no such story."""
    longest = lm.config.max_position_embeddings
    stories = [story for story in stories if len(tokenizer.encode(story.text)) + 2 <= longest]
    if not stories:
        return 0, math.nan, math.nan
    backend = lm.attn_implementation
    lm.set_attn_implementation("sdpa")
    try:
        with torch.autocast(next(lm.parameters()).device.type, enabled=False):
            all_bits = token_bits(lm, tokenizer, [story.text for story in stories])
    finally:
        lm.set_attn_implementation(backend)
    text_bytes = sum(len(story.text.encode("utf-8")) for story in stories)
    model, floor = sum(sum(bits) for bits in all_bits), sum(story.bits for story in stories)
    return len(stories), model / text_bytes, floor / text_bytes
