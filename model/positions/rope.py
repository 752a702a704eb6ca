"""Rotary position embedding: turn each pair of a head's numbers by an angle that grows with position.

A rotated query at position i and a rotated key at position j have a dot product that depends on i - j only.
Su et al. 2021, RoFormer (arXiv 2104.09864). The half-split form and the order of the float32 operations are
transformers' (Llama, Qwen3), so that logits agree to the last bit.

There is no table of angles. They are computed from the given positions, once for all layers, so nothing must grow
and nothing can be wrong beyond the training length.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from model.config import ModelConfig
from model.positions.scaling import RopeScaling


class RotaryEmbedding(nn.Module):
    """Angles for every position: position * theta^(-2i/head_dim), i = 0 … head_dim/2 - 1, scaled if asked."""

    inv_freq: Tensor

    def __init__(self, config: ModelConfig):
        super().__init__()
        inv_freq, self.attention_factor = inverse_frequencies(
            config.rotary_size, config.rope_theta, config.rope_scaling
        )
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryEmbedding:
        """lm.to(device) moves the frequencies. lm.to(torch.bfloat16) must not round them, or angles would be wrong."""
        exact = self.inv_freq
        super()._apply(fn, recurse)
        self.inv_freq = exact.to(self.inv_freq.device)
        return self

    @torch.no_grad()
    def forward(self, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """position_ids (B, T) -> cos, sin, each (B, 1, T, head_dim), computed in float32, then cast.

        The first half of sin is negated, so that `apply_rotary` needs no minus.
        """
        angles = position_ids[..., None].float() * self.inv_freq  # (B, T, head_dim/2)
        cos, sin = angles.cos(), angles.sin()
        if self.attention_factor != 1.0:
            cos, sin = cos * self.attention_factor, sin * self.attention_factor
        cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        return cos[:, None].to(dtype), sin[:, None].to(dtype)


class NoRotation(nn.Module):
    """Of a model without RoPE: an angle of 0 at every position."""

    def forward(self, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin, each (1, 1, 1, 1)."""
        one = torch.ones(1, 1, 1, 1, dtype=dtype, device=position_ids.device)
        return one, torch.zeros_like(one)


def make_rotary_embedding(config: ModelConfig) -> RotaryEmbedding | NoRotation:
    """What gives the angles of this model."""
    return RotaryEmbedding(config) if any(config.rotates) else NoRotation()


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x (B, H, T, head_dim): with halves (a, b), the result is (a cos - b sin, b cos + a sin)."""
    return x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin


def pairs_apart(x: Tensor) -> Tensor:
    """Neighbours that RoPE turns together, as `apply_rotary` wants them: a b a b -> a a b b (…, head_dim)."""
    return torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)


def not_rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """What a layer without RoPE has instead: x as it is (NoPE: Kazemnejad et al. 2023, arXiv 2305.19466)."""
    return x


def inverse_frequencies(head_dim: int, rope_theta: float, scaling: RopeScaling | None) -> tuple[Tensor, float]:
    """Radians per position of every pair (head_dim/2,), and the factor for cos and sin (1.0 except for yarn)."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim
    wavelengths = rope_theta**exponents
    if scaling is None:
        return 1.0 / wavelengths, 1.0
    if scaling.rope_type == "linear":
        return 1.0 / wavelengths / scaling.factor, 1.0
    if scaling.rope_type == "llama3":
        return _llama3(1.0 / wavelengths, scaling), 1.0
    return _yarn(wavelengths, head_dim, rope_theta, scaling)


def _llama3(inv_freq: Tensor, scaling: RopeScaling) -> Tensor:
    """Grattafiori et al. 2024: pairs that turn often over the trained length are kept, those that turn seldom divided.

    In between, a share of each that grows linearly with the number of turns.
    """
    trained, low, high = scaling.original_max_position_embeddings, scaling.low_freq_factor, scaling.high_freq_factor
    assert trained is not None
    assert low is not None
    assert high is not None
    wavelength = 2 * math.pi / inv_freq  # in tokens
    kept = (trained / wavelength - low) / (high - low)
    between = (1 - kept) * inv_freq / scaling.factor + kept * inv_freq
    slow, fast = wavelength > trained / low, wavelength < trained / high
    return torch.where(slow, inv_freq / scaling.factor, torch.where(fast, inv_freq, between))


def _yarn(wavelengths: Tensor, head_dim: int, rope_theta: float, scaling: RopeScaling) -> tuple[Tensor, float]:
    """Peng et al. 2023, "NTK-by-parts": pairs that turn often within the trained length keep their angle, pairs
    that turn less than once are interpolated. cos and sin grow by 0.1 ln(factor) + 1, which sharpens the softmax.
    """
    trained = scaling.original_max_position_embeddings
    assert trained is not None

    def pair_that_turns(times: float) -> float:
        """The (fractional) index of the pair that makes this many turns over the trained length."""
        return head_dim * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(rope_theta))

    low = max(math.floor(pair_that_turns(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(scaling.beta_slow)), head_dim - 1)
    width = high - low or 0.001
    kept = 1 - ((torch.arange(head_dim // 2, dtype=torch.float) - low) / width).clamp(0, 1)
    inv_freq = 1.0 / (scaling.factor * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept
    default = 0.1 * math.log(scaling.factor) + 1.0
    return inv_freq, default if scaling.attention_factor is None else scaling.attention_factor
