"""How well does it predict a text? Loss over batches, bits of whole documents; and how far they are above the entropy
floor: the built-in world knows the entropy of its own stories."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from configs.command import InputError, is_out_of_memory
from data.batches import Batch
from data.tokenizer import Tokenizer
from model import LanguageModel

if TYPE_CHECKING:
    from data.storyworld import Story


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


# ---------------------------------------------------------------------------------------------------------
# the entropy floor


@dataclass(frozen=True)
class FloorComparison:
    """Bits per byte of a model and of the generator that wrote the stories. On average no model can do better."""

    model: float
    floor: float

    @property
    def gap(self) -> float:
        """Bits per byte above the floor."""
        return self.model - self.floor


def fitting(lm: LanguageModel, tokenizer: Tokenizer, stories: Sequence[Story]) -> list[Story]:
    """Those that the model reads whole, with a token before and one behind."""
    longest = lm.config.max_position_embeddings
    return [story for story in stories if len(tokenizer.encode(story.text)) + 2 <= longest]


def compare_with_floor(lm: LanguageModel, tokenizer: Tokenizer, stories: Sequence[Story]) -> FloorComparison:
    """The model's bits on whole stories, beside the entropy of the choices that made them. Computed in float32."""
    backend = lm.attn_implementation
    lm.set_attn_implementation("sdpa")
    try:
        with torch.autocast(next(lm.parameters()).device.type, enabled=False):
            all_bits = token_bits(lm, tokenizer, [story.text for story in stories])
    finally:
        lm.set_attn_implementation(backend)
    model = 0.0
    for bits in all_bits:
        model += sum(bits)
    total_bytes = sum(len(story.text.encode("utf-8")) for story in stories)
    return FloorComparison(model / total_bytes, sum(story.bits for story in stories) / total_bytes)
