"""Which pairs of numbers does RoPE turn to angles that training never showed?

RoPE turns each pair of a query's and a key's numbers, and their product knows the difference of the two angles. A fast
pair turns many times within a row of training, so it has met every angle. A slow one has not: beyond the row its angles
are new. Peng et al. 2023, YaRN (arXiv 2309.00071), section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from model.config import ModelConfig
from model.rope import inverse_frequencies


@dataclass(frozen=True)
class Pairs:
    """The pairs of a head under one scaling.

    wavelength: (pairs,) tokens of a full turn, as trained
    slowed:     (pairs,) how much slower each one turns with this scaling; 1 = as trained
    new:        (pairs, T) bool: whether a distance of that many tokens gives an angle that no row of training gave
    """

    wavelength: Tensor
    slowed: Tensor
    new: Tensor


def pairs(trained_config: ModelConfig, config: ModelConfig, trained: int, length: int) -> Pairs:
    """The pairs of a model trained on rows of `trained` tokens, under another config: distances of 0 … length - 1."""
    before, _ = inverse_frequencies(trained_config.rotary_size, trained_config.rope_theta, trained_config.rope_scaling)
    now, _ = inverse_frequencies(config.rotary_size, config.rope_theta, config.rope_scaling)
    before, now = before.double(), now.double()
    largest = before * trained  # how far it turns within a row; one that turns fully has been everywhere
    angles = now[:, None] * torch.arange(length)
    rest = angles % (2 * math.pi)
    new = (largest[:, None] < 2 * math.pi) & (rest > largest[:, None] * (1 + 1e-9))
    return Pairs(2 * math.pi / before, before / now, new)


def in_words(found: dict[str, Pairs], trained: int, length: int) -> str:
    """What the picture shows, in two sentences."""
    plain = found["none"]
    slow = int((plain.wavelength > trained).sum())
    total = len(plain.wavelength)
    first = f"{slow} of {total} pairs turn less than once in {trained:,} tokens"
    if slow:
        first += f" (wavelengths from {plain.wavelength[plain.wavelength > trained].min():,.0f} tokens on)"
    reached = {name: int(each.new.any(1).sum()) for name, each in found.items()}
    kept = {name: int((each.slowed < 1.01).sum()) for name, each in found.items()}
    rest = ", ".join(f"{reached[name]} with {name}" for name in found)
    keeps = " and ".join(f"{kept[name]} with {name}" for name in found if name != "none")
    return f"{first}. New angles within {length:,} tokens: {rest}. Pairs that turn as fast as in training: {keeps}."
