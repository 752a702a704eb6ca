"""Rotary position embedding: turn each pair of numbers by an angle that grows with position.

The older way, the same sines and cosines added to a token, is `sinusoidal_positions`.

The dot product of a rotated query at position i and a rotated key at position j depends on i - j
only. Su et al. 2021, RoFormer (arXiv 2104.09864). The order of operations is transformers', so that
logits agree to the last bit.
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
        # a buffer moves to the GPU with the model; it is computed, so no checkpoint has it
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryEmbedding:
        """Move the frequencies with lm.to(device), but do not round them in lm.to(bfloat16)."""
        # a rounded frequency times position 1,000 would be another angle
        exact = self.inv_freq
        super()._apply(fn, recurse)
        self.inv_freq = exact.to(self.inv_freq.device)
        return self

    @torch.no_grad()
    def forward(self, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos and sin, each (B, 1, T, head_dim), of position_ids (B, T)."""
        # computed for each batch, so there is no table that must grow; in float32, then cast
        angles = position_ids[..., None].float() * self.inv_freq  # (B, T, head_dim/2)
        cos = angles.cos()
        sin = angles.sin()
        if self.attention_factor != 1.0:
            cos = cos * self.attention_factor
            sin = sin * self.attention_factor
        # number i and number i + head_dim/2 are a pair; apply_rotary subtracts in the first half
        cos = torch.cat((cos, cos), dim=-1)  # (B, T, head_dim)
        sin = torch.cat((-sin, sin), dim=-1)
        return cos[:, None].to(dtype), sin[:, None].to(dtype)  # the same for all heads


def sinusoidal_positions(position_ids: Tensor, size: int) -> Tensor:
    """Return sines and cosines of (B, T) positions, (B, T, size), as in arXiv 1706.03762."""
    inv_freq = 10000.0 ** (-torch.arange(0, size, 2, device=position_ids.device) / size)
    angles = position_ids[..., None].float() * inv_freq  # (B, T, size/2)
    # the paper's sines and cosines alternate; the next matrix can exchange them, so order is free
    return torch.cat((angles.sin(), angles.cos()), dim=-1)[..., :size]


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x (B, H, T, head_dim): halves (a, b) become (a cos - b sin, b cos + a sin)."""
    # roll swaps the halves, (b, a), and sin is (-sin, sin)
    return x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin


def inverse_frequencies(
    head_dim: int, rope_theta: float, scaling: RopeScaling | None
) -> tuple[Tensor, float]:
    """Return radians per position of every pair (head_dim/2,), and the factor for cos and sin."""
    # from 1 to almost rope_theta: fast pairs show near distances, slow ones far distances
    wavelengths = rope_theta ** (torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim)
    if scaling is None:
        return 1.0 / wavelengths, 1.0
    from model.variants.rope_scaling import scaled_frequencies  # few models need it

    return scaled_frequencies(wavelengths, rope_theta, scaling)
