"""Key-value caches: while decoding, keep the keys and values of every token that was read.

Five ways to keep them, one interface (`KVCache`):

    dynamic     grows in blocks, so that appending a token copies only that token
    (windows)   the same, for layers with a sliding window: only the last window - 1 tokens stay
    static      room for `capacity` tokens from the start: shapes never change, for torch.compile and CUDA graphs
    offloaded   layers wait in the CPU's memory and come to the GPU one layer before they are used
    int8        the dynamic cache, rounded: model/decoding/quantised_cache.py

The mask asks a cache where its keys are (`key_positions`). Size: 2 * H_kv * D numbers per token and layer. Where
attention makes keys and values from a latent (model/latent_attention.py), the latents (B, 1, T, kv_lora_rank) stand in
the place of keys, and the rotary part (B, 1, T, qk_rope_head_dim) in that of values: their sum, per token and layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from model.config import ModelConfig


@dataclass
class _Layer:
    """Keys and values of one layer (B, H_kv, room, D); slot 0 holds position `first`."""

    keys: Tensor
    values: Tensor
    first: int


class KVCache:
    """The dynamic cache, and the interface of all. One cache serves one batch.

    config: which layers have a sliding window, and so forget; without it every layer keeps every token.
    """

    def __init__(self, config: ModelConfig | None = None, block_size: int = 256):
        self.block_size = block_size
        self.windows = config.windows if config is not None else []
        self.token_ids: Tensor | None = None  # (B, up to length): what `generate` read first, to be used again
        self._layers: dict[int, _Layer] = {}
        self._length = 0

    @property
    def length(self) -> int:
        """Tokens read so far."""
        return self._length

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept: 2 * B * H_kv * D * bytes per number, times the tokens of every layer."""
        return sum(
            kept[:, :, : self.length - self._kept_from(i)].numel() * kept.element_size()
            for i, layer in self._layers.items()
            for kept in (layer.keys, layer.values)
        )

    def window(self, layer: int) -> int | None:
        """Tokens that a layer sees, itself included; None = all."""
        return self.windows[layer] if layer < len(self.windows) else None

    def _kept_from(self, layer: int) -> int:
        """The first position that a query to come may still see."""
        window = self.window(layer)
        return 0 if window is None else max(0, self._length - window + 1)

    def positions(self, count: int, device: torch.device) -> Tensor:
        """Places in the sequence of the next `count` tokens: (count,)."""
        return torch.arange(self._length, self._length + count, device=device)

    def key_positions(self, layer: int, count: int, device: torch.device) -> Tensor:
        """Places of the keys that `update` will return for the next `count` tokens: (S,)."""
        return torch.arange(self._kept_from(layer), self._length + count, device=device)

    def sees_all(self, layer: int, window: int | None, count: int) -> bool:
        """Whether causality alone hides keys of `update` from the next `count` queries: no window does."""
        start, end = self._kept_from(layer), self._length + count
        fits = window is None or end - start < window or (count == 1 and end - start <= window)
        return fits and (count == 1 or end - start == count)

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append k and v (B, H_kv, T, D); returns what the T queries may see (B, H_kv, S, D). See `advance`."""
        start, end, held = self._length, self._length + k.shape[2], self._layers.get(layer)
        first = self._kept_from(layer)
        room = held.keys.shape[2] if held is not None else 0
        # a new buffer if this one is full, or far larger than its window since a long prompt was read
        if held is None or end - held.first > room or room > end - first + 2 * self.block_size:
            held = self._layers[layer] = self._make_room(held, k, v, first, end)
        held.keys[:, :, start - held.first : end - held.first] = k
        held.values[:, :, start - held.first : end - held.first] = v
        visible = slice(first - held.first, end - held.first)
        return held.keys[:, :, visible], held.values[:, :, visible]

    def _make_room(self, old: _Layer | None, k: Tensor, v: Tensor, first: int, end: int) -> _Layer:
        """A new buffer with whole blocks for positions first … end, with a copy of what is still needed."""
        room = (end - first) // self.block_size * self.block_size + self.block_size
        keys, values = (x.new_empty(*x.shape[:2], room, x.shape[3]) for x in (k, v))
        new = _Layer(keys, values, first)
        if old is not None:
            kept = slice(first - old.first, self._length - old.first)
            new.keys[:, :, : self._length - first] = old.keys[:, :, kept]
            new.values[:, :, : self._length - first] = old.values[:, :, kept]
        return new

    def advance(self, count: int) -> None:
        """Every layer has read `count` tokens. LanguageModel calls this at the end of a forward pass."""
        self._length += count

    def crop(self, length: int) -> None:
        """Forget every token after the first `length`. Raises ValueError where a window has forgotten too much."""
        for i, layer in self._layers.items():
            window = self.window(i)
            if window is not None and layer.first > max(0, length - window + 1):
                raise ValueError(f"layer {i} keeps {window} tokens only and cannot go back to token {length}")
        self._length = max(0, min(self._length, length))
        if self.token_ids is not None:
            self.token_ids = self.token_ids[:, : self._length]

    def clear(self) -> None:
        """Forget everything."""
        self._layers, self._length, self.token_ids = {}, 0, None

    def repeat_interleave(self, times: int) -> None:
        """Every row becomes `times` rows, next to each other: several continuations of one prompt."""
        for layer in self._layers.values():
            layer.keys = layer.keys.repeat_interleave(times, dim=0)
            layer.values = layer.values.repeat_interleave(times, dim=0)


class OffloadedCache(KVCache):
    """Layers wait in (pinned) CPU memory; while one layer computes, the next is copied on a stream of its own.

    The GPU holds the layer that computes and one more. On a CPU it is the dynamic cache with an extra copy.
    """

    def __init__(self, config: ModelConfig, block_size: int = 256):
        super().__init__(config, block_size)
        self._layer_count = config.num_hidden_layers
        self._fetched: dict[int, tuple[Tensor, Tensor]] = {}
        self._stream: torch.cuda.Stream | None = None

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        held = self._layers.get(layer)
        if held is None:
            super().update(layer, k.cpu(), v.cpu())
            return k, v
        if layer not in self._fetched:
            self._fetch(layer, k.device)
        if self._stream is not None:
            torch.cuda.current_stream(k.device).wait_stream(self._stream)
        past_k, past_v = self._fetched.pop(layer)
        kept = slice(self._kept_from(layer) - held.first, self._length - held.first)
        keys, values = torch.cat((past_k[:, :, kept], k), dim=2), torch.cat((past_v[:, :, kept], v), dim=2)
        if self._stream is not None:  # the copy must not be overwritten before the two lines above have read it
            past_k.record_stream(torch.cuda.current_stream(k.device))
            past_v.record_stream(torch.cuda.current_stream(k.device))
        if self._layer_count > 1:  # the copy runs while this layer computes
            self._fetch((layer + 1) % self._layer_count, k.device)
        super().update(layer, k.cpu(), v.cpu())
        return keys, values

    def _fetch(self, layer: int, device: torch.device) -> None:
        """Start to copy a layer to the device: whole buffers, because only those are contiguous."""
        if layer not in self._layers:
            return
        held = self._layers[layer]
        if device.type != "cuda":
            self._fetched[layer] = held.keys.to(device), held.values.to(device)
            return
        self._stream = self._stream or torch.cuda.Stream(device)
        with torch.cuda.stream(self._stream):
            self._fetched[layer] = (
                held.keys.to(device, non_blocking=True),
                held.values.to(device, non_blocking=True),
            )

    def _make_room(self, old: _Layer | None, k: Tensor, v: Tensor, first: int, end: int) -> _Layer:
        new = super()._make_room(old, k, v, first, end)
        if torch.cuda.is_available():
            new.keys, new.values = new.keys.pin_memory(), new.values.pin_memory()
        return new

    def crop(self, length: int) -> None:
        self._fetched.clear()
        super().crop(length)

    def clear(self) -> None:
        self._fetched.clear()
        super().clear()

    def repeat_interleave(self, times: int) -> None:
        self._fetched.clear()
        super().repeat_interleave(times)


class StaticCache(KVCache):
    """Room for `capacity` tokens in every layer from the start; the length is a tensor, so nothing recompiles.

    Layers with a sliding window have full room too; the mask keeps their window. Raises ValueError when full.
    """

    def __init__(
        self, config: ModelConfig, batch_size: int, capacity: int, device: torch.device | str, dtype: torch.dtype
    ):
        super().__init__(config)
        if capacity < 1:
            raise ValueError(f"capacity ({capacity}) must be 1 token or more")
        self.capacity = capacity
        self.is_new = True
        self.keys, self.values = (
            [
                torch.zeros(batch_size, heads, capacity, size, device=device, dtype=dtype)
                for _ in range(config.num_hidden_layers)
            ]
            for heads, size in config.cache_shapes
        )
        self._position = torch.zeros((), dtype=torch.long, device=device)
        self._stay_in_place()

    def _stay_in_place(self) -> None:
        """Tell the compiler that these tensors keep their addresses, so that a CUDA graph need not copy them."""
        for tensor in (*self.keys, *self.values, self._position):
            torch._dynamo.mark_static_address(tensor)

    @property
    def length(self) -> int:
        return int(self._position)

    @property
    def batch_size(self) -> int:
        """Rows of the one batch that it has room for."""
        return len(self.keys[0])

    @property
    def nbytes(self) -> int:
        """Bytes of the whole room, filled or not."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))

    def positions(self, count: int, device: torch.device) -> Tensor:
        if not torch.compiler.is_compiling() and self.length + count > self.capacity:
            raise ValueError(
                f"the static cache has room for {self.capacity} tokens, and {self.length} + {count} are needed: "
                "make it with a larger capacity"
            )
        return torch.arange(count, device=device) + self._position

    def key_positions(self, layer: int, count: int, device: torch.device) -> Tensor:
        return torch.arange(count if self.is_new else self.capacity, device=device)

    def sees_all(self, layer: int, window: int | None, count: int) -> bool:
        return self.is_new and (window is None or count < window)

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k, v = k.to(self.keys[layer].dtype), v.to(self.values[layer].dtype)  # under autocast they may differ
        positions = torch.arange(k.shape[2], device=k.device) + self._position
        self.keys[layer].index_copy_(2, positions, k)
        self.values[layer].index_copy_(2, positions, v)
        return (k, v) if self.is_new else (self.keys[layer], self.values[layer])

    def advance(self, count: int) -> None:
        self._position += count
        self.is_new = False

    def crop(self, length: int) -> None:
        self._position.clamp_(max=max(0, length))
        self.is_new = self.length == 0
        if self.token_ids is not None:
            self.token_ids = self.token_ids[:, : self.length]

    def clear(self) -> None:
        self.crop(0)

    def repeat_interleave(self, times: int) -> None:
        self.keys = [t.repeat_interleave(times, dim=0) for t in self.keys]
        self.values = [t.repeat_interleave(times, dim=0) for t in self.values]
        self._stay_in_place()
