"""A key-value cache of whole numbers: every key and every value is 8 bits a number, and one scale.

    scale = largest |number| / 127        kept = round(number / scale)        given back: kept * scale

One scale for each token and head, because the size of keys differs from head to head and from token to token. What is
given back is off by half a scale at most. A token takes 2 * H_kv * (D + bytes of the scale) bytes a layer, instead of
2 * H_kv * D * 2 or 4. The numbers become floats again for every token that is read: bytes are saved, time is not.
With 2 bits, and keys that share a scale over tokens instead: Liu et al. 2024, KIVI (arXiv 2402.02750).
"""

from __future__ import annotations

import torch
from torch import Tensor

from model.config import ModelConfig
from model.decoding.kv_cache import KVCache

LARGEST = 127


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (B, heads, T, D) -> int8 of the same shape, and its scales (B, heads, T, 1) in the dtype of x."""
    scale = x.abs().amax(dim=-1, keepdim=True) / LARGEST
    whole = (x / scale.clamp(min=torch.finfo(x.dtype).tiny)).round().clamp(-LARGEST, LARGEST)
    return whole.to(torch.int8), scale


class QuantisedCache(KVCache):
    """The dynamic cache in int8. A second one beside it, with the same windows, keeps the scales."""

    def __init__(self, config: ModelConfig | None = None, block_size: int = 256):
        super().__init__(config, block_size)
        self.scales = KVCache(config, block_size)

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept, scales included."""
        return super().nbytes + self.scales.nbytes

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """As for KVCache. The tokens that are read now also come back rounded, so that what a token sees does not
        depend on how many are read at a time."""
        (k, k_scale), (v, v_scale) = quantise(k), quantise(v)
        keys, values = super().update(layer, k, v)
        key_scales, value_scales = self.scales.update(layer, k_scale, v_scale)
        return keys * key_scales, values * value_scales

    def advance(self, count: int) -> None:
        super().advance(count)
        self.scales.advance(count)

    def crop(self, length: int) -> None:
        super().crop(length)
        self.scales.crop(length)

    def clear(self) -> None:
        super().clear()
        self.scales.clear()

    def repeat_interleave(self, times: int) -> None:
        super().repeat_interleave(times)
        self.scales.repeat_interleave(times)
