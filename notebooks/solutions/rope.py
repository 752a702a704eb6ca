"""RoPE: a place is an angle. 25 minutes.

Attention compares a query with a key, but their distance in the text does not matter to
it. RoPE adds the distance. It turns each pair of a head's D numbers by an angle that
grows with the position of the token.

    angle of pair i at position p:    p · theta^(-2i/D)           i = 0 … D/2 - 1
    a pair (a, b) turned by φ:        (a cos φ - b sin φ,  b cos φ + a sin φ)

Then q·k depends only on the *difference* of two positions. Pair 0 turns fastest, one
radian a token.

    D = 4, theta = 100, position 3:   angles 3 · 100^0 = 3 and 3 · 100^(-1/2) = 0.3
    (1, 0) turned by a quarter (φ = π/2) is (0, 1)

Which two numbers are a pair? There are two customs, and they give two different models:

    half-split      number i with number i + D/2      Llama in transformers, Qwen, Headlight
    interleaved     number 2i with number 2i + 1      RoFormer, Meta's Llama code

The interleaved custom is short with complex numbers. The pair (a, b) is a + ib. To turn
it, multiply it by cos φ + i sin φ. torch.view_as_complex needs pairs in a last dimension
of size 2, torch.polar(ones, angle) is cos φ + i sin φ, torch.view_as_real goes back.

If you reorder the D numbers, one custom becomes the other: interleaved(x[..., order]) ==
half_split(x)[..., order]. For D = 4 the order is 0, 2, 1, 3. A program that converts
Meta's weights for transformers does this.

To get the last bits of one_file.py, compute a frequency for each pair, 1 / theta ** (2i/D), and
multiply it by the position.

The same in Headlight: `apply_rotary` in model/rope.py.
"""

from __future__ import annotations

import torch
from torch import Tensor


def angles(length: int, size: int, theta: float) -> Tensor:
    """Return the angle of every pair at positions 0 … T - 1: (T, D/2)."""
    # <solution>
    frequencies = 1.0 / theta ** (torch.arange(0, size, 2) / size)  # (D/2,)
    return torch.arange(length)[:, None] * frequencies
    # </solution>


def half_split(x: Tensor, angle: Tensor) -> Tensor:
    """Turn the pairs (i, i + D/2): x (B, H, T, D), angle (T, D/2) -> (B, H, T, D)."""
    # <solution>
    a, b = x.chunk(2, dim=-1)  # each (B, H, T, D/2)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), dim=-1)
    # </solution>


def interleaved(x: Tensor, angle: Tensor) -> Tensor:
    """Turn the pairs (2i, 2i + 1), as complex numbers: x (B, H, T, D), angle (T, D/2)."""
    # <solution>
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())  # (B, H, T, D/2)
    turned = pairs * torch.polar(torch.ones_like(angle), angle)  # (B, H, T, D/2)
    return torch.view_as_real(turned).flatten(-2)
    # </solution>


def order(size: int) -> Tensor:
    """Return (D,) with interleaved(x[..., order], angle) == half_split(x, angle)[..., order]."""
    # <solution>
    first = torch.arange(size // 2)
    return torch.stack((first, first + size // 2), dim=1).flatten()  # 0, D/2, 1, D/2 + 1, …
    # </solution>
