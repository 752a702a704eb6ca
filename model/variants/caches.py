"""Other ways to keep keys and values, by the names that `generate(kv_cache=...)` takes:

    dynamic     the plain cache of model/kv_cache.py
    static      room for `capacity` tokens from the start: shapes never change, for torch.compile and CUDA graphs
    offloaded   layers wait in the CPU's memory and come to the GPU when they are used
    int8        the dynamic cache, rounded to 8 bits a number

A server has sequences that come and go: model/variants/paged_cache.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from model.config import ModelConfig
from model.kv_cache import KVCache

CACHES = ("dynamic", "static", "offloaded")  # these give back what they were given; int8 rounds it


class OffloadedCache(KVCache):
    """Layers wait in (pinned) CPU memory; the GPU holds the one that computes. On a CPU it is the dynamic cache.
    A token waits for the copies: a GPU reads its own memory a hundred times as fast as the CPU's."""

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        # k.cpu() waits for the GPU, so no copy for the token before still reads what is written here
        count = self._append(layer, k.cpu(), v.cpu(), pinned=k.is_cuda)[0].shape[2]
        start = self._kept_from(layer) - self.first[layer]
        # whole buffers go to the GPU, because only those lie in one piece
        keys, values = (buffer.to(k.device, non_blocking=True) for buffer in self.buffers[layer])
        return keys[:, :, start : start + count], values[:, :, start : start + count]


class QuantisedCache(KVCache):
    """The dynamic cache in whole numbers: every key and every value is 8 bits a number, and one scale.

        scale = largest |number| / 127        kept = round(number / scale)        given back: kept * scale

    One scale for each token and head, between which the size of keys differs. The numbers become floats again for every
    token that is read: bytes are saved, time is not. With 2 bits: Liu et al. 2024, KIVI (arXiv 2402.02750).
    """

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        # tokens that are read now come back rounded too: what is seen does not depend on how many are read at a time
        keys, key_scales, values, value_scales = self._append(layer, *quantise(k), *quantise(v))
        return keys * key_scales, values * value_scales


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (B, heads, T, D) -> int8 of the same shape, and its scales (B, heads, T, 1) in the dtype of x."""
    scale = x.abs().amax(dim=-1, keepdim=True) / 127
    rounded = (x / scale.clamp(min=torch.finfo(x.dtype).tiny)).round().clamp(-127, 127)
    return rounded.to(torch.int8), scale


class StaticCache(KVCache):
    """Room for `capacity` tokens in every layer from the start; the length is a tensor, so nothing recompiles. Layers
    with a sliding window have full room too; the mask keeps their window. Raises ValueError when full."""

    def __init__(
        self, config: ModelConfig, batch_size: int, capacity: int, device: torch.device | str, dtype: torch.dtype
    ):
        super().__init__()
        self.capacity = capacity
        for layer in range(config.num_hidden_layers):
            shapes = [(batch_size, heads, capacity, size) for heads, size in config.cache_shapes]
            self.buffers[layer] = [torch.zeros(shape, device=device, dtype=dtype) for shape in shapes]
        self._length = torch.zeros((), dtype=torch.long, device=device)
        self.repeat_interleave(1)

    def repeat_interleave(self, times: int) -> None:
        super().repeat_interleave(times)
        # tell the compiler that these tensors keep their addresses, so that a CUDA graph need not copy them
        for tensor in (*(buffer for layer in self.buffers.values() for buffer in layer), self._length):
            torch._dynamo.mark_static_address(tensor)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole room, filled or not."""
        return sum(buffer.nbytes for layer in self.buffers.values() for buffer in layer)

    def positions(self, count: int, device: torch.device) -> Tensor:
        if not torch.compiler.is_compiling() and self.length + count > self.capacity:
            needed = f"{self.length} + {count} are needed: make it with a larger capacity"
            raise ValueError(f"the static cache has room for {self.capacity} tokens, and {needed}")
        return super().positions(count, device)

    def key_positions(self, layer: int, count: int, device: torch.device) -> Tensor:
        return torch.arange(self.capacity if self.has_room else count, device=device)

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.buffers[layer]
        k, v = k.to(keys.dtype), v.to(values.dtype)  # under autocast they may differ
        positions = super().positions(k.shape[2], k.device)
        keys.index_copy_(2, positions, k)
        values.index_copy_(2, positions, v)
        return (keys, values) if self.has_room else (k, v)

    def advance(self, count: int) -> None:
        super().advance(count)
        self.has_room = True  # a first part is computed as without a cache

    def crop(self, length: int) -> None:
        torch.as_tensor(self._length).clamp_(max=max(0, length))
        self.has_room = self.length > 0
        self.token_ids = None if self.token_ids is None else self.token_ids[:, : self.length]


def make_cache(kind: str, config: ModelConfig, batch_size: int, capacity: int, like: Tensor) -> KVCache:
    """An empty cache for a batch; `like` has the device and dtype of keys. Raises ValueError for an unknown kind."""
    growing = {"dynamic": KVCache, "offloaded": OffloadedCache, "int8": QuantisedCache}
    if kind in growing:
        return growing[kind](config)
    if kind != "static":
        raise ValueError(f"cache ({kind!r}) is unknown: use dynamic, static, offloaded or int8")
    return StaticCache(config, batch_size, capacity, like.device, like.dtype)
