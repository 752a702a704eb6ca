"""The key-value cache: while decoding, keep the keys and values of every token that was read.

It grows in blocks, so that appending a token copies only that token. Layers with a sliding window
keep only the last window - 1 tokens. Size: 2 * H_kv * D numbers per token and layer. With latent
attention, latents (B, 1, T, kv_lora_rank) are the keys, and the rotary part the values.
"""

import torch
from torch import Tensor

from model.config import ModelConfig


class KVCache:
    """The dynamic cache, and the interface of all caches. One cache serves one batch."""

    # True if `update` also returns room for later tokens, for a mask to hide
    has_room = False

    def __init__(self, config: ModelConfig | None = None, block_size: int = 256):
        self.block_size = block_size
        # by layer; without a config every layer keeps every token
        self.windows = config.windows if config is not None else []
        # (B, up to length): the tokens that `generate` need not read again
        self.token_ids: Tensor | None = None
        # layer -> its keys and values, each (B, heads, room, size), and the position in slot 0
        self.buffers: dict[int, list[Tensor]] = {}
        self.first: dict[int, int] = {}
        # layer of linear attention -> what it keeps of all tokens, each (B, …)
        self.states: dict[int, tuple[Tensor, ...]] = {}
        # a tensor in StaticCache, which torch.compile must not take for a constant
        self._length: int | Tensor = 0

    @property
    def length(self) -> int:
        """Tokens read so far."""
        return int(self._length)

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        total = 0
        for layer in self.buffers:
            for tensor in self._between(layer, self._kept_from(layer), self.length):
                total += tensor.nbytes
        for state in self.states.values():
            total += sum(tensor.nbytes for tensor in state)
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
        # the next token needs the window - 1 before it in every layer
        for layer, window in enumerate(self.windows):
            if window is not None and self.first.get(layer, 0) > max(0, length - window + 1):
                length = 0
        if self.states and length < self.length:  # such a state cannot go back
            length = 0
        # nothing is moved: later tokens are written over the rest
        self._length = max(0, min(self.length, length))
        if not self._length:
            self.buffers = {}
            self.first = {}
            self.states = {}
        if self.token_ids is not None:
            self.token_ids = self.token_ids[:, : self.length]

    def repeat_interleave(self, times: int) -> None:
        """Make `times` adjacent rows of every row: several continuations of one prompt."""
        for buffers in self.buffers.values():
            buffers[:] = [buffer.repeat_interleave(times, dim=0) for buffer in buffers]
        for layer, state in self.states.items():
            self.states[layer] = tuple(x.repeat_interleave(times, dim=0) for x in state)

    def _kept_from(self, layer: int) -> int:
        """Return the first position that a later query may see."""
        # the window includes the query itself
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
        # new memory if this is full, or (after a long prompt) far larger than its window
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
