"""Rotary position embedding: turn each pair of a head's numbers by an angle that grows with position.

A rotated query at position i and a rotated key at position j have a dot product that depends on i - j only.
Su et al. 2021, RoFormer (arXiv 2104.09864). The half-split form and the order of the float32 operations are
transformers' (Llama, Qwen3), so that logits agree to the last bit.

There is no table of angles: they are computed from the given positions, once for all layers, so nothing must grow.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from model.variants.config import RopeScaling


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
    """Return radians per position of every pair (head_dim/2,), and the factor for cos and sin."""
    wavelengths = rope_theta ** (torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim)
    if scaling is None:
        return 1.0 / wavelengths, 1.0
    from model.variants.rope_scaling import scaled_frequencies  # few models need it

    return scaled_frequencies(wavelengths, rope_theta, scaling)
