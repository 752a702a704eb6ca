"""Masks: padding, two rules at once, and a row that may see nothing. 15 minutes.

The texts of a batch have different lengths. Padding fills the short ones up, and no token
may look at it. `real` (B, S) marks the tokens of the text: 1 = text, 0 = padding. True in
a mask means: may look.

    padding_mask    hides padding, as keys, from every query and head       (B, 1, 1, S)
    combined_mask   causal *and* not padding: both rules must allow it      (B, 1, T, T)

The two dimensions of size 1 make a mask fit scores of (B, H, T, S). A mask of (B, S) does
not fit. It raises an error, or, worse, it fits by chance and hides queries of other rows.

    real = (0, 1, 1): padding on the left        keys 0 1 2
                                        query 0      . . .      sees nothing!
                                        query 1      . x .
                                        query 2      . x x

Query 0 is padding itself, and causality leaves it only key 0. All its scores are -∞. The
softmax of such a row is 0/0: NaN. One NaN in a batch makes the loss NaN, and then every
weight. So:

    masked_softmax  shares, exactly 0 where the mask forbids; all 0 in a row that sees nothing

The same in Headlight: `boolean_mask` in model/masks.py, `normalise` in
model/attention.py.
"""

from __future__ import annotations

import torch
from torch import Tensor


def padding_mask(real: Tensor) -> Tensor:
    """Return (B, 1, 1, S), boolean, True = may look. real (B, S): 1 = text, 0 = padding."""
    # <solution>
    return real.bool()[:, None, None, :]
    # </solution>


def combined_mask(real: Tensor) -> Tensor:
    """Return (B, 1, T, T) without padding and later tokens, boolean. real: (B, T)."""
    # <solution>
    length = real.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return causal & padding_mask(real)
    # </solution>


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """scores (B, H, T, S), mask (B, 1, T, S) -> shares (B, H, T, S); an empty row is 0."""
    # <solution>
    weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
    return weights.masked_fill(~mask, 0.0)  # NaN also becomes 0
    # </solution>
