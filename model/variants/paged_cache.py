"""A key-value cache in pages: many sequences share one memory, and sequences that begin alike share its pages.

A row of the dynamic cache (kv_cache.py) grows in one piece, and all rows of a batch begin and end together. A server
has sequences that come and go. So the memory is cut into blocks of `block_size` tokens, in every layer alike, and a
sequence has a *table*: the numbers of the blocks that hold its tokens, in order (Kwon et al. 2023, arXiv 2309.06180).

    memory     | 0 | 1 | 2 | 3 | 4 | 5 | …        a block: keys and values of 4 tokens, in every layer
    table of "the fox saw a red ball by the"      2, 0        (4 + 4 tokens)
    table of "the fox saw a blue kite"            2, 5        (4 + 2 tokens): block 2 is there once, for both

A block that is full never changes, so it may be shared: it is known by the tokens from the beginning up to its end.
When the last sequence that uses a block ends, the block is free at once. Its content stays until the memory is needed.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from model.config import ModelConfig
from model.kv_cache import KVCache


class OutOfBlocks(RuntimeError):
    """The memory has no room for what was asked for; nothing was taken."""


@dataclass
class Table:
    """One sequence."""

    token_ids: list[int]  # that were read or are about to be
    blocks: list[int]
    slots: Tensor  # where each of its tokens is, or will be, in the memory of a layer: as many as its blocks hold
    length: int = 0  # tokens that were read
    keys: list[bytes] = field(default_factory=list)  # of its blocks that are full
    apart: bytes = b""  # blocks are shared among tables with the same mark only


class PagedCache:
    """Keys and values of many sequences. `begin` one, read some of them in a `PagedView`, `free` each at its end.

    blocks: of the memory; block_size: tokens of each; like: a tensor of the device and dtype of the model's keys.
    """

    def __init__(self, config: ModelConfig, blocks: int, like: Tensor, block_size: int = 16):
        self.block_size = block_size
        self.layers = [
            [like.new_zeros(blocks * block_size, heads, size) for heads, size in config.cache_shapes]
            for _ in range(config.num_hidden_layers)
        ]
        self.users = [0] * blocks  # sequences that hold each block
        self.known: dict[bytes, int] = {}  # digest of all tokens up to its end -> full block
        self.unused: OrderedDict[int, bytes | None] = OrderedDict.fromkeys(range(blocks))

    @property
    def free_blocks(self) -> int:
        """Blocks that no sequence uses."""
        return len(self.unused)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that this many tokens fill, the last one perhaps in part."""
        return -(-tokens // self.block_size)

    def begin(self, token_ids: Sequence[int], room: int, share: bool = True, apart: bytes = b"") -> Table:
        """A table with blocks for `room` tokens; whole blocks of its beginning that are known are shared, not read.
        At least one token is left to read, for its logits; share=False: all are, for those of all. apart: only tables
        with the same mark share blocks. Raises OutOfBlocks, and then nothing was taken."""
        keys: list[bytes] = []  # of the whole blocks that are known, but for one that would leave nothing to read
        while share and (len(keys) + 1) * self.block_size < len(token_ids):
            if (key := self._key(keys, token_ids, apart)) not in self.known:
                break
            keys.append(key)
        blocks = [self.known[key] for key in keys]
        needed = self.blocks_for(room) - len(blocks)
        if needed > len(self.unused) - sum(block in self.unused for block in blocks):
            raise OutOfBlocks(f"{needed} blocks are needed, and {len(self.unused)} are free")
        for block in blocks:
            self.unused.pop(block, None)
        for _ in range(needed):
            block, forgotten = self.unused.popitem(last=False)  # the one that is unused for longest
            self.known.pop(forgotten or b"", None)
            blocks.append(block)
        for block in blocks:
            self.users[block] += 1
        size, device = self.block_size, self.layers[0][0].device
        slots = torch.tensor(blocks, device=device)[:, None] * size + torch.arange(size, device=device)
        return Table(list(token_ids), blocks, slots.flatten(), len(keys) * size, keys, apart)

    def free(self, table: Table) -> None:
        """The sequence ends. Its blocks are free at once; full ones can still be shared until they are taken."""
        pairs = list(zip_longest(table.blocks, table.keys))
        for block, key in reversed(pairs):  # the beginning is worth most: taken last
            self.users[block] -= 1
            if not self.users[block]:
                is_known = key is not None and self.known.get(key) == block
                self.unused[block] = key if is_known else None
                self.unused.move_to_end(block, last=is_known)
        table.blocks, table.keys, table.length = [], [], 0

    def read(self, table: Table, count: int) -> None:
        """`count` more tokens of a sequence are in its blocks: those that are full now may be shared."""
        table.length += count
        while len(table.keys) < table.length // self.block_size:
            key = self._key(table.keys, table.token_ids, table.apart)
            self.known.setdefault(key, table.blocks[len(table.keys)])
            table.keys.append(key)

    def _key(self, before: list[bytes], token_ids: Sequence[int], apart: bytes) -> bytes:
        """What the block behind those with the keys `before` is known by: a digest of all tokens up to its end."""
        start = len(before) * self.block_size
        tokens = array("q", token_ids[start : start + self.block_size])
        return hashlib.sha256((before[-1] if before else apart) + tokens.tobytes()).digest()


class PagedView(KVCache):
    """Some sequences as the rows of one forward pass, which reads the next `count` tokens of each. Their tokens stand
    at the right, as if padded on the left.

    attention_mask (B, S): which columns are tokens of the row; None where all are. position_ids (B, count): of the
    tokens to be read. Give both to the model, with the view as kv_cache, then tell the cache what was read.
    """

    def __init__(self, cache: PagedCache, tables: Sequence[Table], count: int):
        super().__init__()  # without windows: blocks are kept whole, and a window is the mask's business
        self.memory = cache.layers
        self._length = max(table.length for table in tables)
        rows = [table.slots[: table.length + count] for table in tables]
        self.seen = pad_sequence(rows, batch_first=True, padding_side="left")  # (B, S)
        self.written = self.seen[:, -count:]
        device, width = self.seen.device, self.seen.shape[1]
        lengths = torch.tensor([table.length for table in tables], device=device)[:, None]
        self.position_ids = lengths + torch.arange(count, device=device)
        mask = torch.arange(width, device=device) >= self._length - lengths
        self.attention_mask = mask if width > min(map(len, rows)) else None

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k and v (B, heads, count, D) into the blocks; returns what every row holds (B, heads, S, D)."""
        keys, values = self.memory[layer]
        keys[self.written] = k.transpose(1, 2).to(keys.dtype)
        values[self.written] = v.transpose(1, 2).to(values.dtype)
        return keys[self.seen].transpose(1, 2), values[self.seen].transpose(1, 2)
