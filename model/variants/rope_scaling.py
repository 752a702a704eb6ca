"""RoPE, scaled for texts longer than those of training."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from model.variants.config import RopeScaling


def scaled_frequencies(wavelengths: Tensor, rope_theta: float, scaling: RopeScaling) -> tuple[Tensor, float]:
    """Return radians per position of every pair (head_dim/2,), and the factor for cos and sin (1.0 except for yarn).

    wavelengths (head_dim/2,): positions per radian without scaling.

    linear   every angle divided by `factor` (position interpolation, Chen et al. 2023, arXiv 2306.15595)
    llama3   pairs that turn often over the trained length are kept, those that turn seldom divided; in between, a share
             of each that grows linearly with the number of turns (Grattafiori et al. 2024, arXiv 2407.21783)
    yarn     likewise with a ramp over pairs ("NTK-by-parts"); cos and sin grow by 0.1 ln(factor) + 1, which sharpens
             the softmax (Peng et al. 2023, arXiv 2309.00071)
    """
    inv_freq = 1.0 / wavelengths
    head_dim = 2 * len(wavelengths)
    factor = scaling.factor
    trained = scaling.original_max_position_embeddings or 0
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
