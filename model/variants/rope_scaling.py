"""RoPE, scaled for texts longer than those of training."""

import math

import torch
from torch import Tensor

from model.variants.config import RopeScaling


def scaled_frequencies(
    wavelengths: Tensor, rope_theta: float, scaling: RopeScaling
) -> tuple[Tensor, float]:
    """Return radians per position of every pair (head_dim/2,), and a factor for cos and sin.

    wavelengths (head_dim/2,): positions per radian without scaling.
    """
    inv_freq = 1.0 / wavelengths
    head_dim = 2 * len(wavelengths)
    factor = scaling.factor
    trained = scaling.original_max_position_embeddings or 0
    if scaling.rope_type == "linear":
        # positions are interpolated: all angles become smaller (Chen et al. 2023, arXiv 2306.15595)
        return inv_freq / factor, 1.0
    if scaling.rope_type == "llama3":
        low = scaling.low_freq_factor or 0.0
        high = scaling.high_freq_factor or 0.0
        # keep pairs that turn often over the trained length, and divide those that turn seldom;
        # between them, a share of each that grows linearly (Grattafiori et al., 2407.21783)
        turn = 2 * math.pi / inv_freq  # tokens until the pair has turned once
        share = (trained / turn - low) / (high - low)
        between = (1 - share) * inv_freq / factor + share * inv_freq
        is_slow = turn > trained / low
        is_fast = turn < trained / high
        frequencies = torch.where(is_fast, inv_freq, between)
        return torch.where(is_slow, inv_freq / factor, frequencies), 1.0

    def pair_with(turns: float) -> float:
        """Return the fractional index of the pair with this many turns over the trained length."""
        return head_dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(rope_theta))

    # yarn: the same with a ramp over pairs, "NTK-by-parts" (Peng et al. 2023, 2309.00071)
    first = max(math.floor(pair_with(scaling.beta_fast)), 0)
    last = min(math.ceil(pair_with(scaling.beta_slow)), head_dim - 1)
    pairs = torch.arange(head_dim // 2, dtype=torch.float)
    share = 1 - ((pairs - first) / (last - first or 0.001)).clamp(0, 1)
    inv_freq = 1.0 / (factor * wavelengths) * (1 - share) + 1.0 / wavelengths * share
    # longer queries and keys sharpen the softmax, which has more keys to choose from
    if scaling.attention_factor is not None:
        return inv_freq, scaling.attention_factor
    return inv_freq, 0.1 * math.log(factor) + 1.0
