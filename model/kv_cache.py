"""The key-value cache: while decoding, keep the keys and values of every token that was read.

It grows in blocks, so that appending a token copies only that token. In layers with a sliding window only the last
window - 1 tokens stay. Other ways to keep them are in model/variants/caches.py.

Size: 2 * H_kv * D numbers per token and layer. With latent attention, latents (B, 1, T, kv_lora_rank) take the place of
keys, and the rotary part that of values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from model.config import ModelConfig


class KVCache:
    """The dynamic cache, and the interface of all. One cache serves one batch.

    config: which layers have a sliding window, and so forget; without it every layer keeps every token.
    """

    has_room = False  # whether `update` also returns room for tokens that are still to come, which a mask must hide

    def __init__(self, config: ModelConfig | None = None, block_size: int = 256):
        self.block_size = block_size
        self.windows = config.windows if config is not None else []
        self.token_ids: Tensor | None = None  # (B, up to length): what `generate` read first, to be used again
        # of each layer: keys and values, or what stands for them, (B, heads, room, size); and the position in slot 0
        self.buffers: dict[int, list[Tensor]] = {}
        self.first: dict[int, int] = {}
        self._length: int | Tensor = 0

    @property
    def length(self) -> int:
        """Tokens read so far."""
        return int(self._length)

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept: 2 * B * H_kv * D * bytes per number, times the tokens of every layer."""
        return sum(x.nbytes for i in self.buffers for x in self._between(i, self._kept_from(i), self.length))

    def positions(self, count: int, device: torch.device) -> Tensor:
        """Places in the sequence of the next `count` tokens: (count,)."""
        return torch.arange(count, device=device) + self._length

    def key_positions(self, layer: int, count: int, device: torch.device) -> Tensor:
        """Places of the keys that `update` will return for the next `count` tokens: (S,)."""
        return torch.arange(self._kept_from(layer), self.length + count, device=device)

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append k and v (B, H_kv, T, D); returns what the T queries may see (B, H_kv, S, D). See `advance`."""
        keys, values = self._append(layer, k, v)
        return keys, values

    def advance(self, count: int) -> None:
        """Every layer has read `count` tokens. LanguageModel calls this at the end of a forward pass."""
        self._length += count

    def crop(self, length: int) -> None:
        """Forget every token after the first `length`; all of them where a window has forgotten what it would see."""
        windows = ((self.first.get(layer, 0), window) for layer, window in enumerate(self.windows))
        if any(window is not None and first > max(0, length - window + 1) for first, window in windows):
            length = 0
        self._length = max(0, min(self.length, length))
        if not self._length:
            self.buffers, self.first = {}, {}
        self.token_ids = None if self.token_ids is None else self.token_ids[:, : self.length]

    def repeat_interleave(self, times: int) -> None:
        """Every row becomes `times` rows, next to each other: several continuations of one prompt."""
        for buffers in self.buffers.values():
            buffers[:] = [buffer.repeat_interleave(times, dim=0) for buffer in buffers]

    def _kept_from(self, layer: int) -> int:
        """The first position that a query to come may still see."""
        window = self.windows[layer] if self.windows else None
        return 0 if window is None else max(0, self.length - window + 1)

    def _between(self, layer: int, start: int, end: int) -> list[Tensor]:
        """Positions start … end - 1 of every buffer of a layer, without a copy."""
        first = self.first[layer]
        return [buffer[:, :, start - first : end - first] for buffer in self.buffers[layer]]

    def _append(self, layer: int, *new: Tensor, pinned: bool = False) -> list[Tensor]:
        """Write T tokens behind those of every buffer of a layer; returns what their queries may see of each."""
        first, start, end = self._kept_from(layer), self.length, self.length + new[0].shape[2]
        room = self.buffers[layer][0].shape[2] if layer in self.buffers else 0
        # new memory if this is full, or far larger than its window since a long prompt was read
        if end - self.first.get(layer, 0) > room or room > end - first + 2 * self.block_size:
            earlier = self._between(layer, first, start) if room else []
            room = (end - first) // self.block_size * self.block_size + self.block_size
            self.buffers[layer] = [x.new_empty((*x.shape[:2], room, x.shape[3]), pin_memory=pinned) for x in new]
            self.first[layer] = first
            for target, source in zip(self._between(layer, first, start), earlier, strict=bool(earlier)):
                target.copy_(source)
        for target, source in zip(self._between(layer, start, end), new, strict=True):
            target.copy_(source)
        return self._between(layer, first, end)
