"""Causal mask: nobody sees the future. 5 minutes.

A language model predicts the next token. In training, the text already contains this
token. So each token may look at itself and at earlier tokens, never at later ones.

A mask holds True where a token may look. Rows are queries (they look), columns are keys
(they are looked at).

    causal_mask(3, 3)        keys  0 1 2            (T, S) = (3, 3)
                       query 0     x . .
                       query 1     x x .
                       query 2     x x x

With a cache there are more keys than queries. The queries are then the *last* T of the
S tokens:

    causal_mask(2, 5)        keys  0 1 2 3 4        (T, S) = (2, 5)
                       query 3     x x x x .
                       query 4     x x x x x

There is a trap. A triangle from the upper left corner lets query 3 see only key 0.
(is_causal=True in torch.nn.functional.scaled_dot_product_attention makes this triangle.)

The same in Headlight: `causal` in model/masks.py.
"""

from __future__ import annotations

import torch
from torch import Tensor


def causal_mask(queries: int, keys: int) -> Tensor:
    """Return the keys that the last `queries` tokens may attend to: (T, S), True = may attend."""
    # <solution>
    query_positions = torch.arange(keys - queries, keys)[:, None]  # (T, 1)
    return query_positions >= torch.arange(keys)  # (T, S)
    # </solution>
