"""Which key-value caches are there? By the names that `generate(kv_cache=...)` takes."""

from __future__ import annotations

from torch import Tensor

from model.config import ModelConfig
from model.decoding.kv_cache import KVCache, OffloadedCache, StaticCache
from model.decoding.quantised_cache import QuantisedCache

CACHES = ("dynamic", "static", "offloaded")  # these give back what they were given
ROUNDED = ("int8",)


def make_cache(kind: str, config: ModelConfig, batch_size: int, capacity: int, like: Tensor) -> KVCache:
    """An empty cache for a batch; `like` has the device and dtype of keys. Raises ValueError for an unknown kind."""
    if kind == "static":
        return StaticCache(config, batch_size, capacity, like.device, like.dtype)
    if kind == "int8":
        return QuantisedCache(config)
    if kind not in CACHES:
        raise ValueError(f"cache ({kind!r}) is unknown: use {', '.join((*CACHES, *ROUNDED))}")
    return OffloadedCache(config) if kind == "offloaded" else KVCache(config)
