"""Other key-value caches, by the names that `generate(kv_cache=...)` takes:

    dynamic     the plain cache of model/kv_cache.py
    static      room for `capacity` tokens from the start: shapes never change, for torch.compile
    offloaded   layers wait in the CPU's memory and come to the GPU when they are used
    int8        the dynamic cache, rounded to 8 bits a number

A server needs another one, because its sequences come and go: model/variants/paged_cache.py.
"""

import torch
from torch import Tensor

from model.config import ModelConfig
from model.kv_cache import KVCache
from model.transformer import LanguageModel

# These do not change a number; int8 rounds.
CACHES = ("dynamic", "static", "offloaded")
# A static cache has room for a multiple of this, so that similar calls share compiled code.
STATIC_BLOCK = 64


class OffloadedCache(KVCache):
    """Layers in (pinned) CPU memory; the GPU holds the layer that computes.

    Every token waits for the copies: a GPU reads its own memory a hundred times as fast.
    """

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        # note: k.cpu() waits for the GPU, so no earlier copy still reads the memory written here
        visible, _ = self._append(layer, k.cpu(), v.cpu(), pinned=k.is_cuda)
        count = visible.shape[2]
        start = self._kept_from(layer) - self.first[layer]
        # copy whole buffers to the GPU, because only those are contiguous
        keys, values = (buffer.to(k.device, non_blocking=True) for buffer in self.buffers[layer])
        return keys[:, :, start : start + count], values[:, :, start : start + count]


class QuantisedCache(KVCache):
    """The dynamic cache with 8 bits a number, and one scale for each token and head.

        scale = largest |number| / 127    stored = round(number / scale)    read = stored * scale

    With 2 bits: KIVI, Liu et al. 2024 (arXiv 2402.02750).
    """

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        # new tokens are rounded too, so numbers do not depend on how many are read at a time
        tensors = self._append(layer, *quantise(k), *quantise(v))
        keys, key_scales, values, value_scales = tensors
        # every number becomes a float again for every token: this saves bytes, not time
        return keys * key_scales, values * value_scales


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x (B, heads, T, D) as int8, and its scales (B, heads, T, 1) in the dtype of x."""
    scale = x.abs().amax(dim=-1, keepdim=True) / 127  # (B, heads, T, 1)
    smallest = torch.finfo(x.dtype).tiny
    rounded = (x / scale.clamp(min=smallest)).round().clamp(-127, 127)
    return rounded.to(torch.int8), scale


class StaticCache(KVCache):
    """Room for `capacity` tokens in every layer. The length is a tensor, so nothing recompiles."""

    def __init__(
        self,
        config: ModelConfig,
        batch_size: int,
        capacity: int,
        device: torch.device | str,
        dtype: torch.dtype,
    ):
        if any(config.is_linear):
            raise ValueError(
                "linear_attention needs no room for later tokens: use kv_cache=dynamic"
            )
        super().__init__()  # without windows: all layers have full room, and masks hide the rest
        self.capacity = capacity
        for layer in range(config.num_hidden_layers):
            self.buffers[layer] = [
                torch.zeros((batch_size, heads, capacity, size), device=device, dtype=dtype)
                for heads, size in config.cache_shapes
            ]
        self._length = torch.zeros((), dtype=torch.long, device=device)
        self.repeat_interleave(1)  # marks the buffers

    def repeat_interleave(self, times: int) -> None:
        super().repeat_interleave(times)
        # these tensors keep their addresses, so a CUDA graph need not copy them
        torch._dynamo.mark_static_address(self._length)
        for buffers in self.buffers.values():
            for buffer in buffers:
                torch._dynamo.mark_static_address(buffer)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole room, filled or not."""
        keys, values = self.buffers[0]
        return len(self.buffers) * (keys.nbytes + values.nbytes)

    def positions(self, count: int, device: torch.device) -> Tensor:
        if not torch.compiler.is_compiling() and self.length + count > self.capacity:
            raise ValueError(
                f"the static cache has room for {self.capacity} tokens, and {self.length} + "
                f"{count} are needed: make it with a larger capacity"
            )
        return super().positions(count, device)

    def key_positions(self, layer: int, count: int, device: torch.device) -> Tensor:
        return torch.arange(self.capacity if self.has_room else count, device=device)

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.buffers[layer]  # (B, heads, capacity, size)
        k = k.to(keys.dtype)  # under autocast they may differ
        v = v.to(values.dtype)
        positions = super().positions(k.shape[2], k.device)
        # at an index that is a tensor: slices would compile anew for each length
        keys.index_copy_(2, positions, k)
        values.index_copy_(2, positions, v)
        return (keys, values) if self.has_room else (k, v)

    def advance(self, count: int) -> None:
        super().advance(count)
        self.has_room = True  # the first tokens are computed as without a cache

    def crop(self, length: int) -> None:
        torch.as_tensor(self._length).clamp_(max=max(0, length))
        self.has_room = self.length > 0
        if self.token_ids is not None:
            self.token_ids = self.token_ids[:, : self.length]


def make_cache(
    kind: str, config: ModelConfig, batch_size: int, capacity: int, like: Tensor
) -> KVCache:
    """Return an empty cache with the device and dtype of `like`. Raises ValueError."""
    growing = {"dynamic": KVCache, "offloaded": OffloadedCache, "int8": QuantisedCache}
    if kind in growing:
        return growing[kind](config)
    if kind != "static":
        raise ValueError(f"cache ({kind!r}) is unknown: use dynamic, static, offloaded or int8")
    return StaticCache(config, batch_size, capacity, like.device, like.dtype)


def cache_for(
    lm: LanguageModel,
    input_ids: Tensor,
    width: int,
    attention_mask: Tensor | None,
    kv_cache: KVCache | str | None,
) -> KVCache | None:
    """Make a cache, or cut the given one back to the tokens that these prompts begin with.

    width: the number of tokens at the end.
    """
    if kv_cache is None:
        return None
    if isinstance(kv_cache, str):
        rounded_up = -(-width // STATIC_BLOCK) * STATIC_BLOCK
        capacity = min(rounded_up, lm.config.max_position_embeddings)
        weight = next(lm.parameters())
        return make_cache(kv_cache, lm.config, len(input_ids), capacity, weight)
    cached = kv_cache.token_ids
    length = 0
    if cached is not None and attention_mask is None and len(cached) == len(input_ids):
        # at least one token is read, for its logits
        longest = min(cached.shape[1], input_ids.shape[1] - 1)
        is_same = (cached[:, :longest] == input_ids[:, :longest]).all(dim=0)
        length = int(is_same.long().cumprod(dim=0).sum())
    kv_cache.crop(length)
    return kv_cache
