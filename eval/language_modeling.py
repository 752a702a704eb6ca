"""Loss, perplexity and bits per byte on held-out text, and bits document by document beside the floor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from data.batches import Batch
from data.tokenizer import Tokenizer
from eval.eval_mode import evaluating
from model import LanguageModel

if TYPE_CHECKING:
    from data.storyworld import Story


@torch.no_grad()
def mean_loss(
    lm: LanguageModel,
    batches: Iterable[Batch],
    autocast: AbstractContextManager | None = None,
) -> float:
    """Mean of -ln p over every token that the batches ask for, in nats a token."""
    device = next(lm.parameters()).device
    loss_sum, count = 0.0, 0
    with evaluating(lm), autocast or nullcontext():
        for batch in batches:
            batch = batch.to(device)
            batch_sum, batch_count = lm(**batch.for_model())
            loss_sum, count = loss_sum + float(batch_sum), count + int(batch_count)
    return loss_sum / max(1, count)


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


@dataclass(frozen=True)
class FloorComparison:
    """Bits per byte of a model and of the generator that wrote the stories (nobody can do better on average).

    The second pair leaves out the invented names and the nonsense songs where they first occur: bits that only
    luck could save. Both pairs are divided by all bytes.
    """

    documents: int
    model: float
    floor: float
    model_without_invented: float
    floor_without_invented: float

    def lines(self) -> list[str]:
        """The two pairs in words, as report.md has them; eval.compare reads the gap out of the first."""
        return [
            f"bits per byte, {self.documents} whole held-out stories: {self.model:.4f}   "
            f"floor {self.floor:.4f}   gap {self.model - self.floor:+.4f}",
            f"without invented names and songs:               {self.model_without_invented:.4f}   "
            f"floor {self.floor_without_invented:.4f}   "
            f"gap {self.model_without_invented - self.floor_without_invented:+.4f}",
        ]


def compare_with_floor(lm: LanguageModel, tokenizer: Tokenizer, stories: Sequence[Story]) -> FloorComparison:
    """The model's bits on whole stories, beside the entropy of the choices that made them."""
    all_bits = token_bits(lm, tokenizer, [story.text for story in stories])
    model = model_without = 0.0
    for story, bits in zip(stories, all_bits, strict=True):
        model += sum(bits)
        model_without += sum(bits) - _bits_inside(story, tokenizer, bits)
    total_bytes = sum(len(story.text.encode("utf-8")) for story in stories)
    floor = sum(story.bits for story in stories)
    invented = sum(story.name_bits + story.song_bits for story in stories)
    return FloorComparison(
        len(stories),
        model / total_bytes,
        floor / total_bytes,
        model_without / total_bytes,
        (floor - invented) / total_bytes,
    )


def _bits_inside(story: Story, tokenizer: Tokenizer, bits: list[float]) -> float:
    """The model's bits on tokens that overlap an invented name's or a song word's first occurrence."""
    spans = story.invented_spans
    offsets = tokenizer.backend.encode(story.text, add_special_tokens=False).offsets  # (start, end) in characters
    inside, next_span = 0.0, 0
    for (start, end), token in zip(offsets, bits, strict=False):
        while next_span < len(spans) and spans[next_span][1] <= start:
            next_span += 1
        if next_span < len(spans) and spans[next_span][0] < end:
            inside += token
    return inside
