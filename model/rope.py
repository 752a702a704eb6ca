"""Rotary position embedding: turn each pair of a head's numbers by an angle that grows with position.

A query at position i and a key at position j, both turned, have a dot product that depends on i - j only.
Su et al. 2021, RoFormer (arXiv 2104.09864). The half-split form (`rotate_half`) and the order of the
float32 operations are transformers' (Llama, Qwen3), so that logits agree to the last bit.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RotaryEmbedding(nn.Module):
    """Angles for every position: inverse frequencies theta^(-2i/head_dim), i = 0 … head_dim/2 - 1."""

    inv_freq: Tensor

    def __init__(self, head_dim: int, rope_theta: float):
        super().__init__()
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim
        self.register_buffer("inv_freq", 1.0 / (rope_theta**exponents), persistent=False)

    @torch.no_grad()
    def forward(self, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """position_ids (B, T) -> cos, sin, each (B, 1, T, head_dim), computed in float32, then cast."""
        angles = position_ids[..., None].float() * self.inv_freq  # (B, T, head_dim/2)
        angles = torch.cat((angles, angles), dim=-1)[:, None]  # (B, 1, T, head_dim)
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate_half(x: Tensor) -> Tensor:
    """(x1, x2) -> (-x2, x1), the halves of the last dimension: a quarter turn of every pair."""
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x (B, H, T, head_dim) by the angles whose cosine and sine are given (B, 1, T, head_dim)."""
    return x * cos + rotate_half(x) * sin
