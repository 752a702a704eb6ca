"""KV cache: read every token once. 15 minutes.

To write the next token, a model needs the keys and values of all earlier tokens. They do
not change, so it keeps them. Each new token appends one key and one value, and its query
looks at all keys in the cache.

    append(k, v)      k and v (B, H_kv, T, D) of T new tokens
                      -> the keys and values that these tokens may look at, (B, H_kv, S, D), S ≥ T

    tokens read       1  2  3 |  4 |  5         first 3 at once (the prompt), then one at a time
    append returns       3    |  4 |  5         keys

With a sliding window, a token looks at the last `window` tokens, including itself. So the
next token needs only the last window - 1 tokens of the cache, and you can drop the rest.
`append` returns the tokens in the cache and the new ones. (A prompt of several tokens
also needs a mask, which is not part of the cache.)

    window = 3        keeps 2 after each call
    append returns       3    |  3 |  3         keys

A classic bug: with keep = window - 1, the last `keep` of n numbers are x[-keep:]. Try
keep = 0.

The same in Headlight: `KVCache` in model/kv_cache.py. RoPE takes its positions from
`seen`, not from the length of the cache: with a window these differ.
"""

from __future__ import annotations

import torch
from torch import Tensor


class KVCache:
    """Keys and values of one layer. window: tokens that a token sees, with itself; None = all."""

    def __init__(self, window: int | None = None):
        self.window = window
        self.k: Tensor | None = None  # (B, H_kv, kept, D); None: nothing yet
        self.v: Tensor | None = None
        self.seen = 0  # tokens read so far, including the dropped ones

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keep k and v (B, H_kv, T, D); return all that they may attend to, (B, H_kv, S, D)."""
        # <solution>
        self.seen += k.shape[2]
        if self.k is not None and self.v is not None:
            k = torch.cat((self.k, k), dim=2)
            v = torch.cat((self.v, v), dim=2)
        start = 0 if self.window is None else max(0, k.shape[2] - (self.window - 1))
        self.k = k[:, :, start:]
        self.v = v[:, :, start:]
        return k, v
        # </solution>
