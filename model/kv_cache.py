"""Key-value cache: while decoding, keep the keys and values of every token that was read."""

from __future__ import annotations

from torch import Tensor


class KVCache:
    """A dynamic cache. It grows in blocks, so that appending a token copies nothing but that token.

    One cache serves one batch. Per layer it holds keys and values (B, H_kv, capacity, D), of which the
    first `length` positions are filled.
    """

    def __init__(self, block_size: int = 256):
        self.block_size = block_size
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._lengths: dict[int, int] = {}

    @property
    def length(self) -> int:
        """Tokens held, in every layer, between two forward passes."""
        return self._lengths.get(0, 0)

    @property
    def nbytes(self) -> int:
        """Bytes of the filled part: 2 * layers * B * H_kv * length * D * bytes per number."""
        tensors = [*self._keys.values(), *self._values.values()]
        return sum(t[:, :, : self.length].numel() * t.element_size() for t in tensors)

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append k and v (B, H_kv, T, D) of a layer; returns all that it holds (B, H_kv, length + T, D)."""
        start = self._lengths.get(layer, 0)
        end = start + k.shape[2]
        if layer not in self._keys or end > self._keys[layer].shape[2]:
            capacity = -(-end // self.block_size) * self.block_size
            self._keys[layer] = self._grow(self._keys.get(layer), k, start, capacity)
            self._values[layer] = self._grow(self._values.get(layer), v, start, capacity)
        self._keys[layer][:, :, start:end] = k
        self._values[layer][:, :, start:end] = v
        self._lengths[layer] = end
        return self._keys[layer][:, :, :end], self._values[layer][:, :, :end]

    @staticmethod
    def _grow(old: Tensor | None, like: Tensor, filled: int, capacity: int) -> Tensor:
        batch, heads, _, head_dim = like.shape
        new = like.new_empty(batch, heads, capacity, head_dim)
        if old is not None:
            new[:, :, :filled] = old[:, :, :filled]
        return new
