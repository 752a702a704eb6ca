"""Rotary position embedding: turn each pair of numbers by an angle that grows with position.

The dot product of a rotated query at position i and a rotated key at position j depends on i - j
only. Su et al. 2021, RoFormer (arXiv 2104.09864). The half-split form and the order of the float32
operations are transformers' (Llama, Qwen3), so that logits agree to the last bit.

Angles are computed from the positions, once for all layers; there is no table that must grow.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from model.variants.config import RopeScaling


class RotaryEmbedding(nn.Module):
    """The angles position * theta^(-2i/head_dim), i = 0 … head_dim/2 - 1, perhaps scaled."""

    inv_freq: Tensor

    def __init__(self, head_dim: int, rope_theta: float, scaling: RopeScaling | None = None):
        super().__init__()
        inv_freq, self.attention_factor = inverse_frequencies(head_dim, rope_theta, scaling)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryEmbedding:
        """Move the frequencies with lm.to(device), but do not round them in lm.to(bfloat16)."""
        exact = self.inv_freq
        super()._apply(fn, recurse)
        self.inv_freq = exact.to(self.inv_freq.device)
        return self

    @torch.no_grad()
    def forward(self, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos and sin, each (B, 1, T, head_dim), of position_ids (B, T).

        They are computed in float32, then cast. The first half of sin is negated.
        """
        angles = position_ids[..., None].float() * self.inv_freq  # (B, T, head_dim/2)
        cos = angles.cos()
        sin = angles.sin()
        if self.attention_factor != 1.0:
            cos = cos * self.attention_factor
            sin = sin * self.attention_factor
        cos = torch.cat((cos, cos), dim=-1)  # (B, T, head_dim)
        sin = torch.cat((-sin, sin), dim=-1)
        return cos[:, None].to(dtype), sin[:, None].to(dtype)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x (B, H, T, head_dim): halves (a, b) become (a cos - b sin, b cos + a sin)."""
    return x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin


def inverse_frequencies(
    head_dim: int, rope_theta: float, scaling: RopeScaling | None
) -> tuple[Tensor, float]:
    """Return radians per position of every pair (head_dim/2,), and the factor for cos and sin."""
    wavelengths = rope_theta ** (torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim)
    if scaling is None:
        return 1.0 / wavelengths, 1.0
    from model.variants.rope_scaling import scaled_frequencies  # few models need it

    return scaled_frequencies(wavelengths, rope_theta, scaling)
