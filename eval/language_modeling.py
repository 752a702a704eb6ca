"""Loss over batches, bits of whole documents, and their distance from the entropy floor.

The built-in world computes the entropy of its own stories, which is the lowest possible loss.
"""

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
LOGITS = 2**25  # At most so many logits are in memory at a time: 128 MB.
ROWS = 32  # `losses_of` reads so many sequences at a time.


class OutOfStep(InputError):
    """One process cannot continue, and the others would wait for it: the run must end."""


@contextmanager
def evaluating(lm: nn.Module) -> Iterator[None]:
    """Put lm into evaluation mode, and afterwards every module back into its old mode."""
    # of each module: some may already be in evaluation mode
    modes = {module: module.training for module in lm.modules()}
    lm.eval()
    try:
        yield
    finally:
        for module, was_training in modes.items():
            module.training = was_training


def mean_loss(
    lm: LanguageModel, batches: Iterable[Batch], autocast: Autocast = nullcontext
) -> float:
    """Return the mean of -ln p over the labels of all batches, in nats a token."""
    sums: list[tuple[float, int]] = []
    for parts in loss_sums(lm, batches, autocast):
        sums += parts
    return mean(sums)[0]


def mean(sums: Iterable[tuple[float, int]]) -> tuple[float, int]:
    """Add (sum, count) pairs in their order; return the mean (NaN for none) and the count."""
    total = 0.0
    count = 0
    for loss_sum, tokens in sums:
        total += loss_sum
        count += tokens
    return total / count if count else math.nan, count


@torch.no_grad()
def loss_sums(
    lm: LanguageModel,
    batches: Iterable[Batch],
    autocast: Autocast = nullcontext,
    may_retry: bool = True,
) -> list[list[tuple[float, int]]]:
    """Return (sum of -ln p in nats, number of labels) for the parts of every batch.

    may_retry: if memory runs out, split the batch into halves; otherwise raise OutOfStep
    """
    device = lm.device
    with evaluating(lm), autocast():
        return [_loss_sum(lm, batch.to(device), may_retry) for batch in batches]


def _loss_sum(lm: LanguageModel, batch: Batch, may_retry: bool) -> list[tuple[float, int]]:
    rows = len(batch.row_ids)
    try:
        # with labels the model computes the loss in chunks: all logits never exist at once
        loss_sum, count = lm(**batch.tensors)
        return [(float(loss_sum), int(count))]
    except RuntimeError as error:
        if is_out_of_memory(error) and not may_retry:
            # under FSDP2 one process cannot read its batch in more passes than the others
            raise OutOfStep(
                f"out of memory while evaluating {rows} rows: lower train.micro_batch_size"
            ) from None
        if not is_out_of_memory(error) or rows == 1:
            raise
    # outside of `except`, whose traceback keeps the failed tensors in memory
    parts = []
    for half in batch.split(-(-rows // 2)):
        parts += _loss_sum(lm, half, may_retry)
    return parts


def bits_per_byte(loss: float, predicted_tokens: int, text_bytes: int) -> float:
    """Convert nats a token to bits a byte, which are comparable between tokenizers."""
    return loss / math.log(2) * predicted_tokens / text_bytes


@torch.no_grad()
def predictions(
    lm: LanguageModel, input_ids: Tensor, document_ids: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return -ln p of every token in nats, and True where it was the likeliest one.

    input_ids (B, T) -> (B, T) float32 and bool, on the CPU; NaN and False for the first token.
    Shorter rows are padded on the right, where no token looks, so they need no mask.
    """
    device = lm.device
    losses = torch.full(input_ids.shape, math.nan)
    likeliest = torch.zeros(input_ids.shape, dtype=torch.bool)
    # the logits of all rows at once would be the largest tensor by far: V numbers a token
    rows = max(1, LOGITS // (input_ids.shape[1] * lm.lm_head.out_features))
    with evaluating(lm):
        for start in range(0, len(input_ids), rows):
            chunk = slice(start, start + rows)
            ids = input_ids[chunk].to(device)
            documents = None if document_ids is None else document_ids[chunk].to(device)
            logits = lm(ids, document_ids=documents).float()  # (rows, T, V)
            # A token predicts the next one. The last has none: its loss is computed and dropped,
            # because logits without it would have to be copied.
            targets = ids.roll(-1, dims=1)
            flat = logits.flatten(0, 1), targets.flatten()  # (rows * T, V), (rows * T,)
            chunk_losses = F.cross_entropy(*flat, reduction="none").view(targets.shape)
            losses[chunk, 1:] = chunk_losses[:, :-1].cpu()
            likeliest[chunk, 1:] = (logits.argmax(-1) == targets)[:, :-1].cpu()
    return losses, likeliest


def losses_of(lm: LanguageModel, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return -ln p of every token but the first of each sequence: (T - 1,) in nats, on the CPU.

    Raises ValueError for a sequence longer than max_position_embeddings.
    """
    # like lengths together: little padding
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    losses: dict[int, Tensor] = {}
    for start in range(0, len(order), ROWS):
        chosen = order[start : start + ROWS]
        tensors = [torch.tensor(sequences[i]) for i in chosen]
        padded = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)
        padded_losses, _ = predictions(lm, padded)
        for i, row in zip(chosen, padded_losses, strict=True):
            # clone: a view would keep the padded tensor of the whole chunk in memory
            losses[i] = row[1 : len(sequences[i])].clone()
    return [losses[i] for i in range(len(sequences))]


def token_bits(lm: LanguageModel, tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[float]]:
    """Return -log2 p of every token of each document, and of its end token.

    Raises ValueError for a document longer than max_position_embeddings.
    """
    losses = losses_of(lm, tokenizer.encode_documents(texts))
    return [(row / math.log(2)).tolist() for row in losses]


def compare_with_floor(
    lm: LanguageModel, tokenizer: Tokenizer, stories: Sequence[Story]
) -> tuple[int, float, float]:
    """Compare the model with the entropy of the choices that made the stories.

    Return the number of stories that fit into the context, the model's bits per byte on these,
    and the entropy, which no model can beat on average. NaN without such a story.
    """
    longest = lm.config.max_position_embeddings
    # + 2: the first token of a document, and its end
    stories = [s for s in stories if len(tokenizer.encode(s.text)) + 2 <= longest]
    if not stories:
        return 0, math.nan, math.nan
    # Full precision and one backend: the figure does not depend on the run's settings.
    backend = lm.attn_implementation
    lm.set_attn_implementation("sdpa")
    try:
        with torch.autocast(lm.device.type, enabled=False):
            bits = token_bits(lm, tokenizer, [story.text for story in stories])
    finally:
        lm.set_attn_implementation(backend)
    text_bytes = sum(len(story.text.encode("utf-8")) for story in stories)
    # over all stories at once: a mean of their ratios would favour short ones
    model = sum(sum(row) for row in bits)
    floor = sum(story.bits for story in stories)
    return len(stories), model / text_bytes, floor / text_bytes
