"""How far is a model from the best that anyone could do? The built-in world knows the entropy of its own stories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from data.tokenizer import Tokenizer
from eval.language_modeling import token_bits
from model import LanguageModel

if TYPE_CHECKING:
    from data.storyworld import Story


@dataclass(frozen=True)
class FloorComparison:
    """Bits per byte of a model and of the generator that wrote the stories. On average no model can do better.

    The second pair leaves out the invented names and the nonsense songs where they first occur: bits that only luck
    could save. Both pairs are divided by all bytes.
    """

    model: float
    floor: float
    model_without_invented: float
    floor_without_invented: float

    @property
    def gap(self) -> float:
        """Bits per byte above the floor."""
        return self.model - self.floor


def floor_lines(values: dict[str, Any]) -> list[str]:
    """The two pairs in words. values: what the validation hook logs as `floor`."""
    left_out = [f"({values['left_out']} longer stories left out)"] if values["left_out"] else []
    if "model" not in values:
        return [f"no held-out story fits into {values['longest']} tokens, so none is compared with its entropy floor"]
    lines = []
    heads = (f"bits per byte, {values['documents']} whole held-out stories:", "without invented names and songs:")
    for head, suffix in zip(heads, ("", "_without_invented"), strict=True):
        model, floor = values[f"model{suffix}"], values[f"floor{suffix}"]
        lines.append(f"{head:<47} {model:.4f}   floor {floor:.4f}   gap {model - floor:+.4f}")
    if values.get("random_words"):  # not in the result.json of an earlier version
        left_out.append("(stories alone; the validation loss and its bits per byte are of the random words as well)")
    return lines + left_out


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
    model = model_without = 0.0
    for story, bits in zip(stories, all_bits, strict=True):
        model += sum(bits)
        model_without += sum(bits) - _bits_inside(story, tokenizer, bits)
    total_bytes = sum(len(story.text.encode("utf-8")) for story in stories)
    floor = sum(story.bits for story in stories)
    invented = sum(story.name_bits + story.song_bits for story in stories)
    return FloorComparison(
        model / total_bytes, floor / total_bytes, model_without / total_bytes, (floor - invented) / total_bytes
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
