"""Rotary position embedding: turn each pair of a head's numbers by an angle that grows with position.

A rotated query at position i and a rotated key at position j have a dot product that depends on i - j only.
Su et al. 2021, RoFormer (arXiv 2104.09864). The half-split form and the order of the float32 operations are
transformers' (Llama, Qwen3), so that logits agree to the last bit.

There is no table of angles: they are computed from the given positions, once for all layers, so nothing must grow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from configs.loader import Section

SCALINGS = ("none", "linear", "yarn")  # what a trained model may be read with
KEYS = {  # which keys of rope_scaling each kind has, besides rope_type and factor
    "linear": (),
    "yarn": ("original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor"),
    "llama3": ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
}


class RopeScaling(Section):
    """How to bring positions beyond the training length back into the range that the model knows."""

    rope_type: Literal["linear", "yarn", "llama3"]
    """linear: divide every angle by factor | yarn, llama3: keep the fast pairs of numbers, divide the slow ones."""
    factor: float = Field(ge=1)
    """Longest text from now on / longest text in training."""
    original_max_position_embeddings: int | None = Field(None, ge=1)
    """yarn, llama3: the longest text in tokens that the model was trained on."""
    beta_fast: float = Field(32.0, gt=0)
    """yarn: pairs that turn more often than this are kept."""
    beta_slow: float = Field(1.0, gt=0)
    """yarn: pairs that turn less often than this are divided by factor."""
    attention_factor: float | None = Field(None, gt=0)
    """yarn: queries and keys are multiplied by this; null = 0.1 ln(factor) + 1."""
    low_freq_factor: float | None = Field(None, gt=0)
    """llama3: pairs that turn less often than this over a text of training are divided by factor."""
    high_freq_factor: float | None = Field(None, gt=0)
    """llama3: pairs that turn more often than this over a text of training are kept."""

    @model_validator(mode="after")
    def _check(self) -> RopeScaling:
        kind, keys = self.rope_type, KEYS[self.rope_type]
        for other, key in [(name, key) for name in reversed(KEYS) for key in KEYS[name]]:
            value = getattr(self, key)
            if key not in keys and value != RopeScaling.model_fields[key].default:
                raise ValueError(f"{kind} has no {key}: leave it out, or use rope_type: {other}")
            if key in keys and value is None and key != "attention_factor":
                raise ValueError(f"{kind} needs {key}")
        for low, high in (("beta_slow", "beta_fast"), ("low_freq_factor", "high_freq_factor")):
            if low in keys and getattr(self, high) <= getattr(self, low):
                raise ValueError(f"{high} ({getattr(self, high)}) must be above {low} ({getattr(self, low)})")
        return self

    def written(self) -> dict[str, Any]:
        """The keys of this kind that have a value, as config.json has them."""
        return self.model_dump(include={"rope_type", "factor", *KEYS[self.rope_type]}, exclude_none=True)


class RotaryEmbedding(nn.Module):
    """Angles for every position: position * theta^(-2i/head_dim), i = 0 … head_dim/2 - 1, scaled if asked."""

    inv_freq: Tensor

    def __init__(self, head_dim: int, rope_theta: float, scaling: RopeScaling | None = None):
        super().__init__()
        inv_freq, self.attention_factor = inverse_frequencies(head_dim, rope_theta, scaling)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryEmbedding:
        """lm.to(device) moves the frequencies. lm.to(torch.bfloat16) must not round them, or angles would be wrong."""
        exact = self.inv_freq
        super()._apply(fn, recurse)
        self.inv_freq = exact.to(self.inv_freq.device)
        return self

    @torch.no_grad()
    def forward(self, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """position_ids (B, T) -> cos, sin, each (B, 1, T, head_dim), computed in float32, then cast. The first half of
        sin is negated, so that `apply_rotary` needs no minus."""
        angles = position_ids[..., None].float() * self.inv_freq  # (B, T, head_dim/2)
        cos, sin = angles.cos(), angles.sin()
        if self.attention_factor != 1.0:
            cos, sin = cos * self.attention_factor, sin * self.attention_factor
        cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        return cos[:, None].to(dtype), sin[:, None].to(dtype)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x (B, H, T, head_dim): with halves (a, b), the result is (a cos - b sin, b cos + a sin)."""
    return x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin


def inverse_frequencies(head_dim: int, rope_theta: float, scaling: RopeScaling | None) -> tuple[Tensor, float]:
    """Radians per position of every pair (head_dim/2,), and the factor for cos and sin (1.0 except for yarn).

    linear   every angle divided by `factor` (position interpolation, Chen et al. 2023, arXiv 2306.15595)
    llama3   pairs that turn often over the trained length are kept, those that turn seldom divided; in between, a share
             of each that grows linearly with the number of turns (Grattafiori et al. 2024, arXiv 2407.21783)
    yarn     likewise with a ramp over pairs ("NTK-by-parts"); cos and sin grow by 0.1 ln(factor) + 1, which sharpens
             the softmax (Peng et al. 2023, arXiv 2309.00071)
    """
    wavelengths = rope_theta ** (torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim)
    inv_freq = 1.0 / wavelengths
    if scaling is None:
        return inv_freq, 1.0
    factor, trained = scaling.factor, scaling.original_max_position_embeddings or 0
    if scaling.rope_type == "linear":
        return inv_freq / factor, 1.0
    if scaling.rope_type == "llama3":
        low, high = scaling.low_freq_factor or 0.0, scaling.high_freq_factor or 0.0
        turn = 2 * math.pi / inv_freq  # tokens until the pair has turned once
        share = (trained / turn - low) / (high - low)
        between = (1 - share) * inv_freq / factor + share * inv_freq
        slow, fast = turn > trained / low, turn < trained / high
        return torch.where(slow, inv_freq / factor, torch.where(fast, inv_freq, between)), 1.0
    # the (fractional) indices of the pairs that make as many turns over the trained length
    first, last = (
        head_dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(rope_theta))
        for turns in (scaling.beta_fast, scaling.beta_slow)
    )
    first, last = max(math.floor(first), 0), min(math.ceil(last), head_dim - 1)
    share = 1 - ((torch.arange(head_dim // 2, dtype=torch.float) - first) / (last - first or 0.001)).clamp(0, 1)
    inv_freq = 1.0 / (factor * wavelengths) * (1 - share) + 1.0 / wavelengths * share
    default = 0.1 * math.log(factor) + 1.0
    return inv_freq, default if scaling.attention_factor is None else scaling.attention_factor
