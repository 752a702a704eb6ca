"""The key-value cache: while decoding, keep the keys and values of every token that was read.

It grows in blocks, so that appending a token copies only that token. Layers with a sliding window
keep only the last window - 1 tokens. Other caches are in model/variants/caches.py.

Size: 2 * H_kv * D numbers per token and layer. With latent attention, latents
(B, 1, T, kv_lora_rank) take the place of keys, and the rotary part that of values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from model.config import ModelConfig


class KVCache:
    """The dynamic cache, and the interface of all caches. One cache serves one batch.

    config: its windows; without it every layer keeps every token.
    """

    has_room = False  # True if `update` also returns room for later tokens, for a mask to hide

    def __init__(self, config: ModelConfig | None = None, block_size: int = 256):
        self.block_size = block_size
        self.windows = config.windows if config is not None else []
        self.token_ids: Tensor | None = None  # (B, up to length): `generate` reads no token twice
        # layer -> its keys and values, each (B, heads, room, size), and the position in slot 0
        self.buffers: dict[int, list[Tensor]] = {}
        self.first: dict[int, int] = {}
        self._length: int | Tensor = 0

    @property
    def length(self) -> int:
        """Tokens read so far."""
        return int(self._length)

    @property
    def nbytes(self) -> int:
        """Bytes in use: 2 * B * H_kv * D * bytes per number, times the tokens of every layer."""
        total = 0
        for layer in self.buffers:
            for tensor in self._between(layer, self._kept_from(layer), self.length):
                total += tensor.nbytes
        return total

    def positions(self, count: int, device: torch.device) -> Tensor:
        """Return the places in the sequence of the next `count` tokens: (count,)."""
        return torch.arange(count, device=device) + self._length

    def key_positions(self, layer: int, count: int, device: torch.device) -> Tensor:
        """Return the places of the keys that `update` will return for `count` tokens: (S,)."""
        return torch.arange(self._kept_from(layer), self.length + count, device=device)

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append (B, H_kv, T, D); return the keys and values for the T queries (B, H_kv, S, D)."""
        keys, values = self._append(layer, k, v)
        return keys, values

    def advance(self, count: int) -> None:
        """Count `count` tokens as read, at the end of a forward pass, when all layers have them."""
        self._length += count

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens; none, if a window has dropped some of them."""
        for layer, window in enumerate(self.windows):
            if window is not None and self.first.get(layer, 0) > max(0, length - window + 1):
                length = 0
        self._length = max(0, min(self.length, length))
        if not self._length:
            self.buffers = {}
            self.first = {}
        if self.token_ids is not None:
            self.token_ids = self.token_ids[:, : self.length]

    def repeat_interleave(self, times: int) -> None:
        """Make `times` adjacent rows of every row: several continuations of one prompt."""
        for buffers in self.buffers.values():
            buffers[:] = [buffer.repeat_interleave(times, dim=0) for buffer in buffers]

    def _kept_from(self, layer: int) -> int:
        """Return the first position that a later query may see."""
        window = self.windows[layer] if self.windows else None
        return 0 if window is None else max(0, self.length - window + 1)

    def _between(self, layer: int, start: int, end: int) -> list[Tensor]:
        """Return positions start … end - 1 of every buffer of a layer, without a copy."""
        first = self.first[layer]
        return [buffer[:, :, start - first : end - first] for buffer in self.buffers[layer]]

    def _append(self, layer: int, *new: Tensor, pinned: bool = False) -> list[Tensor]:
        """Append T tokens to every buffer of a layer; return what their queries may see."""
        first = self._kept_from(layer)  # position of the first token that stays
        start = self.length
        end = start + new[0].shape[2]  # positions start … end - 1 are new
        room = self.buffers[layer][0].shape[2] if layer in self.buffers else 0  # in tokens
        # new memory if this is full, or far larger than its window, after a long prompt
        is_full = end - self.first.get(layer, 0) > room
        if is_full or room > end - first + 2 * self.block_size:
            earlier = self._between(layer, first, start) if room else []
            room = (end - first) // self.block_size * self.block_size + self.block_size
            self.buffers[layer] = [
                x.new_empty((*x.shape[:2], room, x.shape[3]), pin_memory=pinned) for x in new
            ]
            self.first[layer] = first
            targets = self._between(layer, first, start)
            for target, source in zip(targets, earlier, strict=bool(earlier)):
                target.copy_(source)
        for target, source in zip(self._between(layer, start, end), new, strict=True):
            target.copy_(source)
        return self._between(layer, first, end)
